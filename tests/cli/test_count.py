"""``testnuc count``: from a labeled file with dates to shares with intervals."""

import csv
import json
from pathlib import Path

import pytest

import testnuc
from testnuc.cli.count import groups_of, write_counts
from testnuc.cli.reading import Table, to_stderr
from testnuc.errors import InvalidInputError
from testnuc.testing import LoopbackLLM
from testnuc.trust.counts import Counts, LabelCount
from testnuc.trust.shares import Share
from tests.cli.in_process import ran, rows_of, run_here
from tests.cli.test_judging import LABELS, TEXTS, judged, options, true_label


@pytest.fixture
def tickets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Path("tickets.csv").open("w", newline="") as file:
        rows = [[text, f"2026-0{1 + at // 120}-15"] for at, text in enumerate(TEXTS)]
        csv.writer(file).writerows([["text", "created"], *rows])
    return "tickets.csv"


def calls_all_a_refund(text):
    """What is not a login is called a refund half of the time."""
    label = true_label(text)
    number = int(text.split("#")[1])
    return ("refund" if label == "delivery" and number % 2 else label), 0.9


def test_a_label_or_a_group_of_a_spreadsheet_is_no_formula(tmp_path):
    share = Share(0.5, 0.25, 0.75)
    counts = Counts([LabelCount("=1+1", "@SUM(A1)", 8, share, 0.5, 0.5, 4, 2, share)])
    write_counts(counts, str(tmp_path / "counts.csv"), by="-2+3", period=None)
    (row,) = rows_of(tmp_path / "counts.csv")
    assert [row[name] for name in ("group", "label", "by")] == ["'@SUM(A1)", "'=1+1", "'-2+3"]
    assert (row["share"], row["rows"]) == ("0.5", "8")


@pytest.mark.slow
def test_labels_are_counted_by_month(tickets):
    with LoopbackLLM(calls_all_a_refund) as llm:
        ran("classify", tickets, *options(llm), "-o", "out.csv")
        code, _, err = run_here("count", "out.csv")
        assert code == 2
        assert "nothing was judged in out.csv yet" in err
        assert "testnuc review out.csv -n 100 --goal count" in err
        ran("review", "out.csv", "-n", "90", "--goal", "count")
        assert {item.goal for item in judged("review.json")} == {"count"}
        ran("learn", "out.csv", "review.json")

        out, _ = ran("count", "out.csv", "-o", "counts.json")
        by_label = {row["label"]: row for row in json.loads(Path("counts.json").read_bytes())}
        assert set(by_label) == set(LABELS)
        for row in by_label.values():
            assert row["low"] <= 1 / 3 <= row["high"]
            assert (row["rows"], row["judged"]) == (240, 90)
        assert by_label["refund"]["llm_share"] > 0.45
        # a model of the texts finds what the LLM confuses, and divides them better
        assert all(row["high"] - row["low"] < 0.09 for row in by_label.values())
        assert "95% intervals: each interval alone" in out
        assert "by your judgments" in out
        assert sum(row["share"] for row in by_label.values()) == pytest.approx(1)

        month = ["--by", "created", "--period", "month", "-o", "months.csv", "--plot", "months.svg"]
        out, _ = ran("count", "out.csv", *month)
        groups = {row["group"] for row in rows_of("months.csv")}
        assert groups == {"", "2026-01", "2026-02"}
        facts = {"confidence": "0.95", "together": "False", "by": "created", "period": "month"}
        facts |= {"judge_error": "0.0", "testnuc": testnuc.__version__}
        assert facts.items() <= rows_of("months.csv")[-1].items()
        assert "minus the other\n" in out
        right = {row["group"]: row["accuracy"] for row in rows_of("months.csv")}
        assert all(float(right[group]) > 0.8 for group in groups)
        assert "labels right now" in out
        compared = ["--compare", "2026-02", "2026-01", "-o", "two.csv", "--overwrite"]
        ran("count", "out.csv", *month[:4], *compared)
        (two,) = {row["compare"] for row in rows_of("two.csv")}
        assert two == "2026-02 and 2026-01"
        assert "no label's share has changed for certain" in out
        assert Path("months.svg").read_bytes().startswith(b"<?xml")
        _, err = ran("count", "out.csv", "--plot", "one.svg", "--plot-label", "login")
        assert (
            "one.svg: 2 labels not shown: refund, delivery; to choose labels: --plot-label" in err
        )
        assert llm.calls == 240

        for wrong, said in (
            (["--by", "date"], "has no column 'date'"),
            (["--by", "nuc_label", "--period", "month"], "is no date"),
            (["--period", "month"], "--period needs --by"),
            (["--compare", "a", "b"], "--compare needs --by"),
            (
                [*month[:4], "--compare", "2026-02", "2026-03"],
                "'2026-02' and '2026-03'; give two of the groups: 2026-01, 2026-02",
            ),
            (["--confidence", "2"], "give a number from 0.5 to 0.9999\n"),
            (["--confidence", "95"], "give a number from 0.5 to 0.9999, such as 0.95"),
            (["--period", "monat"], "'--period': 'monat' is not one of 'year'"),
            (["--plot", "months.svg"], "add --overwrite to replace it, or name another --plot"),
            (["--plot", "a.txt"], "name a .png"),
            (["-o", "counts.json"], "exists"),
        ):
            code, _, err = run_here("count", "out.csv", *wrong)
            assert code == 2
            assert said in err


