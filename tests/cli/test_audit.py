"""``testnuc audit``: texts of past weeks are judged, and what moved ends the command with 3."""

from __future__ import annotations

import asyncio
import json
import shlex
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from testnuc.cli.serve import _per_week
from testnuc.errors import InvalidInputError
from testnuc.server.served import TrafficSample
from testnuc.trust.audit import week_of
from testnuc.types import Classification, Prediction
from tests.cli.in_process import judge, run_here
from tests.conftest import LABELS
from tests.server.serving import Held, client

WEEK = 7 * 86_400


def fill(store, weeks, labels=LABELS, size=20, texts=30, kind="text", later=0.0, asked=None):
    """Fill a store with weeks of traffic, all labeled with the first label, the last one now.

    `later`: seconds.
    """

    async def note():
        async with client(Held(), store=store) as nuc:
            now = time.time() + later
            for back in range(weeks - 1, -1, -1):
                sample = TrafficSample(nuc, size, clock=lambda back=back: now - back * WEEK)
                facts = sample._facts
                context = replace(facts[3], instructions=asked)
                sample._facts = (tuple(labels), *facts[1:3], context, *facts[4:])
                for at in range(texts):
                    own = Prediction(labels[0], None)
                    text = f"{kind} {at} of {back} weeks ago"
                    sample.note(Classification(0, text, labels[0], 1.0, 1.0, 1, True, own))
                await sample.flush()

    asyncio.run(note())
    return store


@pytest.mark.parametrize("back", [LABELS, ("a", "b"), ("c", "d")])
def test_after_a_rollback_the_labels_that_are_used_again_are_audited(back):
    store = Path("labels.db")
    for labels in (LABELS, ("a", "b"), ("c", "d")):
        fill(store, 2, labels=labels)
    fill(store, 2, labels=back, kind="after", later=1.0)
    code, _, err = run_here("audit", store, "--no-open")
    said = f"the latest has {len(back)} labels ({', '.join(back)}), labels_hash "
    assert (code, said in err) == (0, True)


def test_the_next_command_names_the_file_of_judgments():
    store = fill("labels.db", 2)
    options = ["--review", "other.json", "--since", week_of(time.time() - 5 * WEEK)]
    _, _, err = run_here("audit", store, "--no-open", *options)
    judge("other.json", lambda _: LABELS[0])
    then = shlex.split(err.partition("and run: testnuc ")[2].splitlines()[0])
    assert {*options} <= {*then}
    assert "20 of 20" in run_here(*then, "--no-open")[1]


def test_weeks_that_are_over_are_judged_and_shown():
    store = fill("labels.db", 4)
    code, out, err = run_here("audit", store, "--no-open")
    assert (code, "nothing is judged yet" in out) == (0, True)
    assert "60 texts to judge, written to audit.json" in err
    assert f"{week_of(time.time())}: 20 of 30 texts are set aside so far" in err
    assert f"testnuc audit {store}" in Path("audit.html").read_text()
    judge("audit.json", lambda _: LABELS[0], 30)
    code, out, err = run_here("audit", store, "--no-open", "-o", "shares.json")
    assert code == 0
    assert "30 texts to judge" in err
    first = next(line for line in out.splitlines() if week_of(time.time() - 3 * WEEK) in line)
    assert "20 of 20" in first
    assert "100.0 %" in first
    assert "10 of 20" in out
    records = json.loads(Path("shares.json").read_text())
    assert {record["label"] for record in records} == {*LABELS, None}
    # answers are in the store: without the file all is the same
    Path("audit.json").unlink()
    again = run_here("audit", store, "--no-open")
    assert again[:2] == (0, out)


@pytest.mark.parametrize("of", [{"kind": "question"}, {"asked": "Is it urgent?"}])
def test_answers_to_the_texts_of_another_store_are_kept(of):
    """Of the same labels: they were replaced by the texts to judge of this one."""
    here, there = fill("a.db", 2), fill("b.db", 2, **of)
    run_here("audit", here, "--no-open")
    judge("audit.json", lambda _: LABELS[0])
    held = Path("audit.json").read_bytes()
    code, _, err = run_here("audit", there, "--no-open")
    assert (code, "audit.json is not a review of this audit, and is kept" in err) == (2, True)
    assert Path("audit.json").read_bytes() == held
    assert run_here("audit", there, "--no-open", "--review", "b.json")[0] == 0
    assert "20 of 20" in run_here("audit", here, "--no-open")[1]


