"""``testnuc labels check``."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from testnuc.cli.answered_texts import labeled, opened, texts_for
from testnuc.cli.files import require_new, write_results
from testnuc.cli.label_files import write_labels
from testnuc.cli.memory import AnswerStore, RunNote
from testnuc.cli.options_of_run import command, next_command
from testnuc.cli.reading import to_stderr
from testnuc.client import parts_of
from testnuc.embedders.openai import OpenAIEmbedder
from testnuc.errors import InvalidInputError, TestNUCError
from testnuc.types import Classification

#: Different answers outside the labels, at most, that are grouped by meaning.
_MOST_GROUPED = 1_000


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
        found = await labeled(nuc, table, source)
        if output is None:
            checked = found.results.check_labels(nuc.learned)
            embedder, said = parts_of(nuc).embedder, [*checked.outside][:_MOST_GROUPED]
            # spelling has to do without an embedder at hand that makes no call
            if said and not isinstance(embedder, OpenAIEmbedder):
                with suppress(TestNUCError):
                    checked = checked.grouped(await embedder.embed(said))
            print(checked)
    if output is None or file is None:
        merging = next_command(
            "labels check", given, "--merge", "LABEL = OTHER", "-o", "merged.csv"
        )
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
    RunNote.write(output, AnswerStore.of_results(None, output), table.text_column, options)
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
            raise InvalidInputError(
                f"--merge {merge!r}: give two of the labels, 'LABEL = OTHER'; they are "
                + ", ".join(map(repr, names))
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
