"""Judged texts decide how to label: review, learn, apply, keep, forget."""

from __future__ import annotations

import asyncio
import datetime as dt
import zlib
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from testnuc import InvalidInputError, LabelSet, Referee, Review, StoreError, TestNUC
from testnuc._base.checks import hash_text
from testnuc._engine.learning import _key, _merged
from testnuc.metrics import score
from testnuc.trust.counts import counted
from testnuc.trust.evidence import Judgment, draws_of
from testnuc.trust.joining import join_reviews
from testnuc.trust.learned import Learned
from testnuc.trust.review import ReviewItem
from testnuc.trust.shares import combined
from tests import doubles

CLASSES = 6
LABELS = [f"topic {c}" for c in range(CLASSES)]
DIM = 24


def gold(text):
    """Return the right label of a text such as ``c3 number 17``."""
    return LABELS[int(text[1])]


def noise(text):
    return zlib.crc32(text.encode()) % 100


def noisy(text):
    """Return what the model says: wrong in three of ten texts, mostly by topic 0."""
    n = noise(text)
    if n >= 30:
        return gold(text)
    return LABELS[0] if n < 20 else LABELS[n % CLASSES]


def texts_of(n, start=0):
    return [f"c{i % CLASSES} number {i}" for i in range(start, start + n)]


class Clustered(doubles.Clustered):
    """Embeds texts of a topic near each other."""

    dim, noise, center = DIM, 0.28, 1.5


class Says(doubles.Says):
    def __init__(self, say=noisy, model="small"):
        super().__init__(say, model)


def client(model, **more):
    return TestNUC(LABELS, model=model, embedder=Clustered(), **more)


def accuracy(results):
    return float(np.mean([row.label == gold(row.text) for row in results]))


def judge(review, n=None):
    for item in review[:n]:
        review.answer(item.index, gold(item.text))


async def learned_of(nuc, texts):
    """Label texts, judge sixty that are drawn at random, and learn from them."""
    await nuc.classify_many(texts)
    review = await nuc.review(60, goal="count")
    judge(review)
    return await nuc.learn(review)


@pytest.mark.slow
async def test_fifty_judgments_improve_labels_without_a_further_call():
    model = Says()
    async with client(model, policy="majority", k=0) as nuc:
        texts = texts_of(600)
        before = await nuc.classify_many(texts)
        alone = accuracy(before)
        assert {row.source for row in before} == {"llm"}
        assert before.learned is None
        review = await nuc.review(50)
        assert len(review) == 50
        assert {item.goal for item in review} == {"decide", "certify"}
        assert all(len(item.candidates) > 1 for item in review if item.goal == "decide")
        assert "50 of 600 texts to judge" in str(review)
        judge(review)
        calls = len(model.asked)
        learned = await nuc.learn(review)
        after = await nuc.classify_many(texts)
        assert len(model.asked) == calls
        assert learned.decides == "head"
        assert learned.gain.low > 0
        assert accuracy(after) > alone + 0.2
        # it promises what it delivers
        assert abs(learned.gain.value - (accuracy(after) - alone)) < 0.12
        for item in review:
            row = after[texts.index(item.text)]
            assert (row.label, row.source, row.trust) == (gold(row.text), "person", 1.0)
        assert {row.source for row in after} == {"head", "person"}
        assert after.learned == str(learned)
        assert "50 of 600 texts are judged: 50 by a person" in str(learned)
        assert len(str(learned).splitlines()) == 5
        said = learned.accuracy()
        assert said.now.low <= accuracy(after) <= said.now.high
        assert said.before.low <= alone <= said.before.high
        assert str(said) in str(learned)
        assert str(said) in after.summary()
        assert "needs 10 more judged texts" in str(learned.macro_f1())
        assert {judgment.day for judgment in learned.judged} == {f"{dt.datetime.now(dt.UTC):%F}"}
        # trust never contradicts what is shown beside it
        for row in after:
            assert next(iter(row.votes)) == row.label
            if row.alternative is not None:
                assert row.trust + row.trust_of_alternative <= 1 + 1e-9
        # a new text costs its own call, no more
        fresh = [t for t in texts_of(60, start=6000) if noisy(t) != gold(t)][:8]
        for text in fresh:
            row = await nuc.classify(text)
            assert (row.label, row.source) == (gold(text), "head")
        assert len(model.asked) == calls + len(fresh)
        # by 90 instead of 0.9 all labels were certified
        for wrong in ({"confidence": 90}, {"confidence": 1}, {"accuracy": 95}, {"accuracy": 1.0}):
            with pytest.raises(InvalidInputError, match=r"give a number from 0(\.5)? to 0\.9999"):
                learned.certify(**wrong)
        # a gain is proved: next is how many labels are right
        assert {item.goal for item in await nuc.review(20)} == {"certify"}
        streamed = {row.index: row async for row in nuc.stream(texts[:100])}
        assert [streamed[i].label for i in range(100)] == after.labels[:100]
        assert await nuc.unlearn()
        assert (await nuc.classify_many(texts)).labels == before.labels


@pytest.mark.parametrize("k", [0, 2])
async def test_only_neighbors_that_vote_are_asked_about(k):
    """What was learned reads the answers of thirty, as far as they are stored."""
    model = Says()
    async with client(model, policy="majority", k=k) as nuc:
        texts = texts_of(60)
        await nuc.classify_many(texts)
        learned = await nuc.learn(texts[:4], [gold(text) for text in texts[:4]])
        assert learned.decides == "settings"
        await nuc.add(texts_of(60, start=100))
        for number, label in enumerate((nuc.classify, nuc.classify_many)):
            calls, text = len(model.asked), f"c3 number {700 + number}"
            foreseen = await nuc.estimate([text])
            await label(text if number == 0 else [text])
            assert len(model.asked) - calls <= 1 + k
            assert len(model.asked) - calls <= foreseen.calls


