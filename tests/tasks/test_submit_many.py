"""Submitting many tasks at once, with options, and from async programs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.tasks import chores, errands
from tests.tasks.benches import APP, TENANT, Bench
from tests.tasks.test_producer import LosesSends, messages, nothing_is_stored

from postroad import Backend
from postroad.errors import ConfigurationError, Conflict, InvalidTask, Unavailable, UnknownTask
from postroad.tasks import Reconciler, TaskHandle, TaskProducer


def test_many_tasks_are_submitted_in_their_order_to_their_queues(bench: Bench) -> None:
    handles = bench.producer.submit_many(
        [
            (errands.scrape, {"store_id": "s1"}),
            ("echo", {"n": 1}, "r-echo"),
            (errands.elsewhere, {"n": 4}),
            (chores.echo, {"n": 2}),
            {"name": "echo", "input": {"n": 3}, "requestId": "r-mapping"},
            (errands.no_arguments, {}),
        ]
    )

    assert [handle.created for handle in handles] == [True] * 6
    assert [handles[1].request_id, handles[4].request_id] == ["r-echo", "r-mapping"]
    assert [bench.state(handle.request_id).state for handle in handles] == ["pending"] * 6
    assert (messages(bench.backend), bench.backend.queue("slow").stats().visible) == (5, 1)
    bench.work(imports=("tests.tasks.errands", "tests.tasks.chores"))
    assert handles[0].wait() == errands.Store("s1", 2, [])
    assert [handles[place].wait() for place in (1, 3, 4)] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_batch_that_is_submitted_again_is_the_same_runs(bench: Bench) -> None:
    calls: list[Any] = [("echo", {"n": n}, f"r{n}") for n in range(3)]
    bench.producer.submit_many(calls[:2])

    again = bench.producer.submit_many([*calls, calls[2]])

    assert [handle.created for handle in again] == [False, False, True, False]
    assert messages(bench.backend) == 3


def test_more_tasks_than_share_a_commit_are_all_submitted(bench: Bench) -> None:
    handles = bench.producer.submit_many([("echo", {"n": n}) for n in range(1_203)])

    assert len({handle.request_id for handle in handles}) == 1_203
    assert messages(bench.backend) == 1_203
    assert bench.producer.submit_many([]) == []


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (("echo", {"n": object()}), "input.n"),
        (("a b", {}), "name"),
        (("echo", {}, "a.b"), "requestId"),
        ((errands.scrape, {"store_id": 5}), "store_id"),
        ((errands.scrape, {}), "store_id"),
        ("echo", "calls"),
        (("echo",), "calls"),
        (7, "calls"),
        ({"input": {}}, "name"),
    ],
)
def test_one_wrong_call_refuses_the_whole_batch(call: Any, field: str, bench: Bench) -> None:
    with pytest.raises(InvalidTask) as refused:
        bench.producer.submit_many([("echo", {"n": 1}), call])

    assert refused.value.field == field
    assert nothing_is_stored(bench)


def test_a_conflict_submits_none_of_a_batch_whatever_their_queues(bench: Bench) -> None:
    bench.producer.submit("echo", {"n": 0}, request_id="taken")

    with pytest.raises(Conflict):
        bench.producer.submit_many([(errands.elsewhere, {"n": 1}), ("echo", {}, "before"), ("echo", {"n": 2}, "taken")])

    assert bench.producer.status("before") is None
    assert (messages(bench.backend), bench.backend.queue("slow").stats().visible) == (1, 0)


def test_a_queue_that_accepts_nothing_submits_none_of_a_batch(bench: Bench) -> None:
    losing: Any = LosesSends(bench.backend)
    producer = TaskProducer(losing, tenant_id=TENANT, app=APP)

    with pytest.raises(Unavailable):
        producer.submit_many([("echo", {"n": 1}), ("echo", {"n": 2})])

    assert nothing_is_stored(bench)
    assert len(producer.submit_many([("echo", {"n": 1})])) == 1


class Apart:
    """A backend whose writes do not commit together, as on AWS."""

    def __init__(self, backend: Backend, *, fails: int = 0) -> None:
        self._backend = LosesSends(backend)
        self._backend.fails = fails
        self.joins_writes = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def test_a_batch_on_a_store_without_common_commits_is_sent_and_noted_as_sent(bench: Bench) -> None:
    apart: Any = Apart(bench.backend)
    producer = TaskProducer(apart, tenant_id=TENANT, app=APP)

    producer.submit_many([("echo", {"n": n}, f"r{n}") for n in range(3)])

    assert messages(bench.backend) == 3
    assert Reconciler(bench.backend, tenant_id=TENANT, app=APP, stale_after=0).run_once() == 0


def test_a_batch_that_was_recorded_and_not_sent_is_sent_by_the_reconciler(bench: Bench) -> None:
    apart: Any = Apart(bench.backend, fails=1)
    producer = TaskProducer(apart, tenant_id=TENANT, app=APP)
    with pytest.raises(Unavailable):
        producer.submit_many([("echo", {"n": n}, f"r{n}") for n in range(3)])

    sent = Reconciler(bench.backend, tenant_id=TENANT, app=APP, stale_after=0).run_once()

    assert (sent, messages(bench.backend)) == (3, 3)
    assert [handle.created for handle in producer.submit_many([("echo", {"n": 0}, "r0")])] == [False]


def test_options_stand_apart_from_the_arguments(bench: Bench) -> None:
    chosen = bench.producer.options(delay="5m", request_id="r1", timeout="2s")

    handle = chosen.submit(errands.scrape, store_id="s1")

    assert handle == TaskHandle("r1", 1, True)
    assert bench.backend.queue("tasks").stats().delayed == 1
    assert bench.last("r1", "Task Pending").properties["timeoutMs"] == 2_000
    assert bench.producer.submit(errands.scrape, "s2").request_id != "r1"


def test_options_are_added_to_options(bench: Bench) -> None:
    later = bench.producer.options(delay="5m")

    later.options(request_id="r1").submit("echo")

    assert bench.backend.queue("tasks").stats().delayed == 1
    assert bench.state("r1").state == "pending"


def test_arguments_behind_a_name_are_refused_with_the_remedy(bench: Bench) -> None:
    with pytest.raises(InvalidTask) as refused:
        bench.producer.submit("scrape", store_id="s1")  # type: ignore[call-overload]

    assert refused.value.field == "store_id"
    assert '{"store_id": "s1"}' in refused.value.remedy


@pytest.mark.parametrize(("minutes", "delayed"), [(5, 1), (-5, 0)])
def test_a_task_may_wait_for_a_time(minutes: int, delayed: int, bench: Bench) -> None:
    bench.producer.options(at=datetime.now(UTC) + timedelta(minutes=minutes)).submit(errands.scrape, "s1")

    stats = bench.backend.queue("tasks").stats()
    assert (stats.delayed, stats.visible) == (delayed, 1 - delayed)


@pytest.mark.parametrize(
    ("options", "error", "field"),
    [
        ({"delay": -1}, InvalidTask, "delay"),
        ({"delay": "x"}, InvalidTask, "delay"),
        ({"delay": True}, InvalidTask, "delay"),
        ({"at": datetime(2026, 1, 1)}, InvalidTask, "at"),
        ({"at": "tomorrow"}, InvalidTask, "at"),
        ({"at": datetime.now(UTC), "delay": 1}, InvalidTask, "at"),
        ({"request_id": "a.b"}, InvalidTask, "requestId"),
        ({"timeout": 0}, ConfigurationError, "timeout"),
        ({"timeout": "x"}, ConfigurationError, "timeout"),
        ({"within": object()}, ConfigurationError, "within"),
    ],
)
def test_an_option_that_is_none_is_refused(options: Any, error: type[Any], field: str, bench: Bench) -> None:
    with pytest.raises(error) as refused:
        bench.producer.options(**options)

    assert refused.value.field == field


def test_one_request_id_does_not_name_many_tasks(bench: Bench) -> None:
    with pytest.raises(InvalidTask, match="one id cannot name many tasks"):
        bench.producer.options(request_id="r1").submit_many([("echo", {})])

    assert nothing_is_stored(bench)


def test_an_async_program_submits_without_blocking(bench: Bench) -> None:
    async def main() -> list[str]:
        handles = await asyncio.gather(*(bench.producer.asubmit(errands.scrape, f"s{n}") for n in range(10)))
        named = await bench.producer.options(request_id="named").asubmit("echo", {"n": 1})
        return [handle.request_id for handle in (*handles, named)]

    ids = asyncio.run(main())

    assert (len(set(ids)), ids[-1]) == (11, "named")
    assert messages(bench.backend) == 11
    with pytest.raises(UnknownTask):
        asyncio.run(bench.producer.asubmit(messages, bench.backend))
