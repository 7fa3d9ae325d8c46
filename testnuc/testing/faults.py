"""What can go wrong at a provider, on a schedule that a test can repeat."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from testnuc.errors import InvalidInputError

__all__ = ["CURABLE_KINDS", "FAULT_KINDS", "LOST_KINDS", "PACKED_KINDS", "Faults"]

#: Faults of the answers of a packed call, which a call with one text cannot have.
PACKED_KINDS: Final = ("duplicate-ids", "missing-ids", "invented-ids")

#: Faults after which asking again gives a good answer: what a client has to survive.
CURABLE_KINDS: Final = (
    "429",
    "429-retry-after",
    "429-retry-after-date",
    "429-retry-after-ms",
    "500",
    "503",
    "529",
    "refused",
    "reset-before",
    "reset-within",
    "reset-after",
    "stalled",
    "slow",
    "truncated",
    "empty-choices",
    "missing-usage",
    "prose",
    *PACKED_KINDS,
)

#: All kinds; any other HTTP status from 400 to 599 is a kind, too.
FAULT_KINDS: Final = (*CURABLE_KINDS, "wrong-label", "refusal", "length", "content-filter", "quota")

#: Faults after which the client has no body: the server does not count these as calls.
LOST_KINDS: Final = frozenset({"refused", "reset-before", "reset-within", "stalled"})

_NOT_BODIES = frozenset({"content-filter", "quota"})


class Faults:
    """A schedule of faults for `LoopbackLLM`.

    Whether a request fails, and how, is decided by a hash of the seed, its texts and how often
    these texts were asked before: neither concurrency nor the order of the requests changes it.

    ==========================  ===================================================================
    kind                        what happens
    ==========================  ===================================================================
    ``429``                     rate limited, without a word on how long
    ``429-retry-after``         .. with ``Retry-After`` in seconds
    ``429-retry-after-date``    .. as an HTTP date (rounded down: the format knows whole seconds)
    ``429-retry-after-ms``      .. with ``retry-after-ms``
    ``500``, ``503``, ``529``   server error, unavailable, overloaded; so any status 400..599
    ``quota``                   the quota is used up: waiting does not help
    ``content-filter``          400: the provider's filter refused the prompt
    ``refused``                 the connection is reset, and new ones are refused for a moment
    ``reset-before``            the connection is reset before the response
    ``reset-within``            .. in the middle of the body
    ``reset-after``             .. after the whole body, though the connection was to be kept
    ``stalled``                 half the body, then silence, then a reset
    ``slow``                    the body comes in small pieces
    ``truncated``               a whole response (200) whose JSON is cut in half
    ``empty-choices``           200 without a choice
    ``refusal``                 200 in which the model declines to answer
    ``length``                  200 with an answer cut off by the output limit
    ``wrong-label``             200 with a label that nobody offered
    ``missing-usage``           200 with a good answer that does not tell the tokens
    ``prose``                   200 with a good answer fenced and wrapped in prose
    ``duplicate-ids``           200, packed: the first id twice in place of the second
    ``missing-ids``             200, packed: the last id is not there
    ``invented-ids``            200, packed: an id nobody gave in place of the last
    ==========================  ===================================================================

    Paid for, and counted as calls by the server, are those with a complete 200 response: the last
    eleven, ``slow`` and ``reset-after``. Of ``truncated`` and ``missing-usage`` the tokens are not
    counted, since no client can know them.

    Parameters
    ----------
    rate : float
        Share of the requests that fail, 0..1.
    kinds : sequence of str
        The kinds to choose from, each as likely as the others. Those of packed calls are left out
        where a request has one text. Default: `CURABLE_KINDS`.
    seed : int
        Another seed, another schedule.
    schedule : sequence of (str or None), or callable, optional
        In place of chance: the fault of each request by its number, 0-based, in order of arrival.
        Requests after the end of a sequence do not fail.
    most_in_a_row : int, optional
        The same texts asked again fail at most so many times in a row.
    retry_after : float
        What the ``429-*`` kinds tell the client to wait, in seconds.
    stall : float
        Silence of ``stalled``, in seconds.
    slow : float
        Duration of a ``slow`` body, in seconds.
    refuse : float
        How long ``refused`` refuses connections, in seconds.
    """

    def __init__(
        self,
        rate: float = 0.2,
        kinds: Sequence[str] = CURABLE_KINDS,
        seed: int = 0,
        *,
        schedule: Sequence[str | None] | Callable[[int], str | None] | None = None,
        most_in_a_row: int | None = None,
        retry_after: float = 0.05,
        stall: float = 1.0,
        slow: float = 0.05,
        refuse: float = 0.05,
    ) -> None:
        if not 0 <= rate <= 1:
            raise InvalidInputError(f"rate is {rate}; it is a share between 0 and 1")
        if not kinds:
            raise InvalidInputError("kinds is empty; rate=0 means no faults")
        for kind in kinds:
            _check(kind)
        if isinstance(schedule, Sequence):
            for entry in schedule:
                _check(entry)
        self.rate = rate
        self.kinds = tuple(kinds)
        self.seed = seed
        self.schedule = schedule
        self.most_in_a_row = most_in_a_row
        self.retry_after = retry_after
        self.stall = stall
        self.slow = slow
        self.refuse = refuse
        self._single_kinds = tuple(kind for kind in kinds if kind not in PACKED_KINDS)

    def draw(self, texts: Sequence[str], attempt: int, number: int) -> str | None:
        """Fault of a request, or None.

        Parameters
        ----------
        texts : sequence of str
            The texts it asks about.
        attempt : int
            How often the server was asked about exactly these before.
        number : int
            How many requests came before this one.
        """
        if self.schedule is not None:
            kind = self._scheduled(number)
            return None if kind in PACKED_KINDS and len(texts) == 1 else kind
        kind = self._chance(texts, attempt)
        most = self.most_in_a_row
        if kind is None or most is None or attempt < most:
            return kind
        before = range(attempt - most, attempt)
        return kind if any(self._chance(texts, i) is None for i in before) else None

    def _scheduled(self, number: int) -> str | None:
        if isinstance(self.schedule, Sequence):
            return self.schedule[number] if number < len(self.schedule) else None
        assert self.schedule is not None
        kind = self.schedule(number)
        _check(kind)
        return kind

    def _chance(self, texts: Sequence[str], attempt: int) -> str | None:
        kinds = self.kinds if len(texts) > 1 else self._single_kinds
        if not kinds:
            return None
        digest = hashlib.blake2b(f"{self.seed} {attempt}".encode(), digest_size=8)
        for text in texts:
            # its length before each text: ["ab"] and ["a", "b"] are not the same request
            data = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d " % len(data))
            digest.update(data)
        drawn = int.from_bytes(digest.digest(), "big")
        if (drawn >> 32) >= self.rate * 2**32:
            return None
        return kinds[(drawn & 0xFFFF_FFFF) % len(kinds)]


def status_of(kind: str) -> int | None:
    """HTTP status of a kind that is one, such as ``"503"``."""
    return int(kind) if kind.isdecimal() and len(kind) == 3 and kind[0] in "45" else None


def _check(kind: str | None) -> None:
    if kind is not None and kind not in FAULT_KINDS and status_of(kind) is None:
        raise InvalidInputError(
            f"no fault is called {kind!r}; there are {', '.join(FAULT_KINDS)}, and any HTTP status"
        )