@pytest.mark.slow
async def test_a_review_is_saved_and_loaded_whole(tmp_path):
    async with client(Says()) as nuc:
        await nuc.classify_many(texts_of(200))
        review = await nuc.review(20)
        judge(review, 7)
        review.answer(7, None)
        review.save(tmp_path / "review.json")
        again = Review.load(tmp_path / "review.json")
        assert list(again) == list(review)
        assert len(again.judged) == 8
        assert str(again) == str(review)
        first = await nuc.learn(review)
        second = await nuc.learn(again)
        assert first.judged == second.judged
    (tmp_path / "half.json").write_bytes((tmp_path / "review.json").read_bytes()[:500])
    with pytest.raises(InvalidInputError, match="is not a review"):
        Review.load(tmp_path / "half.json")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        Review.load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ('{"refund": "wants money back"}', "; name a file that"),
        ('["refund"]', "; name a file that"),
        ('{"format": "testnuc.review", "version": 99}', " of this version; save it"),
        ('{"answer": refund}', r": .*line 1 column 12"),
    ],
)
def test_another_file_is_no_review(tmp_path, held, says):
    (tmp_path / "a.json").write_text(held)
    with pytest.raises(InvalidInputError, match=f"a.json is not a review{says}") as raised:
        Review.load(tmp_path / "a.json")
    # the message is for a person
    assert "Error(" not in str(raised.value)


async def test_a_text_that_is_judged_twice_in_one_review_has_one_label(tmp_path):
    # as where the files of two judges are pasted into one
    async with client(Says()) as nuc:
        await nuc.classify_many(texts_of(200))
        review = await nuc.review(10)
        judge(review)
        first = review[0]
        other = next(label for label in LABELS if label != first.answer)
        for answer in (first.answer, other):
            again = replace(first, index=len(review), answer=answer)
            review.with_items([*review, again]).save(tmp_path / "both.json")
            pasted = Review.load(tmp_path / "both.json")
            if answer == first.answer:
                assert len((await nuc.learn(pasted)).judged) == 10
                continue
            with pytest.raises(InvalidInputError, match=f"'{other}' and, before, '{first.answer}'"):
                await nuc.learn(pasted)


async def test_what_was_learned_of_other_labels_is_not_applied(tmp_path, caplog):
    # rows of a store that were exchanged, or joined by hand: positions stand for other labels
    def of(labels):
        return TestNUC(labels, model=Says(), embedder=Clustered(), store=tmp_path / "a.db")

    texts = texts_of(200)
    async with of(LABELS) as nuc:
        own = (await nuc.classify_many(texts)).labels
        await nuc.learn(texts[:60], [gold(text) for text in texts[:60]])
        (data,) = [data for _, data in await nuc._parts.store.learned()]
    async with of(LABELS[::-1]) as nuc:
        own = (await nuc.classify_many(texts)).labels
        assert await nuc._parts.store.swap_learned(_key(nuc._parts), None, data)
    async with of(LABELS[::-1]) as nuc:
        assert (await nuc.classify_many(texts)).labels == own
        assert nuc.learned is None
        assert "what was learned in this place of the store is of other labels" in caplog.text
        with pytest.raises(StoreError, match="of other labels; learn again after `unlearn`"):
            await nuc.learn(texts[:20], own[:20])
        assert await nuc.unlearn()
        await nuc.learn(texts[:20], own[:20])


@pytest.mark.slow
async def test_reviews_are_deterministic_and_never_draw_a_text_twice():
    async with client(Says()) as nuc:
        await nuc.classify_many(texts_of(200))
        first = await nuc.review(30)
        assert list(await nuc.review(30)) == list(first)
        assert list(await nuc.review(30, seed=1)) != list(first)
        judge(first)
        await nuc.learn(first)
        second = await nuc.review(170)
        assert len({i.text for i in second}) == 170
        assert not {i.text for i in first} & {i.text for i in second}
        correct = await nuc.review(10, goal="correct")
        assert {i.probability for i in correct} == {None}
        trusts = [i.trust for i in correct]
        assert trusts == sorted(trusts)
        certify = await nuc.review(10, goal="certify")
        assert {i.probability for i in certify} == {None}
        assert certify.ranking == nuc.learned.ranking
        assert not {i.text for i in first} & {i.text for i in certify}
        with pytest.raises(InvalidInputError, match="goal is 'all'"):
            await nuc.review(3, goal="all")


@pytest.mark.slow
async def test_wrong_labels_are_refused_with_the_closest_one():
    async with client(Says()) as nuc:
        await nuc.classify_many(texts_of(200))
        review = await nuc.review(5)
        with pytest.raises(InvalidInputError, match="did you mean 'topic 3'"):
            review.answer(0, "topc 3")
        for unknown in (pd.NA, np.array(["a", "b"]), float("nan")):
            with pytest.raises(InvalidInputError, match="is not in the label set"):
                review.answer(0, unknown)
        for item in (None, 99, 0.5):
            with pytest.raises(InvalidInputError, match=r"item .* does not exist"):
                review.answer(item, LABELS[0])
        with pytest.raises(InvalidInputError, match="not in this review"):
            review.answer("c0 another", LABELS[0])
        with pytest.raises(InvalidInputError, match="no answer yet"):
            await nuc.learn(review)
        with pytest.raises(InvalidInputError, match=r"label 0 is 'topc 3'.*'topic 3'"):
            await nuc.learn(["c0 number 0"], ["topc 3"])
        for labels in ({LABELS[0]}, 5):
            with pytest.raises(InvalidInputError, match="give a list"):
                await nuc.learn(["c0 number 0"], labels)
        learned = await nuc.learn(texts_of(3), (gold(text) for text in texts_of(3)))
        assert [judgment.label for judgment in learned.judged] == LABELS[:3]


