"""Labels from unlabeled texts, named by a scripted LLM."""

import asyncio
import random
import re

import pytest

import testnuc
from testnuc.discovery import KEYWORDS
from testnuc.errors import (
    AuthenticationError,
    BadRequestError,
    ContentRefusedError,
    InvalidInputError,
    ReplyError,
    ServerError,
    UnreadableReplyError,
)
from testnuc.protocols import Answer, Reply
from testnuc.testing import HashEmbedder, LoopbackLLM

WORDS = {
    "refund": "money back refund charged twice payment invoice amount",
    "delivery": "parcel courier late address tracking package shipped door",
    "login": "password locked account sign username verify code reset",
    "weather": "rain sunny forecast wind storm cloudy snow temperature",
}
LABELS = list(WORDS)


def texts_of(labels=LABELS, n=40):
    dice = random.Random(0)
    return [
        " ".join([*dice.choices(WORDS[label].split(), k=6), f"#{i}"])
        for i in range(n)
        for label in labels
    ]


def topic_of(text):
    """The topic whose words a text has most."""
    words = text.lower().split()
    return max(WORDS, key=lambda label: sum(word in WORDS[label].split() for word in words))


class Namer:
    """Names a cluster by its topic, in one of several spellings; merges; labels."""

    def __init__(self, names=lambda topic: f"{topic}: about {topic}"):
        self.names = names
        self.asked = []

    def __call__(self, text):
        self.asked.append(text)
        if text.startswith("Central texts:") and "\nTexts at the border:" not in text:
            return self.added(topic_of(text)), 0.9
        if text.startswith("Central texts:"):
            return self.names(topic_of(text)), 0.9
        if text.startswith("Label ") and "\nLabel " not in text:
            return self.refined(text.partition("\n")[0].removeprefix("Label ")), 0.9
        if text.startswith("Label "):
            one, other = re.findall(r"(?m)^Label (\w+)", text)
            return ("same" if one.lower()[:4] == other.lower()[:4] else "different"), 0.9
        topic = topic_of(text)
        return (topic if topic in self.labels else "none of these"), 0.9

    labels = LABELS

    def refined(self, label):
        """What a label of the list becomes."""
        return label

    def added(self, topic):
        """The label of texts that fit none of the list."""
        return "none of these"


def found_by(namer, texts=None, **more):
    with LoopbackLLM(namer, record=500) as llm:
        given = {"base_url": llm.base_url, "api_key": "k", "embedder": HashEmbedder()} | more
        found = asyncio.run(testnuc.discover(texts or texts_of(), "openai/test", **given))
        return found, llm


def test_topics_become_labels():
    found, llm = found_by(Namer(), n=4)
    assert set(found.labels) == set(LABELS)
    assert found.labels["refund"] == "about refund"
    assert found.new == tuple(found.labels)
    assert sum(found.sizes.values()) == 160
    assert all(topic_of(text) == label for label in LABELS for text in found.examples[label])
    assert (found.drawn, found.misfits) == (100, ())
    assert found.usage.calls == llm.calls
    assert "4 labels, 4 new, 0 dropped" in str(found)
    assert "0% of all texts fit none (0% to 4%)" in str(found)
    # a name is any string: no list of labels constrains it
    naming = [body for body in llm.bodies if "Name the topic" in str(body["messages"])]
    assert naming
    assert all("enum" not in str(body["response_format"]) for body in naming)


def test_names_that_mean_the_same_are_merged():
    number = iter(range(100))
    namer = Namer(lambda topic: f"{topic} {next(number)}: about {topic}")
    namer.labels = ()
    found, _ = found_by(namer, n=4)
    # nothing was said of the tried texts: no name is a label
    assert found.labels == {}
    assert len(found.dropped) == 4
    assert len(found.misfits) == 100


def test_spellings_are_one_name():
    spellings = iter(["Refund: a", "refund", "REFUND.: b"] * 10)
    namer = Namer(lambda topic: next(spellings) if topic == "refund" else f"{topic}: c")
    found, _ = found_by(namer, n=4)
    assert [name.lower() for name in found.labels].count("refund") == 1
    assert len(found.labels) == 4


