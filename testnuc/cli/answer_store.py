"""The store of one run's answers, and what it knows of the file that the run wrote."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from testnuc._base.jsonl import write_whole
from testnuc.cli.options import client_options
from testnuc.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AnswerStore", "is_as_written", "noted_column", "noted_run"]

_NOTE = "output.json"
#: Options that change how a run goes, not what it writes.
_NO_MATTER = {
    "store",
    "api_key",
    "budget_usd",
    "max_concurrency",
    "requests_per_minute",
    "tokens_per_minute",
}


@dataclass(slots=True)
class AnswerStore:
    """The store of one run's answers; beside the output, where the user named none."""

    #: Its path or URL; None: in memory.
    where: str | None
    #: The folder beside the output.
    folder: Path | None = None
    #: Whether this run creates the folder.
    new: bool = False

    @property
    def keeps(self) -> bool:
        """Whether it may hold answers of an earlier run."""
        return self.where is not None and not self.new

    @classmethod
    def beside(cls, output: str) -> str:
        """Return the place of the store of an output."""
        return str(_folder(output) / "answers.db")

    @classmethod
    def of(cls, client: dict[str, Any], output: str | None) -> AnswerStore:
        """Return the user's store, or one beside the output.

        An interrupted run can then be resumed, and later commands need neither calls nor
        embeddings. Without an output there is no place for one.
        """
        if client["store"] is not None:
            return cls(client["store"])
        if output is None:
            return cls(None)
        folder = _folder(output)
        return cls(cls.beside(output), folder, not folder.exists())

    def create(self) -> None:
        """Create the folder."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as exc:
            raise InvalidInputError(
                f"{self.folder} cannot be created: {exc.strerror or exc}; write the output "
                "elsewhere, or name a --store"
            ) from exc

    def remove(self) -> None:
        """Remove the folder."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def note(
        self, output: str, text_column: str, client: Mapping[str, Any], run: Mapping[str, Any]
    ) -> None:
        """Note the output's column of texts and content, the options given, and its run's."""
        if self.folder is not None:
            facts = {
                "text_column": text_column,
                "written": _digest(output),
                "options": _options(client),
                "run": dict(run),
            }
            write_whole(self.folder / _NOTE, [orjson.dumps(facts)])


def noted_column(output: str) -> str | None:
    """Return the column of texts that was noted of an output; None: nothing was."""
    return _noted(output).get("text_column")


def noted_run(output: str) -> dict[str, Any]:
    """Return the options that were noted of an output's run."""
    run = _noted(output).get("run")
    return run if isinstance(run, dict) else {}


def is_as_written(output: str, client: Mapping[str, Any]) -> bool:
    """Whether an output is what a run with these options wrote, as far as anything was noted."""
    facts = _noted(output)
    if not facts:
        return True
    return facts.get("written") == _digest(output) and facts.get("options") == _options(client)


def _noted(output: str) -> dict[str, Any]:
    try:
        facts = orjson.loads((_folder(output) / _NOTE).read_bytes())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _options(client: Mapping[str, Any]) -> str:
    """Return the hash of the options that decide what is written."""
    defaults = client_options()
    kept = {
        name: value
        for name, value in client.items()
        if name not in _NO_MATTER and value != defaults.get(name)
    }
    return hashlib.sha256(orjson.dumps(kept, default=str, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _folder(output: str) -> Path:
    return Path(f"{output}.resume")


def _digest(file: str) -> str | None:
    try:
        with Path(file).open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return None
