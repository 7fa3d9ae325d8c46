"""Result records (frozen, slotted, cheap to create by the million), and their fields as a row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Self

from testnuc._base.display import Brief, columns, cut, facts, grid
from testnuc.errors import TestNUCError

#: Between the labels of a text that has several, where they are one string.
SEPARATOR = "; "
#: Between the levels of a label in a tree.
LEVELS = " > "


class Reason(str):
    """Why neighbors did not decide, or a label is withheld: a sentence, with a code to branch on.

    Parameters
    ----------
    code : str
        llm_kept, neighbors_disagree, not_similar, not_embedded, none_of_the_labels or low_trust.
    sentence : str
    """

    __slots__ = ("code",)
    code: str

    def __new__(cls, code: str, sentence: str) -> Self:
        """Return a sentence with a code."""
        reason = super().__new__(cls, sentence)
        reason.code = code
        return reason

    def __reduce__(self) -> "tuple[type[Reason], tuple[str, str]]":
        return Reason, (self.code, str(self))


@dataclass(frozen=True, slots=True, repr=False)
class Prediction(Brief):
    """The LLM's answer for one text.

    Of several labels, `label` is all in one string, joined by ``"; "``: empty if the text has none.
    `confidence` is that of the least sure one, and `said` what is no label.
    """

    #: The label that the answer matches; None: it matches no label and abstains.
    label: str | None
    #: The LLM's own confidence, 0..1; None if it gave none.
    confidence: float | None = None
    #: The answer verbatim, if it differs from `label`.
    said: str | None = None
    #: All that the answer names, each with the LLM's own confidence in it; None: one label.
    stated: tuple[tuple[str, float | None], ...] | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that the answer gives, in its order."""
        return tuple(split_labels(self.label, several=self.stated is not None))

    @property
    def confidences(self) -> tuple[float | None, ...]:
        """The LLM's own confidence in each of them."""
        if self.stated is None:
            return (self.confidence,) if self.label else ()
        return tuple(map(dict(self.stated).get, self.labels))

    @property
    def unmatched(self) -> tuple[str, ...]:
        """What the answer holds that is no label of the set, which does not count."""
        if self.stated is None:
            return (self.said or "",) if self.label is None else ()
        labels = self.labels
        return tuple(name for name, _ in self.stated if name not in labels)

    def in_words(self) -> str:
        """Return the labels and their confidences."""
        if self.stated is None:
            sure = "" if self.confidence is None else f" (confidence {self.confidence:.2f})"
            named = (self.said or "")[:100] if self.label is None else self.label
            return f"{named!r}{sure}"
        said = _listed(self.labels, self.confidences)
        if self.unmatched:
            more = f"\noutside the label set, not counted: {_listed(self.unmatched)}"
            return ("nothing usable" if self.label is None else said) + more
        return said


@dataclass(frozen=True, slots=True, repr=False)
class Neighbor(Brief):
    """An unlabeled text near the classified one, and its prediction."""

    text: str
    #: Cosine of the two embeddings, 1 = same direction.
    similarity: float
    #: None: no prediction, or one that matches no label.
    label: str | None
    confidence: float | None


