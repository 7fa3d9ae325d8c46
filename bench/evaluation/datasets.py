"""Datasets with gold labels: the eight of the paper by name, or any .jsonl or .csv file.

Those of the paper (Zou et al., ACL 2025, arXiv 2502.19163) are downloaded from the reference
repository, and verified by checksum.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha1
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from testnuc._base.arrays import Int32s
from testnuc._base.checks import valid_text
from testnuc._base.jsonl import json_object, long_fields
from testnuc.errors import InvalidInputError, MissingDependencyError

__all__ = ["PAPER_DATASETS", "Dataset", "load"]

#: Each with the object ids of its files: the SHA-1 of a header with the length, and the content.
_PAPER = [
    orjson.loads(line)
    for line in Path(__file__).with_name("paper_datasets.jsonl").read_bytes().splitlines()
]
#: Dataset name in the reference repository -> row, classes and texts in the paper's table.
PAPER_DATASETS: dict[str, tuple[str, int, int]] = {
    of["name"]: (of["row"], of["classes"], of["texts"]) for of in _PAPER
}
_BLOBS: dict[tuple[str, str], str] = {
    (of["name"], split): of[split] for of in _PAPER for split in ("large", "small")
}
#: The commit that the checksums belong to.
_COMMIT = "098caa574abc78ceda12e39cffc2227d5e269889"
_BASE_URL = f"https://raw.githubusercontent.com/HenryPengZou/TestNUC/{_COMMIT}/data/datasets"

_TEXT_COLUMNS = ("text", "input", "sentence", "utterance", "message", "query")
_LABEL_COLUMNS = ("label", "gold", "intent", "category", "class", "target")


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Texts and their gold labels, row by row."""

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    #: The sorted label set of the whole file, also for a sample of its rows.
    names: tuple[str, ...]
    #: Differences between the file and the paper's table of datasets.
    differences: tuple[str, ...] = ()
    source: Path | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"<Dataset {self.name}: {len(self)} texts, {len(self.names)} labels>"

    @property
    def gold(self) -> Int32s:
        """The index of each label in `names`, int32[N]."""
        at = {name: i for i, name in enumerate(self.names)}
        return np.array([at[label] for label in self.labels], dtype=np.int32)

    @property
    def descriptions(self) -> dict[str, str]:
        """Label -> words: the label without underscores and file suffixes."""
        return {name: _words(name) for name in self.names}

    def select(self, rows: Sequence[int]) -> Dataset:
        """Return a dataset with these rows and the same label set."""
        texts, labels = self.texts, self.labels
        return replace(
            self, texts=tuple(texts[i] for i in rows), labels=tuple(labels[i] for i in rows)
        )

    def sample(self, n: int | None, seed: int = 0) -> Dataset:
        """Return a random sample of n rows in their original order; all rows if n is None."""
        if n is None or n >= len(self):
            return self
        rows = np.random.default_rng(seed).permutation(len(self))[:n]
        return self.select(sorted(rows.tolist()))

    def distinct(self) -> Dataset:
        """Return the distinct texts, each with its first label."""
        rows = list({text: i for i, text in reversed(list(enumerate(self.texts)))}.values())
        return self.select(sorted(rows))


def load(
    name: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    split: Literal["large", "small"] | None = None,
    *,
    text: str | None = None,
    label: str | None = None,
    base_url: str | None = None,
) -> Dataset:
    """Load a dataset of the paper by name, or a file of texts and labels.

    Parameters
    ----------
    name : str or path
        One of `PAPER_DATASETS`, or a path to a .jsonl or .csv file.
    data_dir : path, optional
        A copy of the reference repository's data: ``DIR/datasets/NAME/large.jsonl`` or
        ``DIR/NAME/large.jsonl``. Default: download the file from that repository into the user's
        cache and verify its checksum.
    split : {"large", "small"}, optional
        ``large`` is the paper's pool and test set, ``small`` a held-out part. Default: ``large``,
        or ``small`` if `data_dir` has only that; `Dataset.differences` reports it.
    text, label : str, optional
        Names of the columns; default: common names such as ``text`` and ``label``.
    base_url : str, optional
        A mirror of the reference repository's ``data/datasets``.

    Raises
    ------
    InvalidInputError
        The dataset, file or column does not exist, or a row is invalid; the message names it.
    """
    if isinstance(name, os.PathLike) or str(name) not in PAPER_DATASETS:
        path = Path(name)
        if path.suffix.lower() not in {".jsonl", ".csv"}:
            raise InvalidInputError(
                f"unknown dataset {os.fspath(name)!r}; use one of {', '.join(PAPER_DATASETS)}, or "
                "a path to a .jsonl or .csv file"
            )
        return read(path, path.stem, text=text, label=label)
    name = str(name)
    if split not in {None, "large", "small"}:
        raise InvalidInputError(f"split is {split!r}; choose 'large' or 'small'")
    if data_dir is None:
        path = _download(name, split or "large", base_url)
    else:
        path = _local(Path(data_dir), name, split)
    dataset = read(path, name, text=text, label=label)
    return replace(dataset, differences=_differences(dataset, path.stem))


