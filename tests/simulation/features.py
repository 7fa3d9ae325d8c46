"""Features in random combination, by seed: what a user may combine, and may then rely on.

`tests.simulation.world` has the weather between a client and its provider; here the provider is a
function, and the options of the client and the order of its operations are drawn: review, learn,
referee, uncertainty sampling, heads, shortlists, several labels, priors, trees, methods, stores
that are opened again.
"""

from __future__ import annotations

import asyncio
import tempfile
import warnings
import zlib
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from random import Random

import numpy as np

from testnuc import (
    Head,
    InvalidInputError,
    LabelSet,
    Limits,
    Prediction,
    Referee,
    Results,
    Sampling,
    SelfConsistency,
    SmallPoolWarning,
    TestNUC,
    TestNUCError,
    TopKICL,
    TopKICLP,
    UncertaintySampling,
    VotePolicy,
)
from testnuc.errors import RefusalError
from testnuc.protocols import Answer, Reply

FLAT = ["card", "cash", "loan", "rate", "fees"]
TREE = ["pay > card", "pay > cash", "lend > loan", "lend > rate", "other"]
DIM = 16


def number_of(text: str) -> int:
    """Return a number that depends on the text alone."""
    return zlib.crc32(text.encode())


class Embedder:
    """Texts of a topic are near each other."""

    name, dim = "features", DIM

    async def embed(self, texts):
        vectors = np.empty((len(texts), DIM), dtype=np.float32)
        for row, text in enumerate(texts):
            rng = np.random.default_rng(number_of(text))
            vectors[row] = 0.25 * rng.normal(size=DIM)
            # a label, which shortlists compare with texts, is near those of its topic
            topic = text[1] if text[1].isdigit() else number_of(text) % len(FLAT)
            vectors[row, int(topic)] += 1.2
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Model:
    """Answers by the text alone; refuses and abstains now and then."""

    identity = "v1"

    def __init__(self, world, name, error):
        self.world, self.error = world, error
        self.name, self.model = "rule", name
        self.calls, self.asked = 0, []

    def reserve(self, request):
        return len(request.user), 10

    async def answer(self, request):
        self.calls += 1
        self.asked += request.texts
        if self.world.slow:
            await asyncio.sleep(0)
        return Reply(tuple(self._answer(text, request.task) for text in request.texts))

    def _answer(self, text, task):
        world, labels = self.world, task.labels
        fate = number_of(f"{self.model} {world.seed} {text}") % 1000
        if fate < 10 and self is world.model:
            return RefusalError("refused")
        gold = [f"{one} > " for one in world.gold(text)]
        right = [label for label in labels if any(one.startswith(f"{label} > ") for one in gold)]
        if task.multilabel:
            if fate % 100 < 100 * self.error:
                right = [labels[fate % len(labels)]]
            return Answer(
                "", None, tuple((label, round(0.5 + fate % 50 / 100, 2)) for label in right)
            )
        if fate < 25:
            return Answer("something else", 0.5)
        label = right[0] if right else labels[0]
        if fate % 100 < 100 * self.error:
            label = labels[(labels.index(label) + 1 + fate % 2) % len(labels)]
        return Answer(label, round(0.5 + fate % 50 / 100, 2))


