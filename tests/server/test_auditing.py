"""A service sets texts of its traffic aside, over real sockets, in stores that others use, too."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from testnuc import LabelSet, TestNUC
from testnuc.errors import ConfigurationError, InvalidInputError, StoreError
from testnuc.server import ServerSettings, Service
from testnuc.server.served import TrafficSample, set_summary
from testnuc.stores.sqlite import SqliteStore
from testnuc.testing import HashEmbedder
from testnuc.trust.audit import AuditWeek, is_audit
from testnuc.types import Classification, Prediction
from tests.conftest import LABELS, messages
from tests.server.serving import Held, client, served, until
from tests.server.test_service import get, post

pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning")

WEEK = 7 * 86_400


def opened(model=None, **more):
    model = Held() if model is None else model
    model.gate.set()
    return client(model, **more)


async def weeks_in(path):
    store = SqliteStore(path)
    await store.open()
    try:
        weeks = [AuditWeek.of(data) for _, data in await store.learned() if is_audit(data)]
    finally:
        await store.close()
    return sorted(weeks, key=lambda week: week.week)


def result(text, label="refund", error=None):
    own = None if error is not None else Prediction(label, None)
    return Classification(0, text, label, 1.0, 1.0, 1, complete=True, prediction=own, error=error)


async def test_texts_of_requests_are_set_aside_and_a_restart_loses_nothing(tmp_path, caplog):
    path, texts = tmp_path / "labels.db", messages(60)
    async with served(opened(store=path), audit=5) as (_, session):
        assert (await post(session, {"texts": texts[:30]}))[0] == 200
        assert (await post(session, {"text": texts[30]}))[0] == 200
    (week,) = await weeks_in(path)
    assert (week.texts, sum(week.given.values()), len(week.sample)) == (31, 31, 5)
    async with served(opened(store=path), audit=5) as (_, session):
        body = {"texts": texts[31:], "stream": True}
        async with session.post("/v1/classify", json=body) as response:
            assert len((await response.text()).splitlines()) == 29
    # what is set aside was not learned
    assert "learned from" not in caplog.text
    (later,) = await weeks_in(path)
    assert (later.texts, len(later.sample)) == (60, 5)
    assert [one.order for one in later.sample] == sorted(one.order for one in later.sample)
    # the earlier ones with the lowest numbers stay
    assert later.sample[-1].order <= week.sample[-1].order
    assert all(one.text in texts and one.label is not None for one in later.sample)
    assert abs(later.sample[0].time - time.time()) < 3_600


async def test_without_the_option_no_text_is_set_aside(tmp_path):
    path = tmp_path / "labels.db"
    async with served(opened(store=path)) as (_, session):
        await post(session, {"texts": messages(10)})
    assert await weeks_in(path) == []


async def test_several_processes_share_a_sample(tmp_path):
    path, texts = tmp_path / "labels.db", messages(200)
    async with opened(store=path) as one, opened(store=path) as other:
        samples = [TrafficSample(nuc, 10, clock=lambda: 1e9) for nuc in (one, other)]
        for at, text in enumerate(texts):
            samples[at % 2].note(result(text))
            if at % 7 == 0:
                await samples[at % 2].flush()
        for sample in samples:
            await sample.flush()
    (week,) = await weeks_in(path)
    assert (week.texts, week.given, len(week.sample)) == (200, {"refund": 200}, 10)
    assert len({one.text for one in week.sample}) == 10


async def test_every_text_is_as_likely_to_be_set_aside(tmp_path):
    path, times = tmp_path / "labels.db", [0] * 8
    async with opened(store=path) as nuc:
        for week in range(300):
            sample = TrafficSample(nuc, 2, clock=lambda week=week: week * WEEK)
            for at in range(8):
                sample.note(result(str(at)))
                if at % 3 == 0:
                    await sample.flush()
            await sample.flush()
    for week in await weeks_in(path):
        for one in week.sample:
            times[int(one.text)] += 1
    # 75 each, with a standard error of 7.5
    assert sum(times) == 600
    assert all(40 < n < 110 for n in times)


async def test_calls_that_failed_are_no_labels(tmp_path):
    path = tmp_path / "labels.db"
    async with opened(store=path) as nuc:
        sample = TrafficSample(nuc, 10)
        sample.note(result("a", None, RuntimeError("no answer")))
        sample.note(result("b", None))
        await sample.flush()
    (week,) = await weeks_in(path)
    assert (week.texts, week.given, [one.text for one in week.sample]) == (1, {"": 1}, ["b"])


async def test_what_was_requested_before_the_labels_changed_is_of_no_set(tmp_path):
    """Else a renamed label would be counted, and judged, as none of the new ones."""
    path, (first, second, *_) = tmp_path / "labels.db", LABELS
    many = TestNUC(LabelSet(LABELS, multilabel=True), Held(), embedder=HashEmbedder(), store=path)
    async with opened(store=path) as one, many as other:
        sample = TrafficSample(one, 5)
        sample.note(result("a", first))
        sample.follow(other)
        both = Prediction(f"{first}; {second}", None, None, ((first, None), (second, None)))
        sample.note(replace(result("b", both.label), prediction=both, shares={first: 1.0}))
        sample.note(result("c", "another name"))
        await sample.flush()
    before, after = sorted(await weeks_in(path), key=lambda week: week.multilabel)
    assert (before.given, [text.text for text in before.sample]) == ({first: 1}, ["a"])
    assert (after.given, [text.text for text in after.sample]) == ({first: 1, second: 1}, ["b"])
    assert (before.texts, after.texts, sample.latest.texts) == (1, 1, 1)


async def test_what_a_store_does_not_take_waits(tmp_path, caplog):
    path = tmp_path / "labels.db"
    async with opened(store=path) as nuc:
        sample = TrafficSample(nuc, 10, clock=lambda: 1e9)

        class Full:
            async def get_learned(self, _):
                raise StoreError("the disk is full")

        store, sample._store = sample._store, Full()
        sample.note(result("a"))
        await sample.flush()
        sample.note(result("b"))
        await sample.flush()
        assert "the disk is full" in caplog.text
        sample._store = store
        await sample.flush()
        await sample.flush()
    (week,) = await weeks_in(path)
    assert (week.texts, {one.text for one in week.sample}) == (2, {"a", "b"})


async def test_a_damaged_summary_counts_no_text_twice(tmp_path, caplog):
    path = tmp_path / "labels.db"
    async with opened(store=path) as nuc:
        sample, store = TrafficSample(nuc, 10), nuc._parts.store
        sample.note(result("a"))
        await sample.flush()
        summary = sample.latest.key("")
        assert await store.swap_learned(summary, None, b"[]]")
        sample.note(result("b"))
        for _ in range(5):
            await sample.flush()
        assert "the summary of an audit is damaged" in caplog.text
        assert await store.swap_learned(summary, b"[]]", b"{}")
        await sample.flush()
    (week,) = await weeks_in(path)
    assert (week.texts, week.given, len(week.sample)) == (2, {"refund": 2}, 2)


async def test_metrics_say_what_is_set_aside_and_what_the_last_audit_found(tmp_path):
    path = tmp_path / "labels.db"
    async with served(opened(store=path), audit=5) as (service, session):
        page = (await get(session, "/metrics"))[1]
        assert "testnuc_audit_texts 0.0" in page
        assert "testnuc_audit_accuracy NaN" in page
        summary = {"judged": 40, "accuracy": 0.9, "alarms": 1}
        audit = service.sets[""].audit
        await set_summary(audit._store, audit.latest, summary)
        await post(session, {"texts": messages(8)})
        await until(lambda: len(audit.latest.sample) == 5 and audit.summary)
        page = (await get(session, "/metrics"))[1]
    for line in ("texts 5.0", "judged 40.0", "accuracy 0.9", "alarms 1.0"):
        assert f"testnuc_audit_{line}" in page


async def test_metrics_of_an_audit_are_known_from_the_start_and_after_a_reload(tmp_path):
    path = tmp_path / "labels.db"
    async with opened(store=path) as nuc:
        sample = TrafficSample(nuc, 5)
        sample.note(result("a"))
        await sample.flush()
        await set_summary(sample._store, sample.latest, {"judged": 40, "alarms": 1})
    async with opened(store=path) as fresh, served(opened(store=path), audit=5) as (one, session):
        for _ in range(2):
            page = (await get(session, "/metrics"))[1]
            assert "testnuc_audit_alarms 1.0" in page
            assert "testnuc_audit_texts 1.0" in page
            await one.use(fresh)
    # reading writes nothing
    other = tmp_path / "other.db"
    async with opened(store=other) as nuc:
        await TrafficSample(nuc, 5).flush()
    assert await weeks_in(other) == []


def test_a_store_that_is_lost_with_the_process_is_refused():
    with pytest.raises(ConfigurationError, match="add --store"):
        Service(client(Held()), ServerSettings(audit=20))
    with pytest.raises(InvalidInputError, match="audit is 0"):
        ServerSettings(audit=0)
