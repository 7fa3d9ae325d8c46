"""From a text to a prediction: key, prompt, call, label."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import TYPE_CHECKING

import orjson

from testnuc import prompts
from testnuc._dispatch.inflight import Ask
from testnuc.errors import BadRequestError, InvalidInputError, ProviderError, ReplyError
from testnuc.protocols import Request, Task, WireProvider

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from testnuc.labels import LabelSet
    from testnuc.prompts import Demonstration
    from testnuc.protocols import Answer, Provider, Reply
    from testnuc.transport import Transport
    from testnuc.types import Prediction

__all__ = ["Predictor"]


class Predictor:
    """Asks one provider for the labels of one label set.

    Parameters
    ----------
    provider : WireProvider or Provider
    transport : Transport
    labels : LabelSet
    instructions : str, optional
        The user's guidelines, added to the prompt.
    temperature, top_p : float, optional
    confidence : {"verbalized", "logprobs"}
    options : mapping
        Passed to the provider unchanged.
    texts_per_call : int
        Part of every key, because packing can change an answer.
    """

    def __init__(
        self,
        provider: WireProvider | Provider,
        transport: Transport,
        labels: LabelSet,
        *,
        instructions: str | None,
        temperature: float | None,
        top_p: float | None,
        confidence: Literal["verbalized", "logprobs"],
        options: Mapping[str, Any],
        texts_per_call: int,
    ) -> None:
        self.provider = provider
        self.labels = labels
        self._transport = transport
        # checked once: isinstance with a protocol takes 15 us
        self._wire = provider if isinstance(provider, WireProvider) else None
        self._other = None if isinstance(provider, WireProvider) else provider
        self.task = Task(
            system=prompts.system_prompt(
                labels,
                instructions=instructions,
                confidence=confidence,
                texts_per_call=texts_per_call,
            ),
            labels=labels.names,
            temperature=temperature,
            top_p=top_p,
            confidence=confidence,
            options=dict(options),
        )
        validate = getattr(provider, "validate", None)
        if validate is not None:
            validate(self.task)
        try:
            constant = orjson.dumps(
                [
                    prompts.PROMPT_VERSION,
                    provider.name,
                    provider.model,
                    provider.identity,
                    self.task.system,
                    # the order decides how a reply is matched and how a local labeler breaks ties
                    list(labels.names),
                    temperature,
                    top_p,
                    confidence,
                    self.task.options,
                    texts_per_call,
                ],
                option=orjson.OPT_SORT_KEYS,
            )
        except orjson.JSONEncodeError as exc:
            raise InvalidInputError(
                f"request_options cannot be sent: {exc}; use numbers, strings, lists and dicts"
            ) from exc
        self._hasher = blake2b(constant, digest_size=16)
        #: Hash of everything that all keys have in common.
        self.scope = self._hasher.digest()
        #: The hash state of a prompt without examples, up to the text.
        self._plain = self._hash_state(())

    def key(
        self, text: str, sample: int = 0, demonstrations: tuple[Demonstration, ...] = ()
    ) -> bytes:
        """Return the cache key of a text: a hash of `scope`, its prompt and the sample index."""
        hasher = self._hash_state(demonstrations) if demonstrations else self._plain.copy()
        hasher.update(prompts.text_json(text))
        hasher.update(sample.to_bytes(4, "little"))
        return hasher.digest()

    def _hash_state(self, demonstrations: tuple[Demonstration, ...]) -> blake2b:
        hasher = self._hasher.copy()
        hasher.update(prompts.user_prompt_start(demonstrations))
        return hasher

    def ask(
        self,
        text: str,
        text_hash: bytes,
        place: int,
        sample: int = 0,
        demonstrations: tuple[Demonstration, ...] = (),
    ) -> Ask:
        """Return the ask for a text."""
        key = self.key(text, sample, demonstrations)
        return Ask(key, text, text_hash, place, sample, demonstrations)

    def key_of(self, kind: str, text_hash: bytes) -> bytes:
        """Return the key of a text's prediction by a kind of method, independent of its prompts."""
        hasher = self._hasher.copy()
        # no prompt starts with a NUL
        hasher.update(b"\0" + kind.encode() + b"\0" + text_hash)
        return hasher.digest()

    def request(self, asks: Sequence[Ask]) -> Request:
        """Return the call for distinct texts; a text with examples needs a call of its own."""
        texts = tuple(ask.text for ask in asks)
        return Request(self.task, prompts.user_prompt(texts, asks[0].demonstrations), texts)

    async def answer(self, asks: tuple[Ask, ...]) -> list[Prediction | Exception]:
        """Return a prediction or an error for each ask, whose texts are distinct.

        If items of a packed call fail, they are retried in two smaller calls, recursively, down to
        calls of one text.
        """
        request = self.request(asks)
        answers: Sequence[Answer | Exception]
        try:
            answers = (await self._call(request)).answers
        except ReplyError as exc:
            answers = [exc] * len(asks)
        except ProviderError as exc:
            refused = isinstance(exc, BadRequestError)
            if len(asks) == 1 or exc.retryable or (exc.fatal and not refused):
                raise
            # one refused text (too long, filtered) must not fail the texts packed with it
            answers = [exc] * len(asks)
        outcomes: list[Prediction | Exception] = [
            a if isinstance(a, Exception) else self.labels.predicted(a) for a in answers
        ]
        failed = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, ProviderError)]
        if len(asks) > 1:
            half = -(-len(failed) // 2)
            for part in (failed[:half], failed[half:]):
                if part:
                    again = await self._retry_half(tuple(asks[i] for i in part))
                    for i, outcome in zip(part, again, strict=True):
                        outcomes[i] = outcome
        return outcomes

    async def _retry_half(self, asks: tuple[Ask, ...]) -> list[Prediction | Exception]:
        try:
            return await self.answer(asks)
        except Exception as exc:  # noqa: BLE001 - the other half keeps its answers
            return [exc] * len(asks)

    async def _call(self, request: Request) -> Reply:
        if self._wire is not None:
            return await self._transport.call(self._wire, request)
        assert self._other is not None
        # a local labeler may never suspend, so yield to other tasks here
        await asyncio.sleep(0)
        return await self._transport.answer(self._other, request)