async def test_what_was_learned_of_embeddings_of_another_dimension_says_so(tmp_path):
    class Short(Clustered):
        dim = 8

        async def embed(self, texts):
            return (await super().embed(texts))[:, :8]

    texts = texts_of(120)
    async with client(Says(), policy="majority", store=tmp_path / "a.db") as nuc:
        await nuc.classify_many(texts)
        await nuc.learn(texts[:60], [gold(text) for text in texts[:60]])
        (data,) = [data for _, data in await nuc._parts.store.learned()]
    other = {"embedder": Short(), "policy": "majority", "store": tmp_path / "b.db"}
    async with TestNUC(LABELS, Says(), **other) as nuc:
        await nuc._parts.ready()
        assert await nuc._parts.store.swap_learned(_key(nuc._parts), None, data)
    async with TestNUC(LABELS, Says(), **other) as nuc:
        with pytest.raises(InvalidInputError, match=r"with 24 dimensions, .* returns 8; .*unlearn"):
            await nuc.classify_many(texts)
        await nuc.unlearn()
        assert len(await nuc.classify_many(texts)) == 120


@pytest.mark.slow
async def test_what_another_client_learned_or_dropped_meanwhile_counts(tmp_path):
    texts = texts_of(200)
    async with client(Says(), store=tmp_path / "s.db") as first:
        await first.classify_many(texts)
        async with client(Says(), store=tmp_path / "s.db") as second:
            theirs = await second.review(20)
            judge(theirs)
            await second.learn(theirs)
        ours = await first.review(5)
        assert not {item.hash for item in ours} & {item.hash for item in theirs}
        judge(ours)
        assert len((await first.learn(ours)).judged) == 25
        async with client(Says(), store=tmp_path / "s.db") as second:
            assert len(second.learned.judged) == 25
            assert await second.unlearn()
        again = await first.review(5)
        judge(again)
        assert len((await first.learn(again)).judged) == 5


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True])
async def test_what_another_client_learned_while_one_learns_counts(tmp_path, monkeypatch, forgets):
    texts, path = texts_of(200), tmp_path / "s.db"
    async with client(Says(), store=path) as ours, client(Says(), store=path) as theirs:
        await ours.classify_many(texts)
        await ours.learn(texts[:20], ["topic 5"] * 20)
        keep = ours._learning._keep

        async def late(*given):
            """Keep what was learned after others have learned, and this client has seen it."""
            monkeypatch.undo()
            if forgets:
                await ours.unlearn()
            else:
                await theirs.learn(texts[20:40], ["topic 5"] * 20)
                await ours._learning.load()
            return await keep(*given)

        monkeypatch.setattr(ours._learning, "_keep", late)
        learned = await ours.learn(texts[40:60], ["topic 5"] * 20)
        assert len(learned.judged) == (20 if forgets else 60)


@pytest.mark.slow
async def test_a_failure_changes_nothing(monkeypatch):
    async with client(Says()) as nuc:
        texts = texts_of(200)
        await nuc.classify_many(texts)
        judged = await nuc.review(20)
        judge(judged)
        await nuc.learn(judged)
        before = nuc._parts.pipeline.settings

        async def fails(scope, before, data):
            raise OSError("disk full")

        monkeypatch.setattr(nuc._parts.store, "swap_learned", fails)
        more = await nuc.review(20)
        judge(more)
        with pytest.raises(OSError, match="disk full"):
            await nuc.learn(more)
        assert nuc._parts.pipeline.settings is before


def test_judgments_of_older_versions_count_where_their_probability_says_so():
    chances = [1 / 5, 1 / 99, None, 1 / 97, 1 / 96, 1 / 90]
    records = [
        [f"t{i}", f"{i:032x}", "topic 1", "person", chance, chance, 100, *[chance] * (i % 2)]
        for i, chance in enumerate(chances)
    ]
    judged = [*Judgment.all_of(records)]
    assert {j.uniform for j in judged} == {None}
    uniform = [False, True, False, True, True, False]
    assert draws_of(judged, 100).uniform.tolist() == uniform
    # the pool has grown
    assert draws_of(judged, 140).uniform.tolist() == uniform
    known = [replace(j, uniform=not was) for j, was in zip(judged, uniform, strict=True)]
    again = [*Judgment.all_of([j.record() for j in known])]
    assert again == known
    assert draws_of(again, 100).uniform.tolist() == [not was for was in uniform]


@pytest.mark.slow
async def test_judgments_drawn_by_trust_certify_a_part(tmp_path):
    async with client(Says()) as nuc:
        texts = texts_of(600)
        await nuc.classify_many(texts)
        first = await nuc.review(100, goal="certify")
        assert first.ranking == ""
        judge(first)
        before = await nuc.learn(first)
        assert before.certify().judged == 0
        labels = [(r.label, r.trust) for r in await nuc.classify_many(texts)]
        review = await nuc.review(80, goal="certify")
        review.save(tmp_path / "r.json")
        review = Review.load(tmp_path / "r.json")
        judge(review)
        learned = await nuc.learn(review)
        assert learned.ranking == before.ranking
        assert np.array_equal(learned.trust, before.trust)
        certificate = learned.certify(accuracy=0.9, confidence=0.9)
        assert certificate.judged == 80
        assert certificate.coverage >= 0.3
        assert Learned.from_bytes(learned.to_bytes()).certify() == certificate
        # a review that was learned from already says nothing new
        again = await nuc.learn(first)
        assert (again.ranking, again.certify()) == (learned.ranking, learned.certify())
        results = await nuc.classify_many(texts)
        said = learned.accuracy().now
        assert said.low <= accuracy(results) <= said.high
        said = learned.macro_f1().share
        true = score([gold(text) for text in texts], [row.label for row in results]).macro_f1
        assert said.low <= true <= said.high
        judged = {item.text for item in review}
        # they correct their texts, and move no other
        for row, was in zip(results, labels, strict=True):
            assert row.source == "person" if row.text in judged else (row.label, row.trust) == was
        found = results.certified(certificate)
        assert len(found) >= 180
        assert accuracy(found) >= 0.9
        # the next ranking has a smaller part of the error
        more = await nuc.review(20, goal="decide")
        judge(more)
        again = await nuc.learn(more)
        assert again.ranking != learned.ranking
        assert (again.rankings, again.certify().judged) == (1, 0)
        few = await nuc.learn(texts_of(3, start=9000), [gold(t) for t in texts_of(3, start=9000)])
        assert few.texts == 603


