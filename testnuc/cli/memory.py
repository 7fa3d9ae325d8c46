"""What is remembered of runs: a note beside each output, and the stores of answers.

Results in ``out.csv`` have the folder ``out.csv.resume``, in which `RunNote` has the options of the
run that wrote them. `AnswerStore` is the store of its answers: in the project folder ``.testnuc``
in the current folder, one for all runs with the same labels, model and prompt, unless the user
names one. `LessonNote`, beside a store, says where the judgments are from that were learned there.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from operator import eq
from pathlib import Path
from typing import Any, TypeVar

import orjson

from testnuc._base.checks import hash_text, valid_text
from testnuc._base.jsonl import write_whole
from testnuc.cli.options import LATER, OF_ANSWERS, options_in
from testnuc.client import TestNUC, parts_of
from testnuc.errors import InvalidInputError
from testnuc.trust.learned import Learned
from testnuc.types import Classification

N = TypeVar("N", "RunNote", "LessonNote")

_NOTE = "output.json"
#: Types of the fields of notes; of others: str.
_TYPES = {"options": dict, "judgments": int}
#: Bytes of a note: somebody else may have put a device there, or a file without end.
_LARGEST = 64 << 20
#: Edits of so many labels may be a column that moved, by so many cells; or that was sorted, if
#: so large a part of them is of labels that other edited rows had.
_MOVED, _CELLS, _SORTED, _SAME = 5, 3, 20, 0.95
#: Labels that pandas takes for missing values: it writes an empty cell.
_MISSING = {"NA", "N/A", "n/a", "None", "null", "NULL", "nan", "NaN"}
#: Options that change how a run goes, not what it writes.
_NO_MATTER = {"store", *options_in("Limits")}
#: Options that decide the LLM's answers, and so what judgments are about.
_OF_STORE = sorted({"labels", "model", *OF_ANSWERS} - {"embedder", "threshold"})
#: The folder of the stores, in the current folder.
PROJECT = Path(".testnuc")
#: The store beside an output, or another one; in a project folder by a digest of `_OF_STORE`.
_STORE = "answers.db"
_STORE_NAME = re.compile(r"([^/\\]+\.resume/)?answers(-[0-9a-f]{32})?\.db")


def _folder_of(output: str) -> Path:
    return Path(f"{output}.resume")


def _copy_of(output: str) -> Path:
    """Return the note in the project folder, for when the one beside the output is deleted."""
    digest = hashlib.sha256(os.fsencode(Path(output).resolve())).hexdigest()
    return PROJECT / f"output-{digest}.json"


def _read(kind: type[N], file: Path) -> N:
    """Return a note; fields of another type are left out, as anybody may have written it."""
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return kind()
        facts = orjson.loads(file.read_bytes())
        repr(facts)  # what is nested too deep cannot be shown
    except (OSError, ValueError, RecursionError):
        return kind()
    found = facts if isinstance(facts, dict) else {}
    types = {f.name: _TYPES.get(f.name, str) for f in fields(kind)}
    fitting = {n: found[n] for n, of in types.items() if isinstance(found.get(n), of)}
    if fitting.get("options"):
        fitting["options"] = LATER | fitting["options"]
    return kind(**fitting)


@dataclass(frozen=True, slots=True)
class RunNote:
    """The run that wrote an output; empty where nothing is known."""

    #: The name of its store, in the same folder.
    store: str | None = None
    text_column: str | None = None
    #: The digest of what was written.
    written: str | None = None
    #: The options that decided what was written, with labels that were read from their file.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: The store that the user named instead; it is told, never opened.
    named: str | None = None
    #: Twelve digits of the digest of each text, and four of that of its label.
    rows: str = ""

    @classmethod
    def of(cls, output: str) -> RunNote:
        """Return the note beside an output; what is malformed is left out."""
        beside = (_read(cls, at) for at in (_folder_of(output) / _NOTE, _copy_of(output)))
        note = next((note for note in beside if note != cls()), cls())
        written = digest(output)
        if written is not None and note.written != written:
            # a copy under another name, also in place of what was here
            note = next((other for other in cls._here() if other.written == written), note)
        return note

    @classmethod
    def _here(cls) -> Iterator[RunNote]:
        """Yield the notes in the project folder."""
        return (_read(cls, at) for at in PROJECT.glob("output-*.json"))

    @classmethod
    def adopt(cls, output: str, rows_of: Callable[[str], Iterable[Classification]]) -> None:
        """Note the run here that wrote all rows of a table, which may have other columns.

        Where runs that asked different questions wrote them, it is not known which one is meant.
        """
        fitting = dict[Any, RunNote]()
        for note in cls._here():
            with suppress(OSError, InvalidInputError):
                rows = [*rows_of(note.text_column or "text")]
                marks = {"".join(_mark(row)) for row in rows if valid_text(row.text) is None}
                if marks and marks <= {*re.findall(".{16}", note.rows)}:
                    fitting.setdefault(repr(note.question), note)
        if len(fitting) == 1:
            _write(_copy_of(output), replace(*fitting.values(), written=digest(output)))

    def place(self, output: str) -> Path | None:
        """Return the store that the note names, if it is there; it can name none elsewhere."""
        name, beside = self.store or _STORE, Path(output).parent
        own = [_folder_of(output), PROJECT, beside / PROJECT]
        folders = [beside, Path()] if "/" in name else own
        found = (folder / name for folder in folders if _STORE_NAME.fullmatch(name))
        return next(filter(Path.is_file, found), None)

    @classmethod
    def write(
        cls,
        output: str,
        store: AnswerStore,
        text_column: str,
        options: Mapping[str, Any],
        rows: Iterable[Classification],
    ) -> None:
        """Write the note of an output that was just written; without one, options are repeated."""
        named = None
        if store.folder is None:
            # a store elsewhere leaves what was noted; a password may be part of a URL
            name, named = cls.of(output).store, None if "@" in str(store.where) else store.where
        else:
            name = Path(str(store.where)).name
            if store.folder.name not in {PROJECT.name, _folder_of(output).name}:
                name = f"{store.folder.name}/{name}"
        marks = "".join(map("".join, map(_mark, rows)))
        # too large a note is not read
        marks = marks if len(marks) < _LARGEST // 2 else ""
        note = cls(name, text_column, digest(output), _noted(options), named, marks)
        with suppress(OSError):
            _folder_of(output).mkdir(exist_ok=True)
        _write(_folder_of(output) / _NOTE, note)
        _write(_copy_of(output), note)

    def edited(self, rows: Iterable[Classification]) -> list[Classification]:
        """Return the rows of the output whose label is not the one that was written."""
        names = [*self.options.get("labels", ()), self.options.get("none_label")]
        known = {_label_mark(name): _as_read(name) for name in filter(None, names)}
        changed = ((row, was) for row, was, now in self._labels(rows) if was != now)
        return [row for row, was in changed if known.get(was, was) != _as_read(row.label)]

    def moved(self, rows: Iterable[Classification]) -> bool:
        """Whether a column of labels seems to have been moved, or sorted, without the others."""
        pairs = [(was, now) for _, was, now in self._labels(rows)]
        changed = [at for at, (was, now) in enumerate(pairs) if was != now]
        if len(changed) < _MOVED:
            return False
        edits = [pairs[at] for at in changed]
        was, now = zip(*pairs[changed[0] : changed[-1] + 1], strict=True)
        shifts = (by for n in range(1, _CELLS + 1) for by in ((n, 0), (0, n)))
        alike = max(sum(map(eq, now[down:], was[up:])) for down, up in shifts)
        # more rows are as written above or below than are as written there
        shifted = alike - (len(now) - len(edits)) > len(edits) / 2
        same = Counter(one for one, _ in edits) & Counter(one for _, one in edits)
        # an order by chance changes fewer rows where most have one label
        by_chance = len(was) - sum(n * n for n in Counter(was).values()) / len(was)
        many = len(edits) >= max(_SORTED, min(0.4 * len(now), 0.8 * by_chance))
        return shifted or (many and same.total() >= _SAME * len(edits))

    def _labels(self, rows: Iterable[Classification]) -> Iterator[tuple[Classification, str, str]]:
        """Yield each row with the digits of its label as written, and as it is."""
        known = defaultdict[str, list[str]](list)
        for text, label in re.findall("(.{12})(.{4})", self.rows):
            known[text].append(label)
        for row in rows:
            text, label = _mark(row)
            # texts that differ in line ends alone may have two labels
            written = known.get(text, [label])
            yield row, label if label in written else written[-1], label

    def nearest(self, rows: Sequence[Classification]) -> RunNote:
        """Return the note of which fewest labels were edited: this one, or another of the texts."""
        texts = {_mark(row)[0] for row in rows}
        fit = [note for note in self._here() if texts <= {*note.texts}]
        return min([self, *fit], key=lambda note: len(note.edited(rows)))

    def alike(self, other: RunNote) -> bool:
        """Whether both are of the same texts and question, as that of `learn` and its file."""
        return self.question == other.question and {*self.texts} == {*other.texts}

    @property
    def question(self) -> tuple[Any, ...]:
        """What was asked, and the store."""
        asked = map(self.options.get, ("labels", "instructions", "none_label"))
        return self.store, self.named, bool(self.options.get("multilabel")), *asked

    @property
    def texts(self) -> list[str]:
        """The digits of each text, in order; []: they are not noted."""
        return re.findall("(.{12}).{4}", self.rows)

    def says(self, output: str, options: Mapping[str, Any], texts: Sequence[str]) -> bool:
        """Whether an output is what a run with these options wrote of these texts, or the first."""
        held = self.texts
        first = held != [] and held == [*map(text_mark, texts[: len(held)])]
        # an embedder that is not named is that of the store
        known = {} if options["embedder"] else {"embedder": self.options.get("embedder")}
        return first and self.written == digest(output) and self.options == _noted(options) | known


def _write(place: Path, note: Any) -> None:
    """Write a note, if that is possible; a link in its place may lead anywhere, and is replaced."""
    # a name that is not UTF-8 cannot be noted
    with suppress(OSError, InvalidInputError, TypeError):
        if place.is_symlink():
            place.unlink()
        write_whole(place, [orjson.dumps(asdict(note), default=str)])


def _noted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that its note holds."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        # a password may be part of an address
        if name in _NO_MATTER or (name == "base_url" and "@" in str(value)):
            continue
        try:
            found[name] = orjson.loads(orjson.dumps(value, default=str))
        except TypeError as exc:
            raise InvalidInputError(
                f"--{name.replace('_', '-')} is {value!r:.80}, which is not UTF-8; write it in "
                "UTF-8, or give a file"
            ) from exc
    return found


def _mark(row: Classification) -> tuple[str, str]:
    return text_mark(row.text), _label_mark(row.label)


def _label_mark(label: str | None) -> str:
    return hash_text(label or "").hex()[:4]


def _as_read(label: str | None) -> object:
    """Return a label as pandas and spreadsheets read it, which make 1.1 of 1.10, TRUE of true."""
    if not label or label in _MISSING:
        return None
    with suppress(ValueError):
        return float(label)
    return label.casefold()


def text_mark(text: str) -> str:
    """Return the digits of a text; spreadsheets write other line ends."""
    return hash_text(text.replace("\r\n", "\n").replace("\r", "\n")).hex()[:12]


def digest(file: str) -> str | None:
    """Return the digest of a file; None: there is none."""
    try:
        found = Path(file).stat()
        return _digest_of(file, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=16)
def _digest_of(file: str, *_: int) -> str:
    """Return the digest of a file, which a command needs several times, as it is by these facts."""
    with Path(file).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _name_of(options: Mapping[str, Any]) -> str:
    """Return the name of the store of all runs that ask the same; labels are read."""
    noted = LATER | _noted(options)
    given = [(name, noted[name]) for name, usual in LATER.items() if noted[name] != usual]
    asked = [*(noted.get(name) for name in _OF_STORE if name not in LATER), *given]
    return f"answers-{hash_text(repr(asked)).hex()}.db"


@dataclass(frozen=True, slots=True)
class AnswerStore:
    """The store of the answers of runs; in the project folder, where the user named none.

    Runs that ask the same share one, so that a later one costs its new texts only, and what was
    learned applies to it. Others have one of their own.
    """

    #: Its path or URL; None: in memory.
    where: str | None
    #: The folder of a store that the user did not name.
    folder: Path | None = None

    @property
    def new(self) -> bool:
        """Whether it is a file that is not there yet."""
        return self.where is not None and "://" not in self.where and not Path(self.where).exists()

    @classmethod
    def of_run(cls, options: Mapping[str, Any], output: str | None) -> AnswerStore:
        """Return the user's store, or that of earlier runs that asked the same, or a new one.

        The labels in `options` are read. Without an output no store is created.
        """
        if options["store"] is not None:
            return cls(options["store"])
        name = _name_of(options)
        places = [*_stores(name, output)]
        for place in places:
            if os.access(place.parent, os.W_OK):
                return cls(str(place), place.parent)
        if places:
            raise InvalidInputError(
                f"{places[0]} has the answers of such runs, and its folder is read-only: copy it, "
                "and name the copy with --store; a new --store asks and pays anew"
            )
        return cls(None) if output is None else cls._created(name, output)

    @classmethod
    def of_results(cls, store: str | None, output: str) -> AnswerStore:
        """Return the user's store, or that of the run that wrote an output."""
        if store is not None:
            return cls(store)
        note = RunNote.of(output)
        if (place := note.place(output)) is None:
            return cls._created(note.store or _STORE, output)
        return cls(str(place), place.parent)

    @classmethod
    def _created(cls, name: str, output: str) -> AnswerStore:
        """Return a new store, beside the output where there can be no project folder."""
        known = name != _STORE and "/" not in name and _STORE_NAME.fullmatch(name)
        if known and os.access(PROJECT if PROJECT.is_dir() else Path(), os.W_OK):
            return cls(str(PROJECT / name), PROJECT)
        folder = _folder_of(output)
        return cls(str(folder / _STORE), folder)

    def create_folder(self) -> None:
        """Create the folder of a store that the user did not name."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(exist_ok=True)
            if self.folder == PROJECT:
                # it holds texts; what is there already may be a link to another file
                with suppress(FileExistsError), (PROJECT / ".gitignore").open("x") as file:
                    file.write("*\n")
        except OSError as exc:
            raise InvalidInputError(
                f"{self.folder} cannot be created: {exc.strerror or exc}; name a --store elsewhere"
            ) from exc


def _stores(name: str, output: str | None) -> Iterator[Path]:
    """Yield stores of runs that ask the same: of this output, this project, others near it."""
    if output is not None and (place := _noted_store(name, output)) is not None:
        yield place
    if (PROJECT / name).is_file():
        yield PROJECT / name
    near = dict.fromkeys([Path() if output is None else Path(output).parent, Path()])
    notes = [note for folder in near for note in folder.glob(f"*.resume/{_NOTE}")]
    others = (_noted_store(name, str(note.parent.with_suffix(""))) for note in notes)
    yield from sorted(filter(None, others), key=os.path.getmtime, reverse=True)


def _noted_store(name: str, output: str) -> Path | None:
    """Return the store of an output, if the run that wrote it asked the same."""
    note = RunNote.of(output)
    return note.place(output) if note.options and _name_of(note.options) == name else None


@dataclass(frozen=True, slots=True)
class LessonNote:
    """What was learned last in a store that no user named; empty where nothing is known."""

    #: The results whose texts were judged.
    source: str = ""
    judgments: int = 0
    #: The options of their run.
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Path) -> LessonNote:
        """Return the note beside a store."""
        return _read(cls, store.with_suffix(".json"))

    @classmethod
    def write(
        cls, store: AnswerStore, source: str, learned: Learned, options: Mapping[str, Any]
    ) -> None:
        """Note what was learned; nothing of a store that the user named."""
        if store.folder is not None and store.where is not None:
            shown = source.encode(errors="replace").decode()
            note = cls(shown, len(learned.answers), _noted(options))
            _write(Path(store.where).with_suffix(".json"), note)


def about_lessons(
    nuc: TestNUC, store: AnswerStore, options: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return that what was learned is applied; or why that of another store is not, and which."""
    if (learned := nuc.learned) is not None:
        note = LessonNote() if store.folder is None else LessonNote.of(Path(str(store.where)))
        of = f", last of {note.source}" if note.source else ""
        alone = " to the judged texts alone" * (learned.unproved or learned.decides == "settings")
        said = f"learned from {len(learned.answers):,} judgments{of}: applied{alone}"
        other = learned.settings not in {"", parts_of(nuc).settings.basis}
        where = "under other" if learned.unproved else "in place of these"
        return said + f", {where} vote settings (policy, k)" * other, ""
    wanted = _noted(options)
    # a dry run without an output has no store of its own
    folder = PROJECT if store.where is None else store.folder
    files = [] if folder is None else folder.glob("answers*.json")
    former = {name for names in wanted.get("former", {}).values() for name in names}
    found = []
    for file in files:
        lesson = LessonNote.of(file)
        names = {*(lesson.options.get("labels") or ())}
        others = [n for n in (*_OF_STORE, "embedder") if lesson.options.get(n) != wanted.get(n)]
        # another task, if most labels are others, or texts have several
        if (
            others
            and "multilabel" not in others
            and 2 * len(names & (former | {*wanted["labels"]})) > len(names)
        ):
            alike, path = len(names & (former | {*wanted["labels"]})), str(file.with_suffix(".db"))
            found.append((len(others), -alike, -lesson.judgments, path, lesson, others))
    if not found:
        return None
    (*_, path, lesson, others), *rest = sorted(found, key=lambda one: one[:4])
    more = "".join(f"; {it.judgments:,} more are in {at}" for *_, at, it, _ in rest)
    # whether they say the same in other words, the user knows
    told = "instructions" in others
    return (
        f"note: {lesson.judgments:,} judgments of {lesson.source} are of a run with other "
        f"{', '.join(others)}, whose answers are to another question: texts are asked again "
        f"(--dry-run says what that costs); `testnuc learn FILE {path}` carries the judgments "
        f"over{', right if people would judge by both alike' * told}, but no certificate: write "
        f"its rows first (testnuc certify BEFORE.csv -o ..){more}"
    ), "" if told else path