@dataclass(frozen=True, slots=True, repr=False)
class Classification(Brief):
    """The label of one text, or its labels, and how the vote came to them.

    Where a text can have several labels, `label` is all in one string, joined by ``"; "``: empty if
    the text has none. Of all decisions whether a label is given, `share` is the part of the weight
    that sides with the closest one, `margin` that minus the part against it, and `trust` `share`.
    """

    #: Position of the text in the input.
    index: int
    text: str
    #: The winner of the vote; None if there were no usable votes and no usable prediction.
    label: str | None
    #: The winner's part of the vote's weight, 0..1.
    share: float = 0.0
    #: Winner minus runner-up, as parts of the vote's weight, 0..1.
    margin: float = 0.0
    #: Number of voters, the text itself included.
    voters: int = 0
    #: False if some neighbors were not asked because the winner was certain.
    complete: bool = True
    #: The text's own prediction; None if its call failed.
    prediction: Prediction | None = None
    #: The neighbors, most similar first.
    neighbors: tuple[Neighbor, ...] = ()
    #: label -> weight of its votes, heaviest first.
    votes: Mapping[str, float] = field(default_factory=dict)
    #: Why the text's own call failed, or why the text is invalid.
    error: Exception | None = None
    #: The chance that this label is right, 0..1: calibrated on judged texts if any were learned
    #: from, 1 if a person gave the label, None if a referee did. Else no probability, but the
    #: label's share of the vote (under auto, of all neighbors, even if they do not decide), by
    #: which texts can be ordered; None with fewer than three voters, or an incomplete vote.
    trust: float | None = None
    #: Why there is no label despite votes, or why the neighbors did not decide.
    reason: str | None = None
    #: What gave the label: "llm", "vote", "head" (a model, learned from judgments or from the
    #: LLM's answers), "referee", or "person", who judged it or gave its label; None: unknown.
    source: str | None = None
    #: The label that would be next, and the chance that it is right.
    alternative: str | None = None
    trust_of_alternative: float | None = None
    #: Where a text can have several labels: label -> the weight of the texts that gave it over the
    #: weight of all voters, largest first; of all labels with a vote. None: a text has one label.
    shares: Mapping[str, float] | None = None
    #: There, of the given labels: label -> trust that it applies, its share unless something was
    #: learned; None with fewer than three voters.
    trusts: Mapping[str, float | None] = field(default_factory=dict)
    #: Of labels in a tree, the names on the way to the label, from the top level on. Of a label
    #: that is withheld, as far as they are trusted enough; empty without a label. None: no tree.
    path: tuple[str, ...] | None = None
    #: The part of the vote's weight for each level of `path`: that of a parent is the sum of those
    #: of the labels below it, so that the top level may be certain where the label is not.
    path_shares: tuple[float, ...] = ()
    #: The trust of each level of `path`; as for `trust`.
    path_trusts: tuple[float | None, ...] = ()

    @property
    def multilabel(self) -> bool:
        """Whether the text can have several labels, or none."""
        return self.shares is not None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the text, largest share first; empty if it has none."""
        return tuple(split_labels(self.label, several=self.multilabel))

    @property
    def own_labels(self) -> tuple[str, ...]:
        """The labels of the text's own prediction."""
        return () if self.prediction is None else self.prediction.labels

    @property
    def own_label(self) -> str | None:
        """The label of the text's own prediction; None if there is none."""
        return None if self.prediction is None else self.prediction.label

    @property
    def probabilities(self) -> dict[str, float]:
        """The estimated chance of each label, 0..1, highest first; empty where trust is unknown.

        That of `label` is `trust`, that of `alternative` `trust_of_alternative`; what is left goes
        to the other labels by their votes. A label without votes is not listed. Where a text can
        have several labels, the chance that each applies is its trust, or its share of the vote.
        """
        if self.shares is not None:
            trusted = {label: trust for label, trust in self.trusts.items() if trust is not None}
            return dict(sorted({**self.shares, **trusted}.items(), key=lambda item: -item[1]))
        if self.label is None or self.trust is None:
            return {}
        known = {self.label: self.trust}
        if self.alternative is not None and self.trust_of_alternative is not None:
            known[self.alternative] = self.trust_of_alternative
        others = {one: weight for one, weight in self.votes.items() if one not in known}
        rest, total = max(1 - sum(known.values()), 0.0), sum(others.values())
        chances = known | {one: rest * weight / total for one, weight in others.items() if total}
        return dict(sorted(chances.items(), key=lambda item: -item[1]))

    @property
    def changed(self) -> bool:
        """Whether the vote gave other labels than the text's own prediction."""
        known = None not in {self.own_label, self.label}
        return known and set(self.labels) != set(self.own_labels)

    def votes_at(self, level: int) -> dict[str, float]:
        """Return the weight of the votes for each node of a level of a tree, heaviest first.

        Parameters
        ----------
        level : int
            1: the top level.
        """
        weights: dict[str, float] = {}
        for label, weight in self.votes.items():
            node = LEVELS.join(label.split(LEVELS)[:level])
            weights[node] = weights.get(node, 0.0) + weight
        return dict(sorted(weights.items(), key=lambda item: -item[1]))

    def explain(self) -> str:
        """Return how the label, or the labels, came about, in a few lines."""
        lines = [f"{self.text[:100]!r} is labeled {self.label!r}"]
        if self.multilabel:
            given = _listed(self.labels) if self.label is not None else "unknown"
            lines = [f"{self.text[:100]!r} has the labels {given}"]
        own = self.prediction
        said = "the text has no prediction of its own"
        lines.append(said if own is None else f"the LLM said {own.in_words()}")
        judged = self.source in {"person", "referee"}
        if judged:
            lines.append(f"a {self.source} said so")
        elif self.voters > 1:
            votes, by = self.votes, "votes"
            if self.shares is not None:
                votes, by = self.shares, f"shares of {self.voters} voters"
            elif self.source == "head":
                by = "neighbors and a model of your texts"
            lines.append(f"{by}: {_listed(tuple(votes), tuple(votes.values()))}")
        if self.changed and not judged:
            near = (f"  {n.similarity:.2f} {n.label!r} {n.text[:70]!r}" for n in self.neighbors[:5])
            lines += ["it is overruled; its neighbors:", *near]
        lines += filter(None, (self.trust_in_words(), self.reason))
        if self.error is not None:
            lines.append(f"error: {self.error}")
        if self.path and (len(self.path) > 1 or self.label is None):
            lines.append(f"by level: {_listed(self.path, self.path_trusts)}")
        return "\n".join(lines)

    def trust_in_words(self) -> str | None:
        """Return the trust of the label, and of the other one that is trusted most."""
        if self.trust is None or self.label is None:
            return None if self.trust is None else f"trust {self.trust:.2f}"
        named = repr(self.label) if self.label else "no label"
        words = f"trust {self.trust:.2f} in {named}"
        if self.alternative is not None and self.trust_of_alternative is not None:
            words += f", {self.trust_of_alternative:.2f} in {self.alternative!r}"
        return words

    def _repr_html_(self) -> str:
        own = self.prediction
        said = None if own is None else own.in_words()
        votes = ""
        if self.voters > 1:
            votes = ", ".join(f"{label}: {weight:.2f}" for label, weight in self.votes.items())
        summary = facts(
            cut(self.text),
            [
                ("label", self.label or "none"),
                ("trust", self.trust_in_words()),
                ("the LLM said", said),
                ("votes", votes or None),
                ("reason", self.reason),
                ("error", self.error),
            ],
        )
        if not self.neighbors:
            return summary
        near = [(n.similarity, n.label, n.confidence, n.text) for n in self.neighbors]
        return summary + grid(["similarity", "label", "confidence", "neighbor"], near)


