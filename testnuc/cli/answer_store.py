"""The store of one run's answers: the user's, or one beside the output."""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from testnuc._base.checks import hash_text
from testnuc.cli.run_note import RunNote, folder_of
from testnuc.errors import InvalidInputError
from testnuc.stores.sqlite import answered_texts

if sys.platform != "win32":
    import fcntl

from collections.abc import Iterator, Sequence

#: The store of the first texts, and those of others.
_STORE = "answers.db"
_STORE_NAME = re.compile(r"answers(-[0-9a-f]{32})?\.db")


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
    #: Whether it is not there yet.
    new: bool = False

    @property
    def keeps(self) -> bool:
        """Whether it may hold answers of an earlier run."""
        return self.where is not None and not self.new

    @classmethod
    def of(cls, store: str | None, output: str | None) -> AnswerStore:
        """Return the user's store, or one beside the output.

        An interrupted run can then be resumed, and later commands need neither calls nor
        embeddings. Without an output there is no place for one.
        """
        if store is not None or output is None:
            new = store is not None and "://" not in store and not Path(store).exists()
            return cls(store, new=new)
        name = RunNote.of(output).store or ""
        return cls._at(folder_of(output) / (name if _STORE_NAME.fullmatch(name) else _STORE))

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
        return cls(str(place), place.parent, not place.exists())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Create the folder; if an error ends the use, remove what holds no answer."""
        if self.folder is None:
            yield
            return
        lock = _locked(self.folder)
        try:
            yield
        except BaseException:
            if self.new and lock is not None and _is_alone(lock):
                self._remove_if_empty(self.folder)
            raise
        finally:
            if lock is not None:
                os.close(lock)

    def _remove_if_empty(self, folder: Path) -> None:
        """Remove the store, unless it holds answers, and the folder, unless it holds more."""
        where = str(self.where)
        if Path(where).exists() and answered_texts(where) != set():
            return
        shutil.rmtree(f"{where}.index", ignore_errors=True)
        with suppress(OSError):
            for end in ("", "-wal", "-shm"):
                Path(where + end).unlink(missing_ok=True)
            folder.rmdir()


def _locked(folder: Path) -> int | None:
    """Create a folder if it is missing, and lock it against removal; None: there are no locks."""
    while True:
        try:
            folder.mkdir(exist_ok=True)
        except OSError as exc:
            raise InvalidInputError(
                f"{folder} cannot be created: {exc.strerror or exc}; write the output "
                "elsewhere, or name a --store"
            ) from exc
        if sys.platform == "win32":
            return None
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            # another process has removed it since
            continue
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if folder.stat().st_ino == os.fstat(lock).st_ino:
                return lock
        except FileNotFoundError:
            pass
        except OSError:
            # a file system without locks
            os.close(lock)
            return None
        os.close(lock)


def _is_alone(lock: int) -> bool:
    """Whether no other process uses the folder."""
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
