"""Submitting, retrying and cancelling tasks."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.tasks.benches import APP, TENANT, Bench

from postroad import Backend
from postroad.errors import ConfigurationError, Conflict, InvalidTask, NotFound, Unavailable, UnknownTask
from postroad.items import Items
from postroad.tasks import Reconciler, TaskProducer, TaskRegistry


def messages(backend: Backend) -> int:
    return backend.queue("tasks").stats().visible


def nothing_is_stored(bench: Bench) -> bool:
    items: Items = bench.backend.items()
    events = bench.backend.journal().query("PK", tenant=TENANT).events
    return not events and not items.scan(f"{TENANT}/").items and messages(bench.backend) == 0


def test_a_submitted_task_is_pending_and_one_message_waits(bench: Bench) -> None:
    handle = bench.producer.submit("echo", {"n": 1}, request_id="r1", timeout=2.5)

    state = bench.state("r1")
    [event] = bench.producer.history("r1")
    [message] = bench.backend.queue("tasks").peek()
    assert (handle.request_id, handle.run, handle.created) == ("r1", 1, True)
    assert (state.state, state.run, state.attempt) == ("pending", 1, 0)
    assert event.context == {"source": "system", "environment": "dev", "origin": "producer"}
    assert event.properties["input"] == {"n": 1}
    assert message.body == b'{"requestId":"r1","name":"echo","input":{"n":1},"run":1,"timeoutMs":2500}'
    assert message.attributes == {"requestId": "r1", "tenantId": TENANT}


def test_the_event_of_a_submission_is_checked_when_it_is_created_and_not_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroad.journal.port.checked_entry", lambda event: pytest.fail("it was checked again"))

    bench.producer.submit("echo", {"n": 1}, request_id="r1")

    assert bench.state("r1").state == "pending"


def test_a_task_without_a_request_id_gets_one_of_its_own(bench: Bench) -> None:
    one, other = bench.producer.submit("echo"), bench.producer.submit("echo")

    assert one.request_id != other.request_id
    assert messages(bench.backend) == 2


def test_the_same_request_again_changes_nothing_and_another_one_is_refused(bench: Bench) -> None:
    bench.producer.submit("echo", {"a": 1, "b": 2}, request_id="r1")

    again = bench.producer.submit("echo", {"b": 2, "a": 1}, request_id="r1")

    assert (again.run, again.created) == (1, False)
    with pytest.raises(Conflict):
        bench.producer.submit("echo", {"a": 2}, request_id="r1")
    with pytest.raises(Conflict):
        bench.producer.submit("note", {"a": 1, "b": 2}, request_id="r1")
    assert bench.types("r1") == ["Task Pending"]
    assert messages(bench.backend) == 1


def test_the_same_request_of_another_tenant_is_another_task(bench: Bench) -> None:
    other = TaskProducer(bench.backend, tenant_id="other", app=APP)

    first, second = bench.producer.submit("echo", request_id="r1"), other.submit("echo", {"x": 1}, request_id="r1")

    assert first.created
    assert second.created
    assert bench.types("r1") == ["Task Pending"]


def test_fifty_submits_of_one_request_at_once_are_one_run(bench: Bench) -> None:
    barrier = threading.Barrier(50)
    created: list[bool] = []

    def submit() -> None:
        barrier.wait()
        created.append(bench.producer.submit("echo", {"n": 1}, request_id="same").created)

    threads = [threading.Thread(target=submit) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(created) == [False] * 49 + [True]
    assert bench.types("same") == ["Task Pending"]
    assert messages(bench.backend) == 1


@pytest.mark.parametrize("name", ["os:system", "a/b", "x" * 65, "", "a.b", 7])
def test_a_name_that_is_none_is_refused_and_nothing_is_imported(name: Any, bench: Bench) -> None:
    before = set(sys.modules)

    with pytest.raises(InvalidTask) as refused:
        bench.producer.submit(name)

    assert refused.value.field == "name"
    assert set(sys.modules) == before
    assert nothing_is_stored(bench)


@pytest.mark.parametrize("request_id", ["a.b", "a b", "a#b", "", "x" * 257, "ü", 3])
def test_a_request_id_that_is_none_is_refused(request_id: Any, bench: Bench) -> None:
    with pytest.raises(InvalidTask) as refused:
        bench.producer.submit("echo", request_id=request_id)

    assert refused.value.field == "requestId"
    assert nothing_is_stored(bench)


def nested(levels: int) -> dict[str, Any]:
    return {"x": nested(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    "input",
    [
        [1],
        5,
        "x",
        {"x": float("inf")},
        {"x": float("nan")},
        {"x": {1, 2}},
        {"x": b"x"},
        {1: 2},
        {"x": "\ud800"},
        nested(100),
        {"x": object()},
    ],
)
def test_an_input_that_is_no_json_object_is_refused(input: Any, bench: Bench) -> None:
    with pytest.raises(InvalidTask) as refused:
        bench.producer.submit("echo", input)

    assert str(refused.value.field).startswith("input")
    assert "None" not in str(refused.value)
    assert nothing_is_stored(bench)


@pytest.mark.parametrize("timeout", [0, -1, 43_201, float("nan"), True])
def test_a_timeout_that_is_none_is_refused(timeout: Any, bench: Bench) -> None:
    with pytest.raises(ConfigurationError):
        bench.producer.submit("echo", timeout=timeout)

    assert nothing_is_stored(bench)


@pytest.mark.parametrize("delay", [-1, 31_536_001, float("nan"), True, "x"])
def test_a_delay_that_is_none_is_refused(delay: Any, bench: Bench) -> None:
    with pytest.raises(InvalidTask):
        bench.producer.submit("echo", delay=delay)

    assert nothing_is_stored(bench)


def test_durations_of_a_named_task_may_have_a_unit(bench: Bench) -> None:
    handle = bench.producer.submit("echo", {}, timeout="5m", delay=timedelta(minutes=1))

    assert bench.backend.queue("tasks").stats().delayed == 1
    (message,) = bench.backend.queue("tasks").peek()
    assert b'"timeoutMs":300000' in message.body
    assert handle.created


def test_a_named_task_takes_one_input(bench: Bench) -> None:
    submit: Any = bench.producer.submit

    with pytest.raises(InvalidTask, match="takes one input"):
        submit("echo", {}, 60)
    with pytest.raises(InvalidTask, match="takes one input"):
        submit("echo", {}, input={})

    assert nothing_is_stored(bench)


def test_a_producer_with_a_registry_refuses_what_it_does_not_know(bench: Bench) -> None:
    registry = TaskRegistry()
    registry.command("known", ["true"])
    producer = TaskProducer(bench.backend, tenant_id=TENANT, app=APP, registry=registry)

    with pytest.raises(UnknownTask):
        producer.submit("echo")

    assert nothing_is_stored(bench)
    assert producer.submit("known").created


def test_a_delayed_task_waits(bench: Bench) -> None:
    bench.producer.submit("echo", delay=60)

    stats = bench.backend.queue("tasks").stats()
    assert (stats.visible, stats.delayed) == (0, 1)


def test_the_queues_are_made_as_tasks_need_them(bench: Bench) -> None:
    tasks, letters = bench.backend.queue_spec("tasks"), bench.backend.queue_spec("tasks-dlq")

    assert (tasks.visibility, tasks.retention, tasks.receive_wait) == (900, 345_600, 20)
    assert (tasks.dead_letter, tasks.max_receives) == ("tasks-dlq", 100)
    assert letters.retention == 1_209_600
    assert bench.backend.queue_spec("tasks-dispatch").dead_letter is None


@pytest.mark.slow
def test_a_failed_task_is_retried_as_its_next_run(bench: Bench) -> None:
    failed = bench.run_one("fail-with", {"type": "ValueError"})

    handle = bench.producer.retry(failed.request_id)

    assert (handle.run, handle.created) == (2, True)
    assert bench.state(failed.request_id).state == "pending"
    bench.work()
    state = bench.state(failed.request_id)
    assert (state.state, state.run, state.attempt) == ("failed", 2, 1)
    assert bench.types(failed.request_id) == ["Task Pending", "Task Processing Started", "Task Failed"] * 2


@pytest.mark.slow
def test_a_task_that_did_not_fail_is_not_retried(bench: Bench) -> None:
    pending = bench.producer.submit("echo", {"n": 1})

    with pytest.raises(Conflict):
        bench.producer.retry(pending.request_id)
    bench.work()
    with pytest.raises(Conflict):
        bench.producer.retry(pending.request_id)
    with pytest.raises(NotFound):
        bench.producer.retry("nobody")

    assert bench.state(pending.request_id).run == 1


@pytest.mark.slow
def test_two_retries_at_once_are_one_run(bench: Bench) -> None:
    failed = bench.run_one("fail-with", {"type": "ValueError"})
    outcomes: list[object] = []

    def retry() -> None:
        try:
            outcomes.append(bench.producer.retry(failed.request_id).run)
        except Conflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=retry) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(map(str, outcomes)) == ["2", "conflict"]


@pytest.mark.slow
def test_a_cancelled_task_that_waited_never_starts(bench: Bench) -> None:
    handle = bench.producer.submit("echo", {"n": 1})

    assert bench.producer.cancel(handle.request_id) is True
    assert bench.producer.cancel(handle.request_id) is False
    bench.work()

    assert bench.state(handle.request_id).state == "cancelled"
    assert bench.types(handle.request_id) == ["Task Pending", "Task Cancelled"]
    assert messages(bench.backend) == 0
    assert bench.producer.retry(handle.request_id).run == 2


@pytest.mark.slow
def test_an_ended_task_is_not_cancelled_and_an_unknown_one_is_not_found(bench: Bench) -> None:
    done = bench.run_one("echo")

    assert bench.producer.cancel(done.request_id) is False
    assert bench.state(done.request_id).state == "completed"
    with pytest.raises(NotFound):
        bench.producer.cancel("nobody")
    assert bench.producer.status("nobody") is None
    assert bench.producer.history("nobody") == []


@pytest.mark.slow
def test_a_state_is_told_as_it_was_at_a_moment(bench: Bench) -> None:
    done = bench.run_one("echo")
    history = bench.producer.history(done.request_id)

    before = bench.producer.status(done.request_id, at=history[0].timestamp - 1)

    assert before is None
    assert bench.producer.status(done.request_id, at=history[-1].timestamp) == bench.state(done.request_id)


class LosesSends:
    """A backend whose queue takes nothing the first time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.fails = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def queue(self, name: str) -> Any:
        return _LosingQueue(self._backend.queue(name), self)


