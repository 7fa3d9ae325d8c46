"""What is remembered of a run in the folder beside its output: a note, and the stores of answers.

Results in ``out.csv`` have the folder ``out.csv.resume``. `RunNote` has the options of the run that
wrote them; `AnswerStore` is the store of its answers, unless the user named one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from testnuc._base.checks import hash_text
from testnuc._base.jsonl import write_whole
from testnuc.cli.options import options_in
from testnuc.errors import InvalidInputError
from testnuc.stores.sqlite import answered_texts

_NOTE = "output.json"
#: Bytes of a note: somebody else may have put a device there, or a file without end.
_LARGEST = 64 << 20
#: Options that change how a run goes, not what it writes.
_NO_MATTER = {"store", *options_in("Limits")}
#: The store of the first texts, and those of others.
_STORE = "answers.db"
_STORE_NAME = re.compile(r"answers(-[0-9a-f]{32})?\.db")


def _folder_of(output: str) -> Path:
    return Path(f"{output}.resume")


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

    @classmethod
    def of(cls, output: str) -> RunNote:
        """Return the note beside an output; what is malformed is left out."""
        try:
            note = _folder_of(output) / _NOTE
            if not note.is_file() or note.stat().st_size > _LARGEST:
                return cls()
            facts = orjson.loads(note.read_bytes())
            repr(facts)  # what is nested too deep cannot be shown
        except (OSError, ValueError, RecursionError):
            return cls()
        kinds = {"store": str, "text_column": str, "written": str, "options": dict}
        found = facts.items() if isinstance(facts, dict) else ()
        known: dict[str, Any] = {n: v for n, v in found if isinstance(v, kinds.get(n, ()))}
        return cls(**known)

    @classmethod
    def write(
        cls, output: str, store: AnswerStore, text_column: str, options: Mapping[str, Any]
    ) -> None:
        """Write the note of an output that was just written; without one, options are repeated."""
        # a store elsewhere leaves what was noted
        name = cls.of(output).store if store.folder is None else Path(str(store.where)).name
        note = cls(name, text_column, _digest(output), _noted(options))
        with suppress(OSError, InvalidInputError):
            _folder_of(output).mkdir(exist_ok=True)
            write_whole(_folder_of(output) / _NOTE, [orjson.dumps(asdict(note), default=str)])

    def says(self, output: str, options: Mapping[str, Any]) -> bool:
        """Whether an output is known to be what a run with these options wrote."""
        if not self.options:
            return False
        # an embedder that is not named is that of the store
        known = {} if options["embedder"] else {"embedder": self.options.get("embedder")}
        return self.written == _digest(output) and self.options == _noted(options) | known


def _noted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run that its note holds."""
    kept = {name: value for name, value in options.items() if name not in _NO_MATTER}
    # a password may be part of an address
    if "@" in str(kept.get("base_url", "")):
        del kept["base_url"]
    found: dict[str, Any] = orjson.loads(orjson.dumps(kept, default=str))
    return found


def _digest(file: str) -> str | None:
    try:
        with Path(file).open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return None


@dataclass(slots=True)
class AnswerStore:
    """The store of one run's answers; beside the output, where the user named none.

    The folder beside an output keeps a store for each set of texts that were written there: no
    answer is lost when the output is replaced, and runs on other texts do not disturb each other.
    """

    #: Its path or URL; None: in memory.
    where: str | None
    #: The folder beside the output.
    folder: Path | None = None

    @property
    def new(self) -> bool:
        """Whether it is a file that is not there yet."""
        return self.where is not None and "://" not in self.where and not Path(self.where).exists()

    @classmethod
    def of(cls, store: str | None, output: str | None) -> AnswerStore:
        """Return the user's store, or one beside the output.

        An interrupted run can then be resumed, and later commands need neither calls nor
        embeddings. Without an output there is no place for one.
        """
        if store is not None or output is None:
            return cls(store)
        name = RunNote.of(output).store or ""
        return cls._at(_folder_of(output) / (name if _STORE_NAME.fullmatch(name) else _STORE))

    def of_others(self, texts: Sequence[str]) -> AnswerStore:
        """Return the store beside the output for texts of which the output holds none.

        It is the one that has answers to most of these texts, or a new one.
        """
        if self.folder is None or not texts:
            return self
        hashes = set(map(hash_text, texts))
        own = f"answers-{hash_text(texts[0]).hex()}.db"
        places = sorted(p for p in self.folder.glob("*.db") if _STORE_NAME.fullmatch(p.name))
        held = {place: len(hashes & (answered_texts(place) or set())) for place in places}
        best = max(places, key=held.__getitem__, default=None)
        return self._at(best if best is not None and held[best] else self.folder / own)

    @classmethod
    def _at(cls, place: Path) -> AnswerStore:
        return cls(str(place), place.parent)

    def create_folder(self) -> None:
        """Create the folder, if the store is in one beside the output."""
        try:
            if self.folder is not None:
                self.folder.mkdir(exist_ok=True)
        except OSError as exc:
            raise InvalidInputError(
                f"{self.folder} cannot be created: {exc.strerror or exc}; write the output "
                "elsewhere, or name a --store"
            ) from exc