@dataclass
class World:
    """One seed: its texts, its client's options, what was done, and broken promises."""

    seed: int
    folder: Path
    broken: list[str] = field(default_factory=list)
    trace: list[object] = field(default_factory=list)

    def __post_init__(self):
        draw = self.random = Random(self.seed)
        self.multilabel = draw.random() < 0.25
        self.tree = not self.multilabel and draw.random() < 0.2
        self.names = TREE if self.tree else FLAT
        self.slow = draw.random() < 0.5
        size = draw.choice((6, 12, 40, 60, 230)) if draw.random() < 0.9 else 420
        self.texts = [f"t{draw.randrange(len(self.names))} text {i}" for i in range(size)]
        self.model = Model(self, "small", draw.choice((0.0, 0.1, 0.3, 0.5)))
        self.better = Model(self, "big", 0.05)
        #: text -> the labels that a person gave, while they are in force.
        self.judged = {}
        self.options = self._options()

    def gold(self, text):
        first = self.names[int(text[1])]
        if self.multilabel and number_of(text) % 3 == 0:
            return [first, self.names[(int(text[1]) + 1) % len(self.names)]]
        return [first]

    def complain(self, words):
        self.broken.append(words)

    def _options(self):
        draw, given = self.random, {}
        one = not self.multilabel
        policy = draw.choice(("auto", "auto", "auto", "majority", "weighted", "filtered"))
        more = {}
        if one and draw.random() < 0.2:
            shares = [draw.random() + 0.05 for _ in self.names]
            more["prior"] = {n: s / sum(shares) for n, s in zip(self.names, shares, strict=True)}
        if one and draw.random() < 0.15:
            more["min_trust"] = draw.choice((0.3, 0.6, 0.9))
        if draw.random() < 0.2:
            more["own_weight"] = draw.choice((0, 0.5, 2.0))
        if policy == "auto":
            given["policy"] = VotePolicy.auto(
                **{k: v for k, v in more.items() if k != "own_weight"}
            )
        elif policy == "filtered":
            given["policy"] = VotePolicy.filtered(0.6)
        else:
            weight = {"majority": "uniform", "weighted": "similarity"}[policy]
            given["policy"] = VotePolicy(weight=weight, **more)
        given["k"] = draw.choice((None, None, 0, 3, 7))
        given["neighbors"] = draw.choice(("predict", "predict", "stored"))
        given["join_pool"] = draw.random() < 0.8
        if draw.random() < 0.15:
            given["sampling"] = Sampling(texts_per_call=4)
        elif one and draw.random() < 0.2:
            given["method"] = draw.choice((SelfConsistency(2), TopKICL(2), TopKICLP(2)))
        if one and "method" not in given and draw.random() < 0.15:
            given["sampling"] = replace(
                given.get("sampling", Sampling()), shortlist=draw.choice((2, 3))
            )
            # drawn apart, so that the rest of a seed stays as it was
            if self.tree and given["sampling"].texts_per_call == 1 and self.seed % 2:
                given["sampling"] = replace(given["sampling"], shortlist="levels")
        if draw.random() < 0.25:
            given["referee"] = self.better
            if one and draw.random() < 0.7:
                given["referee"] = Referee(self.better, draw.choice((0.05, 0.2)))
        if one and "method" not in given and draw.random() < 0.2:
            given["labeler"] = UncertaintySampling(
                min_agreement=draw.choice((0.8, 0.95)), max_fraction=draw.choice((0.5, 1.0))
            )
        given["limits"] = Limits(concurrency=draw.choice((1, 8, 64)))
        if draw.random() < 0.6:
            given["store"] = str(self.folder / "store.db")
        return given

    def client(self, **more):
        options = {**self.options, **more}
        return TestNUC(
            LabelSet(self.names, multilabel=self.multilabel), options.pop("model", self.model),
            embedder=Embedder(), **options,
        )  # fmt: skip


def labels_of(result):
    """Return what a user reads as the label of a result."""
    if result.label is None:
        return None
    several = result.multilabel
    return frozenset(result.labels) if several else result.label


def facts(result):
    """Return what must be the same whenever a text is labeled on the same basis."""
    trust = None if result.trust is None else round(result.trust, 6)
    return labels_of(result), round(float(result.share), 6), trust, result.source


def facts_of_prediction(result):
    """Return what a file keeps of the LLM's own answer."""
    own = result.prediction
    if own is None:
        return None
    sure = [None if one is None else round(one, 6) for one in own.confidences or ()]
    return own.label, own.labels, sure, own.unmatched


