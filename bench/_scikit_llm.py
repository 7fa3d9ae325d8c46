"""Several labels by testnuc and by scikit-llm, from the same answers over real sockets."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bench._report import Report
from testnuc import LabelSet, Sampling, SyncTestNUC
from testnuc.testing import HashEmbedder, LoopbackLLM
from testnuc.testing.formats import count_tokens
from testnuc.testing.server import HTTPRequest, Response, Server, json_response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["against_scikit_llm"]

#: Part of the texts whose answer has no label, six labels, or a label that is not in the set.
_NONE, _MANY, _INVENTED = 0.1, 0.05, 0.1
#: Part of the texts that occurred before.
_REPEATED = 0.2
_SAMPLE = re.compile(r"Text sample: ```(.*?)```", re.DOTALL)


class _Answers(Server):
    """Labels of texts, in the order of the answers, and what was sent."""

    def __init__(self, of: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self._of = of
        self.calls = 0
        self.tokens = 0

    def respond(self, call: HTTPRequest) -> Response:
        """Answer as scikit-llm asks, in the format of OpenAI."""
        messages = orjson.loads(call.body)["messages"]
        self.calls += 1
        self.tokens += sum(count_tokens(len(message["content"])) for message in messages)
        found = _SAMPLE.search(messages[-1]["content"])
        assert found is not None
        content = orjson.dumps({"label": list(self._of[found[1]])}).decode()
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": content},
        }
        return json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": "test",
                "choices": [choice],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        )


def _made(n: int, labels: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return texts, some of them repeated, and the labels of each in the order of the answer."""
    random = np.random.default_rng(0)
    texts: list[str] = []
    answers: dict[str, list[str]] = {}
    for i in range(n):
        if i and random.random() < _REPEATED:
            texts.append(texts[int(random.integers(0, i))])
            continue
        kind = random.random()
        size = 0 if kind < _NONE else 6 if kind < _NONE + _MANY else int(random.integers(1, 4))
        said = [labels[c] for c in random.permutation(len(labels))[:size]]
        text = f"message {i}: I write to you about {' and '.join(said) or 'nothing'}, please help."
        if random.random() < _INVENTED:
            said.insert(int(random.integers(0, len(said) + 1)), f"invented {i}")
        texts.append(text)
        answers[text] = said
    return texts, answers


def against_scikit_llm(n: int, n_labels: int) -> Report:
    """Label n texts with both; calls, prompts, and what becomes of the answers.

    Parameters
    ----------
    n, n_labels : int
    """
    labels = [f"topic number {c}" for c in range(n_labels)]
    texts, answers = _made(n, labels)
    report = Report("scikit-llm", f"### {n:,} texts, {len(answers):,} distinct, {n_labels} labels")
    for packed in (1, 10):
        name = "testnuc" if packed == 1 else f"testnuc, {packed} texts a call"
        found = _by_testnuc(texts, labels, answers, packed)
        report.row(by=name, **_cells(texts, labels, answers, *found))
    try:
        found = _by_scikit_llm(texts, labels, answers)
    except ImportError as error:
        report.note(
            f"scikit-llm is not installed ({error}): pip install --no-deps scikit-llm openai"
        )
    else:
        name = f"scikit-llm {version('scikit-llm')}"
        report.row(by=name, **_cells(texts, labels, answers, *found))
    report.note(
        f"of the answers, {_NONE:.0%} have no label, {_MANY:.0%} six, and {_INVENTED:.0%} one that "
        "is not in the set. tokens: of the prompts, four characters each, without a schema"
    )
    report.note(
        "not said: labels of the result that are not in the answer. lost: labels of the set that "
        "the answer has and the result lacks. order: texts with all labels in the answer's order"
    )
    return report


_Found = tuple[int, int, list[list[str]]]


def _by_testnuc(
    texts: list[str], labels: list[str], answers: Mapping[str, Sequence[str]], packed: int
) -> _Found:
    # the order is that of the answer, whatever the confidences are
    said = {text: dict.fromkeys(names, 0.9) for text, names in answers.items()}
    with (
        LoopbackLLM(said) as llm,
        SyncTestNUC(
            LabelSet(labels, multilabel=True),
            model="openai/test",
            base_url=llm.base_url,
            api_key="none",
            embedder=HashEmbedder(),
            sampling=Sampling(texts_per_call=packed),
        ) as nuc,
    ):
        results = nuc.classify_many(texts)
        found = [list(row.prediction.labels) for row in results]  # type: ignore[union-attr]
        given = [set(row.labels) for row in results]
        assert given == [set(names) for names in found], "labels are those of the LLM"
        return llm.calls, llm.input_tokens, found


def _by_scikit_llm(
    texts: list[str], labels: list[str], answers: Mapping[str, Sequence[str]]
) -> _Found:
    from skllm.config import SKLLMConfig
    from skllm.models.gpt.classification.zero_shot import MultiLabelZeroShotGPTClassifier

    logging.getLogger("httpx").setLevel(logging.WARNING)
    server = _Answers(answers)
    with server:
        SKLLMConfig.set_gpt_url(server.base_url)
        classifier: Any = MultiLabelZeroShotGPTClassifier(
            model="custom_url::test", key="none", org="none"
        )
        classifier.fit(None, [labels])
        with contextlib.redirect_stderr(io.StringIO()):
            made = classifier.predict(texts)
    found = [[str(name) for name in row if name] for row in made.tolist()]
    return server.calls, server.tokens, found


def _cells(
    texts: Sequence[str],
    labels: Sequence[str],
    answers: Mapping[str, Sequence[str]],
    calls: int,
    tokens: int,
    found: Sequence[Sequence[str]],
) -> dict[str, float | int]:
    known, invented, lost, ordered = set(labels), 0, 0, 0
    for text, names in zip(texts, found, strict=True):
        said = [name for name in answers[text] if name in known]
        invented += len([name for name in names if name not in said])
        lost += len([name for name in said if name not in names])
        ordered += said == list(names)
    return {
        "calls": calls,
        "tokens a text": tokens / len(texts),
        "labels not said": invented,
        "labels lost": lost,
        "order": ordered,
    }
