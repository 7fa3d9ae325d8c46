"""What the command line remembers of a run: a note beside its output, for later commands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from testnuc._base.jsonl import write_whole
from testnuc.cli.options import options_in
from testnuc.errors import InvalidInputError

_NAME = "output.json"
#: Bytes of a note: somebody else may have put a device there, or a file without end.
_LARGEST = 64 << 20
#: Options that change how a run goes, not what it writes.
_NO_MATTER = {"store", *options_in("Limits")}


def folder_of(output: str) -> Path:
    """Return the folder beside an output, for its note and the stores of its answers."""
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
            note = folder_of(output) / _NAME
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
        cls, output: str, store: str | None, text_column: str, options: Mapping[str, Any]
    ) -> None:
        """Write the note of an output that was just written; without one, options are repeated.

        `store` is a name in the folder; None is a store elsewhere, and leaves what was noted.
        """
        note = cls(store or cls.of(output).store, text_column, _digest(output), noted(options))
        with suppress(OSError, InvalidInputError):
            folder_of(output).mkdir(exist_ok=True)
            write_whole(folder_of(output) / _NAME, [orjson.dumps(asdict(note), default=str)])

    def says(self, output: str, options: Mapping[str, Any]) -> bool:
        """Whether an output is known to be what a run with these options wrote."""
        if not self.options:
            return False
        # an embedder that is not named is that of the store
        known = {} if options["embedder"] else {"embedder": self.options.get("embedder")}
        return self.written == _digest(output) and self.options == noted(options) | known


def noted(options: Mapping[str, Any]) -> dict[str, Any]:
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