@pytest.mark.slow
async def test_answers_of_a_referee_are_stored():
    small, big = Says(), Says(gold, "big")
    async with client(small) as nuc:
        await nuc.classify_many(texts_of(300))
        review = await nuc.review(30)
        calls = len(small.asked)
        await review.ask(big)
        assert len(big.asked) == 30
        assert {item.source for item in review} == {"referee"}
        again = await nuc.review(30)
        await nuc.ask(again, big)
        assert len(big.asked) == 30
        assert [i.answer for i in again] == [i.answer for i in review]
        assert nuc.referee_usage.calls == 30
        assert nuc.usage.calls == calls == len(small.asked)
        learned = await nuc.learn(again)
        assert "30 by a referee" in str(learned)
        # what another LLM said proves nothing about what people would say
        assert learned.certify().judged == 0
        few = await nuc.review(10, goal="decide")
        await few.ask(big, shown="candidates")
        assert all(item.answer == gold(item.text) for item in few)


@pytest.mark.slow
async def test_escalation_changes_exactly_a_part():
    texts = texts_of(400)
    small, big = Says(), Says(gold, "big")
    async with client(small, referee=big) as nuc:
        plain = await nuc.classify_many(texts)
        assert plain.escalated is None
        assert plain.usage.calls == 400
        asked = len(big.asked)
        assert 20 < asked <= 100
        assert plain.referee_usage.calls == asked
        assert accuracy(plain) > 0.9
    big = Says(gold, "big")
    async with client(Says(), referee=Referee(big, 0.1)) as nuc:
        estimate = await nuc.estimate(texts)
        assert (estimate.calls, estimate.referee_calls) == (400, 140)
        results = await nuc.classify_many(texts)
        judged = [r for r in results if r.source == "referee"]
        assert len(judged) == asked + 40
        assert len(big.asked) == asked + 40
        assert "labeled the 40 least trusted texts" in results.escalated
        assert all(r.label == gold(r.text) for r in judged)
        rest = [i for i, r in enumerate(results) if r.source != "referee"]
        assert [results.labels[i] for i in rest] == [plain.labels[i] for i in rest]
        least = min(r.trust for r in results if r.source == "head")
        assert (
            least
            >= max(
                r.trust
                for r, now in zip(plain, results, strict=True)
                if now.source == "referee" and r.source == "head"
            )
            - 1e-6
        )


@pytest.mark.slow
async def test_a_protected_label_stays_until_a_person_takes_it_away(tmp_path):
    """The model gives topic 0 to a fifth of the texts of other topics, too."""
    store, kept = tmp_path / "answers.db", LABELS[0]
    texts, fresh = texts_of(400), texts_of(60, start=6000)
    model = Says()

    def given(results):
        return [row for row in results if noisy(row.text) == kept and row.source != "person"]

    async with client(model, policy="majority", k=0, store=store) as nuc:
        with pytest.raises(InvalidInputError, match=r"protect: 'topics 0' is not .*mean 'topic 0'"):
            await nuc.learn(texts, [gold(text) for text in texts], protect=["topics 0"])
        assert not model.asked
        await nuc.classify_many(texts)
        review = await nuc.review(60)
        judge(review)
        learned = await nuc.learn(review, protect=[kept])
        assert learned.decides == "head"
        assert learned.protected == (kept,)
        assert f"which only a person takes from a text: {kept!r}" in str(learned)
        after = await nuc.classify_many(texts)
        assert {row.label for row in given(after)} == {kept}
        for item in review:
            assert after[texts.index(item.text)].label == gold(item.text)
        # the gain is that of the labels as they are
        points = np.mean([noisy(text) == gold(text) for text in texts])
        assert abs(learned.gain.value - (accuracy(after) - points)) < 0.12
        assert accuracy(after) > points
    async with client(model, policy="majority", k=0, store=store) as nuc:
        assert nuc.learned.protected == (kept,)
        assert {row.label for row in given([await nuc.classify(text) for text in fresh])} == {kept}
        more = await nuc.review(20)
        judge(more)
        assert (await nuc.learn(more)).protected == (kept,)
        # another client learns from the same judgments
        async with client(model, policy="majority", k=0) as other:
            await other.classify_many(texts)
            assert (await other.learn(nuc.learned)).protected == (kept,)
            assert (await other.learn(nuc.learned, protect=[])).protected == ()
        learned = await nuc.learn(review, protect=[])
        assert learned.protected == ()
        freed = await nuc.classify_many(texts)
        assert {row.label for row in given(freed)} != {kept}
        assert accuracy(freed) > accuracy(after)


@pytest.mark.slow
async def test_a_level_of_a_tree_protects_the_labels_below_it():
    names = [f"{'even' if c % 2 == 0 else 'odd'} > topic {c}" for c in range(CLASSES)]
    model = Says(lambda text: names[LABELS.index(noisy(text))])
    async with TestNUC(names, model, embedder=Clustered(), k=0) as nuc:
        texts = texts_of(120)
        await nuc.classify_many(texts)
        learned = await nuc.learn(texts[:2], [names[0], names[1]], protect=["even", names[1]])
        assert learned.protected == (names[0], names[1], names[2], names[4])
        with pytest.raises(InvalidInputError, match="protect: 'eve' is not in the label set"):
            await nuc.learn(texts[:2], [names[0], names[1]], protect=["eve"])


@pytest.mark.slow
async def test_nothing_is_escalated_to_a_referee_that_is_not_better():
    poor = Says(lambda text: LABELS[noise(text + "x") % CLASSES], "poor")
    async with client(Says(), referee=Referee(poor, 0.2)) as nuc:
        texts = texts_of(400)
        results = await nuc.classify_many(texts)
        assert "nothing was escalated" in results.escalated
        assert len(poor.asked) <= 100
    with pytest.raises(InvalidInputError, match=r"give referee=testnuc\.Referee"):
        client(Says(), escalate=0.1)