def test_a_damaged_summary_is_written_anew():
    store = fill("labels.db", 2)
    run_here("audit", store, "--no-open")
    judge("audit.json", lambda _: LABELS[0])
    assert run_here("audit", store, "--no-open")[0] == 0
    with sqlite3.connect(store) as opened:
        changed = opened.execute(
            "UPDATE learned SET data = CAST('[]]' AS BLOB) "
            "WHERE CAST(data AS TEXT) LIKE '{\"since\"%'"
        )
        assert changed.rowcount == 1
    opened.close()
    code, _, err = run_here("audit", store, "--no-open")
    assert (code, "the summary of an audit is damaged" in err, "--since" in err) == (2, True, True)
    assert run_here("audit", store, "--no-open", "--since", week_of(time.time()))[0] == 0
    assert run_here("audit", store, "--no-open")[0] == 0


def test_a_fall_of_the_accuracy_is_an_alarm_until_it_is_known():
    store = fill("labels.db", 13)
    run_here("audit", store, "--no-open")
    bad = tuple(f"of {back} weeks ago" for back in range(1, 7))
    judge("audit.json", lambda text: LABELS[text.endswith(bad) and int(text.split()[1]) % 2])
    code, out, _ = run_here("audit", store, "--no-open")
    assert code == 3
    since = week_of(time.time() - 6 * WEEK)
    assert f"alarm: the accuracy has moved, since about {since}" in out
    code, out, _ = run_here("audit", store, "--no-open", "--since", since)
    assert (code, "alarm" in out) == (0, False)
    # later runs know it
    assert run_here("audit", store, "--no-open")[0] == 0


def test_a_corrected_answer_and_a_known_text_are_taken():
    store = fill("labels.db", 2, texts=5)
    run_here("audit", store, "--no-open")
    judge("audit.json", lambda _: LABELS[1])
    assert " 0.0 %" in run_here("audit", store, "--no-open")[1]
    judge("audit.json", lambda _: LABELS[0])
    assert "100.0 %" in run_here("audit", store, "--no-open")[1]


def test_answers_count_where_some_texts_were_erased_meanwhile():
    """All others were refused."""
    store = fill("labels.db", 2, texts=5)
    run_here("audit", store, "--no-open")
    judged = judge("audit.json", lambda _: LABELS[0])
    Path("gone.txt").write_text(judged[0].text + "\n")
    run_here("store", "erase", store, "gone.txt")
    code, out, err = run_here("audit", store, "--no-open")
    assert (code, "that are not in the store any more are left out: 1" in err) == (
        0,
        True,
    )
    assert f"{len(judged) - 1} of {len(judged) - 1}" in out + err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--since", "spring"], "--since is 'spring'; give a week such as 2026-W07"),
        (["--review", "audit.txt"], "name a .json file"),
        (["--review", "other.json"], "other.json is not a review of this audit, and is kept"),
        (["-o", "shares.txt"], "name a .csv or .json file"),
    ],
)
def test_mistakes_are_named(arguments, says):
    store = fill("labels.db", 2)
    run_here("audit", store, "--no-open", "--review", "other.json")
    review = json.loads(Path("other.json").read_text())
    review["items"][0]["goal"] = "count"
    Path("other.json").write_text(json.dumps(review))
    code, _, err = run_here("audit", store, "--no-open", *arguments)
    assert code == 2
    assert says in err


def test_a_store_without_texts_says_how_to_get_them():
    store = Path("labels.db")
    fill(store, 0)
    code, _, err = run_here("audit", store)
    assert code == 2
    assert "--audit 20/week" in err


def test_the_latest_label_set_is_shown_or_the_chosen_one():
    store = fill("labels.db", 3, labels=("a", "b"))
    fill(store, 2, labels=("a", "b", "none"))
    fill(store, 2)
    _, out, err = run_here("audit", store, "--no-open")
    assert f"the latest has {len(LABELS)} labels ({', '.join(LABELS)}), labels_hash " in err
    assert LABELS[0] in out.splitlines()[0]
    chosen = ["--labels", "a,b", "--review", "ab.json"]
    code, out, err = run_here("audit", store, "--no-open", *chosen)
    assert (code, "several label sets" in err) == (0, False)
    assert "40 texts to judge, written to ab.json" in err
    assert f"testnuc audit {store} --labels a,b" in Path("ab.html").read_text()
    code, _, err = run_here("audit", store, "--no-open", "--labels", "a,c")
    assert code == 2
    assert f"no texts of these are set aside; the latest are of {len(LABELS)} labels" in err


def test_the_rate_is_texts_a_week():
    assert _per_week("20/week") == 20
    assert _per_week(None) is None
    for wrong in ("20", "20/day", "-1/week", ""):
        with pytest.raises(InvalidInputError, match="such as 20/week"):
            _per_week(wrong)