def test_labels_are_kept_and_others_added():
    given = {"Refund": "money", "login": "", "voucher": "a code for a discount"}
    namer = Namer()
    namer.labels = ("login", "delivery", "weather")
    found, llm = found_by(namer, labels=given, n=4, instructions="Mails to a shop.")
    assert list(found.labels)[:3] == ["Refund", "login", "voucher"]
    assert set(found.new) == {"delivery", "weather"}
    assert found.labels["Refund"] == "money"
    assert found.examples.keys() == {"Refund", "login", "delivery", "weather"}
    prompts = [str(body["messages"]) for body in llm.bodies]
    assert any("If one of these labels fits" in p and "Mails to a shop." in p for p in prompts)


def test_names_without_a_label_are_dropped_and_misfits_shown():
    namer = Namer()
    namer.labels = ("refund", "delivery", "login")
    found, _ = found_by(namer, n=4)
    assert found.dropped == ("weather",)
    assert "3 labels, 3 new, 1 dropped" in str(found)
    assert {topic_of(text) for text in found.misfits} == {"weather"}
    assert "fit none" in str(found)


def test_an_interrupted_run_resumes(tmp_path):
    store = tmp_path / "answers.db"

    class Fails(Namer):
        def __call__(self, text):
            return None if len(self.asked) > 15 else super().__call__(text)

    answer = Fails()

    def answer_now(text):
        return answer(text)

    with LoopbackLLM(answer_now) as llm:
        given = {"base_url": llm.base_url, "api_key": "k", "n": 4, "store": store}

        def run():
            return asyncio.run(
                testnuc.discover(texts_of(), "openai/test", embedder=HashEmbedder(), **given)
            )

        with pytest.raises(testnuc.ProviderError):
            run()
        before, answer = llm.calls, Namer()
        found = run()
        assert set(found.labels) == set(LABELS)
        assert found.usage.calls == llm.calls - before
        assert not set(answer.asked) & {text for text, n in llm.asked.items() if n > 1}
        calls = llm.calls
        assert run().labels == found.labels
        assert llm.calls == calls


def test_words_name_clusters_without_an_llm():
    found = asyncio.run(testnuc.discover(texts_of(), KEYWORDS, n=4, embedder=HashEmbedder()))
    assert len(found.labels) == 4
    for name, texts in found.examples.items():
        assert topic_of(name) == topic_of(texts[0])
    assert found.drawn == 0
    assert found.usage.calls == 0


def test_a_wrong_key_ends_after_one_call():
    with LoopbackLLM(Namer(), api_key="right") as llm:
        given = {"base_url": llm.base_url, "api_key": "wrong", "embedder": HashEmbedder()}
        with pytest.raises(AuthenticationError):
            asyncio.run(testnuc.discover(texts_of(), "openai/test", n=4, **given))
        assert llm.requests == 1


def test_wrong_input_is_refused():
    for texts, more, said in (
        (["one", "two"], {}, "different texts: 2; give 20 at least, or write the labels by hand"),
        (texts_of(), {"n": 1}, "n is 1"),
        (texts_of(), {"labels": ["a", "a"]}, "duplicate label"),
        (["", *texts_of()], {}, "is empty"),
        (texts_of(), {"model": "local/zero-shot"}, "names none; give an LLM, or 'local/keywords'"),
    ):
        given = {"model": KEYWORDS, "embedder": HashEmbedder(), **more}
        with pytest.raises(InvalidInputError, match=said):
            asyncio.run(testnuc.discover(texts, **given))


def test_a_failing_provider_raises():
    class Broken:
        name, model, identity = "broken", "b", "1"

        async def answer(self, request):
            error = ServerError("down")
            error.retryable = False
            raise error

    with pytest.raises(ServerError, match="down"):
        asyncio.run(testnuc.discover(texts_of(), Broken(), n=4, embedder=HashEmbedder()))


@pytest.mark.parametrize("name", ["None of These: texts on nothing", "none of these", "\x00\x1b"])
def test_a_cluster_without_a_topic_has_no_name(name):
    """Such a name ended the run, and each that resumed it, once all names were paid for."""
    found, _ = found_by(
        Namer(lambda topic: name if topic == "refund" else f"{topic}\x07: about \x1b{topic}"), n=4
    )
    assert found.labels == {label: f"about {label}" for label in found.new}
    assert set(found.new) == set(LABELS) - {"refund"}


