"""From a text to a prediction: key, prompt, call, label."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from numbers import Real
from typing import Any, TypeAlias, cast

import orjson

from testnuc import errors
from testnuc._base.loop_thread import is_cancelled
from testnuc._dispatch.inflight import LAST_STEP, NONE_CHOSEN, Ask, none_key
from testnuc.label_tree import path_of
from testnuc.labels import LabelSet, level_sets, longest_part, part_of
from testnuc.methods import Sampling
from testnuc.prompts import writing
from testnuc.prompts.writing import Demonstration
from testnuc.protocols import (
    Answer,
    Provider,
    Reply,
    Request,
    Store,
    Task,
    WireProvider,
    implements,
)
from testnuc.transport import Transport
from testnuc.types import LEVELS, Prediction

#: None: the answer is none of the labels that the prompt showed.
_Found: TypeAlias = Prediction | Exception | None

#: Texts without a readable reply after which a run stops, if no reply was ever readable.
_SILENT_TEXTS = 20
#: Calls for different texts in a row that a provider rejects by 401, 403, 404 .., after it has
#: answered others: then key, model or address are rejected, and not some texts.
_MOST_REJECTED = 20
#: Most refused texts that are remembered.
_MOST_REFUSED = 10_000
#: Half a character, which no store can hold.
_SURROGATE = re.compile("[\ud800-\udfff]")
#: Bytes of a typical text, which each call for it repeats.
_TEXT_BYTES = 300
#: The sample that sees the whole list of labels at once, whatever prompts show otherwise.
FULL_LABELS = 1 << 20


class Predictor:
    """Asks one provider for the labels of one label set.

    How many texts are in a call is part of every key, because packing can change an answer. With
    ``score_labels`` the prompt asks for no confidence. `shortlist` has the labels in each
    shortlist, and the embedder that chooses them: asks then name the labels that their prompt
    shows, and a packed call shows those of all its texts; ``("levels",)`` is a call for each level
    of the tree of labels, only with one text in a call. `store` gets the answers of a packed call
    before its other texts are asked again.
    """

    def __init__(
        self,
        provider: WireProvider | Provider,
        transport: Transport,
        labels: LabelSet,
        sampling: Sampling,
        *,
        instructions: str | None,
        shortlist: tuple[int, str] | tuple[str] | None = None,
        store: Store | None = None,
    ) -> None:
        self.provider = provider
        self.labels = labels
        self._store = store
        self._transport = transport
        confidence = "logprobs" if sampling.score_labels else sampling.confidence
        #: Set if calls are sent over HTTP; checked once: it takes microseconds.
        self.wire = provider if implements(provider, WireProvider) else None
        self._system = partial(
            writing.system_prompt,
            instructions=instructions,
            confidence=confidence,
            texts_per_call=sampling.texts_per_call,
        )
        self.task = labels.task(
            self._system(labels),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            confidence=confidence,
            options=dict(sampling.request_options),
            reasoning_effort=sampling.reasoning_effort,
            score_labels=sampling.score_labels,
        )
        #: Node -> the labels of the call that follows it; empty: labels are not asked by level.
        self._levels: dict[tuple[str, ...], LabelSet] = {}
        #: The tasks of the calls for a text, for estimates: with as many labels as they can show,
        #: and the longest of them.
        self.steps: tuple[Task, ...] = (self.task,)
        if shortlist is not None and len(shortlist) == 2:
            most = int(shortlist[0]) * sampling.texts_per_call
            if not self._are_all(most):
                self.steps = (self._part_task(longest_part(labels, most)),)
        elif shortlist is not None:
            self._levels = level_sets(labels)
            self.steps = self._longest_levels()
        validate = getattr(provider, "validate", None)
        if validate is not None:
            validate(self.task)
        effort = sampling.reasoning_effort
        try:
            constant = orjson.dumps(
                [
                    writing.PROMPT_VERSION,
                    provider.name,
                    provider.model,
                    provider.identity,
                    self.task.system,
                    # the order decides how a reply is matched and how a local labeler breaks ties
                    list(labels.names),
                    # 0 and 0.0 are one key: that of 0.0, as in the docs and on the command line
                    None if sampling.temperature is None else float(sampling.temperature),
                    None if sampling.top_p is None else float(sampling.top_p),
                    confidence,
                    self.task.options,
                    sampling.texts_per_call,
                    # keys of older versions stay valid: a later option is hashed only if it is set
                    *([] if effort == "least" else [{"effort": effort}]),
                    *([] if shortlist is None else [{"shortlist": shortlist}]),
                    *([{"score_labels": True}] if sampling.score_labels else []),
                ],
                option=orjson.OPT_SORT_KEYS,
            )
        except orjson.JSONEncodeError as exc:
            raise errors.InvalidInputError(
                f"request_options, instructions or labels cannot be sent as JSON: {exc}; use "
                "numbers, strings, lists and dicts"
            ) from exc
        self._hasher = blake2b(constant, digest_size=16)
        #: Hash of everything that all keys have in common.
        self.scope = self._hasher.digest()
        #: The hash state of a prompt without examples, up to the text.
        self._plain = self._hash_state(())
        #: Key -> the error of a text that was rejected permanently.
        self._refused: dict[bytes, tuple[type[errors.ProviderError], str, int | None]] = {}
        #: Text -> the error of its last call, if no reply to it was readable: as a neighbor of
        #: other texts it is not worth more calls.
        self.unreadable: dict[bytes, Exception] = {}
        #: Hashes of texts without a readable reply; None once a reply was readable.
        self._silent: set[bytes] | None = set()
        #: Calls rejected by 401, 403, 404 .. since the last reply; None before the first reply.
        self._rejected: set[tuple[bytes, int]] | None = None

    @property
    def prompt_bytes(self) -> int:
        """The approximate size of the prompts for one text, to compare ways to ask."""
        return sum(len(t.system) + sum(map(len, t.labels)) + _TEXT_BYTES for t in self.steps)

    def key(
        self, text: str, sample: int = 0, demonstrations: tuple[Demonstration, ...] = ()
    ) -> bytes:
        """Return the cache key of a text: a hash of `scope`, its prompt and the sample index."""
        hasher = self._hash_state(demonstrations) if demonstrations else self._plain.copy()
        hasher.update(writing.text_json(text))
        hasher.update(sample.to_bytes(4, "little"))
        return hasher.digest()

    def _hash_state(self, demonstrations: tuple[Demonstration, ...]) -> blake2b:
        hasher = self._hasher.copy()
        hasher.update(writing.user_prompt_start(demonstrations))
        return hasher

    def ask(
        self,
        text: str,
        text_hash: bytes,
        place: int,
        sample: int = 0,
        demonstrations: tuple[Demonstration, ...] = (),
        shown: tuple[int, ...] = (),
    ) -> Ask:
        """Return the ask for a text.

        Its key does not depend on the labels that its prompt shows, which change as the pool grows.
        """
        key = self.key(text, sample, demonstrations)
        return Ask(key, text, text_hash, place, sample, demonstrations, shown)

    def key_of(self, kind: str, text_hash: bytes) -> bytes:
        """Return the key of a text's prediction by a kind of method, independent of its prompts."""
        hasher = self._hasher.copy()
        # no prompt starts with a NUL
        hasher.update(b"\0" + kind.encode() + b"\0" + text_hash)
        return hasher.digest()

    def part(self, asks: Sequence[Ask]) -> LabelSet | None:
        """Return the labels that the first call for some texts shows; None: all labels."""
        if not all(ask.shown for ask in asks):
            return None
        shown = sorted({place for ask in asks for place in ask.shown})
        return None if self._are_all(len(shown)) else part_of(self.labels, shown)

    def request(self, asks: Sequence[Ask], part: LabelSet | None = None) -> Request:
        """Return the call for distinct texts; a text with examples needs a call of its own.

        `part`: the labels that the prompt shows; None: all.
        """
        texts = tuple(ask.text for ask in asks)
        task = self.task if part is None else self._part_task(part)
        return Request(task, writing.user_prompt(texts, asks[0].demonstrations), texts)

    def forget(self) -> None:
        """Send refused and unreadable texts again."""
        self._refused.clear()
        self.unreadable.clear()

    async def answer(self, asks: tuple[Ask, ...]) -> list[Prediction | Exception]:
        """Return a prediction or an error for each ask, whose texts are distinct.

        If items of a packed call fail, they are retried in two smaller calls, recursively, down to
        calls of one text. Texts that were refused before are not sent again.
        """
        if self._refused and any(ask.key in self._refused for ask in asks):
            known = [self._refused.get(ask.key) for ask in asks]
            unknown = tuple(ask for ask, error in zip(asks, known, strict=True) if error is None)
            rest = iter(await self.answer(unknown) if unknown else ())
            return [next(rest) if error is None else _again(*error) for error in known]
        outcomes: Sequence[_Found]
        try:
            if self._levels or asks[0].shown:
                outcomes = await self._chosen(asks)
            else:
                outcomes = await self._answer(asks, 0, None)
        except errors.ProviderError as exc:
            outcomes = [exc]
            if len(asks) > 1:
                raise
        # None only stands for labels that were not shown, of which none is left here
        return [self._note(ask, o) for ask, o in zip(asks, outcomes, strict=True) if o is not None]

    def _note(self, ask: Ask, outcome: Prediction | Exception) -> Prediction | Exception:
        """Remember failures, and count texts without a readable reply."""
        if not isinstance(outcome, Exception):
            self._silent = None
            self.unreadable.pop(ask.text_hash, None)
        elif isinstance(outcome, errors.RefusalError) or (
            isinstance(outcome, errors.BadRequestError) and not outcome.fatal
        ):
            if len(self._refused) >= _MOST_REFUSED:
                del self._refused[next(iter(self._refused))]
            self._refused[ask.key] = (type(outcome), str(outcome), outcome.status_code)
        elif getattr(outcome, "answered", False):
            if len(self.unreadable) < _MOST_REFUSED:
                self.unreadable[ask.text_hash] = outcome
            if self._silent is None:
                return outcome
            if len(self._silent) < _SILENT_TEXTS:
                self._silent.add(ask.text_hash)
            if len(self._silent) >= _SILENT_TEXTS:
                return self._unreadable(outcome)
        return outcome

    def _unreadable(self, last: Exception) -> errors.ProviderError:
        kind: type[errors.ProviderError] = errors.ConnectionFailedError
        message = (
            f"the first {_SILENT_TEXTS} texts got no response that is whole, so the run stops; "
            f"check base_url, and proxies on the way. The last error: {last}"
        )
        if isinstance(last, errors.ReplyError):
            kind = errors.UnreadableReplyError
            content = last.content or ""
            said = repr(content[:300]) if content.strip() else "nothing"
            message = (
                f"the first {_SILENT_TEXTS} texts got no readable reply from "
                f"{self.provider.model}, so the run stops. The last reply was {said} "
                f"({type(last).__name__}: {str(last)[:300]}). Try one text in the model's own "
                "chat. Then try a larger or instruction-tuned model, fewer or shorter labels, "
                "texts_per_call=1, a larger max_tokens in request_options, or instructions that "
                "repeat the form of the answer."
            )
        error = kind(message)
        vars(error).update(vars(last))
        error.retryable, error.fatal = False, True
        return error

    async def _chosen(self, asks: tuple[Ask, ...]) -> Sequence[_Found]:
        """Answer from the shortlists of all asks together; from all labels where none fits."""
        if self._levels and asks[0].sample != FULL_LABELS:
            chosen = await self._descend(asks[0])
            if chosen is not None:
                return [chosen]
        found: dict[int, _Found] = dict.fromkeys(range(len(asks)))
        if new := [i for i, before in enumerate(await self.none_chosen(asks)) if not before]:
            some = tuple(asks[i] for i in new)
            found |= zip(new, await self._answer(some, 0, self.part(some)), strict=True)
        if left := [i for i, outcome in found.items() if outcome is None]:
            await self._kept(asks, [*found.values()])
            again = await self._answer_part(tuple(asks[i] for i in left), 0, None)
            found |= zip(left, again, strict=True)
            # the call with all labels failed, and may fail again
            lost = [asks[i] for i in left if isinstance(found[i], Exception)]
            unfit = tuple(replace(ask, key=none_key(ask.key)) for ask in lost)
            await self._kept(unfit, [NONE_CHOSEN] * len(unfit))
        return [*found.values()]

    async def none_chosen(self, asks: Sequence[Ask]) -> list[bool]:
        """Return for which texts it is stored that none of the labels of their shortlist fits."""
        if not any(ask.shown for ask in asks):
            return [False] * len(asks)
        return [one is not None for one in await self._before([none_key(ask.key) for ask in asks])]

    async def _answer(
        self, asks: tuple[Ask, ...], step: int, part: LabelSet | None
    ) -> list[_Found]:
        """Return the outcome of each ask; None: the LLM chose none of the labels in `part`."""
        request = self.request(asks, part)
        step = max(step, *(ask.step for ask in asks))
        if step:
            request = replace(request, step=step)
        answers: Sequence[Answer | Exception]
        try:
            answers = (await self.call(request)).answers
            self._rejected = set()
            step += 1  # for those whose answer is missing
        except errors.ProviderError as exc:
            step = max(step + 1, exc.unreadable) if exc.answered else step
            if isinstance(exc, errors.ReplyError):
                self._rejected = set()
            else:
                self._judge(exc, asks)
                refused = isinstance(exc, errors.BadRequestError)
                if len(asks) == 1 or exc.retryable or (exc.fatal and not refused):
                    raise
            # one refused text (too long, filtered) must not fail the texts packed with it
            answers = [exc] * len(asks)
        outcomes = [a if isinstance(a, Exception) else self._predicted(a, part) for a in answers]
        failed = [
            i for i, outcome in enumerate(outcomes) if isinstance(outcome, errors.ProviderError)
        ]
        if len(asks) > 1:
            if failed:
                await self._kept(asks, outcomes)
            # after two replies that could not be read, the third request for a text is its last
            size = 1 if step >= LAST_STEP else max(1, -(-len(failed) // 2))
            for start in range(0, len(failed), size):
                items = failed[start : start + size]
                again = await self._answer_part(tuple(asks[i] for i in items), step, part)
                for i, outcome in zip(items, again, strict=True):
                    outcomes[i] = outcome
        return outcomes

    def _judge(self, error: errors.ProviderError, asks: tuple[Ask, ...]) -> None:
        """Decide whether a 401, 403, 404 .. concerns these texts alone: others were answered."""
        of_key = isinstance(error, (errors.AuthenticationError, errors.UnknownModelError))
        if self._rejected is None or not of_key:
            return
        if len(self._rejected) < _MOST_REJECTED:
            # the parts of a packed call count as well, the samples of a text once
            self._rejected.add((asks[0].text_hash, len(asks)))
        error.fatal = len(self._rejected) >= _MOST_REJECTED

    async def _descend(self, ask: Ask) -> Prediction | Exception | None:
        """Ask level by level; None: the LLM chose none of the labels of a level.

        The confidence is the product of those of the levels.
        """
        tree, node = self.labels.tree, tuple[str, ...]()
        sure: float | None = 1.0
        confidence: float | None
        assert tree is not None
        while True:
            below = tree.children(node)
            if len(below) == 1:
                chosen, confidence = below[0], 1.0  # nothing to ask
            else:
                labels = self._levels[node]
                key = self.key_of(f"level {ask.sample} {LEVELS.join(node)}", ask.text_hash)
                level = replace(ask, key=key)
                outcome: _Found = (await self._before([level.key]))[0]
                if outcome is None:
                    (outcome,) = await self._answer((ask,), 0, labels)
                if not isinstance(outcome, Prediction):
                    return outcome
                none = outcome.label in {None, labels.none_label}
                # at the top level nothing is hidden behind the user's own "none of these"
                if none and self.labels.none_label and outcome.label is not None and not node:
                    return outcome
                chosen, confidence = path_of(str(outcome.label)), outcome.confidence
                if none or (chosen != node and tree.children(chosen)):
                    # another call follows, and the run may end before
                    await self._kept((level,), (outcome,))
                if none:
                    return None
            sure = None if sure is None or confidence is None else sure * confidence
            if chosen == node or not tree.children(chosen):
                return Prediction(LEVELS.join(chosen), sure)
            node = chosen

    def _longest_levels(self) -> tuple[Task, ...]:
        longest: dict[int, Task] = {}
        for node, labels in self._levels.items():
            task, known = self._part_task(labels), longest.get(len(node))
            if known is None or len(task.system) > len(known.system):
                longest[len(node)] = task
        return tuple(longest[level] for level in sorted(longest))

    def _part_task(self, labels: LabelSet) -> Task:
        system = self._system(labels)
        return replace(self.task, system=system, labels=labels.names, same=labels.same)

    def _are_all(self, shown: int) -> bool:
        """Whether a prompt with so many labels would show all labels."""
        return shown >= len(self.labels.names) - (self.labels.none_label is not None)

    def _predicted(self, answer: Answer, part: LabelSet | None) -> _Found:
        """Return the prediction of an answer; an error if a custom provider's is malformed.

        None: the answer is no label, and only a `part` of them was shown. One that was not shown is
        taken for itself, and not for one that resembles it.
        """
        if part is not None and self._levels:
            found = self._checked(answer, part)
            # a label of another branch, which one of these resembles
            if isinstance(found, Prediction) and found.said and found.said in self.labels:
                return Prediction(None, found.confidence, found.said)
            return found
        found = self._checked(answer, self.labels)
        if part is None or isinstance(found, Exception):
            return found
        return None if found.label in {None, self.labels.none_label} else found

    @staticmethod
    def _checked(answer: Answer, labels: LabelSet) -> Prediction | Exception:
        faults = (_malformed(*said) for said in answer.stated)
        return next(filter(None, faults), None) or labels.predicted(answer)

    async def _answer_part(
        self, asks: tuple[Ask, ...], step: int, part: LabelSet | None
    ) -> list[_Found]:
        """Answer some asks of a call; an error does not lose the answers to the others."""
        try:
            outcomes = await self._answer(asks, step, part)
        except Exception as exc:  # noqa: BLE001 - the other asks keep their answers
            return [exc] * len(asks)
        await self._kept(asks, outcomes)
        return outcomes

    async def _before(self, keys: list[bytes]) -> Sequence[Prediction | None]:
        """Return the stored answers of steps that were not the last."""
        if self._store is not None:
            # a read that fails costs a call
            with contextlib.suppress(Exception):
                return await self._store.get_predictions(keys)
        return [None] * len(keys)

    async def _kept(self, asks: tuple[Ask, ...], outcomes: Sequence[_Found]) -> None:
        """Store answers before others are asked for again: the client may close meanwhile."""
        pairs = zip(asks, outcomes, strict=True)
        rows = [ask.answered(self.scope, of) for ask, of in pairs if isinstance(of, Prediction)]
        if rows and self._store is not None:
            # the scheduler stores all answers, and reports failures
            with contextlib.suppress(Exception):
                await self._store.put_predictions(rows)

    def call(self, request: Request) -> Awaitable[Reply]:
        """Send a request, over HTTP or to a provider of the user."""
        if self.wire is not None:
            return self._transport.call(self.wire, request)
        return self._call_other(request)

    async def _call_other(self, request: Request) -> Reply:
        # a local labeler may never suspend, so yield to other tasks here
        await asyncio.sleep(0)
        try:
            reply = await self._transport.answer(cast("Provider", self.provider), request)
        except asyncio.CancelledError as exc:
            if is_cancelled():
                raise
            raise errors.ProviderError(
                "the provider failed: what it waited for was cancelled"
            ) from exc
        if len(reply.answers) != len(request.texts):
            # it is not known which text each answer is for
            raise errors.ReplyError(
                f"the provider returned {len(reply.answers)} answers for {len(request.texts)} "
                "texts; return one for each text, in their order"
            )
        return reply


def _again(
    kind: type[errors.ProviderError], message: str, status_code: int | None
) -> errors.ProviderError:
    """Return the error of a text that was refused before."""
    error = kind(message, status_code=status_code)
    error.fatal = False
    return error


def _malformed(label: Any, confidence: Any) -> errors.ReplyError | None:
    """Return the error of a custom provider's label and confidence; None: they are valid."""
    if not isinstance(label, str) or (not label.isascii() and _SURROGATE.search(label)):
        return errors.ReplyError(
            f"the provider's label is {label!r:.60}; give a string that UTF-8 can encode"
        )
    # NaN is not between 0 and 1; `Real` is slow to check
    number = isinstance(confidence, (float, Real))
    if confidence is not None and not (number and 0 <= float(confidence) <= 1):
        return errors.ReplyError(
            f"the provider's confidence is {confidence!r:.60}; give a number from 0 to 1, or None"
        )
    return None
