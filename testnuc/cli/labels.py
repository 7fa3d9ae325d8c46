"""``testnuc discover`` and ``testnuc labels check``."""

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace

from testnuc._engine.parameters import client_arguments
from testnuc.cli.answered_texts import labeled, opened, texts_for
from testnuc.cli.files import free_name, require_new, write_results
from testnuc.cli.label_files import read_labels, write_labels
from testnuc.cli.memory import AnswerStore, RunNote
from testnuc.cli.options_of_run import command, next_command, with_embedder
from testnuc.cli.reading import read_input, to_stderr, usable
from testnuc.client import parts_of
from testnuc.discovery import KEYWORDS, MOST_TEXTS, discover, expected_cost
from testnuc.embedders.openai import OpenAIEmbedder
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.results import cost
from testnuc.types import Classification

#: Different answers outside the labels, at most, that are grouped by meaning.
_MOST_GROUPED = 1_000
#: Options that the next command repeats.
_REPEATED = ("model", "base_url", "embedder", "instructions")


async def check(given: SimpleNamespace) -> None:
    """Print what stands out in the labels of a file or a store, or merge labels."""
    source, output = given.source, given.output
    if (output is None) != (not given.merge):
        raise InvalidInputError("to merge labels, give --merge 'LABEL = OTHER' and -o, a file")
    file = None if output is None else str(Path(output).with_suffix(".labels.json"))
    for path in (output, file):
        require_new(path, overwrite=given.overwrite)
    async with opened(source, given.client, given.text_column) as (nuc, held):
        names, described = nuc.labels.names, nuc.labels.descriptions
        merged = _merges(given.merge, names)
        table = await texts_for(nuc, held, source, output)
        found = await labeled(nuc, table)
        if output is None:
            checked = found.results.check_labels(nuc.learned)
            embedder, said = parts_of(nuc).embedder, [*checked.outside][:_MOST_GROUPED]
            # spelling has to do without an embedder at hand that makes no call
            if said and not isinstance(embedder, OpenAIEmbedder):
                with suppress(TestNUCError):
                    checked = checked.grouped(await embedder.embed(said))
            print(checked)
    if output is None or file is None:
        merge = "--merge", "LABEL = OTHER", "-o", free_name("merged.csv")
        merging = next_command("labels check", given, *merge)
        to_stderr(f"to give texts with one label another one: {merging}")
        return
    labels = {name: described.get(name, "") for name in names if name not in merged}
    write_labels(file, labels)
    rows = found.merged()
    made = {at: _renamed(row, merged) for at, row in rows.items()}
    write_results(output, table, made, found.problems)
    # the next commands vote with the merged labels
    former: dict[str, list[str]] = {}
    for old, new in merged.items():
        former.setdefault(new, [new]).append(old)
    options = RunNote.of(source).options | given.client.given()
    options |= {"labels": labels, "former": former}
    store = AnswerStore.of_results(None, output)
    noted = (row for at, row in made.items() if at not in table.later)
    RunNote.write(output, store, table.text_column, options, noted)
    changed = sum(row.label != made[at].label for at, row in rows.items())
    to_stderr(
        f"{len(labels):,} of {len(names):,} labels, written to {file}; {changed:,} texts have "
        f"another label, written to {output}"
    )
    to_stderr(f"next, judge fifty texts: {command('review', output, {}, '-n', '50')}")


