"""A job on a local Ray of two CPUs; the starts of its processes take most of the time."""

from __future__ import annotations

import os
import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

import testnuc
from testnuc import Limits
from testnuc.ray import classify_dataset
from testnuc.ray.job import _failure, _shares
from testnuc.ray.stages import Labeler
from testnuc.ray.workers import Settings
from testnuc.testing import HashEmbedder, LoopbackLLM, by_hash
from tests.conftest import LABELS, confident, gold, messages
from tests.ray.mortal_provider import LAST, Choosy, Mortal

# what Ray and its dependencies warn about is not ours
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The minimum number of concurrent actors"),
]

TEXTS = messages(300) + messages(20)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    # not above: the import takes seconds, also of a run without these tests
    pytest.importorskip("ray")
    import ray.data

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ["RAY_DEDUP_LOGS"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # a few hundred rows in the 200 blocks of its default take a minute
    context.read_op_min_num_blocks = 3
    yield
    ray.shutdown()


def dataset_of(items, **more):
    import ray.data

    return ray.data.from_items(items, **more)


def dataset(texts=TEXTS):
    items = [{"id": i, "text": text} for i, text in enumerate(texts)]
    return dataset_of(items, override_num_blocks=3)


def rows_of(labeled):
    rows = sorted(labeled.dataset.take_all(), key=lambda row: row["id"])
    return [(r["label"], r["share"], r["margin"], r["voters"], r["error"] is None) for r in rows]


def settings(base_url, **more):
    return {
        "model": "openai/x",
        "base_url": base_url,
        "api_key": "k",
        "embedder": HashEmbedder(),
        "policy": "weighted",
        "k": 5,
        **more,
    }


def wrong_sometimes(text):
    """Answer rightly but for one text in six, and give no answer to one."""
    number = int(text.rpartition(" ")[2])
    if number == 7:
        return None
    label, confidence = confident(text)
    return (LABELS[0] if number % 6 == 0 else label), confidence


def test_a_job_means_what_one_process_means_within_one_rate_and_budget():
    # the server counts what exceeds it, as it would if each stage had a limit of its own
    limit, choosy = testnuc.Limits(requests_per_minute=4_000), {"embedder": Choosy(TEXTS[100])}
    limits = testnuc.Limits(4_000, budget=testnuc.Budget(calls=301))
    with LoopbackLLM(wrong_sometimes, rate_limit=limit) as llm:
        labeled = classify_dataset(
            dataset(),
            LABELS,
            **settings(llm.base_url, limits=limits, **choosy),
            shards=2,
            batch_size=64,
        )
        assert llm.violations == []
        assert labeled.texts == 300
        assert llm.requests == 300  # each distinct text once, the one that is refused as well
        assert labeled.usage.calls == llm.calls == 299
        assert labeled.usage.input_tokens == llm.input_tokens
        rows = rows_of(labeled)
        expected = one_process(llm.base_url, **choosy)
        assert rows == expected
        # the text that is refused, twice in the dataset, and the one that the embedder rejects
        assert [at for at, row in enumerate(rows) if not row[-1]] == [7, 100, 307]
        assert rows[100][0] == gold(TEXTS[100])


def one_process(base_url, **more):
    import asyncio

    async def run():
        async with testnuc.TestNUC(LABELS, **settings(base_url, **more)) as nuc:
            results = await nuc.classify_many(TEXTS)
        return [(r.label, r.share, r.margin, r.voters, r.error is None) for r in results]

    return asyncio.run(run())


def test_a_killed_actor_loses_nothing_and_auto_decides_as_one_process_does(tmp_path):
    provider = Mortal(tmp_path)
    # a policy "auto" with an option decides, too
    policy = testnuc.VotePolicy.auto(min_trust=0.0)
    more = {"model": provider, "api_key": None, "policy": policy, "k": None}
    given = settings(None, **more, limits=Limits(concurrency=8), store=str(tmp_path / "store.db"))
    labeled = classify_dataset(dataset(), LABELS, **given, batch_size=128)
    assert provider.killed.exists()
    asked = Counter(provider.asked.read_text().splitlines())
    assert set(asked) == set(TEXTS)
    # asked again is only what was in flight when the actor died
    assert asked.total() <= len(set(TEXTS)) + given["limits"].concurrency
    # a dead process cannot report the calls of its last batches
    assert 300 - LAST <= labeled.usage.calls <= 300
    assert labeled.diagnosis.predictions == 300
    assert rows_of(labeled) == one_process(None, **more)


async def test_under_a_budget_no_process_takes_over_from_a_dead_one():
    budget = Limits(budget=testnuc.Budget(calls=1))
    with LoopbackLLM(confident) as llm:
        for again, limits, fails in ((True, budget, True), (True, None, False)):
            job = Settings({"labels": LABELS, **settings(llm.base_url), "limits": limits})
            labeler = Labeler(job, again=again)
            entries = [testnuc.protocols.PoolText.of(TEXTS[0])]
            if fails:
                with pytest.raises(testnuc.TestNUCError, match="unknown; run the job again"):
                    await labeler.predict(entries, {})
                assert "has died" in str(await labeler.failure())
            else:
                [outcome], usage = await labeler.predict(entries, {})
                assert (outcome.label, usage[0]) == (gold(TEXTS[0]), 1)
            await labeler.close()


def test_a_job_applies_what_was_learned(tmp_path):
    import asyncio

    def wrong_often(text):
        label, number = gold(text), int(text.rpartition(" ")[2])
        return LABELS[(LABELS.index(label) + (number % 5 < 2)) % 3], 0.9

    with LoopbackLLM(wrong_often) as llm:
        given = settings(llm.base_url, policy="auto", k=None, store=str(tmp_path / "s.db"))

        async def learn():
            async with testnuc.TestNUC(LABELS, **given) as nuc:
                await nuc.classify_many(TEXTS)
                # against LLM and neighbors, and many that are right
                said = dict.fromkeys(TEXTS[:15:3], "login") | {t: gold(t) for t in TEXTS[60:180]}
                learned = await nuc.learn(list(said), list(said.values()))
                return said, learned, await nuc.classify_many(TEXTS)

        said, learned, expected = asyncio.run(learn())
        calls = llm.calls
        labeled = classify_dataset(dataset(), LABELS, **given, batch_size=128)
        assert labeled.learned == str(learned)
        rows = sorted(labeled.dataset.take_all(), key=lambda row: row["id"])
        assert llm.calls == calls
        assert [row["label"] for row in rows] == expected.labels
        assert [row["source"] for row in rows] == [r.source for r in expected]
        assert {row["source"] for row in rows} == {"person", "head"}
        assert all(r["label"] == said[r["text"]] for r in rows if r["source"] == "person")
        with pytest.raises(testnuc.InvalidInputError, match="referee is not supported on Ray"):
            classify_dataset(dataset(), LABELS, **given, referee="openai/better")


def several(text):
    """Return one or two labels, none for some."""
    number = int(text.rpartition(" ")[2])
    first = LABELS.index(gold(text))
    return {LABELS[(first + i) % len(LABELS)]: 0.9 for i in range(number % 3)}


def test_rows_hold_several_labels(tmp_path):
    import asyncio

    with LoopbackLLM(several) as llm:
        given = settings(llm.base_url, policy="auto", store=str(tmp_path / "s.db"))
        labels = testnuc.LabelSet(LABELS, multilabel=True)

        async def expected():
            async with testnuc.TestNUC(labels, **given) as nuc:
                await nuc.classify_many(TEXTS)
                await nuc.learn(TEXTS[:2], [["login"], []])
                return await nuc.classify_many(TEXTS), str(nuc.learned)

        results, learned = asyncio.run(expected())
        labeled = classify_dataset(dataset(), labels, **given, batch_size=128)
        assert (labeled.learned, labeled.diagnosis) == (learned, None)
        rows = sorted(labeled.dataset.take_all(), key=lambda row: row["id"])
        assert llm.calls == 300
    assert [list(row["labels"]) for row in rows] == results.label_lists
    assert [row["source"] for row in rows] == [r.source for r in results]
    assert [list(row["trusts"]) for row in rows] == [list(r.trusts.values()) for r in results]


def test_rows_hold_the_path_in_a_tree():
    labels = {"money": ["refund", "fees"], "parcel": None}

    def answer(text):
        return ("money > refund" if gold(text) == "refund" else "parcel"), 0.9

    with LoopbackLLM(answer) as llm:
        labeled = classify_dataset(dataset(), labels, **settings(llm.base_url))
        rows = labeled.dataset.take_all()
    assert {tuple(row["path"]) for row in rows} == {("money", "refund"), ("parcel",)}
    assert all(len(row["path_trusts"]) == len(row["path"]) for row in rows)
    assert all(" > ".join(row["path"]) == row["label"] for row in rows)


def test_a_wrong_key_stops_the_job_and_a_wrong_argument_starts_none():
    with (
        LoopbackLLM(confident, api_key="another") as llm,
        pytest.raises(testnuc.errors.AuthenticationError) as caught,
    ):
        classify_dataset(dataset(), LABELS, **settings(llm.base_url))
    assert "secret" not in str(caught.value)
    with LoopbackLLM(confident) as llm:
        fine = settings(llm.base_url)
        for wrong, message in (
            ({"column": "body"}, "the dataset has id, text"),
            ({"neighbors": "stored"}, "neighbors is not supported"),
            ({"store": object()}, "every actor opens its own"),
            ({"embedder": lambda: (yield)}, "embedder is"),
            ({"method": testnuc.TopKICL(k=3)}, "few-shot examples"),
            ({"k": -1}, "k is -1"),
            ({"shards": 0}, "shards is 0"),
        ):
            with pytest.raises(testnuc.InvalidInputError, match=message):
                classify_dataset(dataset(), LABELS, **{**fine, **wrong})
        taken = dataset_of([{"text": "a", "label": "b"}])
        with pytest.raises(testnuc.InvalidInputError, match="prefix"):
            classify_dataset(taken, LABELS, **fine)
        with pytest.raises(testnuc.InvalidInputError, match="column 'text' has the value ''"):
            classify_dataset(dataset(["a", ""]), LABELS, **fine)
        assert llm.requests == 0


def test_a_labeler_that_does_not_answer_hides_no_error():
    """Neither one that is dead nor one that hangs; `ray.get` would wait for ever."""
    import ray

    class Silent:
        async def failure(self):
            import asyncio

            await asyncio.Event().wait()

    class Dead:
        def failure(self):
            os._exit(1)

    for kind, options in ((Silent, {}), (Dead, {"max_restarts": 0})):
        labeler = ray.remote(kind).options(num_cpus=0, **options).remote()
        assert _failure(ray, labeler, patience=2) is None
        ray.kill(labeler)


def test_the_example_runs(capsys):
    example = Path(__file__).parents[2] / "examples" / "ray_dataset.py"
    runpy.run_path(str(example))["main"](180)
    out = capsys.readouterr().out
    assert "180 distinct texts, 180 calls" in out
    assert " -> " in out


def test_the_page_runs(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "ray.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    dataset_of([{"body": text} for text in TEXTS]).write_parquet(str(tmp_path / "in"))
    for theirs, ours in (
        ("s3://bucket/tickets/", str(tmp_path / "in")),
        ("s3://bucket/labeled/", str(tmp_path / "out")),
        ("postgresql://user@host/labels", str(tmp_path / "labels.db")),
        ("Budget(usd=50)", "Budget(calls=50_000)"),  # a server of one's own has no price
        ('column="body"', 'column="body", embedder=HashEmbedder()'),
    ):
        assert theirs in block
        block = block.replace(theirs, ours)
    with LoopbackLLM(by_hash(["refund", "delivery"])) as llm:
        monkeypatch.setenv("OPENAI_BASE_URL", llm.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        names = {"HashEmbedder": HashEmbedder}
        exec(
            block.replace('"openai/gpt-4o-mini",', f'"openai/m", base_url="{llm.base_url}",'), names
        )
        assert llm.calls == names["labeled"].usage.calls == 300
    import ray.data

    assert ray.data.read_parquet(str(tmp_path / "out")).count() == len(TEXTS)


@pytest.mark.parametrize("cpus", [1, 2, 3, 64])
@pytest.mark.parametrize("actors", [(1, 2, 1), (1, 4, 1), (2, 40, 4), (8, 1, 8)])
def test_all_actors_of_a_pipeline_fit_into_the_cluster_at_once(cpus, actors):
    embed, predict, vote = actors
    shares = _shares({"embed": embed, "predict": predict, "vote": vote}, cpus)
    assert embed * shares["embed"] + predict * shares["predict"] <= cpus
    assert vote * shares["vote"] + 1 <= cpus
    if cpus == 64:
        assert shares == {"embed": 1.0, "predict": 0.25, "vote": 1.0}