async def test_no_answer_of_a_referee_that_tosses_a_coin_is_used():
    labels = LABELS[:2]
    texts = [f"c{i % 2} number {i}" for i in range(400)]

    def nine_of_ten(text):
        return labels[int(text[1]) ^ (noise(text) < 10)]

    coin = Says(lambda text: labels[noise(text + "x") % 2], "coin")
    async with TestNUC(labels, Says(nine_of_ten), embedder=Clustered()) as nuc:
        alone = await nuc.classify_many(texts)
    referee = Referee(coin, 0.1)
    async with TestNUC(labels, Says(nine_of_ten), embedder=Clustered(), referee=referee) as nuc:
        results = await nuc.classify_many(texts)
        assert "its answers are not used" in results.escalated
        assert results.labels == alone.labels
        assert "referee" not in {row.source for row in results}
        assert "The referee's answers are not used" in str(nuc.learned)
        # people may judge the same texts
        assert len(await nuc.review(400, goal="certify")) == 400


async def test_answers_of_a_referee_that_a_person_confirms_are_a_sample_only_if_all_are():
    texts = texts_of(300)
    async with client(Says()) as nuc:
        await nuc.classify_many(texts)
        await nuc.learn(texts[:20], [gold(text) for text in texts[:20]])
        review = await nuc.review(40, goal="certify")
        await nuc.ask(review, Says(lambda _: LABELS[0]))
        await nuc.learn(review)
        # what agrees is confirmed
        for item in [item for item in review if item.answer == gold(item.text)]:
            review.answer(item.index, item.answer)
        learned = await nuc.learn(review)
        # all others count as wrong
        confirmed = [item.source == "person" for item in review]
        assert learned.drawn.sum() == 40
        assert 0 < (learned.person & learned.drawn).sum() == sum(confirmed) < 40
        for item in review:
            review.answer(item.index, gold(item.text))
        learned = await nuc.learn(review)
        assert (learned.person & learned.drawn).sum() == learned.certify(0.5).judged == 40


@pytest.mark.slow
async def test_clients_that_learn_at_once_keep_all_judgments(tmp_path):
    texts, path = texts_of(200), tmp_path / "s.db"
    one, two = texts[:20], texts[100:120]
    async with client(Says(), store=path) as a, client(Says(), store=path) as b:
        await a.classify_many(texts)
        await asyncio.gather(a.learn(one, ["topic 5"] * 20), b.learn(two, ["topic 5"] * 20))
        async with client(Says(), store=path) as c:
            for nuc, own in ((a, one), (b, two), (c, one + two)):
                results = await nuc.classify_many(texts)
                judged = [row for row in results if row.text in own]
                assert {(row.label, row.source) for row in judged} == {("topic 5", "person")}


@pytest.mark.slow
async def test_a_referee_does_not_judge_again_what_a_person_judged():
    texts = texts_of(200)
    async with client(Says()) as nuc:
        await nuc.classify_many(texts)
        review = await nuc.review(50)
        await nuc.learn(texts[:100], ["topic 5"] * 100)
        await nuc.ask(review, Says(gold))
        await nuc.learn(review)
        results = await nuc.classify_many(texts)
        assert {(row.label, row.source) for row in results[:100]} == {("topic 5", "person")}
        assert "referee" in {row.source for row in results[100:]}


async def test_so_many_random_draws_as_it_says_tell_how_many_labels_are_right():
    async with client(Says()) as nuc:
        await nuc.classify_many(texts_of(300))
        review = await nuc.review(12, goal="decide")
        judge(review)
        learned = await nuc.learn(review)
        assert learned.accuracy() is None
        more = learned.to_measure
        assert f'about {more:,} more texts for that, drawn at random (goal "count")' in str(learned)
        review = await nuc.review(more, goal="count")
        judge(review)
        learned = await nuc.learn(review)
        assert learned.accuracy() is not None
        assert learned.to_measure == 0


@pytest.mark.slow
async def test_draws_from_later_texts_alone_say_how_right_these_are(tmp_path):
    async with client(Says()) as nuc:
        texts, later = texts_of(400), texts_of(200, start=400)
        first = await learned_of(nuc, texts)
        assert (first.first_later(400), first.first_later(401)) == (0, 400)
        results = await nuc.classify_many(later)
        assert nuc.learned.accuracy(later) is None
        assert "points over the 400 texts that judged ones were drawn from" in str(nuc.learned)
        # also where what was judged of the first ones is learned again
        again = str(await nuc.learn(nuc.learned))
        assert "points over the 400 texts that judged ones were drawn from" in again
        review = await nuc.review(40, goal="later")
        assert {item.text for item in review} <= set(later)
        review.save(tmp_path / "r.json")
        review = Review.load(tmp_path / "r.json")
        assert review.drawn
        judge(review)
        learned = await nuc.learn(review)
        learned = Learned.from_bytes(learned.to_bytes())
        assert learned.first_later() == 400
        assert "points over the 600 texts that judged ones were drawn from" in str(learned)
        results = await nuc.classify_many([*texts, *later])
        # that of all texts is of both parts
        found, of = learned.accuracy(), [learned.accuracy(part) for part in (texts, later)]
        assert (found.texts, found.to_halve) == (600, sum(one.to_halve for one in of))
        # and so is that of a file with all of them
        assert learned.accuracy([*texts, *later]) == found
        both = (2 * of[0].now.value + of[1].now.value) / 3
        assert found.now.value == pytest.approx(both, abs=0.02)
        # and of a group: errors picked out of the first ones say nothing of later ones
        halves = [learned.accuracy(part[::2]) for part in (texts, later)]
        assert learned.accuracy([*texts[::2], *later[::2]]) == combined(halves)
        for part, n in ((later, 200), ([*texts[:5], *later], 200), (texts, 400)):
            found = learned.accuracy(part)
            true = accuracy(row for row in results if row.text in {*part})
            assert (found.texts, found.now.low <= true <= found.now.high) == (n, True)
            judged = sum(of.judged for of in learned.by_label(part).values())
            assert judged == (40 if n == 200 else 60)
        assert sum(of.judged for of in learned.by_label([*texts, *later]).values()) == 100
        # what fits no label is said of the texts that it is of
        none = [replace(j, label=None) if j.text in later else j for j in learned.judged]
        unfit = replace(learned, judged=tuple(none))
        assert [unfit.unfit_among(of)[1] for of in (None, later, texts)] == [40, 40, 0]
        assert "40 of 40 later texts that were drawn at random and judged fit no" in str(unfit)
        assert "200 texts are right" in str(learned.accuracy(later))
        assert counted(results[400:], learned)[0].judged == 40
        # a head's certificate is by draws from all
        assert (await nuc.distill(tmp_path / "a.head")).certificate.judged == 60
        # in the counts of all, both parts are as large as they are
        counts = counted(results, learned)
        assert (counts[0].rows, counts[0].judged) == (600, 100)
        again = await nuc.review(10, goal="later")
        assert {item.text for item in again} < {*later} - {item.text for item in review}
        # who corrects a judgment by hand does not undo its draw
        one = Review([ReviewItem(0, review[0].text, review[0].hash)], LABELS, 600, "small")
        one.answer(0, LABELS[0])
        assert (await nuc.learn(one)).accuracy(later).to_halve == learned.accuracy(later).to_halve


