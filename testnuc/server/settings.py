"""Where a service listens, who may call it, and how much it takes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from ipaddress import ip_address

from testnuc._base.checks import checked_positive, checked_whole
from testnuc.errors import ConfigurationError, InvalidInputError

__all__ = ["ServerSettings", "is_loopback"]

_LEAST_TOKEN = 16
_COUNTS = ("max_body", "max_texts", "max_text_chars", "max_pending")
_SECONDS = ("body_timeout", "idle_timeout", "request_timeout", "drain_timeout")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of a `Service`; checked when they are made.

    Parameters
    ----------
    host, port
        Where to listen; port 0 takes a free one.
    token : str, optional
        What callers must send as ``Authorization: Bearer ..``. An address that other machines can
        reach needs one.
    max_body : int
        Bytes of one request.
    max_texts : int
        Texts of one request.
    max_text_chars : int
        Characters of one text.
    max_pending : int
        Texts that are being labeled or wait for it, of all requests together; more are refused
        with 429.
    body_timeout : float
        Seconds that a request may take to arrive.
    idle_timeout : float
        Seconds after which a connection without a request, or one that does not take its answer,
        is closed.
    request_timeout : float
        Seconds after which a request is answered with 504; answers of the LLM that come in later
        are stored all the same.
    grace : float
        Seconds after SIGTERM in which requests are still taken, while ``/readyz`` already says 503:
        as long as a load balancer needs to notice.
    drain_timeout : float
        Seconds that requests under way then have.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = field(default=None, repr=False)
    max_body: int = 4 * 1024 * 1024
    max_texts: int = 1_000
    max_text_chars: int = 32_000
    max_pending: int = 4_096
    body_timeout: float = 20.0
    idle_timeout: float = 75.0
    request_timeout: float = 300.0
    grace: float = 0.0
    drain_timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in _COUNTS:
            checked_whole(name, getattr(self, name), least=1)
        checked_whole("port", self.port, least=0, most=65_535)
        for name in (*_SECONDS, "grace"):
            checked_positive(name, getattr(self, name), zero=name == "grace")
        if not isinstance(self.host, str) or not self.host:
            raise InvalidInputError(f"host is {self.host!r}; give an address such as 127.0.0.1")
        if self.max_texts > self.max_pending:
            raise InvalidInputError(
                f"max_texts is {self.max_texts}, but only max_pending={self.max_pending} texts are "
                "taken at a time: such a request could never be; raise the one or lower the other"
            )
        if self.token is not None:
            self._check_token(self.token)
        elif not is_loopback(self.host):
            raise ConfigurationError(
                f"host {self.host} can be reached from other machines, and who reaches it spends "
                "your money: set a token (TESTNUC_TOKEN or --token-file), or listen on 127.0.0.1"
            )

    @staticmethod
    def _check_token(token: str) -> None:
        # the token itself is in no message
        if not isinstance(token, str) or len(token) < _LEAST_TOKEN:
            raise ConfigurationError(
                f"the token has fewer than {_LEAST_TOKEN} characters and could be guessed; make "
                "one with: openssl rand -hex 32"
            )
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigurationError(
                "the token holds characters that a header cannot carry; use letters and digits"
            )

    def limits(self) -> dict[str, int]:
        """Return what is refused beyond, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in _COUNTS}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