class _LosingQueue:
    def __init__(self, queue: Any, owner: LosesSends) -> None:
        self._queue = queue
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def send(self, messages: Any) -> Any:
        if self._owner.fails:
            self._owner.fails -= 1
            raise Unavailable("no queue at the moment")
        return self._queue.send(messages)


@pytest.mark.slow
def test_a_send_that_fails_raises_and_the_reconciler_sends_once(bench: Bench) -> None:
    losing: Any = LosesSends(bench.backend)
    producer = TaskProducer(losing, tenant_id=TENANT, app=APP)
    with pytest.raises(Unavailable):
        producer.submit("echo", {"n": 1}, request_id="r1")
    assert (bench.state("r1").state, messages(bench.backend)) == ("pending", 0)

    again = producer.submit("echo", {"n": 1}, request_id="r1")
    too_early = Reconciler(bench.backend, tenant_id=TENANT, app=APP).run_once()
    sent = Reconciler(bench.backend, tenant_id=TENANT, app=APP, stale_after=0).run_once()
    sent_again = Reconciler(bench.backend, tenant_id=TENANT, app=APP, stale_after=0).run_once()

    assert again.created is False
    assert (too_early, sent, sent_again) == (0, 1, 0)
    bench.work()
    assert bench.state("r1").output == {"n": 1}
    assert bench.types("r1") == ["Task Pending", "Task Processing Started", "Task Completed"]
