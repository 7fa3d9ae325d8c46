"""Settings of limits, retries, budgets and batch jobs, validated on creation."""

from dataclasses import dataclass
from typing import Literal

from testnuc._base.checks import checked_choice, checked_positive, checked_whole
from testnuc._base.display import Brief
from testnuc.errors import InvalidInputError

#: A provider that asks for a longer wait, in seconds, is asked again after this one.
LONGEST_WAIT = 3600.0


def _bound(name: str, value: int | None) -> None:
    if value is not None:
        checked_whole(name, value, least=1)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Attempts, waits and deadline of one call. All times in seconds.

    The wait before attempt n + 1 is ``uniform(0, min(max_wait, initial_wait * 2**(n - 1)))``; if
    the server sends a wait (Retry-After), it is at least that, plus jitter.

    Parameters
    ----------
    attempts : int
        Most attempts of a call.
    deadline : float
        For the whole call, from its first request on: all attempts and the waits between them.
    timeout : float
        For one attempt, from sending to the last byte of the response.
    max_wait : float
        The longest back-off; a longer wait that the server asks for is obeyed if `deadline`
        allows, and otherwise fails the call once a second refusal confirms it. After the longer of
        `max_wait` and `deadline`, at most after an hour, one call is sent whatever the server
        asked for.
    initial_wait : float
        The longest wait before the second attempt.
    """

    attempts: int = 10
    deadline: float = 120.0
    timeout: float = 60.0
    max_wait: float = 60.0
    initial_wait: float = 0.5

    def __post_init__(self) -> None:
        checked_whole("attempts", self.attempts, least=1)
        checked_positive("deadline", self.deadline)
        checked_positive("timeout", self.timeout)
        checked_positive("max_wait", self.max_wait, zero=True)
        checked_positive("initial_wait", self.initial_wait, zero=True)


def longest_pause(policy: RetryPolicy) -> float:
    """Return the seconds after which a provider that asked for a longer wait is asked again."""
    return max(policy.max_wait, min(policy.deadline, LONGEST_WAIT))


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one client may spend. None: unlimited.

    The worst case of each call is reserved before it is sent, so concurrent calls cannot exceed the
    budget.

    Parameters
    ----------
    usd : float, optional
        US dollars by the price list.
    tokens : int, optional
        Input and output tokens together.
    calls : int, optional
        Calls that the provider answered, or may have answered.
    """

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None

    def __post_init__(self) -> None:
        if self.usd is not None:
            checked_positive("usd", self.usd)
        _bound("tokens", self.tokens)
        _bound("calls", self.calls)


@dataclass(frozen=True, slots=True, repr=False)
class BatchPolicy(Brief):
    """How the batch lane uses a provider's batch API. All times in seconds.

    Parameters
    ----------
    rest : {"batch", "live", "error"}
        What to do with requests that a batch job did not answer (the job expired, was cancelled or
        failed, or the request failed): retry in another batch, send live at the full price, or
        report as errors of their texts.
    attempts : int
        Most batches in which a request is sent; two, once it was executed and its result cannot be
        read or is missing.
    in_flight : int
        Most batches in progress at a time.
    max_requests : int, optional
        Most requests in a batch; default: what the provider allows.
    max_enqueued_tokens : int, optional
        Most estimated input tokens of all batches in progress. Without it, batches are submitted
        until the provider refuses one; the others wait until a batch ends.
    first_poll, longest_poll : float
        The first and the longest interval between polls; each is 1.5 times the one before. A wait
        that the provider asks for takes precedence.
    grace : float
        How long another process may take to create a batch. After that, the process counts as
        dead, and the batch is searched for at the provider. A batch whose creation failed without a
        refusal is searched for as long.
    patience : float
        How long a provider is asked again for results that it should have: the batch has ended and
        nothing says what became of some requests, their file cannot be read, or the batch is
        unknown (404) or cannot be polled. Only then are they sent again, and count as billed.
        The list of batches is searched for as long.
    """

    rest: Literal["batch", "live", "error"] = "batch"
    attempts: int = 3
    in_flight: int = 8
    max_requests: int | None = None
    max_enqueued_tokens: int | None = None
    first_poll: float = 5.0
    longest_poll: float = 60.0
    grace: float = 30.0
    patience: float = 3_600.0

    def __post_init__(self) -> None:
        checked_choice("rest", self.rest, ("batch", "live", "error"))
        checked_whole("attempts", self.attempts, least=1)
        checked_whole("in_flight", self.in_flight, least=1)
        _bound("max_requests", self.max_requests)
        _bound("max_enqueued_tokens", self.max_enqueued_tokens)
        for name in ("first_poll", "longest_poll", "grace", "patience"):
            checked_positive(name, getattr(self, name))


@dataclass(frozen=True, slots=True, repr=False)
class Limits(Brief):
    """How fast, how often and for how much a client calls the LLM.

    Limits in the provider's headers are always respected, too.

    Parameters
    ----------
    requests_per_minute : int, optional
        Requests in any sliding minute, retries included. None: unlimited.
    tokens_per_minute : int, optional
        Input and output tokens together, in any sliding minute. None: unlimited.
    concurrency : int
        The most calls in flight.
    retry : RetryPolicy
        Attempts, deadline and timeout of a call.
    budget : Budget, optional
        The most calls, tokens or US dollars to spend.
    batches : BatchPolicy
        How ``lane="batch"`` uses the provider's batch API.

    Examples
    --------
    ::

        TestNUC(labels, limits=Limits(requests_per_minute=5_000, budget=Budget(usd=5)))
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int = 64
    retry: RetryPolicy = RetryPolicy()
    budget: Budget | None = None
    batches: BatchPolicy = BatchPolicy()

    def __post_init__(self) -> None:
        _bound("requests_per_minute", self.requests_per_minute)
        _bound("tokens_per_minute", self.tokens_per_minute)
        checked_whole("concurrency", self.concurrency, least=1)
        for name, kind in (("retry", RetryPolicy), ("budget", Budget), ("batches", BatchPolicy)):
            value = getattr(self, name)
            if not (isinstance(value, kind) or (kind is Budget and value is None)):
                raise InvalidInputError(f"{name} is {value!r}; give testnuc.{kind.__name__}(..)")