class History:
    """Operations on one client after another, with what a user may rely on after each."""

    def __init__(self, world: World):
        self.world, self.random = world, world.random
        self.nuc = None

    async def run(self):
        world, draw = self.world, self.random
        try:
            self.nuc = world.client()
        except InvalidInputError as error:
            # options that do not go together are refused at once
            world.trace.append(("refused", str(error)[:60]))
            return
        operations = (
            self.many, self.many, self.one, self.stream, self.add, self.pool, self.review,
            self.review, self.learn_texts, self.unlearn, self.diagnose, self.distill, self.reopen,
            self.other_votes, self.estimate,
        )  # fmt: skip
        try:
            await self.many(world.texts)
            for _ in range(draw.randint(1, 6)):
                operation = draw.choice(operations)
                world.trace.append(operation.__name__)
                await operation()
        finally:
            await self.nuc.aclose()

    def some(self, most=None):
        texts = self.world.texts
        return self.random.sample(
            texts, self.random.randint(1, min(most or len(texts), len(texts)))
        )

    # -- operations --

    async def many(self, texts=None):
        world, nuc = self.world, self.nuc
        texts = texts or self.some()
        if self.random.random() < 0.2:
            texts = [*texts, *texts[:2]]
        before, asked = nuc.usage, world.model.calls
        results = await nuc.classify_many(texts)
        self.check_results(results, texts)
        if results.usage.calls != world.model.calls - asked:
            world.complain(
                f"usage counts {results.usage.calls} of {world.model.calls - asked} calls"
            )
        if nuc.usage.calls - before.calls != results.usage.calls:
            world.complain("the usage of the client and of the run differ")
        if self.random.random() < 0.5:
            await self.again(texts, results)
        return results

    async def again(self, texts, results):
        """The same texts once more: no call, and the same labels."""
        world = self.world
        asked, learned = world.model.calls, self.nuc.learned
        repeated = await self.nuc.classify_many(texts)
        free = not any(r.error for r in results) and self.options("labeler") is None
        if free and world.model.calls != asked:
            world.complain(f"a second run made {world.model.calls - asked} calls")
        if self.nuc.learned is not learned or self.late():
            return
        for first, second in zip(results, repeated, strict=True):
            if first.error is None and facts(first) != facts(second):
                world.complain(f"{first.text!r} is {facts(first)}, then {facts(second)}")
                return

    def options(self, name):
        return self.world.options.get(name)

    def late(self):
        """Whether what a run adds can change the next one: pool, predictions or examples."""
        return bool(
            self.options("method")
            or self.options("shortlist")
            or self.options("referee")
            or self.options("labeler")
            or not self.options("join_pool")
            # the diagnosis of a small batch is that of the pool, which grows
            or (self.options("policy").weight == "auto" and len(self.nuc) >= 100)
        )

    async def one(self):
        (text,) = self.some(1)
        try:
            result = await self.nuc.classify(text)
        except RefusalError:
            return
        self.check(result, text, 0)

    async def stream(self):
        texts = self.some()
        window = self.random.choice((3, 4096))
        rows = {}
        async for result in self.nuc.stream(texts, window=window):
            rows[result.index] = result
        if sorted(rows) != list(range(len(texts))):
            self.world.complain(f"a stream of {len(texts)} texts gave {sorted(rows)[:5]}..")
            return
        for index, text in enumerate(texts):
            self.check(rows[index], text, index)
        if window > len(texts) and not self.late() and not self.options("min_trust"):
            many = await self.nuc.classify_many(texts)
            for first, second in zip((rows[i] for i in range(len(texts))), many, strict=True):
                if first.error is None and labels_of(first) != labels_of(second):
                    self.world.complain(
                        f"{first.text!r} is {facts(first)} in a stream, {facts(second)} in a batch"
                    )
                    return

    async def add(self):
        number = self.random.randrange(10_000)
        new = [f"t{i % len(self.world.names)} new {number + i}" for i in range(5)]
        labels = None
        if self.random.random() < 0.3:
            labels = [
                self.world.gold(t) if self.world.multilabel else self.world.gold(t)[0] for t in new
            ]
        await self.nuc.add(new, labels)
        if labels is None:
            return
        # whatever neighbors and models say
        for result, given in zip(await self.nuc.classify_many(new), labels, strict=True):
            right = frozenset(given) if self.world.multilabel else given
            if result.error is None and (labels_of(result), result.source) != (right, "person"):
                self.world.complain(f"{result.text!r} was given {right!r}, and is {facts(result)}")

    async def pool(self):
        await self.nuc.predict_pool()

    async def estimate(self):
        texts = self.some()
        foreseen, asked = await self.nuc.estimate(texts), self.world.model.calls
        if self.world.model.calls != asked:
            self.world.complain("an estimate made a call")
        await self.nuc.classify_many(texts)
        made = self.world.model.calls - asked
        # packed calls are split, and shortlists that miss are repeated
        if made > foreseen.calls and not self.options("sampling") and not self.options("shortlist"):
            self.world.complain(f"{made} calls were made, {foreseen.calls} foreseen")

    async def diagnose(self):
        if not self.world.multilabel:
            await self.nuc.diagnose()

    async def review(self):
        world, draw = self.world, self.random
        goal = draw.choice((None, None, "certify", "correct"))
        try:
            review = await self.nuc.review(draw.choice((3, 20, 60)), goal, seed=draw.randrange(100))
        except InvalidInputError as error:
            if "prediction" not in str(error):
                world.complain(f"review: {error}")
            return
        if any(item.text in world.judged for item in review):
            world.complain("a judged text was drawn again")
        if draw.random() < 0.2:
            await self.nuc.ask(review, world.better)
        else:
            for item in review:
                fate = draw.random()
                if fate < 0.05:
                    continue
                right = world.gold(item.text)
                if fate < 0.1 and not world.multilabel:
                    review.answer(item.index, None)
                else:
                    review.answer(item.index, right if world.multilabel else right[0])
        if not review.judged:
            return
        proof = None
        if not self.late():
            proof = await self.nuc.classify_many(world.texts)
        protect = draw.choice((None, None, [], draw.sample(world.names, draw.randint(1, 2))))
        kept = self.protected() if protect is None else {*protect}
        learned = await self.nuc.learn(review, protect=protect)
        if {*learned.protected} != kept:
            world.complain(f"{learned.protected} are protected instead of {kept}")
        for item in review.judged:
            if item.source == "person":
                right = world.gold(item.text)
                if item.answer is not None:
                    world.judged[item.text] = right if world.multilabel else right[0]
                else:
                    world.judged[item.text] = None
        world.trace.append(("learned", learned.decides))
        if proof is not None and learned.decides == "settings":
            self.unchanged(proof, await self.nuc.classify_many(world.texts))

    def unchanged(self, before, after):
        """Nothing that was learned and proves nothing changes a label."""
        if self.options("policy").min_trust is not None:
            return
        touched = {j.hash for j in self.nuc.learned.judged}
        from testnuc._base.checks import hash_text

        for first, second in zip(before, after, strict=True):
            if hash_text(first.text) in touched or first.error or second.error:
                continue
            if labels_of(first) != labels_of(second):
                self.world.complain(
                    f"nothing was proved, and {first.text!r} is {labels_of(second)!r} "
                    f"instead of {labels_of(first)!r}"
                )
                return

    def protected(self):
        learned = self.nuc.learned
        return set() if learned is None else {*learned.protected}

    async def learn_texts(self):
        world = self.world
        texts = self.some(30)
        right = [world.gold(t) if world.multilabel else world.gold(t)[0] for t in texts]
        before = self.protected()
        try:
            await self.nuc.learn(texts, right)
            if self.protected() != before:
                world.complain("what was protected is not what was before")
        except InvalidInputError as error:
            if "prediction" not in str(error):
                world.complain(f"learn: {error}")
            return
        except RefusalError:
            return
        world.judged.update(zip(texts, right, strict=True))

    async def unlearn(self):
        await self.nuc.unlearn()
        self.world.judged.clear()
        if self.nuc.learned is not None:
            self.world.complain("something is left after unlearn")

    async def distill(self):
        path = self.world.folder / "head.head"
        try:
            head = await self.nuc.distill(path)
        except InvalidInputError as error:
            if "prediction" not in str(error):
                self.world.complain(f"distill: {error}")
            return
        texts = self.some(20)
        Head.load(path, Embedder())
        # in front of the model, and instead of it
        for least in (0.0, 0.8):
            loaded = Head.load(path, Embedder(), least_trust=least)
            options = {k: v for k, v in self.world.options.items() if k not in {"labeler", "store"}}
            asked = self.world.model.calls
            try:
                nuc = TestNUC(
                    LabelSet(self.world.names, multilabel=self.world.multilabel), self.world.model,
                    embedder=Embedder(), labeler=loaded, **options,
                )  # fmt: skip
            except InvalidInputError as error:
                self.world.trace.append(("refused", str(error)[:60]))
                return
            async with nuc:
                results = await nuc.classify_many(texts)
            for index, (result, text) in enumerate(zip(results, texts, strict=True)):
                self.check(result, text, index, judged=False)
            if least == 0.0 and self.world.model.calls != asked:
                self.world.complain("the LLM was called although a head labels all texts")
        if head.labels != tuple(self.world.names):
            self.world.complain("a head has other labels than its client")

    async def reopen(self):
        """A client of the same store knows what the former one knew."""
        store = self.options("store")
        if store is None:
            return
        texts = self.world.texts
        before = await self.nuc.classify_many(texts)
        learned = self.nuc.learned
        await self.nuc.aclose()
        self.nuc = self.world.client()
        asked = self.world.model.calls
        after = await self.nuc.classify_many(texts)
        if (learned is None) != (self.nuc.learned is None):
            self.world.complain("what was learned did not outlive the client")
        failed = any(row.error for row in before)
        if not failed and self.options("labeler") is None and self.world.model.calls != asked:
            self.world.complain(f"a new client made {self.world.model.calls - asked} calls")
        if self.late() or failed:
            return
        for first, second in zip(before, after, strict=True):
            if labels_of(first) != labels_of(second):
                self.world.complain(
                    f"{first.text!r} is {facts(first)}, and {facts(second)} by a new client"
                )
                return

    async def other_votes(self):
        """Under other vote settings judged labels stay, and no certificate is of other labels."""
        if self.options("store") is None or self.nuc.learned is None:
            return
        votes = VotePolicy(weight="uniform", own_weight=0.25)
        async with self.world.client(policy=votes, referee=None, labeler="llm") as other:
            self.check_results(await other.classify_many(self.world.texts), self.world.texts)
            learned = other.learned
            kept = learned is not None and learned.decides == "settings"
            if kept and learned.certify(0.5).coverage:
                self.world.complain("what was judged certifies the labels of other votes")

    # -- what holds for every result --

    def check_results(self, results, texts):
        world = self.world
        if len(results) != len(texts):
            world.complain(f"{len(results)} results of {len(texts)} texts")
            return
        for index, (result, text) in enumerate(zip(results, texts, strict=True)):
            self.check(result, text, index)
            self.check_protected(result)
        if results.labels != [row.label for row in results]:
            world.complain("Results.labels differ from those of its rows")
        if results.changed != sum(row.changed for row in results):
            world.complain("Results.changed differs from its rows")
        if self.random.random() < 0.3:
            path = world.folder / "rows.jsonl"
            results.to_jsonl(path)
            for first, second in zip(results, Results.from_jsonl(path), strict=True):
                if first.error is None and (
                    facts(first)[::3] != facts(second)[::3]
                    or facts_of_prediction(first) != facts_of_prediction(second)
                ):
                    world.complain(f"{first!r} was read back as {second!r}")
                    return
        str(results.summary())

    def check_protected(self, result):
        """Only a person takes a protected label away, once a model labels."""
        learned, own = self.nuc.learned, result.prediction
        if own is None or learned is None or result.source in {None, "person"}:
            return
        several = result.multilabel
        # else the labels before are those of a vote
        of_llm = several and self.options("policy").weight == "auto"
        if learned.decides == "settings" or several is not of_llm:
            return
        said = {*own.labels} if several else {own.label}
        missing = said & self.protected() - ({*result.labels} if several else {result.label})
        if missing and not (result.label is None and self.options("policy").min_trust is not None):
            self.world.complain(f"{result.text!r} has lost the protected {missing}")

    def check(self, result, text, index, *, judged=True):
        world = self.world
        wrong = None
        if result.text != text or result.index != index:
            wrong = "is another text's result"
        elif result.label is None and result.source not in {None, "person", "referee"}:
            wrong = f"has no label, and the source {result.source}"
        elif result.label is not None and result.source is None:
            wrong = "has a label of no source"
        elif not 0 <= result.share <= 1 + 1e-6 or not 0 <= result.margin <= 1 + 1e-6:
            wrong = f"has the share {result.share} and the margin {result.margin}"
        elif result.trust is not None and (isnan(result.trust) or not 0 <= result.trust <= 1):
            wrong = f"has the trust {result.trust}"
        elif result.label is not None and not world.multilabel and result.label not in world.names:
            wrong = f"has the label {result.label!r}"
        elif result.alternative is not None and result.alternative == result.label:
            wrong = "has its label as its alternative"
        elif result.prediction is None and result.error is None and result.label is not None and (
            result.source not in {"head", "person", "referee"}
        ):  # fmt: skip
            wrong = f"has neither prediction nor error, and the source {result.source}"
        if wrong is None and world.tree and result.label is not None:
            path = getattr(result, "path", ())
            if " > ".join(path) != result.label:
                wrong = f"has the label {result.label!r} and the path {path}"
        if wrong is None and judged and text in world.judged:
            right = world.judged[text]
            expected = frozenset(right) if world.multilabel else right
            if labels_of(result) != expected or result.source != "person":
                wrong = f"was judged {right!r}, and is {facts(result)}"
        if wrong is not None:
            world.complain(f"{text!r} {wrong}")
        if not isinstance(result.prediction, (Prediction, type(None))):
            world.complain(f"{text!r} has the prediction {result.prediction!r}")
        result.explain()


def simulate(seed: int) -> World:
    """Run the world of a seed to its end."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallPoolWarning)
        world = World(seed, Path(folder))
        history = History(world)

        async def main():
            async with asyncio.timeout(120):
                await history.run()

        try:
            asyncio.run(main())
        except TimeoutError:
            world.complain("the run never ended")
        except TestNUCError as error:
            world.complain(f"raised {error!r}")
    return world
