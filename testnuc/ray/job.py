"""Classification of a Ray `Dataset`."""

from __future__ import annotations

import asyncio
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from testnuc import methods
from testnuc._base.checks import checked_whole, needing
from testnuc._engine.reporting import few_neighbors, few_predictions
from testnuc.client import TestNUC
from testnuc.errors import ConfigurationError, InvalidInputError
from testnuc.labels import LabelSet
from testnuc.limits.budget import Meter
from testnuc.limits.policies import Limits
from testnuc.methods import Sampling
from testnuc.protocols import Embedder, Method, Provider, WireProvider
from testnuc.ray.stages import PATIENCE, Embed, Labeler, Predict, Vote, columns_of, hash_texts
from testnuc.ray.workers import Settings, Shard, Voting, stored_learned
from testnuc.trust.diagnosis import Diagnosis
from testnuc.trust.learned import Learned
from testnuc.types import Usage
from testnuc.voting import VotePolicy

if TYPE_CHECKING:
    import ray.data

#: Approximate bytes of distinct texts in a block.
_BLOCK_BYTES = 64 << 20
#: Arguments of `TestNUC` that a job does not support, and why.
_REFUSED = {
    "join_pool": "all texts of the dataset are each other's neighbors",
    "neighbors": "all texts of the dataset are asked about",
    "referee": "let a client of the same store learn from it; a job applies what was learned",
    "labeler": "the LLM labels all texts; LabelByHead is a stage without an LLM",
}
#: CPUs reserved by an actor, if there are enough: waiting for a provider needs little.
_CPUS = {"embed": 1.0, "predict": 0.25}
_SHARD = {"num_cpus": 0, "max_concurrency": 1_000, "scheduling_strategy": "SPREAD"}
#: The actor that calls the LLM: another process takes over from a dead one.
_LABELER = {**_SHARD, "max_restarts": 3, "max_task_retries": 3}


@dataclass(frozen=True, slots=True)
class Labeled:
    """A labeled dataset, and its usage."""

    #: The given rows with the columns of the vote: ``label``, ``share``, ``margin``, ``voters``,
    #: ``trust``, ``own_label``, ``own_confidence``, ``error``, ``reason``, ``source``,
    #: ``alternative``, ``trust_of_alternative``; with several labels ``labels`` and ``trusts``, of
    #: labels in a tree ``path`` and ``path_trusts``, a list in each row.
    #: Votes are computed when it is read; it keeps the pool alive.
    dataset: ray.data.Dataset
    #: Distinct texts.
    texts: int
    #: Of all workers.
    usage: Usage
    #: With policy "auto".
    diagnosis: Diagnosis | None
    #: What was learned from judged texts, as text, if the store holds it.
    learned: str | None = None