@dataclass(frozen=True, slots=True)
class Usage:
    """Calls, tokens and cost. None means unknown, never 0."""

    #: Calls that the provider answered, readable or not: they are billed.
    calls: int = 0
    #: Input tokens, cached ones included.
    input_tokens: int | None = 0
    #: Input tokens that the provider read from its prompt cache.
    cached_tokens: int | None = 0
    output_tokens: int | None = 0
    #: US dollars by the price list; None if the price of the model is unknown.
    usd: float | None = 0.0
    #: Predictions read from the store.
    store_hits: int = 0
    #: Predictions that another in-flight request already asked for.
    coalesced: int = 0
    #: Requests retried after a failure.
    retries: int = 0
    #: Requests whose answer broke off or came too late: none of `calls`, but perhaps billed.
    incomplete: int = 0
    #: Answers that the store did not take, as when the disk is full: later runs pay for them again.
    unstored: int = 0


@dataclass(frozen=True, slots=True)
class LaneEstimate:
    """Estimated usage and time of a run in one lane. None means unknown."""

    #: "live" or "batch".
    lane: str
    calls: int
    input_tokens: int | None
    output_tokens: int | None
    usd: float | None
    #: Least seconds that the client's own rate limit allows.
    least_seconds: float | None = None
    #: Most seconds that the provider promises; retries are not included.
    most_seconds: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Estimate(Brief, Usage):
    """Estimated usage of a run in the live lane, and in each lane that the provider offers.

    ``print`` shows it as a table.
    """

    lanes: tuple[LaneEstimate, ...] = ()
    #: What may explain calls that were not expected; "" if nothing does.
    note: str = ""
    #: The most calls of the referee, and their US dollars; they are not part of `calls` and `usd`.
    referee_calls: int = 0
    referee_usd: float | None = 0.0
    #: The fewest calls, where a head may label texts instead of the LLM; None: all of `calls`.
    least_calls: int | None = None

    def __str__(self) -> str:
        rows = [["lane", "calls", "input tokens", "output tokens", "usd", "hours"]]
        for lane in self.lanes:
            least, most = lane.least_seconds, lane.most_seconds
            hours = "unknown" if least is None else f"at least {least / 3600:.2f}"
            hours = hours if most is None else f"at most {most / 3600:.0f}"
            numbers = (lane.calls, lane.input_tokens, lane.output_tokens)
            counts = ("unknown" if number is None else f"{number:,}" for number in numbers)
            usd = "unknown" if lane.usd is None else f"{lane.usd:.4f}"
            rows.append([lane.lane, *counts, usd, hours])
        lines = [columns(rows)]
        if any(lane.calls and lane.usd is None for lane in self.lanes):
            lines.append(
                "usd is unknown: the model has no list price at its address, so count the tokens"
            )
        if self.store_hits:
            lines.append(f"{self.store_hits:,} predictions are stored already")
        if self.least_calls is not None:
            lines.append(
                f"from {self.least_calls:,} to {self.calls:,} calls: a head may label the rest"
            )
        if self.referee_calls:
            usd = "unknown" if self.referee_usd is None else f"{self.referee_usd:.4f} USD"
            lines.append(f"the referee: at most {self.referee_calls:,} calls, {usd}")
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Contents of the pool and the store for one client."""

    #: Texts in the pool.
    texts: int
    #: Texts with a stored prediction of this model, label set, prompt and sampling.
    predicted: int
    #: The model, as ``provider/name``.
    model: str
    #: Number of labels.
    labels: int
    #: Texts in the pool whose known label, given by another client, is not one of the labels. It is
    #: ignored: they are predicted as texts without a label are.
    foreign_labels: int = 0


#: Usage of results that were read from a file without a record of their run.
UNKNOWN = Usage(input_tokens=None, cached_tokens=None, output_tokens=None, usd=None)


def _listed(labels: Sequence[str], numbers: Sequence[float | None] = ()) -> str:
    """Return labels in words, each with its number if it has one."""
    pairs = zip_longest(labels, numbers)
    words = (repr(label) + ("" if n is None else f" {n:.2f}") for label, n in pairs)
    return ", ".join(words) or "none"


def split_labels(label: str | None, *, several: bool = True) -> list[str]:
    """Return the labels of a text in one string; where it can have one, this one; [] without."""
    if not label:
        return []
    return label.split(SEPARATOR) if several else [label]


def row(result: Classification, *, full: bool = False) -> dict[str, Any]:
    """Return the fields of a result by name, for all outputs; `full`: with votes and neighbors."""
    own = result.prediction
    # written out: twice as fast as a loop over `CELLS`, and the service makes one for each text
    fields: dict[str, Any] = {
        "label": result.label,
        "trust": result.trust,
        "share": result.share,
        "margin": result.margin,
        "voters": result.voters,
        "complete": result.complete,
        "own_label": None if own is None else own.label,
        "own_confidence": None if own is None else own.confidence,
        "own_said": None if own is None else own.said,
        "error": error_text(result.error),
        "reason": result.reason,
        "source": result.source,
        "alternative": result.alternative,
        "trust_of_alternative": result.trust_of_alternative,
    }
    if result.shares is not None:
        fields["labels"] = list(result.labels)
        fields["shares"] = dict(result.shares)
        fields["trusts"] = dict(result.trusts)
        fields["own_labels"] = list(result.own_labels)
        if own is not None:
            fields["own_confidences"] = list(own.confidences)
    if result.path is not None:
        fields["path"] = list(result.path)
        fields["path_shares"] = list(result.path_shares)
        fields["path_trusts"] = list(result.path_trusts)
    if full:
        fields["votes"] = dict(result.votes)
        names = Neighbor.__slots__
        fields["neighbors"] = [{name: getattr(n, name) for name in names} for n in result.neighbors]
    return fields


def error_text(error: Exception | None) -> str | None:
    """Return an error with its type; an error that was read from a file includes the type."""
    if error is None:
        return None
    return str(error) if type(error) is TestNUCError else f"{type(error).__name__}: {error}"


_NUMBERS = ("trust", "share", "margin", "own_confidence", "trust_of_alternative")
#: Fields of `row` that fit into a cell of a table, with their Arrow types.
CELLS = (
    dict.fromkeys(row(Classification(0, "", None)), "string")
    | dict.fromkeys(_NUMBERS, "float64")
    | {"voters": "int32", "complete": "bool"}
)