def test_a_label_in_a_tree_is_kept():
    found, _ = found_by(
        Namer(lambda topic: "mail > parcel" if topic == "delivery" else topic),
        n=4,
        labels={"mail > parcel": "what comes", "mail > other": ""},
    )
    assert found.sizes["mail > parcel"] > 0
    assert "mail - parcel" not in found.labels


class Slow:
    """A provider that answers when it may."""

    name, model, identity = "slow", "s", "1"

    def __init__(self):
        self.asked, self.busy, self.may = [], asyncio.Event(), asyncio.Event()
        self.namer = Namer()

    async def answer(self, request):
        self.asked.append((request.task.system, request.texts))
        if len(self.asked) == 7:
            self.busy.set()
        if len(self.asked) > 3:
            await self.may.wait()
        return Reply(tuple(Answer(*self.namer(text)) for text in request.texts))


def test_what_is_sent_when_it_is_cancelled_is_stored(tmp_path):
    async def run():
        slow, options = Slow(), {"store": tmp_path / "d.db", "embedder": HashEmbedder()}
        options["limits"] = testnuc.Limits(concurrency=4)
        task = asyncio.create_task(testnuc.discover(texts_of(), slow, n=30, **options))
        await slow.busy.wait()
        task.cancel()
        await asyncio.sleep(0)
        slow.may.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        sent = len(slow.asked)
        await testnuc.discover(texts_of(), slow, n=30, **options)
        return sent, slow.asked

    sent, asked = asyncio.run(run())
    # the four in flight, and none after it
    assert sent == 7
    assert len({*asked}) == len(asked)


class Filtered:
    """A provider that rejects the texts of one topic, or all of them."""

    name, model, identity = "filtered", "f", "1"

    def __init__(self, error, topics=("refund",)):
        self.error, self.topics, self.calls, self.namer = error, topics, 0, Namer()

    async def answer(self, request):
        self.calls += 1
        if any(map(self.rejects, request.texts)):
            raise self.error("blocked")
        await asyncio.sleep(0)
        return Reply(tuple(Answer(*self.namer(text)) for text in request.texts))

    def rejects(self, text):
        return text.startswith("Central texts:") and topic_of(text) in self.topics


@pytest.mark.parametrize("error", [AuthenticationError, BadRequestError, ContentRefusedError])
def test_a_text_that_is_rejected_does_not_end_the_run(error, tmp_path):
    """A content filter or a firewall ended the run, and each that resumed it."""
    given = {"n": 4, "embedder": HashEmbedder(), "store": tmp_path / "answers.db"}
    found = asyncio.run(testnuc.discover(texts_of(), Filtered(error), **given))
    assert set(found.new) == set(LABELS) - {"refund"}
    if error is not AuthenticationError:  # without another answer, the key may be wrong
        again = Filtered(error)
        assert asyncio.run(testnuc.discover(texts_of(), again, **given)).labels == found.labels
        assert 0 < again.calls < 12, "only what was rejected is asked again"


def test_a_text_that_is_rejected_does_not_fail_those_in_its_call():
    class OneText(Filtered):
        def rejects(self, text):
            return text.endswith(" #7") and topic_of(text) == "login"

    provider = OneText(ContentRefusedError)
    found = asyncio.run(testnuc.discover(texts_of(n=10), provider, n=4, embedder=HashEmbedder()))
    assert set(found.new) == set(LABELS)
    assert {topic_of(text) for text in found.misfits} == {"login"}
    assert len(found.misfits) == 1
    # twelve clusters, the list, eight calls of ten texts, and alone those of one, on each trial
    assert provider.calls <= 12 + 1 + 8 + 2 * 10


def test_answers_that_cannot_be_read_end_a_run_soon(tmp_path):
    """Each text of a packed call was asked about alone: ten times the calls that were promised."""

    class Rambling(Filtered):
        def rejects(self, text):
            return "Central texts" not in text

    provider = Rambling(UnreadableReplyError)
    given = {"n": 4, "embedder": HashEmbedder(), "store": tmp_path / "answers.db"}
    with pytest.raises(ReplyError, match=r"2\d answers in a row: blocked"):
        asyncio.run(testnuc.discover(texts_of(), provider, **given))
    # three tries for each answer
    assert provider.calls < 90
    # names are stored
    sober = Filtered(UnreadableReplyError, topics=())
    found = asyncio.run(testnuc.discover(texts_of(), sober, **given))
    assert set(found.labels) == set(LABELS)
    assert not any(text.startswith("Central texts:") for text in sober.namer.asked[:5])


