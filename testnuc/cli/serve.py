"""``testnuc serve``: labels over HTTP."""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

from testnuc._base.checks import valid_text
from testnuc.cli.event_loop import run_to_end
from testnuc.cli.memory import about_lessons
from testnuc.cli.options import Options
from testnuc.cli.options_of_run import client_of, completed
from testnuc.cli.reading import read_table, to_stderr
from testnuc.client import TestNUC, parts_of
from testnuc.errors import ConfigurationError, InvalidInputError
from testnuc.server import JsonLines, ServerSettings, Service, page_of, serve
from testnuc.types import Classification

_log = logging.getLogger("testnuc.server")


def run(given: SimpleNamespace) -> None:
    """Serve until SIGTERM or Ctrl-C; exit code 1 if requests were cut off."""
    origins = tuple(one for part in (given.cors_origin or "").split(",") if (one := part.strip()))
    options = vars(given)
    options["audit"] = _per_week(given.audit)
    own = {f.name: options[f.name] for f in fields(ServerSettings) if f.name in options}
    limits = ServerSettings(token=_token(given.token_file), cors_origins=origins, **own)
    _start_log(given.log_format)
    texts = [] if given.pool is None else _texts(given.pool, given.text_column)

    nuc, tell_lessons = _client(given.client)

    def page(rows: Sequence[Classification]) -> Awaitable[str]:
        return page_of(service.nuc)(rows)

    service = Service(nuc, limits, page=page)

    def tell(url: str) -> None:
        to_stderr(f"testnuc: serving on {url}; open it in a browser, or see {url}/docs")

    async def prepare() -> None:
        await nuc.warm_up()
        if texts:
            await nuc.add(texts)
            _log.info("pool of %d texts", len(nuc))

    async def reload() -> None:
        before = service.nuc
        if not parts_of(before).store.durable:
            raise ConfigurationError("without --store all answers would be lost")
        # files are read, and models loaded, beside the requests
        fresh, _ = await asyncio.to_thread(_client, given.client)
        await fresh.__aenter__()
        try:
            await fresh.warm_up()
            await service.use(fresh)
        finally:
            # not the one that is used
            await (before if service.nuc is fresh else fresh).aclose()

    async def run_service() -> bool:
        await nuc.__aenter__()
        try:
            tell_lessons()
            return await serve(service, prepare=prepare, listening=tell, reload=reload)
        finally:
            await service.nuc.aclose()

    if not run_to_end(run_service()):
        sys.exit(1)


def _start_log(kind: str) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if kind == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(capture=True)


def _per_week(audit: str | None) -> int | None:
    found = re.fullmatch(r"(\d{1,9})/week", audit or "")
    if audit is not None and found is None:
        raise InvalidInputError(f"--audit is {audit!r}; give texts a week, such as 20/week")
    return None if found is None else int(found[1])


def _client(given: Options) -> tuple[TestNUC, Callable[[], None]]:
    """Return a client with the store of earlier runs, and what logs its lessons once it is open."""
    options, store = completed(given, None)
    if store.folder is not None:
        _log.info("answers are stored in %s, as those of earlier runs", store.where)
    nuc = client_of(options, store=store.where)

    def tell_lessons() -> None:
        if (said := about_lessons(nuc, store, options)) is not None:
            _log.info("%s", said)

    return nuc, tell_lessons


def _token(file: str | None) -> str | Callable[[], str] | None:
    """Return the token, or what reads the file of tokens again when it changed."""
    if file is None:
        return os.environ.get("TESTNUC_TOKEN")

    @lru_cache(maxsize=1)
    def read(_changed: tuple[int, int]) -> str:
        return Path(file).read_text(encoding="utf-8")

    def tokens() -> str:
        try:
            facts = Path(file).stat()
            return read((facts.st_mtime_ns, facts.st_ino))
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigurationError(f"--token-file {file} cannot be read: {exc}") from exc

    return tokens


def _texts(pool: str, text_column: str) -> list[str]:
    """Return the valid texts of a file; invalid ones do not prevent the service from starting."""
    given = read_table(pool, text_column).texts
    texts = [text for text in given if valid_text(text) is None]
    if not texts:
        raise InvalidInputError(f"{pool} has no usable text; give a file with some")
    if len(texts) < len(given):
        _log.warning("%s: %d rows have no usable text", pool, len(given) - len(texts))
    return texts
