"""SIGHUP: another client takes over while requests are in progress, or the old one stays."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
import weakref
from contextlib import AsyncExitStack

import pytest

from testnuc import Budget, LabelSet, Limits, TestNUC
from testnuc.cli.options_of_run import stored_runs
from testnuc.client import parts_of
from testnuc.testing import HashEmbedder
from testnuc.trust.learned import Learned
from tests._engine import test_learning as learning
from tests.conftest import LABELS, messages
from tests.server.serving import Held, client, served, until
from tests.server.test_auditing import weeks_in
from tests.server.test_service import get, post

pytest.importorskip("prometheus_client")
pytestmark = [
    pytest.mark.filterwarnings("ignore::testnuc.SmallPoolWarning"),
    pytest.mark.skipif(sys.platform == "win32", reason="platform: no SIGHUP"),
]


async def info(session):
    return json.loads((await get(session, "/v1/info"))[1])


async def test_requests_in_progress_end_with_the_client_that_they_began_with(tmp_path):
    old, new = Held(), Held()
    new.gate.set()
    taken = asyncio.Event()
    async with client(new, k=0, store=tmp_path / "labels.db") as fresh:

        async def reload():
            await service.use(fresh)
            taken.set()

        nuc = client(old, k=0, store=tmp_path / "labels.db")
        async with served(nuc, reload=reload, audit=5) as (service, session):
            waiting = asyncio.create_task(post(session, {"text": "refund please"}))
            await old.asked_for(1)
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: service.clients == [fresh])
            assert (await post(session, {"text": "where is my parcel"}))[0] == 200
            # the first one still waits, and so does who closes the old client
            assert (len(old.asked), len(new.asked), taken.is_set()) == (1, 1, False)
            old.gate.set()
            assert (await waiting)[0] == 200
            async with asyncio.timeout(60):
                await taken.wait()
            said = await info(session)
            assert (said["judged"], said["labels"]) == (0, len(LABELS))
            # nothing else labels
            assert said["before"] is None
    (week,) = await weeks_in(tmp_path / "labels.db")
    assert week.texts == 2


async def test_counters_and_the_budget_go_on_with_calls_that_were_in_flight(tmp_path):
    old, new = Held(), Held()
    new.gate.set()
    store, taken = tmp_path / "labels.db", asyncio.Event()
    before, after = (Limits(budget=Budget(calls=n, tokens=10_000)) for n in (2, 5))
    async with client(new, k=0, store=store, limits=after) as fresh:

        async def reload():
            await service.use(fresh)
            taken.set()

        nuc = client(old, k=0, store=store, limits=before)
        async with served(nuc, reload=reload) as (service, session):
            texts = [f"refund please {n}" for n in range(5)]
            waiting = [asyncio.create_task(post(session, {"text": text})) for text in texts[:2]]
            await old.asked_for(2)
            # waits for what the other two leave of the budget
            waiting.append(asyncio.create_task(post(session, {"text": texts[2]})))
            await until(lambda: parts_of(nuc).transport.account._waiting)
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: service.clients == [fresh])
            assert (await post(session, {"text": texts[3]}))[0] == 200
            assert (await info(session))["budget_left"]["calls"] == 1
            old.gate.set()
            assert [(await task)[0] for task in waiting] == [200, 200, 200]
            async with asyncio.timeout(60):
                await taken.wait()
            # none of them is asked again
            assert (await post(session, {"texts": texts[:4]}))[0] == 200
            assert (await post(session, {"texts": texts}))[0] == 200
            assert (await post(session, {"text": "one more"}))[0] == 503
            left = (await info(session))["budget_left"]
            page = (await get(session, "/metrics"))[1]
    answered = len(old.asked) + len(new.asked)
    assert (answered, left) == (5, {"tokens": 10_000 - 5 * 15, "calls": 0})
    assert f"testnuc_llm_calls_total {answered}.0" in page
    assert f'testnuc_llm_tokens_total{{direction="input"}} {answered}0.0' in page


async def test_a_signal_during_a_reload_says_that_it_waits(caplog):
    caplog.set_level(logging.INFO, "testnuc.server")
    begun, gate, waits = asyncio.Semaphore(0), asyncio.Event(), "once a reload in progress has"

    async def reload():
        begun.release()
        await gate.wait()

    async with served(client(Held()), reload=reload) as (service, session):
        os.kill(os.getpid(), signal.SIGHUP)
        await begun.acquire()
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: caplog.text.count(waits) == 2)
        gate.set()
        await until(lambda: service.reloads == 2)
        assert "testnuc_reloads_total 2.0" in (await get(session, "/metrics"))[1]


async def test_a_certificate_is_computed_once_beside_the_requests(monkeypatch):
    gate, computed = threading.Event(), []

    def certify(learned):
        gate.wait(60)
        computed.append(learned)
        return "certified"

    monkeypatch.setattr(Learned, "certify", certify)
    nuc = learning.client(learning.Says(), policy="majority", k=0)
    async with served(nuc) as (_, session):
        await nuc.classify_many(learning.texts_of(300))
        review = await nuc.review(50)
        learning.judge(review)
        await nuc.learn(review)
        computed.clear()
        waiting = [asyncio.create_task(info(session)) for _ in range(3)]
        try:
            assert (await get(session, "/healthz"))[0] == 200
            assert not any(task.done() for task in waiting)
        finally:
            gate.set()
        assert [(await task)["certificate"] for task in waiting] == ["certified"] * 3
        assert len(computed) == 1


async def test_a_reload_that_fails_changes_nothing(caplog):
    held, tried = Held(), asyncio.Event()
    held.gate.set()

    async def reload():
        tried.set()
        raise OSError("labels.json is gone")

    async with served(client(held), reload=reload) as (service, session):
        before = service.clients
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(60):
            await tried.wait()
        await until(lambda: "labels.json is gone" in caplog.text)
        assert service.clients == before
        assert (await post(session, {"texts": messages(3)}))[0] == 200
        assert (await info(session))["before"] is None
        page = (await get(session, "/metrics"))[1]
        assert 'testnuc_failed_reloads_total{what="labels"} 1.0' in page


async def test_a_label_that_is_renamed_is_told_from_before(caplog):
    caplog.set_level(logging.INFO, "testnuc.server")
    renamed = TestNUC([*LABELS[:-1], "other"], Held(), embedder=HashEmbedder())
    async with renamed, served(client(Held())) as (service, session):
        await service.use(renamed)
        said = await info(session)
    assert said["labels"] == said["before"]["labels"]
    assert said["labels_hash"] != said["before"]["labels_hash"]
    # words, not Python
    (line,) = [r.getMessage() for r in caplog.records if "before" in r.getMessage()]
    assert f"labels_hash {said['labels_hash']}" in line
    assert "{" not in line


async def test_another_question_about_the_same_labels_is_told():
    strict = TestNUC(LABELS, Held(), embedder=HashEmbedder(), instructions="Be strict.")
    async with strict, served(client(Held())) as (service, session):
        await service.use(strict)
        said = await info(session)
    assert said["before"]["labels_hash"] == said["labels_hash"]
    assert said["before"]["prompt_hash"] != said["prompt_hash"]


async def test_before_is_the_last_other_state(caplog):
    caplog.set_level(logging.INFO, "testnuc.server")
    clients = [client(Held()) for _ in range(3)]
    other = TestNUC([*LABELS, "other"], Held(), embedder=HashEmbedder())
    async with AsyncExitStack() as opened, served(clients[0]) as (service, session):
        for nuc in (*clients[1:], other):
            await opened.enter_async_context(nuc)
        first = await info(session)
        await service.use(clients[1])
        assert (await info(session))["before"] is None
        assert "; before: the same" in caplog.text
        for nuc in (other, clients[2], clients[1]):
            await service.use(nuc)
            found = await info(session)
            assert found["before"]["labels"] == len(LABELS) + (nuc is not other)
        assert found["labels_hash"] == first["labels_hash"]
        assert found["since"] >= found["before"]["since"] >= first["since"]


async def test_judgments_that_other_labels_leave_unused_are_a_warning(tmp_path, caplog):
    store = tmp_path / "labels.db"
    first = learning.client(learning.Says(), policy="majority", k=0, store=store)
    more = TestNUC([*learning.LABELS, "other"], Held(), embedder=learning.Clustered(), store=store)
    async with more, served(first) as (service, _):
        await first.classify_many(learning.texts_of(300))
        review = await first.review(40)
        learning.judge(review)
        await first.learn(review)
        await service.use(more)
        [line] = [r.getMessage() for r in caplog.records if "are not used here" in r.getMessage()]
        assert "the store was learned from with other settings (model, labels): its judg" in line
        assert "send the texts of before again, then testnuc learn STORE STORE" in line
        await service.use(first)
    assert caplog.text.count("are not used here") == 1


async def test_judgments_of_another_run_are_told_at_the_start(tmp_path, caplog):
    store = tmp_path / "labels.db"
    first = learning.client(learning.Says(), policy="majority", k=0, store=store)
    async with served(first) as (service, _):
        await first.classify_many(learning.texts_of(300))
        review = await first.review(40)
        learning.judge(review)
        await first.learn(review)
        # what decides labels now, and no longer after the next learning
        assert first.learned.decides != "settings"
        later = learning.client(learning.Says(), policy="majority", k=0, store=store)
        async with later:
            await later.classify_many(learning.texts_of(300))
            await later.unlearn()
            few = await later.review(3)
            learning.judge(few)
            await later.learn(few)
            assert later.learned.decides == "settings"
            await service.use(later)
    assert (
        f"labels came from {first.learned.name}; what was learned now proves it no" in caplog.text
    )
    assert "the store was learned from" not in caplog.text
    more = TestNUC(
        [*learning.LABELS, "other"], learning.Says(), embedder=learning.Clustered(), store=store
    )
    async with served(more):
        pass
    assert "the store was learned from with other settings (labels): its" in caplog.text


async def test_it_is_said_how_many_judgments_of_former_labels_count(caplog):
    caplog.set_level(logging.INFO, logger="testnuc.server")
    first = learning.client(learning.Says(), policy="majority", k=0)
    more = {"embedder": learning.Clustered(), "policy": "majority", "k": 0}
    new = TestNUC([*learning.LABELS, "other"], learning.Says(), **more)
    async with new, served(first) as (service, session):
        await first.classify_many(learning.texts_of(300))
        review = await first.review(40)
        learning.judge(review)
        learned = await first.learn(review)
        found = await info(session)
        assert (found["judged"], found["judged_used"]) == (40, 40)
        # the judged texts are not among those that the new labels have labeled
        await new.classify_many(learning.texts_of(100, 300))
        await new.learn(learned, was={})
        await service.use(new)
        found = await info(session)
        assert (found["judged"], found["judged_used"]) == (40, 0)
        assert "judged 40, judged_used 0" in caplog.text
        await new.classify_many([item.text for item in review])
        await new.learn(learned, was={})
        found = await info(session)
        assert (found["judged"], found["judged_used"]) == (40, 40)


async def test_what_is_certified_is_said():
    nuc = learning.client(learning.Says(), policy="majority", k=0)
    async with served(nuc) as (_, session):
        await nuc.classify_many(learning.texts_of(300))
        assert (await info(session))["certificate"] is None
        review = await nuc.review(40)
        learning.judge(review)
        learned = await nuc.learn(review)
        for _ in range(2):
            said = await info(session)
            assert (said["judged"], said["certificate"]) == (40, str(learned.certify()))
        await nuc.unlearn()
        assert (await info(session))["certificate"] is None


async def test_a_label_set_has_one_hash_in_the_service_and_in_its_store(tmp_path):
    held, store = Held(), str(tmp_path / "labels.db")
    held.gate.set()
    labels = LabelSet({**dict.fromkeys(LABELS, "as its name says"), "other": ""}, "other")
    nuc = TestNUC(labels, held, embedder=HashEmbedder(), k=0, store=store)
    async with served(nuc) as (_, session):
        assert (await post(session, {"text": "refund please"}))[0] == 200
        said = (await info(session))["labels_hash"]
    (run,) = await stored_runs(store)
    assert f"labels_hash {said}" in str(run)


async def test_a_run_has_its_date_while_the_service_goes_on(tmp_path):
    """Without one it counted as older than all others, and commands took another run."""
    held, store = Held(is_open=True), str(tmp_path / "labels.db")
    async with served(nuc := client(held, k=0, store=store)) as (_, session):
        for text in messages(2):
            assert (await post(session, {"text": text}))[0] == 200
        await parts_of(nuc)._noting
        (run,) = await stored_runs(store)
        assert run.day


async def test_no_former_embedder_stays_in_memory(caplog):
    class Model(HashEmbedder):
        def __init__(self):
            super().__init__()
            # as those of torch are
            self.cycle = self

    caplog.set_level(logging.INFO, "testnuc.server")
    former = []

    async def reload():
        fresh = client(Held(), embedder=Model())
        before = service.clients
        await fresh.warm_up()
        await service.use(fresh)
        for nuc in before:
            await nuc.aclose()
        former.append(weakref.ref(parts_of(fresh).embedder))

    async with served(client(Held()), reload=reload) as (service, _):
        gc.disable()
        try:
            for reloads in (1, 2, 3):
                os.kill(os.getpid(), signal.SIGHUP)
                await until(lambda: caplog.messages.count("reloaded") == reloads)  # noqa: B023
            assert [model() is None for model in former] == [True, True, False]
        finally:
            gc.enable()
        await service.clients[0].aclose()


async def test_without_a_reload_it_drains():
    held = Held()
    async with served(client(held)) as (service, session):
        waiting = asyncio.create_task(post(session, {"text": "refund please"}))
        await held.asked_for(1)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: service.closing)
        held.gate.set()
        assert (await waiting)[0] == 200


async def test_the_service_says_which_run_of_its_store_is_its_own(tmp_path):
    store = tmp_path / "labels.db"
    alike = {"k": 0, "store": store}
    async with client(Held(is_open=True), instructions="Tell the queue.", **alike) as other:
        await other.classify_many(["refund please", "where is my parcel"])
    nuc = client(Held(is_open=True), **alike)
    async with served(nuc) as (_, session):
        said = (await info(session))["run"]
        await post(session, {"text": "refund please"})
        await post(session, {"text": "where is my parcel"})
        # also where another run has its first answer earlier
        assert (await info(session))["run"] == said
    assert {run.number: run.answers for run in await stored_runs(str(store))} == {1: 2, said: 2}
    async with served(client(Held(is_open=True), k=0)) as (_, session):
        await post(session, {"text": "refund please"})
        assert (await info(session))["run"] is None
