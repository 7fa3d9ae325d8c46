"""The metrics that docs/service.md names are those that a service has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from testnuc import Budget, Limits, server
from testnuc.client import parts_of
from testnuc.limits.budget import Price
from testnuc.server.errors import ERROR_TYPES
from tests._engine import test_learning as learning
from tests.conftest import messages
from tests.server.serving import Held, client, served
from tests.server.test_service import get, post

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")

DOCS = Path(__file__).parents[2] / "docs" / "service.md"
RULES = DOCS.parents[1] / "examples" / "prometheus-rules.yml"
TOKEN = "0123456789abcdef"


async def test_the_documentation_has_all_metrics_and_no_others(tmp_path):
    model = Held()
    model.gate.set()
    limits = Limits(budget=Budget(calls=100))
    nuc = client(model, store=tmp_path / "labels.db", limits=limits)
    parts_of(nuc).meter.price = Price.per_million(1, 1)
    as_desk = {"Authorization": f"Bearer {TOKEN}"}
    async with served(nuc, audit=5, token=f"desk {TOKEN}") as (_, session):
        body = {"texts": [*messages(10), ""]}
        assert (await post(session, body, **as_desk))[0] == 200
        async with session.get("/metrics", headers=as_desk) as response:
            page = await response.text()
    named = re.findall(r"^(testnuc_\w+?)(?:_bucket|_count|_sum)?[{ ]", page, re.MULTILINE)
    given = {name for name in named if not name.endswith("_created")}
    text = DOCS.read_text(encoding="utf-8")
    tables = [line for line in text.splitlines() if line.startswith("| `testnuc_")]
    assert {name for line in tables for name in re.findall(r"`(testnuc_\w+)`", line)} == given
    # those of the alerts, too, and their labels
    text += RULES.read_text(encoding="utf-8")
    assert {name.removesuffix("_bucket") for name in re.findall(r"testnuc_\w+", text)} <= given
    for name, label in re.findall(r"(testnuc_\w+)\{(\w+)[!=]", text):
        assert re.search(rf'^{name}\{{(.*,)?{label}="', page, re.MULTILINE), (name, label)


def test_the_documentation_has_all_alerts_and_no_others():
    [group] = pytest.importorskip("yaml").safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = {rule["alert"]: rule for rule in group["rules"]}
    rows = re.findall(
        r"^\| `(Testnuc\w+)` \| (.*?) \|(.*?)\|", DOCS.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [name for name, *_ in rows] == [*rules]
    for name, when, pages in rows:
        severity = "page" if pages.strip() == "yes" else "ticket"
        assert rules[name]["labels"] == {"severity": severity}, name
        minutes = re.search(r"for (\d) min", when)
        wait = rules[name].get("for", "")
        assert rules[name].keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert wait == (f"{minutes[1]}m" if minutes else "")
        assert rules[name]["expr"].count("(") == rules[name]["expr"].count(")")
        assert rules[name]["annotations"]["summary"]


def test_the_documentation_has_all_types_of_errors():
    text = DOCS.read_text(encoding="utf-8")
    rows = text.partition("| status | `error.type` |")[2].partition("\n\n")[0].splitlines()[2:]
    listed = {name for line in rows for name in re.findall(r"`([a-z_]+)`", line.split("|")[2])}
    folder = Path(server.__file__).parent
    code = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    own = set(re.findall(r"RequestError\(\s*\d+,\s*\"(\w+)\"", code)) | {"unsupported_media_type"}
    assert listed == ERROR_TYPES | own


async def test_the_first_error_of_a_type_raises_a_series_from_0():
    # the rate of a series that begins with its errors is 0, and no alert would fire
    async with served(client(Held())) as (_, session):
        _, page = await get(session, "/metrics")
    for kind in ("provider", "provider_timeout", "provider_rate_limited", "budget_exceeded"):
        assert f'testnuc_failed_texts_total{{type="{kind}"}} 0.0' in page


async def test_calls_of_a_referee_count():
    model, referee = learning.Says(), learning.Says(learning.gold, "large")
    async with served(learning.client(model, referee=referee)) as (_, session):
        assert (await post(session, {"texts": learning.texts_of(300)}))[0] == 200
        _, page = await get(session, "/metrics")
    assert referee.asked
    calls = len(model.asked) + len(referee.asked)
    assert f"testnuc_llm_calls_total {calls}.0" in page


@pytest.mark.skipif(shutil.which("promtool") is None, reason="platform: promtool is missing")
@pytest.mark.parametrize("lasts", [90, 900])
def test_an_alert_begins_while_its_cause_goes_on_or_not_at_all(tmp_path, lasts):
    # after a quiet time, texts and requests fail for so many seconds; a deploy takes a minute
    failures = f"0x20 1+1x{lasts // 15 - 1} {lasts // 15}+0x80"
    requests = "testnuc_http_requests_total{instance='a',route='/v1/classify',status='%d'}"
    series = {
        "testnuc_failed_texts_total{instance='a',type='provider'}": failures,
        "testnuc_llm_calls_total{instance='a'}": "0+1x200",
        "testnuc_retries_total{instance='a'}": failures,
        requests % 401: failures,
        requests % 503: failures,
        requests % 200: "0+1x200",
    }
    labels = {
        "TestnucFailedTexts": {"instance": "a", "type": "provider", "severity": "ticket"},
        "TestnucRequests": {"instance": "a", "severity": "page"},
        "TestnucRefused": {"instance": "a", "status": "401", "severity": "ticket"},
        "TestnucRetries": {"instance": "a", "severity": "ticket"},
    }
    fires = {at: 360 <= at < lasts for at in range(0, lasts + 900, 30)}
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": counts} for name, counts in series.items()],
        "alert_rule_test": [
            {
                "alertname": name,
                "eval_time": f"{300 + at}s",
                "exp_alerts": [{"exp_labels": own}] * fires[at],
            }
            for name, own in labels.items()
            for at in fires
            # one that fires goes on for the time that the rule looks at
            if not 300 <= at < 360 and not (any(fires.values()) and lasts <= at < lasts + 150)
        ],
    }
    check_rules(tmp_path, test)


def check_rules(folder, test):
    rules = re.sub(r" +annotations:\n +summary: .*\n", "", RULES.read_text(encoding="utf-8"))
    (folder / "rules.yml").write_text(rules, encoding="utf-8")
    given = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": [test]}
    (folder / "test.json").write_text(json.dumps(given), encoding="utf-8")
    command = ["promtool", "test", "rules", folder / "test.json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[:3_000]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="platform: promtool is missing")
def test_two_minutes_without_answers_page(tmp_path):
    # a hang from 60 to 180: the circuit breaker opens after a minute, the last calls end later
    series = {
        "testnuc_oldest_call_seconds{instance='a'}": "0x3 0+15x4 60x6 0x40",
        "testnuc_failing{instance='a'}": "0x8 1x4 0x40",
    }
    page = [{"exp_labels": {"instance": "a", "severity": "page"}}]
    times = {90: [], 165: page, 180: page, 300: []}
    check_rules(tmp_path, alerts("TestnucProvider", series, times))
    # one slow call does not
    slow = {"testnuc_oldest_call_seconds{instance='a'}": "0x3 0+15x3 0x40"}
    check_rules(tmp_path, alerts("TestnucProvider", slow, {at: [] for at in range(0, 300, 15)}))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="platform: promtool is missing")
@pytest.mark.parametrize(("job", "known", "pages"), [("testnuc", 0, 1), ("b", 1, 1), ("b", 0, 0)])
def test_an_instance_that_is_gone_pages_whatever_its_job_is_named(job, known, pages, tmp_path):
    own = f"{{job='{job}',instance='a'}}"
    series = {f"up{own}": "1x4 0x100", f"testnuc_ready{own if known else '{}'}": "1x4 stale"}
    page = {"exp_labels": {"job": job, "instance": "a", "severity": "page"}}
    times = {60: [], 300: [], 480: [page] * pages, 1_200: [page] * pages}
    check_rules(tmp_path, alerts("TestnucGone", series, times))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="platform: promtool is missing")
@pytest.mark.parametrize(("pending", "pages"), [(4_000, 1), (2_000, 0)])
def test_a_full_queue_pages_and_a_caller_over_its_rate_does_not(pending, pages, tmp_path):
    series = {
        "testnuc_http_requests_total{instance='a',route='/v1/classify',status='429'}": "0+9x100",
        "testnuc_pending_texts{instance='a'}": f"0x3 {pending}x97",
        "testnuc_pending_texts_limit{instance='a'}": "4096x100",
    }
    page = {"exp_labels": {"instance": "a", "severity": "page"}}
    check_rules(tmp_path, alerts("TestnucQueueFull", series, {240: [], 480: [page] * pages}))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="platform: promtool is missing")
def test_a_small_instance_that_fails_beside_a_large_one_pages(tmp_path):
    requests = "testnuc_http_requests_total{instance='%s',route='/v1/classify',status='%d'}"
    slow = "testnuc_http_request_seconds_bucket{instance='%s',route='/v1/classify',le='%s'}"
    series = {requests % ("large", 200): "0+900x100", requests % ("small", 502): "0+9x100"}
    small = {"exp_labels": {"instance": "small", "severity": "page"}}
    check_rules(tmp_path, alerts("TestnucRequests", series, {240: [], 480: [small]}))
    series = {slow % ("large", le): "0+900x100" for le in ("10", "30", "+Inf")}
    series |= {slow % ("small", le): "0+9x100" for le in ("30", "+Inf")}
    series |= {slow % ("small", "10"): "0x100"}
    small = {"exp_labels": {"instance": "small", "severity": "ticket"}}
    check_rules(tmp_path, alerts("TestnucSlowRequests", series, {240: [], 480: [small]}))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="platform: promtool is missing")
def test_a_quiet_service_that_is_paused_again_and_again_pages(tmp_path):
    # a request each 150 s begins a pause of two minutes
    series = {"testnuc_ready{instance='a'}": "1x4 " + "0x7 1x1 " * 12}
    page = {"exp_labels": {"instance": "a", "severity": "page"}}
    check_rules(tmp_path, alerts("TestnucNotReady", series, {300: [], 420: [page], 1_200: [page]}))
    # one pause, or a deploy, does not
    series = {"testnuc_ready{instance='a'}": "1x4 0x7 1x60"}
    times = {at: [] for at in range(0, 900, 15)}
    check_rules(tmp_path, alerts("TestnucNotReady", series, times))


def alerts(name, series, times):
    """Return a test of a rule: the alerts that are expected after so many seconds."""
    given = [{"series": one, "values": values} for one, values in series.items()]
    expected = [
        {"alertname": name, "eval_time": f"{at}s", "exp_alerts": found}
        for at, found in times.items()
    ]
    return {"interval": "15s", "input_series": given, "alert_rule_test": expected}