@pytest.mark.slow
async def test_what_is_corrected_by_hand_says_nothing_of_texts_that_were_not_drawn_from():
    """Accuracy was said to be of all texts there, also of those that came after the draws."""
    async with client(Says()) as nuc:
        texts, later = texts_of(400), texts_of(200, start=400)
        before = await learned_of(nuc, texts)
        await nuc.classify_many(later)
        chosen = Review([ReviewItem(0, later[0], hash_text(later[0]))], LABELS, 600, "small")
        chosen.answer(0, LABELS[0])
        learned = await nuc.learn(chosen)
        assert (learned.texts, learned.measured) == (600, before.measured) == (600, 400)
        found = [learned.accuracy(of) for of in (None, texts, [*texts, *later])]
        assert {one.texts for one in found} == {400}
        assert len({*map(str, found)}) == 1
        assert learned.accuracy(later) is None


@pytest.mark.slow
@pytest.mark.parametrize("judged_before", [True, False])
async def test_a_review_of_another_store_is_of_the_texts_that_came_later_here(judged_before):
    """Its draws were taken for some of the first texts: shares had intervals of no width."""
    texts, later = texts_of(400), texts_of(200, start=400)
    async with client(Says()) as nuc:
        await nuc.classify_many(later)
        elsewhere = await nuc.review(40, goal="count")
        judge(elsewhere)
    async with client(Says()) as nuc:
        if judged_before:
            await learned_of(nuc, texts)
        else:
            await nuc.classify_many(texts)
        results = await nuc.classify_many([*texts, *later])
        learned = await nuc.learn(elsewhere)
        counts = counted(results[400:], learned)
        assert (counts[0].rows, counts[0].judged) == (200, 40)
        assert all(one.share.low < one.share.high for one in counts)
        if judged_before:
            assert (learned.first_later(), learned.accuracy(later).texts) == (400, 200)
            # as where the review was drawn here; to learn again changes nothing
            again = await nuc.learn(elsewhere)
            assert again.judged == learned.judged


@pytest.mark.slow
async def test_texts_that_are_erased_leave_draws_that_certify(tmp_path):
    """After each erasure the next draws were lessons, and no certificate was ever reached."""
    async with client(Says(), store=tmp_path / "labels.db") as nuc:
        texts = texts_of(600)
        await nuc.classify_many(texts)
        review = await nuc.review(60)
        judge(review)
        await nuc.learn(review)
        judged = {item.text for item in review}
        gone = [next(iter(judged)), *[text for text in texts if text not in judged][:5]]
        assert await nuc.remove(gone, erase=True) == 6
        review = await nuc.review(80, goal="certify")
        judge(review)
        certificate = (await nuc.learn(review)).certify()
        assert (certificate.texts, certificate.judged) == (594, 80)
        assert certificate.coverage >= 0.3


async def test_draws_among_later_texts_extend_a_certificate(tmp_path):
    async with client(Says(), store=tmp_path / "labels.db") as nuc:
        texts, later = texts_of(600), texts_of(300, start=600)
        await nuc.classify_many(texts)
        for goal, n in ((None, 60), ("certify", 80)):
            review = await nuc.review(n, goal=goal)
            judge(review)
            first = await nuc.learn(review)
        certificate = first.certify()
        assert (certificate.texts, certificate.judged) == (600, 80)
        assert certificate.coverage >= 0.3
        assert "% of 600 distinct texts" in str(certificate)
        both = await nuc.classify_many([*texts, *later])
        found = both.certified(certificate)
        assert {row.text for row in found} <= set(texts)
        assert len(found) >= 180
        assert nuc.learned.later([hash_text(texts[0]), hash_text(later[0])]) == [False, True]
        # later texts are drawn, and the earlier draws count on
        review = await nuc.review(40, goal="certify")
        assert nuc.learned.certify() == certificate
        fresh = sum(item.text in later for item in review)
        assert fresh >= 20
        judge(review)
        extended = await nuc.learn(review)
        assert (extended.cohorts, extended.rankings, extended.texts) == ((600, 900), 0, 900)
        assert np.array_equal(extended.trust[:600], first.trust)
        whole = extended.certify()
        assert (whole.texts, whole.judged) == (900, 120)
        assert whole.coverage >= 0.2
        both = await nuc.classify_many([*texts, *later])
        found = both.certified(whole)
        assert sum(row.text in later for row in found) >= 40
        # few labels changed since
        assert len(found) >= 0.9 * len(whole.among)
        assert accuracy(found) >= 0.9
        assert extended.accuracy().now == first.accuracy().now
        assert extended.macro_f1() == first.macro_f1()
        assert "of the labels of 600 texts are right" in str(extended)
    async with client(Says(), store=tmp_path / "labels.db") as nuc:
        assert nuc.learned.certify() == whole
        assert nuc.learned.certify().among == whole.among


