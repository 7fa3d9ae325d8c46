"""Settings of the HTTP service: address, token, request limits and timeouts."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from testnuc._base.checks import checked_positive, checked_whole, is_loopback
from testnuc.errors import ConfigurationError, InvalidInputError

_log = logging.getLogger("testnuc.server")

_LEAST_TOKEN = 16
_COUNTS = ("max_body", "max_texts", "max_text_chars", "max_pending")
_SECONDS = ("body_timeout", "idle_timeout", "request_timeout", "drain_timeout")
#: What a line of tokens may end with: texts a minute.
_RATE = re.compile(r"([1-9][0-9]{0,8})/minute")


class Caller(NamedTuple):
    """Who sends a token, and how many texts a minute; None: any number."""

    name: str
    per_minute: int | None = None

    def __str__(self) -> str:
        return self.name if self.per_minute is None else f"{self.name} ({self.per_minute}/minute)"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of a `Service`; validated on creation.

    `max_pending` texts are in progress and queued, of all requests together; more are rejected with
    429. Times are in seconds: to receive a request (`body_timeout`), until an idle connection is
    closed, until a request is answered with 504 (later answers of the LLM are still stored), after
    SIGTERM while requests are still accepted and ``/readyz`` returns 503 (`grace`), and then for
    requests in progress to finish. `audit`: texts a week that are set aside in the store.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    #: One token, or lines as in a ``--token-file``; a function is asked at each request.
    token: str | Callable[[], str] | None = field(default=None, repr=False)
    max_body: int = 4 * 1024 * 1024
    max_texts: int = 1_000
    max_text_chars: int = 32_000
    max_pending: int = 4_096
    body_timeout: float = 20.0
    idle_timeout: float = 75.0
    request_timeout: float = 300.0
    grace: float = 0.0
    drain_timeout: float = 30.0
    cors_origins: tuple[str, ...] = ()
    access_log: bool = True
    audit: int | None = None
    #: The latest valid tokens of a function, and why they are not replaced.
    _valid: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in _COUNTS:
            checked_whole(name, getattr(self, name), least=1)
        checked_whole("port", self.port, least=0, most=65_535)
        if self.audit is not None:
            # they are one row of the store
            checked_whole("audit", self.audit, least=1, most=1_000)
        for name in (*_SECONDS, "grace"):
            checked_positive(name, getattr(self, name), zero=name == "grace")
        if not isinstance(self.host, str) or not self.host:
            raise InvalidInputError(f"host is {self.host!r}; give an address such as 127.0.0.1")
        if self.max_texts > self.max_pending:
            raise InvalidInputError(
                f"max_texts is {self.max_texts}, but only max_pending={self.max_pending} texts are "
                "accepted at a time: a full request would always be rejected; raise max_pending "
                "or lower max_texts"
            )
        self._check_origins()
        if self.token is not None:
            self.tokens()
        elif not is_loopback(self.host):
            raise ConfigurationError(
                f"host {self.host} is reachable from other machines, and every caller spends your "
                "money: set a token (TESTNUC_TOKEN or --token-file), or listen on 127.0.0.1"
            )

    def _check_origins(self) -> None:
        if "*" in self.cors_origins and self.token is None:
            raise ConfigurationError(
                "cors_origin is '*' without a token: every page that is open in a browser here "
                "could spend your money; set a token, or name the origins"
            )
        for origin in self.cors_origins:
            if origin != "*" and not re.fullmatch(r"https?://[^/\s,]+", origin):
                raise InvalidInputError(
                    f"cors_origin is {origin!r}; give a scheme and a host, such as "
                    "https://desk.example, or *"
                )

    def tokens(self) -> Mapping[str, Caller]:
        """Return the tokens that callers may send, and who they are; empty: none is needed.

        A function that fails after it gave tokens changes nothing: its error is logged once.
        """
        if not callable(self.token):
            return {} if self.token is None else _tokens_in(self.token)
        try:
            found = _tokens_in(self.token())
            if found != self._valid.get("tokens", found) or self._valid.get("problem"):
                callers = ", ".join(map(str, dict.fromkeys(found.values())))
                _log.info("the tokens are now those of %s", callers)
            self._valid.update(tokens=found, problem=None)
        except Exception as exc:
            if not self._valid:
                raise ConfigurationError(f"--token-file cannot be used: {exc}") from exc
            if self._valid["problem"] != str(exc):
                self._valid.update(problem=str(exc), failed=self.failed_tokens + 1)
                _log.error("the tokens stay those before: %s", exc)
        tokens: Mapping[str, Caller] = self._valid["tokens"]
        return tokens

    @property
    def failed_tokens(self) -> int:
        """How often tokens stayed those before."""
        return int(self._valid.get("failed", 0))

    def limits(self) -> dict[str, int]:
        """Return the limits of requests, by name."""
        return {name: getattr(self, name) for name in _COUNTS}


@lru_cache(maxsize=4)
def _tokens_in(text: str) -> Mapping[str, Caller]:
    """Return the tokens in a text, a line each: ``TOKEN``, ``NAME TOKEN`` or ``NAME TOKEN
    600/minute``; two may have a name, and then the lowest rate of its lines.

    Messages never contain a token.
    """  # noqa: D205 - the forms belong to the summary
    names_by_token: dict[str, str] = {}
    rates: dict[str, int] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line:
            continue
        before, _, last = line.rpartition(" ")
        rate = _RATE.fullmatch(last)
        *names, token = (before if rate else line).split(maxsplit=1) or [""]
        if len(token) < _LEAST_TOKEN:
            raise ConfigurationError(
                f"the token in line {number} has fewer than {_LEAST_TOKEN} characters and can be "
                "guessed; create one with: openssl rand -hex 32"
            )
        if " " in token:
            raise ConfigurationError(
                f"line {number} is not TOKEN, NAME TOKEN or NAME TOKEN 600/minute, with a rate "
                "from 1 on; to lock a caller out, remove its lines"
            )
        if not token.isascii() or not token.isprintable():
            raise ConfigurationError(
                f"the token in line {number} contains characters that a header cannot carry; use "
                "letters and digits"
            )
        name = names[0] if names else f"token {len(names_by_token) + 1}"
        names_by_token[token] = name
        if rate:
            rates[name] = min(int(rate[1]), rates.get(name, int(rate[1])))
    if not names_by_token:
        raise ConfigurationError("there is no token; create one with: openssl rand -hex 32")
    return {token: Caller(name, rates.get(name)) for token, name in names_by_token.items()}