class Librarian(Namer):
    """Names topics as well."""

    def __call__(self, text):
        if text.startswith("- "):
            self.asked.append(text)
            return "shop: about a shop" if "refund" in text else "other: the rest", 0.9
        return super().__call__(text)


def test_labels_are_put_in_a_tree():
    found, _ = found_by(Librarian(), n=4, tree=True)
    tree = testnuc.LabelTree(found.labels)
    assert tree.depth == 2
    assert {path[-1] for path in tree.paths} == set(LABELS)
    assert {path[0] for path in tree.children()} <= {"shop", "other"}
    assert list(found.labels) == sorted(found.labels, key=lambda label: label.split(" > ")[0])
    assert found.new == tuple(found.labels)
    assert found.sizes.keys() == found.labels.keys()
    assert found.labels["shop > refund"] == "about refund"
    assert found.examples.keys() == found.labels.keys()
    # labels that were given stay as they are
    given = {"login": "", "voucher": "", "a > b": ""}
    found, _ = found_by(Librarian(), n=4, tree=True, labels=given)
    assert list(found.labels)[:3] == list(given)
    assert found.sizes["login"]
    words = asyncio.run(
        testnuc.discover(texts_of(), KEYWORDS, n=4, tree=True, embedder=HashEmbedder())
    )
    assert all(len(label.split(" > ")) == 2 for label in words.labels)


@pytest.mark.parametrize("error", [AuthenticationError, BadRequestError, ContentRefusedError])
def test_texts_that_are_all_rejected_end_the_run(error):
    provider = Filtered(error, LABELS)
    with pytest.raises(error, match="blocked"):
        asyncio.run(testnuc.discover(texts_of(), provider, n=40, embedder=HashEmbedder()))
    assert provider.calls <= 20


class Refiner:
    """A provider that misnames two topics at first, and then changes the list."""

    name, model, identity = "refiner", "r", "1"

    def __init__(self, **changed):
        self.first = {"weather": "sports", "refund": "cash"}
        self.changed, self.lists = changed, []

    async def answer(self, request):
        if not request.task.labels and "the list below" in request.task.system:
            self.lists.append((request.task.system, request.texts))
        answers = [self.said(text, request.task.labels) for text in request.texts]
        return Reply(tuple(Answer(label, 0.9) for label in answers))

    def said(self, text, labels):
        topic = topic_of(text)
        if labels == ("same", "different"):
            return "different"
        if labels:
            same = {topic, "post"} if topic == "delivery" else {topic}
            return next(filter(same.__contains__, labels), labels[-1])
        if "Texts at the border" in text:
            return f"{self.first.get(topic, topic)}: about {topic}"
        return self.changed.get(topic, f"{topic}: again")


def refined_by(provider):
    return asyncio.run(testnuc.discover(texts_of(), provider, n=4, embedder=HashEmbedder()))


def test_the_list_is_refined_once_with_texts():
    """Clusters whose texts fit no label are named again, and a label gets a better name."""
    provider = Refiner(delivery="post: parcels and letters", login="LOGIN")
    found = refined_by(provider)
    assert dict(found.labels) == {
        "post": "parcels and letters",
        "refund": "again",
        "weather": "again",
        "login": "about login",
    }
    assert (found.dropped, found.misfits) == ((), ())
    # two labels and the six clusters of two topics, in one call
    ((system, texts),) = provider.lists
    assert all(f"- {name}: about" in system for name in ("sports", "cash", "delivery", "login"))
    assert sum(text.startswith("Label ") for text in texts) == 2
    assert sum(text.startswith("Central texts:") for text in texts) == len(texts) - 2


def test_a_label_that_its_texts_would_not_fit_stays_as_it_was():
    found = refined_by(Refiner(delivery="sea", login="sea"))
    assert set(found.labels) == set(LABELS)
    assert found.labels["login"] == "about login"


def test_a_list_that_is_rejected_stays_as_it_is():
    """A step that only makes names better does not end a run that others paid for."""

    class Strict(Refiner):
        async def answer(self, request):
            if "the list below" in request.task.system:
                raise ContentRefusedError("blocked")
            return await super().answer(request)

    found = refined_by(Strict())
    assert set(found.new) == {"delivery", "login"}
    assert set(found.dropped) == {"cash", "sports"}