def classify_dataset(
    dataset: ray.data.Dataset,
    labels: Sequence[str] | Mapping[str, Any] | LabelSet,
    model: str | Provider | WireProvider = "openai/gpt-4o-mini",
    *,
    column: str = "text",
    prefix: str = "",
    embedder: str | Embedder = "sentence-transformers/all-MiniLM-L6-v2",
    store: str | os.PathLike[str] | None = None,
    policy: str | VotePolicy = "auto",
    method: Method | None = None,
    limits: Limits | None = None,
    embed_actors: int = 1,
    predict_actors: int = 2,
    vote_actors: int = 1,
    shards: int = 1,
    batch_size: int = 1_024,
    embed_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Labeled:
    """Label the texts of a Ray dataset; the dataset is the unlabeled data: its texts vote.

    Equivalent to `TestNUC.classify_many` with one list of all its texts. The labels are identical
    if the search is exact (below 5,000 texts in each shard).

    Parameters
    ----------
    dataset : ray.data.Dataset
        Read twice; call ``materialize()`` before if it may return different texts.
    labels, model, embedder, policy, method
        As for `TestNUC`; objects are copied to the actors. Few-shot methods are not supported.
    column : str
        The column with the texts.
    prefix : str
        Prefix of the added columns.
    store : str or path, optional
        Stores predictions and embeddings, so that an interrupted job can resume:
        ``"postgresql://.."``; on a cluster of one machine, a path (SQLite).
    limits : Limits, optional
        Of the whole job.
    embed_actors, vote_actors : int
        Actors of each stage.
    predict_actors : int
        Batches that are predicted at a time, by one client within the `limits`.
    shards : int
        Actors with the pool, whose vectors must fit into their memory.
    batch_size : int
        Texts per batch of a stage.
    embed_options : mapping, optional
        Resources of embedding actors, as for ``map_batches``: ``{"num_gpus": 1}``.
    **settings
        Other arguments of `TestNUC`.

    Returns
    -------
    Labeled
        All predictions are made; votes are computed when its ``dataset`` is read.

    Raises
    ------
    InvalidInputError
        Invalid argument or text; nothing was sent.
    ProviderError
        No call can succeed: wrong API key, unknown model.
    MissingDependencyError
        Ray Data is not installed.
    """
    with needing("testnuc.ray needs Ray: pip install 'testnuc[ray]'"):
        import ray
        import ray.data
        from ray.data.aggregate import Min
    client = {
        "labels": labels,
        "model": model,
        "embedder": embedder,
        "store": store,
        "policy": policy,
        "method": method,
        "limits": limits or Limits(),
        **settings,
    }
    stages = {"embed": embed_actors, "predict": predict_actors, "vote": vote_actors}
    given = {f"{name}_actors": number for name, number in stages.items()}
    for name, number in {**given, "shards": shards, "batch_size": batch_size}.items():
        checked_whole(name, number, least=1)
    auto = _check(dataset, client, column, prefix)
    # all prompts of a job show all labels
    sampling = replace(client.get("sampling") or Sampling(), shortlist=None)
    job = Settings({**client, "sampling": sampling})
    labeler = ray.remote(Labeler).options(**_LABELER).remote(job)
    pool = [ray.remote(Shard).options(**_SHARD).remote() for _ in range(shards)]

    cpus = max(1.0, ray.cluster_resources().get("CPU", 1.0))
    shares = _shares(stages, cpus)

    def stage(kind: str, **more: Any) -> dict[str, Any]:
        return {
            "batch_format": "pyarrow",
            "batch_size": batch_size,
            "compute": ray.data.ActorPoolStrategy(size=stages[kind]),
            "num_cpus": shares[kind],
            **more,
        }

    failure: Exception | None = None
    try:
        texts = dataset.map_batches(
            hash_texts, batch_format="pyarrow", fn_kwargs={"column": column, "labeler": labeler}
        ).materialize()
        blocks = 2 * int(cpus)
        blocks = max(blocks, -(-texts.size_bytes() // _BLOCK_BYTES))
        # finished before the next stages start, whose actors would take its CPUs
        groups = texts.groupby("hash", num_partitions=blocks)
        once = groups.aggregate(Min("text", alias_name="text")).materialize()
        embedding = stage("embed", **(embed_options or {}))
        put = (
            once.map_batches(Embed, fn_constructor_args=(job, labeler), **embedding)
            .map_batches(Predict, fn_constructor_args=(labeler, pool), **stage("predict"))
            .materialize()
        )
        counts = put.take_all()
        number, dim = sum(row["texts"] for row in counts), counts[0]["dim"] if counts else 1
        usage = Meter.sum(row["usage"] for row in counts)
        ray.get(labeler.close.remote())
        diagnosis = _in_cluster(ray, 1, _diagnosed, job, pool, dim) if auto else None
        learned = None if store is None else _in_cluster(ray, 0, stored_learned, job)
    except Exception:
        for actor in pool:
            ray.kill(actor)
        failure = _failure(ray, labeler)
        if failure is None:
            raise
    finally:
        ray.kill(labeler)
    if failure is not None:
        # outside of the handler: Ray's error references its frames, and would keep the actors alive
        raise failure
    if learned is None:
        _warn(number, diagnosis, settings.get("k"))
    decision = None if diagnosis is None else diagnosis.decision
    arguments = (column, prefix, job, pool, dim, decision, learned)
    labeled = dataset.map_batches(Vote, fn_constructor_args=arguments, **stage("vote"))
    summary = None if learned is None else str(Learned.from_bytes(learned))
    return Labeled(labeled, number, usage, diagnosis, summary)


def _check(dataset: ray.data.Dataset, client: Mapping[str, Any], column: str, prefix: str) -> bool:
    """Validate the arguments, before anything starts; returns whether to diagnose."""
    from ray import nodes

    for name, why in _REFUSED.items():
        if name in client:
            raise InvalidInputError(f"{name} is not supported on Ray: {why}")
    store = client["store"]
    if store is not None and not isinstance(store, str) and not hasattr(store, "__fspath__"):
        raise InvalidInputError(
            f"store is {store!r}; every actor opens its own connection: use a path or postgresql://.."
        )
    # raise the errors of `TestNUC` here, not in an actor
    checked = TestNUC(**{**client, "store": None})
    if getattr(client["policy"], "prior", None) is not None:
        raise InvalidInputError(
            "a job on Ray does not support a prior: it would need the label shares of the whole "
            "dataset before the first vote"
        )
    method = methods.resolve(client["method"])
    if method.context:
        raise InvalidInputError(
            f"method is {method!r}, which uses few-shot examples: the pool of a job is complete "
            "only after all predictions; use a method without examples"
        )
    if store is not None and "://" not in str(store) and len(nodes()) > 1:
        raise ConfigurationError(
            f"store is the file {store}, and the cluster has {len(nodes())} machines; a SQLite "
            "file is for processes of one machine: use postgresql://.."
        )
    columns = dataset.columns() or []
    if columns and column not in columns:
        raise InvalidInputError(f"column is {column!r}; the dataset has {', '.join(columns)}")
    taken = [prefix + name for name in columns_of(checked.labels) if prefix + name in columns]
    if taken:
        raise InvalidInputError(
            f"the dataset already has a column {taken[0]!r}, which a job adds; set a prefix, such "
            "as prefix='testnuc_'"
        )
    shortlist = (client.get("sampling") or Sampling()).shortlist
    if shortlist not in {None, "auto"}:
        raise InvalidInputError(
            f"shortlist is {shortlist!r}, which is not supported on Ray: a job shows all labels in "
            "every prompt"
        )
    # "auto" keeps several labels as the LLM gives them: there is nothing to decide
    return checked.policy.weight == "auto" and not checked.labels.multilabel


def _shares(actors: Mapping[str, int], cpus: float) -> dict[str, float]:
    """Return the CPUs that an actor of each stage reserves.

    All actors of a pipeline run at once: with too few CPUs, one stage would wait forever for
    another. Reading and writing next to the vote needs one CPU.
    """
    wanted = sum(share * actors[kind] for kind, share in _CPUS.items())
    scale = min(1.0, 0.95 * cpus / wanted)
    shares = {kind: math.floor(1_000 * scale * share) / 1_000 for kind, share in _CPUS.items()}
    # half of the rest is spare: actors of earlier stages may end late
    vote = min(1.0, (cpus - 1) / 2 / actors["vote"])
    return {**shares, "vote": math.floor(1_000 * vote) / 1_000}


def _failure(ray: Any, labeler: Any, patience: float = PATIENCE) -> Exception | None:
    """Return why a job failed, if its labeler can still say it."""
    try:
        failure: Exception | None = ray.get(labeler.failure.remote(), timeout=patience)
    except ray.exceptions.RayError:
        # dead, or without an answer; `ray.get` takes no exception from a signal while it waits
        return None
    return failure


def _in_cluster(ray: Any, cpus: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """Await a coroutine function in the cluster, where the store is."""

    def run(*given: Any) -> Any:
        return asyncio.run(work(*given))

    return ray.get(ray.remote(run).options(num_cpus=cpus).remote(*arguments))


async def _diagnosed(job: Settings, pool: Sequence[Any], dim: int) -> Diagnosis | None:
    return await Voting(job, pool, dim).decide()


def _warn(texts: int, diagnosis: Diagnosis | None, k: int | None) -> None:
    warning = None
    if diagnosis is not None:
        warning = few_predictions(diagnosis.predictions)
    elif k is not None:
        warning = few_neighbors(k, texts, max(texts - 1, 0), stored=False)
    if warning is not None:
        warnings.warn(warning, stacklevel=3)