def read(path: Path, name: str, *, text: str | None = None, label: str | None = None) -> Dataset:
    """Read a .jsonl or .csv file with a text and a label column."""
    if not path.is_file():
        raise InvalidInputError(f"{path} does not exist; check the path")
    if path.suffix.lower() == ".csv":
        rows = _csv(path)
    else:
        lines = enumerate(path.read_bytes().split(b"\n"), 1)
        rows = [(number, json_object(line, path, number)) for number, line in lines if line.strip()]
    if not rows:
        raise InvalidInputError(f"{path} has no rows")
    first = rows[0][1]
    text = _column(path, first, text, _TEXT_COLUMNS, "text")
    label = _column(path, first, label, _LABEL_COLUMNS, "label")
    texts, labels = [], []
    for line, row in rows:
        problem = valid_text(row.get(text))
        if problem is not None:
            raise InvalidInputError(f"{path}, line {line}: the text {problem}")
        given = row.get(label)
        if isinstance(given, bool) or not isinstance(given, str | int) or given == "":
            raise InvalidInputError(f"{path}, line {line}: the label is {given!r}; give a string")
        texts.append(str(row[text]))
        labels.append(str(given))
    names = tuple(sorted(set(labels)))
    if len(names) < 2:
        raise InvalidInputError(f"{path} has only the label {names[0]!r}; at least two are needed")
    return Dataset(name, tuple(texts), tuple(labels), names, source=path)


def _local(folder: Path, name: str, split: str | None) -> Path:
    tried = []
    for wanted in (split,) if split is not None else ("large", "small"):
        for parent in (folder / "datasets" / name, folder / name):
            path = parent / f"{wanted}.jsonl"
            if path.is_file():
                return path
            tried.append(path)
    raise InvalidInputError(
        f"none of {', '.join(map(str, tried))} exists; check data_dir, or omit it to download the "
        "file"
    )


def _csv(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        # utf-8-sig: spreadsheets write a byte order mark
        with long_fields(), path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            return [(reader.line_num, dict(row)) for row in reader]
    except (csv.Error, UnicodeDecodeError) as exc:
        raise InvalidInputError(f"{path} is not CSV in UTF-8: {exc}; save it as such") from exc


def _column(
    path: Path, row: dict[str, Any], given: str | None, common: Sequence[str], what: str
) -> str:
    found = given if given is not None else next((name for name in common if name in row), None)
    if found is None or found not in row:
        wanted = f"no column {given!r}" if given is not None else f"no {what} column"
        raise InvalidInputError(
            f"{path} has {wanted}; its columns are {', '.join(map(repr, row))}; select one with "
            f"{what}=.."
        )
    return found


def _differences(dataset: Dataset, split: str) -> tuple[str, ...]:
    """Compare a file with the paper's table of datasets."""
    _, classes, total = PAPER_DATASETS[dataset.name]
    found = []
    if len(dataset.names) != classes:
        found.append(f"{len(dataset.names)} classes, in the paper {classes}")
    if split != "large":
        found.append(f"{split} split of {len(dataset)} texts, in the paper {total} texts")
    elif len(dataset) != total:
        found.append(f"{len(dataset)} texts, in the paper {total}")
    n_distinct = len(set(dataset.texts))
    if n_distinct != len(dataset):
        found.append(f"{len(dataset) - n_distinct} texts occur more than once")
    return tuple(found)


def _words(name: str) -> str:
    for end in (".txt", ".stackexchange.com"):
        name = name.removesuffix(end)
    return " ".join(name.replace("_", " ").split())


def _download(name: str, split: str, base_url: str | None = None) -> Path:
    """Return the path of a dataset in the user's cache; downloads it if missing."""
    try:
        import pooch
    except ImportError as exc:
        raise MissingDependencyError(
            f"downloading {name!r} needs pooch: pip install pooch; or set data_dir to a "
            "copy of the reference repository's data"
        ) from exc
    folder = Path(pooch.os_cache("testnuc"))
    url = f"{(base_url or _BASE_URL).rstrip('/')}/{name}/{split}.jsonl"
    expected = _BLOBS[name, split]
    path: Path = folder / "datasets" / expected[:12] / name / f"{split}.jsonl"
    if path.is_file() and _git_object_id(path) == expected:
        return path
    # a truncated download must not stay in the cache
    path.unlink(missing_ok=True)
    try:
        # pooch cannot verify git object ids; they are verified below
        pooch.retrieve(
            url, known_hash=None, fname=path.name, path=path.parent, progressbar=sys.stderr.isatty()
        )
    except Exception as exc:
        raise InvalidInputError(
            f"cannot download {url}: {exc}. Set data_dir to a copy of the reference repository's "
            "data, or base_url to a mirror"
        ) from exc
    found = _git_object_id(path)
    if found != expected:
        path.unlink()
        raise InvalidInputError(
            f"checksum mismatch: {url} has git object id {found}, expected {expected}; set "
            "data_dir to a copy that you trust"
        )
    return path


def _git_object_id(path: Path) -> str:
    content = path.read_bytes()
    digest = sha1(b"blob %d\0" % len(content), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest()