def test_lines_of_both_streams_keep_their_order_in_one_file(tmp_path, monkeypatch):
    """What was printed last stood below what was said after it, and both were in one line."""
    with (tmp_path / "log").open("a") as out, (tmp_path / "log").open("a", buffering=1) as err:
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        out.write("the counts\n")
        to_stderr("written")
    assert (tmp_path / "log").read_text() == "the counts\nwritten\n"


@pytest.mark.parametrize(
    "cell",
    [
        "2026-12-31",
        "2026-12-31T23:30:00+02:00",
        "2026-12-31 23:30:00 UTC",
        "2026-12-31T23:30:00Z",
        "20261231",
        "2026/12/31",
        "31.12.2026",
        "31.12.2026 23:30",
        "31/12/2026",
        "31-12-2026",
        "12/31/2026",
        "12/31/2026, 11:30 PM",
    ],
)
def test_dates_are_read_as_they_are_written(cell):
    assert periods([cell, None, f" {cell} "], "day") == ["2026-12-31", None, "2026-12-31"]


def periods(cells, period="month"):
    return groups_of(Table([{"at": cell} for cell in cells], ["at"], "at"), "at", period)


def test_other_dates_of_the_column_say_which_comes_first():
    # 1 and 13 March
    assert periods(["1/3/2026", "13/3/2026"]) == ["2026-03"] * 2
    assert periods(["3/1/2026", "3/13/2026"]) == ["2026-03"] * 2
    # no country has dots and the month first
    assert periods(["1.3.2026", "3/13/2026", "3/3/2026"]) == ["2026-03"] * 3
    assert periods(["3/3/2026"], "week") == ["2026-W10"]
    assert periods(["2027-01-01"], "quarter") == ["2027-Q1"]
    assert periods(["2026-10", None, "2026-11-02"]) == ["2026-10", None, "2026-11"]
    with pytest.raises(InvalidInputError, match="'2026-10' is no date"):
        periods(["2026-10"], "week")
    # a number is a group, too
    assert periods([0, 1, "", None], None) == ["0", "1", None, None]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["3/3/2026", "1/3/2026"], "row 2: '1/3/2026' may have the day or the month first; such"),
        (["13/3/2026", "3/13/2026"], "'13/3/2026' may have the day or the month first"),
        (["31.12.26"], r"row 1: '31.12.26' is no date \(a year needs four digits\)"),
        (
            ["2026-12-31", "soon", None, "n/a", "soon"],
            "the column 'at', row 2: 'soon' is no date; such cells: 3; --period takes",
        ),
        (["31.13.2026"], "is no date"),
        # a number of seconds
        ([1774915200], "'1774915200' is no date"),
    ],
)
def test_what_is_not_clear_is_refused_with_its_value(cells, said):
    with pytest.raises(InvalidInputError, match=said):
        periods(cells)


def test_many_dates_without_a_period_are_told(capsys):
    days = [f"{1 + at % 28}.{1 + at // 28}.2026" for at in range(60)]
    assert periods(days, None) == days
    assert "'at' holds dates; to count by month, add --period month" in capsys.readouterr().err
    for others in (days[:50], [*days, "n/a"], [f"customer {at}" for at in range(60)]):
        periods(others, None)
    assert not capsys.readouterr().err


def test_a_mistyped_year_is_told(capsys):
    cells = [f"2026-{at // 20 + 1:02}-15" for at in range(60)]
    assert len({*periods([*cells, None])}) == 4
    assert not capsys.readouterr().err
    assert len({*periods([*cells, "2062-03-01"])}) == 4
    assert "note: 2062-03: one row each; is its date in 'at' mistyped?" in capsys.readouterr().err
    # where most months have few rows it is nothing special
    periods(["2026-01-01", "2026-01-02", "2032-01-01"])
    assert not capsys.readouterr().err
