"""Years of a service's audit: false alarms, and weeks until a planted change is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bench._recorded import distinct_rows, labeled
from bench._report import Report
from testnuc.trust.audit import found_moves

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Hits = NDArray[np.int64]

_WEEKS, _JUDGED = 52, 20
#: Years that GLIDE's monitor looks at; it takes longer.
_THEIRS = 300
#: Shares of labels, the last one for none of them.
_SHARES = np.array([0.4, 0.3, 0.14, 0.1, 0.05, 0.01])
_RIGHT = 0.9
#: Models that follow each other on the same texts, in the recorded answers.
_REPLACED = (
    ("security_requirements.gpt-4o-mini", "security_requirements.mistral"),
    ("babe_media_bias.gpt-4", "babe_media_bias.gpt-3.5"),
    ("banking77_test.qwen2.5-7b", "banking77_test.qwen3-1.7b"),
)


def _simulated(
    rng: np.random.Generator, week: int, right: float = _RIGHT, label: int = 0, share: float = 0.0
) -> Hits:
    """Return the right labels, and the texts of each label, of each week; changed from `week` on.

    The other labels keep their proportions.
    """
    shares = np.tile(_SHARES, (_WEEKS, 1))
    if share:
        shares[week:] *= (1 - share) / (1 - _SHARES[label])
        shares[week:, label] = share
    correct = rng.binomial(_JUDGED, np.where(np.arange(_WEEKS) < week, _RIGHT, right))
    return np.column_stack([correct, rng.multinomial(_JUDGED, shares)])


def _replaced(before: Path, after: Path) -> Callable[[np.random.Generator, int], Hits]:
    """Return years in which one model labels the texts before a week, another from it on."""
    names, first, gold, _ = labeled(distinct_rows(before))
    second = labeled(distinct_rows(after))[1]
    right = np.stack([first == gold, second == gold])

    def year(rng: np.random.Generator, week: int) -> Hits:
        rows = rng.integers(len(gold), size=(_WEEKS, _JUDGED))
        of = (np.arange(_WEEKS) >= week).astype(np.int64)[:, None]
        shares = (gold[rows][..., None] == np.arange(len(names))).sum(axis=1)
        return np.column_stack([right[of, rows].sum(axis=1), shares, np.zeros(_WEEKS, np.int64)])

    return year


def _glide(correct: NDArray[np.int64], before: float) -> int:
    """Return the week in which GLIDE's monitor finds a fall below `before`; -1: in none.

    -2: it is not installed.
    """
    try:
        from glide.monitors import AsymptoticClassicalRM
    except ImportError:
        return -2
    y = (np.arange(_JUDGED) < correct[:, None]).astype(float).reshape(-1)
    try:
        found = AsymptoticClassicalRM().detect(
            y,
            np.repeat(np.arange(_WEEKS), _JUDGED),
            higher_is_better=True,
            threshold=before,
            confidence_level=0.95,
        )
    except ValueError:
        return -1
    at = found.first_alarm_index
    return -1 if at is None else int(at)


def _row(
    what: str,
    year: Callable[[np.random.Generator, int], Hits],
    week: int,
    years: int,
    before: float | None = None,
) -> dict[str, Any]:
    first, theirs = [], []
    for seed in range(years):
        hits = year(np.random.default_rng(seed), week)
        moves = found_moves(np.full(hits.shape, _JUDGED), hits)
        first.append(min((proved for _, proved, _ in moves), default=_WEEKS))
        if before is not None and seed < _THEIRS:
            theirs.append(_glide(hits[:, 0], before))
    delays = [at - week + 1 for at in first if week <= at < _WEEKS]
    row = {
        "from week": week + 1 if week < _WEEKS else "-",
        "false alarms": float(np.mean(np.array(first) < week)),
        "found in the year": len(delays) / years if week < _WEEKS else None,
        "weeks until then": float(np.median(delays)) if delays else None,
    }
    if theirs and theirs[0] > -2:
        found = [at - week + 1 for at in theirs if at >= week]
        row |= {
            "GLIDE, false": float(np.mean([0 <= at < week for at in theirs])),
            "found": len(found) / len(theirs) if week < _WEEKS else None,
            "weeks": float(np.median(found)) if found else None,
        }
    return {"change": what, **row}


def audits(folder: Path, years: int) -> Report:
    """Return the report of simulated and recorded years."""
    report = Report(
        "audit",
        f"Years of {_WEEKS} weeks, {_JUDGED} judged texts each, looked at after every week. An "
        "alarm before the change, or without one, is false. GLIDE: "
        "AsymptoticClassicalRM at 95 %, which must be told the accuracy before, and "
        "looks for a fall below it",
    )

    def planted(what: str, week: int, before: float | None = None, **change: Any) -> None:
        report.row(**_row(what, lambda rng, at: _simulated(rng, at, **change), week, years, before))

    planted("none", _WEEKS, _RIGHT)
    for week in (8, 26):
        planted("accuracy .9 to .7", week, _RIGHT, right=0.7)
        planted("accuracy .9 to .8", week, _RIGHT, right=0.8)
        planted("share .05 to .2", week, label=4, share=0.2)
        planted("share .1 to .4", week, label=3, share=0.4)
    for names in _REPLACED:
        files = [folder / f"{name}.jsonl" for name in names]
        if all(file.is_file() for file in files):
            gold = [labeled(distinct_rows(file)) for file in files]
            right = [float((own == true).mean()) for _, own, true, _ in gold]
            what = f"{names[0]} ({right[0]:.3f}) to {names[1].partition('.')[2]} ({right[1]:.3f})"
            report.row(**_row(what, _replaced(*files), 26, years, right[0]))
    report.note(f"{years:,} years each, of which GLIDE has at most {_THEIRS}.")
    return report
