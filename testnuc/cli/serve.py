"""``testnuc serve``: labels over HTTP."""

import asyncio
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer

from testnuc._base.loop_thread import run_to_end
from testnuc.cli.memory import about_lessons
from testnuc.cli.options import Options, is_same
from testnuc.cli.options_of_run import client_of, completed
from testnuc.cli.reading import read_table, usable
from testnuc.cli.settings import read_sets
from testnuc.client import TestNUC, parts_of
from testnuc.errors import ConfigurationError, InvalidInputError
from testnuc.server import JsonLines, ServerSettings, Service, page_of, serve

_log = logging.getLogger("testnuc.server")


def run(given: SimpleNamespace) -> None:
    """Serve until SIGTERM or Ctrl-C; exit code 1 if requests were cut off."""
    origins = tuple(filter(None, map(str.strip, (given.cors_origin or "").split(","))))
    options = vars(given)
    options["audit"] = _per_week(given.audit)
    own = {f.name: options[f.name] for f in fields(ServerSettings) if f.name in options}
    limits = ServerSettings(token=_token(given.token_file), cors_origins=origins, **own)
    _start_log(given.log_format)

    made = _made(given)
    service = Service(_clients(made), limits, page=page_of)

    async def prepare() -> None:
        for one in made.values():
            await one.fill()

    async def reload() -> None:
        if not all(parts_of(nuc).store.durable for nuc in service.clients):
            raise ConfigurationError("without --store all answers would be lost")
        before = service.clients
        # files are read, and models loaded, beside the requests
        fresh = await asyncio.to_thread(_made, given)
        try:
            for one in fresh.values():
                await one.open()
                await one.fill()
            await service.use(_clients(fresh))
        finally:
            unused = {*before, *(one.nuc for one in fresh.values())} - {*service.clients}
            await asyncio.gather(*map(TestNUC.aclose, unused))

    async def run_service() -> bool:
        try:
            for one in made.values():
                await one.open()
            tell = partial(_log.info, "serving on %s; open it in a browser, or see /docs there")
            return await serve(service, prepare=prepare, listening=tell, reload=reload)
        finally:
            await asyncio.gather(*map(TestNUC.aclose, service.clients))

    if not run_to_end(run_service()):
        sys.exit(1)


class _LabelSet:
    """A client as its options say, with the store of earlier runs, and the texts of its pool."""

    def __init__(self, given: Options, pool: str | None, text_column: str, **more: Any) -> None:
        self._texts = [] if pool is None else _texts(pool, text_column)
        self._options, self.store = completed(given, None)
        if self.store.folder is not None:
            _log.info("answers are stored in %s, as those of earlier runs", self.store.where)
        elif self.store.new:
            _log.warning("%s is a new store, without answers and judgments", self.store.where)
        self.nuc = client_of(self._options, store=self.store.where, **more)

    async def open(self) -> None:
        """Open the client; log what it has learned."""
        await self.nuc.__aenter__()
        if (said := about_lessons(self.nuc, self.store, self._options)) is not None:
            _log.info("%s", said[0])

    async def fill(self) -> None:
        """Load the model of texts, and fill the pool."""
        await self.nuc.warm_up()
        if self._texts:
            await self.nuc.add(self._texts)
            _log.info("pool of %d texts", len(self.nuc))


def _made(given: SimpleNamespace) -> dict[str, _LabelSet]:
    """Return the label sets by name; "": the only one, of the command line."""
    own = {name: getattr(given, name) for name in ("pool", "text_column", "join_pool")}
    if given.sets is None:
        return {"": _LabelSet(given.client, **own)}
    typed = {known.name: known for known in given.context.command.params}
    made: dict[str, _LabelSet] = {}
    for name, table in read_sets(Path(given.sets), {*given.client, *own} - {"run"}).items():
        try:
            values = {n: typed[n].process_value(given.context, v) for n, v in table.items()}
            rest = {option: values.pop(option, usual) for option, usual in own.items()}
            one = _LabelSet(given.client.but(**values), **rest)
        except (typer.BadParameter, InvalidInputError, ConfigurationError) as exc:
            problem = exc.format_message() if isinstance(exc, typer.BadParameter) else exc
            raise ConfigurationError(f"{given.sets}: {name}: {problem}") from exc
        for other, known in made.items():
            places = one.store.where, known.store.where
            if None not in places and is_same(*map(str, places)):
                raise ConfigurationError(
                    f"{given.sets}: {other} and {name} have one store, {one.store.where}, and so "
                    "one pool; give each a store of its own"
                )
        made[name] = one
    return made


def _clients(made: Mapping[str, _LabelSet]) -> TestNUC | dict[str, TestNUC]:
    clients = {name: one.nuc for name, one in made.items()}
    return clients.get("", clients)


def _start_log(kind: str) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if kind == "json" else text)
    # a run is a request here, which has its own lines, and advice for Python helps nobody
    handler.addFilter(lambda record: record.name != "testnuc.client.runs")
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(capture=True)
    # without the line of code
    warnings.formatwarning = lambda message, kind, *_: f"{kind.__name__}: {message}"


def _per_week(audit: str | None) -> int | None:
    found = re.fullmatch(r"(\d{1,9})/week", audit or "")
    if audit is not None and found is None:
        raise InvalidInputError(f"--audit is {audit!r}; give texts a week, such as 20/week")
    return None if found is None else int(found[1])


def _token(file: str | None) -> str | Callable[[], str] | None:
    """Return the token, or what reads the file of tokens at each request."""
    read = partial(Path(file).read_text, encoding="utf-8") if file is not None else None
    return read or os.environ.get("TESTNUC_TOKEN")


def _texts(pool: str, text_column: str) -> list[str]:
    """Return the valid texts of a file; invalid ones do not prevent the service from starting."""
    table = read_table(pool, text_column)
    problems, valid = usable(table)
    if problems:
        _log.warning("%s: %d rows have no usable text", pool, len(problems))
    return [table.texts[at] for at in valid]