async def test_texts_of_the_pool_that_are_answered_late_end_no_certificate():
    async with client(Says(), neighbors="stored") as nuc:
        texts = texts_of(300)
        await nuc.add(texts[:30])
        await nuc.classify_many(texts[30:])
        review = await nuc.review(40)
        judge(review)
        first = await nuc.learn(review)
        review = await nuc.review(30, goal="certify")
        assert review.ranking == first.ranking != ""
        judge(review)
        await nuc.classify_many(texts[:30])
        learned = await nuc.learn(review)
        assert (learned.ranking, learned.certify().judged) == (first.ranking, 30)
        # and these are later ones, which may be drawn
        await nuc.review(20, goal="certify")
        assert nuc.learned.cohorts == (270, 300)


class Named(Clustered):
    """Embeds the name of a topic near its texts."""

    async def embed(self, texts):
        return await super().embed([f"c{t[-1]}" if t.startswith("topic") else t for t in texts])


def never_the_last(text):
    """Say another topic in place of the last one."""
    label = noisy(text)
    return LABELS[4] if label == LABELS[5] else label


async def test_labels_that_the_llm_never_gives_are_offered_by_name_and_learned():
    model = Says(never_the_last)
    async with TestNUC(LABELS, model=model, embedder=Named()) as nuc:
        texts = texts_of(600)
        before = await nuc.classify_many(texts)
        assert LABELS[5] not in before.labels
        review = await nuc.review(60)
        new = [item for item in review if gold(item.text) == LABELS[5]]
        assert new
        assert all(gold(item.text) in dict(item.candidates) for item in review)
        by_name = [sum(by == ("its name",) for _, by in item.candidates) for item in review]
        assert 0 < max(by_name) <= 3
        judge(review)
        await nuc.learn(review)
        after = await nuc.classify_many(texts)
        said = [row.label == LABELS[5] for row in after if gold(row.text) == LABELS[5]]
        assert np.mean(said) > 0.8


async def test_a_review_does_without_names_that_cannot_be_embedded():
    async with client(Says(), policy="majority", k=0) as nuc:
        await nuc.classify_many(texts_of(60))
        for item in await nuc.review(5):
            assert all(by != ("its name",) for _, by in item.candidates)


def test_judges_who_differ_count_where_one_of_them_was_learned_from_before():
    one = Judgment("text", b"hash", LABELS[0], "person", 0.1, 0.1, 100, True, by="one person")
    # of two judges who differ, the one who was learned from first does not decide
    differ = replace(one, label=None, source=None, agreed=False, by="")
    (found,) = _merged([one], [differ])
    assert found == differ
    settled = replace(one, agreed=False)
    assert _merged([found], [settled]) == (settled,)
    assert _merged([settled], [differ]) == (settled,)


def test_whether_judges_agree_is_said_anew_by_reviews_of_the_same_draw():
    """A wrong file that was learned from went on in the judges' error."""
    one = Judgment("text", b"hash", LABELS[0], "person", 0.1, 0.1, 100, True, by="one person")
    agreed, differ = replace(one, agreed=True), replace(one, label=None, source=None, agreed=False)
    for draw in ({}, {"probability": None}, {"probability": None, "ranking": "r"}):
        alone, both, other = (replace(this, **draw) for this in (one, agreed, differ))
        assert _merged([both], [alone]) == (alone,)
        assert _merged([both], [other]) == (replace(other, by=""),)
        assert _merged([both], [replace(alone, label=None, source=None)]) == (alone,)
        # an answer of another draw, or by hand, says nothing of it
        (kept,) = _merged([both], [replace(alone, probability=0.2, ranking="")])
        assert kept.agreed


@pytest.mark.slow
async def test_skipped_draws_and_differing_judges_weaken_a_certificate():
    async with client(Says()) as nuc:
        await nuc.classify_many(texts_of(600))
        review = await nuc.review(100)
        judge(review)
        await nuc.learn(review)
        review = await nuc.review(80, goal="certify")
        judge(review, 79)
        sure = await nuc.learn(review)
        assert sure.certify(0.9).coverage
        assert sure.certify(0.9).judge_error is None
    async with client(Says()) as nuc:
        await nuc.classify_many(texts_of(600))
        first = await nuc.review(100)
        judge(first)
        await nuc.learn(first)
        review = await nuc.review(80, goal="certify")
        whole, again = review.split(1, 0.5)
        for part in (whole, again):
            judge(part)
        # a judge who errs once in forty, and skips 30
        again.answer(0, next(label for label in LABELS if label != again[0].answer))
        for item in whole[:30]:
            whole.withdraw(item.index)
        joined = join_reviews([whole, again]).review
        skipped = sum(item.source is None for item in joined)
        assert skipped >= 10
        lacks = await nuc.learn(joined)
        assert lacks.drawn.sum() == 80
        assert lacks.right[lacks.drawn].sum() <= 80 - skipped
        assert not lacks.certify(0.9).coverage
        weaker = lacks.certify(0.5)
        shared = sum(item.judges > 1 for item in joined)
        assert 0 < weaker.judge_error < 0.2
        assert f"at least {0.5 - weaker.judge_error:.0%} by the truth that two" in str(weaker)
        differ = sum(bool(item.said) for item in joined)
        assert f"Judges differ on {differ} of {shared} texts that several judged" in str(lacks)
        assert lacks.accuracy().judge_error == weaker.judge_error
        assert "; with the errors of judges " in str(lacks)
        assert Learned.from_bytes(lacks.to_bytes()).certify(0.5) == weaker


async def test_a_judge_of_whom_most_sure_labels_are_wrong_is_doubted():
    """Of a judge who answers at random; what is corrected counts as right, so all would be."""
    texts = texts_of(400)
    said = "drawn by trust are right: check these judgments."
    for wrong in (False, True):
        async with client(Says(noisy)) as nuc:
            await nuc.classify_many(texts)
            review = await nuc.review(60, goal="count")
            judge(review)
            await nuc.learn(review)
            review = await nuc.review(20, goal="certify")
            for item in review:
                right = LABELS.index(gold(item.text))
                review.answer(item, LABELS[(right + wrong) % CLASSES])
            learned = await nuc.learn(review)
            assert (f"Only 0 of 20 {said}" in str(learned)) is wrong
            assert (said in str(learned)) is wrong