def _merges(given: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return label -> the label that replaces it."""
    merged: dict[str, str] = {}
    for merge in given:
        # a label can have the sign
        cuts = [at for at, sign in enumerate(merge) if sign == "="]
        sides = [(merge[:at].strip(), merge[at + 1 :].strip()) for at in cuts]
        known = [(one, other) for one, other in sides if one in names and other in names]
        if not known:
            unknown = next((one for pair in sides for one in pair if one not in names), merge)
            close = map(repr, get_close_matches(unknown, names, 3, 0))
            raise InvalidInputError(
                f"--merge {merge!r}: give two of the {len(names):,} labels, 'LABEL = OTHER'; those "
                f"closest to {unknown!r} are {', '.join(close)}"
            )
        label, other = known[0]
        other = merged.get(other, other)
        if label == other or label in merged:
            raise InvalidInputError(f"--merge {merge!r}: {label!r} is merged already")
        merged = {one: other if to == label else to for one, to in merged.items()} | {label: other}
    if len(names) - len(merged) < 2:
        raise InvalidInputError("--merge leaves one label; leave two at least")
    return merged


def _renamed(row: Classification, merged: Mapping[str, str]) -> Classification:
    """Return a result with merged labels; its trust stays, which is now the least."""
    own, label = row.prediction, merged.get(row.label or "", row.label)
    if own is not None and own.label is not None and own.label in merged:
        own = replace(own, label=merged[own.label], said=own.said or own.label)
    other, trust = merged.get(row.alternative or "", row.alternative), row.trust_of_alternative
    if other == label:
        other = trust = None
    return replace(row, label=label, prediction=own, alternative=other, trust_of_alternative=trust)


async def discover_labels(given: SimpleNamespace) -> None:
    """Find labels for the texts of a file, and write a label file."""
    output, client = given.output, given.client
    require_new(output, ".yaml", ".yml", ".json", overwrite=given.overwrite or given.dry_run)
    table = read_input(given, guess=False)
    _, valid = usable(table)
    texts = list(dict.fromkeys(str(table.texts[at]) for at in valid))
    of = f" of {len(table.texts):,}" if len(texts) < len(table.texts) else ""
    if len(texts) > MOST_TEXTS:
        to_stderr(f"labels are found in {MOST_TEXTS:,} texts of {len(texts):,}, drawn at random")
        texts = random.Random(0).sample(texts, MOST_TEXTS)  # noqa: S311 - the same in every run
    store = AnswerStore.of_results(client["store"], output)
    client = await with_embedder(client, store.where)
    options = client_arguments(client.but(store=None if given.dry_run else store.where))
    labels, model = options.pop("labels"), options.pop("model")
    # nothing is sent by a dry run, so it needs no key
    key = {"api_key": "not-needed"} if given.dry_run else {}
    calls, tokens, usd = expected_cost(texts, model, given.n, tree=given.tree, **options, **key)
    if given.dry_run:
        price = "price unknown" if usd is None else f"about {usd:.2f} USD"
        said = f"at most {calls:,} calls, about {tokens:,} input tokens, {price}"
        print(f"{model}: nothing was sent; {said}")
        return
    store.create_folder()
    known = None if labels is None else read_labels(labels)
    to_stderr(
        f"embedding and clustering {len(texts):,} different texts{of}; then {model} names the "
        "clusters; after Ctrl-C, the same command goes on where it was"
    )
    found = await discover(texts, model, labels=known, n=given.n, tree=given.tree, **options)
    if not found.labels:
        raise InvalidInputError(
            f"no text has any label that {model} named, so {output} is not written; say in "
            "--instructions what labels are for, or give another --model or a higher -n"
        )
    write_labels(output, found.labels, found.examples)
    print(found)
    parts = (f"{len(found.labels):,} labels, written to {output}", cost(found.usage))
    to_stderr(", ".join(filter(None, (f"{found.usage.calls:,} calls", *parts))))
    if 10 * len(found.misfits) > found.drawn:
        to_stderr("many texts fit none of the labels: a higher -n finds more labels")
    if model == KEYWORDS:
        to_stderr(
            f"these are words that set texts apart: edit {output}, or give an LLM as --model, "
            "before you label with it"
        )
    asked = client.given(_REPEATED[2:] if model == KEYWORDS else _REPEATED)
    asked |= {"labels": output, "none_label": "none of these"}
    label = command(
        "classify", given.file, asked, "-o", free_name("out.csv"), text_column=table.text_column
    )
    to_stderr(f"next, label the texts: {label}")