@pytest.mark.filterwarnings("ignore::testnuc.errors.SmallPoolWarning")
async def test_judged_texts_alone_prove_nothing_in_another_run():
    """As after a change of the gateway, where only the judged texts were sent again."""
    texts = texts_of(400)
    async with client(Says(noisy)) as nuc:
        await nuc.classify_many(texts)
        review = await nuc.review(60)
        judge(review)
        learned = await nuc.learn(review)
        assert learned.gain.low > 0
    judged = [item.text for item in review]
    async with client(Says(noisy)) as nuc:
        await nuc.classify_many(judged + texts[:20])
        for known in (learned, review):
            again = await nuc.learn(known)
            assert again.decides == "settings"
            assert again.accuracy() is None
            assert "Judged texts were drawn from 400, most of which this run lacks" in str(again)
        await nuc.classify_many(texts)
        again = await nuc.learn(learned)
        assert again.gain.low > 0
        assert again.accuracy() is not None
        assert "this run lacks" not in str(again)


@pytest.mark.parametrize("goal", ["count", "later", "correct", "decide", None])
async def test_what_fitted_no_label_is_asked_about_first_when_one_is_added(goal):
    """Nobody could choose the new label, and no review offered these texts again."""
    new, old, texts = LABELS[0], LABELS[1:], texts_of(240)
    # one is renamed besides
    names = [new, "renamed", *old[1:]]
    now = {old[0]: "renamed"}

    async with TestNUC(old, model=Says(lambda _: old[0]), embedder=Clustered()) as nuc:
        await nuc.classify_many(texts)
        review = await nuc.review(60, goal="count")
        for item in review:
            review.answer(item, gold(item.text) if gold(item.text) != new else None)
        learned = await nuc.learn(review)
        page = await nuc.describe(await nuc.classify_many(texts))
    unfit = {item.text for item in review if item.answer is None}
    assert {one.text for one in learned.unfit_among()[0]} == unfit
    said = f"{len(unfit)} of 60 texts that were drawn at random and judged fit no label"
    assert said in str(learned)
    assert said in page
    async with TestNUC(names, model=Says(lambda _: "renamed"), embedder=Clustered()) as nuc:
        results = await nuc.classify_many(texts)
        learned = await nuc.learn(review, was={"renamed": [old[0]]})
        assert learned.unfit_among() == ([], 0)
        assert {one.text for one in learned.reopened} == unfit
        said = f"judged 'none of these' before the label set had '{new}': {len(unfit)}."
        assert said in str(learned)
        assert "skipped" not in await nuc.describe(results)
        wide = {one.label: one.share for one in results.count_labels(learned)}[new]
        assert [i.text in unfit for i in await nuc.review(70, goal=goal)].index(False) == len(unfit)
        assert len(await nuc.review(len(unfit) - 1, goal=goal)) == len(unfit) - 1
        again = await nuc.review(len(unfit), goal=goal)
        assert {item.text for item in again} == unfit
        for item in again:
            again.answer(item, now.get(gold(item.text), gold(item.text)))
        learned = await nuc.learn(again)
        assert not learned.reopened
        assert "A review asks" not in str(learned)
        # they stay part of the random draw that they were in
        assert all(one.uniform and one.probability is not None for one in learned.judged)
        share = {one.label: one.share for one in results.count_labels(learned)}[new]
        assert wide.low < 0.01
        assert share.low > 0.08
        assert share.high == pytest.approx(wide.high, abs=0.05)
        assert not unfit & {item.text for item in await nuc.review(100, goal="count")}


async def test_of_several_labels_texts_without_any_are_asked_about_first_when_one_is_added():
    new, old, texts = LABELS[0], LABELS[1:], texts_of(240)

    def say(text):
        return {gold(text): 0.9} if gold(text) != new else {}

    several = partial(LabelSet, multilabel=True)
    async with TestNUC(several(old), model=Says(say), embedder=Clustered()) as nuc:
        await nuc.classify_many(texts)
        review = await nuc.review(40, goal="count")
        for item in review:
            review.answer(item, [*say(item.text)])
    unfit = {item.text for item in review if not item.answer}
    async with TestNUC(several(LABELS), model=Says(say), embedder=Clustered()) as nuc:
        await nuc.classify_many(texts)
        assert {one.text for one in (await nuc.learn(review, was={})).reopened} == unfit
        again = await nuc.review(len(unfit), goal="count")
        assert {item.text for item in again} == unfit
        for item in again:
            again.answer(item, [gold(item.text)])
        learned = await nuc.learn(again)
        assert not learned.reopened
        assert {one.label for one in learned.judged if one.text in unfit} == {new}


async def test_where_nothing_came_later_all_texts_are_drawn_from():
    """Draws counted nothing, as with `ask="unsure"`, where a file has more texts than are asked."""
    async with client(Says(), policy="majority", k=0) as nuc:
        await nuc.classify_many(texts_of(200))
        review = await nuc.review(20)
        judge(review)
        await nuc.learn(review)
        again = await nuc.review(10, goal="later")
        assert {item.goal for item in again} == {"count"}
        assert all(item.probability == item.floor for item in again)


@pytest.mark.slow
async def test_an_accuracy_stays_known_when_more_is_judged_to_certify():
    """Candidates differ on few texts of a strong LLM, and draws from a ranking ended the number."""

    def strong(text):
        return gold(text) if noise(text) >= 5 else LABELS[0]

    async with client(Says(strong)) as nuc:
        first = await learned_of(nuc, texts_of(300))
        assert first.accuracy() is not None
        review = await nuc.review(40, goal="certify")
        judge(review)
        then = await nuc.learn(review)
        assert then.drawn.any()
        assert then.accuracy() is not None
