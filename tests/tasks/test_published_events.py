"""The ends of tasks and jobs on the bus `tasks`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.tasks.benches import APP, TENANT, Bench
from tests.tasks.processes import worker
from tests.waiting import eventually

import postroad
from postroad import Backend, current_context
from postroad.errors import InvalidInput
from postroad.events import EventRegistry, codec
from postroad.jobs import JobDispatcher, Jobs
from postroad.jobs.dispatcher import worker_roles
from postroad.journal import JournalEvent
from postroad.journal.events import JobCompleted, JobFailureDetected, TaskCompleted, TaskFailed
from postroad.tasks.event_publisher import EventPublisher

pytestmark = pytest.mark.slow

CLASSES = (TaskCompleted, TaskFailed, JobCompleted, JobFailureDetected)


class Subscriber:
    """A member of a group that collects what it receives."""

    def __init__(self, backend: Backend, group: str = "watchers") -> None:
        self.events: list[Any] = []
        self.ids: list[str] = []
        self._bus = backend.bus(
            "tasks", group, config=postroad.BusConfig(wait_time_seconds=0, max_messages_per_poll=10)
        )
        for each in CLASSES:
            self._bus.subscribe(each, self._take)

    def _take(self, event: object) -> None:
        context = current_context()
        assert context is not None
        self.events.append(event)
        self.ids.append(str(context.envelope.event_id))

    def look(self) -> list[Any]:
        """All that has come so far."""
        while self._bus.receive_once():
            continue
        return self.events


def test_a_bus_hears_how_tasks_ended(bench: Bench) -> None:
    subscriber = Subscriber(bench.backend)
    running = bench.worker(publish_events=True)
    done = bench.producer.submit("echo", {"a": [1, None, "x"]})
    failed = bench.producer.submit("fail-with", {"type": "ValueError"})

    running.run(until_idle=True)

    ends = {event.request_id: event for event in subscriber.look()}
    assert isinstance(ends[done.request_id], TaskCompleted)
    assert ends[done.request_id].output == {"a": [1, None, "x"]}
    assert isinstance(ends[failed.request_id], TaskFailed)
    assert ends[failed.request_id].error_category == "validation"
    recorded = {str(bench.last(done.request_id, "Task Completed").event_id)}
    assert recorded <= set(subscriber.ids)
    assert len(subscriber.ids) == 2


def test_nothing_is_published_unless_asked_for(bench: Bench) -> None:
    subscriber = Subscriber(bench.backend)

    bench.run_one("echo")

    assert subscriber.look() == []
    assert "events" not in {role.name for role in worker_roles(bench.backend, tenant_id=TENANT, app=APP)}


def test_a_variable_switches_it_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_TASK_EVENTS", "1")
    subscriber = Subscriber(bench.backend)

    bench.run_one("echo")

    assert [type(event) for event in subscriber.look()] == [TaskCompleted]
    assert "events" in {role.name for role in worker_roles(bench.backend, tenant_id=TENANT, app=APP)}


def test_a_dispatcher_publishes_the_end_of_a_job(bench: Bench) -> None:
    subscriber = Subscriber(bench.backend)
    dispatcher = JobDispatcher(bench.backend, tenant_id=TENANT, app=APP, publish_events=True)
    jobs = Jobs(bench.backend, tenant_id=TENANT, app=APP)
    jobs.submit_job([{"taskId": "a", "name": "echo"}], job_id="good")
    jobs.submit_job([{"taskId": "a", "name": "fail-with", "input": {"type": "ValueError"}}], job_id="bad")
    bench.work()

    dispatcher.reconcile()

    by_type = {type(event): event for event in subscriber.look()}
    assert by_type[JobCompleted].job_id == "good"
    assert (by_type[JobFailureDetected].job_id, by_type[JobFailureDetected].failed_task_id) == ("bad", "a")
    assert by_type[TaskFailed].job_id == "bad"


def test_what_was_recorded_before_it_was_switched_on_is_not_published(bench: Bench) -> None:
    subscriber = Subscriber(bench.backend)
    bench.run_one("echo")

    assert EventPublisher(bench.backend, tenant=TENANT).run_once() == 0
    assert subscriber.look() == []


def test_an_event_that_is_recorded_late_is_published(bench: Bench) -> None:
    subscriber = Subscriber(bench.backend)
    publisher = EventPublisher(bench.backend, tenant=TENANT)
    late, now = _completed("late", age_ms=7_200_000), _completed("now")
    bench.backend.journal().append([now])
    assert publisher.run_once() == 1

    bench.backend.journal().append([late])

    assert publisher.run_once() == 1
    assert [event.request_id for event in subscriber.look()] == ["now", "late"]


def test_a_position_whose_row_was_pruned_loses_nothing(bench: Bench) -> None:
    subscriber = Subscriber(bench.backend)
    publisher = EventPublisher(bench.backend, tenant=TENANT)
    journal, first = bench.backend.journal(), _completed("first")
    journal.append([first])
    assert publisher.run_once() == 1

    journal.remove([first])  # type: ignore[attr-defined]  # journals of the embedded engine can forget
    journal.append([_completed("second")])

    assert publisher.run_once() == 1
    assert [event.request_id for event in subscriber.look()] == ["first", "second"]


def test_two_publishers_publish_each_event_once_between_them(bench: Bench) -> None:
    subscriber = Subscriber(bench.backend)
    publishers = [EventPublisher(bench.backend, tenant=TENANT) for _ in range(2)]
    bench.backend.journal().append([_completed(f"task-{number}") for number in range(2_500)])

    assert sorted(publisher.run_once() for publisher in publishers) == [0, 2_500]
    assert len(subscriber.look()) == 2_500


def test_a_kill_between_publish_and_position_publishes_again(on_sqlite: Backend, tmp_path: Path) -> None:
    bench, url = Bench(on_sqlite), f"sqlite:///{tmp_path / 'tasks.db'}"
    subscriber = Subscriber(on_sqlite)
    with worker(url, failpoints="events.after_publish=kill9", publish_events=True) as first:
        handle = bench.producer.submit("echo")
        assert first.wait() == -signal.SIGKILL
    recorded = str(bench.last(handle.request_id, "Task Completed").event_id)

    with worker(url, publish_events=True):
        eventually(lambda: len(_copies(on_sqlite)) == 2)

    assert _copies(on_sqlite) == [recorded, recorded]
    assert len(subscriber.look()) == 1
    assert subscriber.ids == [recorded]


def test_a_kill_before_the_publish_loses_nothing(on_sqlite: Backend, tmp_path: Path) -> None:
    bench, url = Bench(on_sqlite), f"sqlite:///{tmp_path / 'tasks.db'}"
    subscriber = Subscriber(on_sqlite)
    EventPublisher(on_sqlite, tenant=TENANT)
    bench.run_one("echo")

    with worker(url, publish_events=True):
        eventually(subscriber.look)

    assert [type(event) for event in subscriber.events] == [TaskCompleted]


def test_the_registry_takes_structs_but_none_that_become_arrays() -> None:
    class Row(msgspec.Struct, array_like=True):
        number: int

    registry = EventRegistry()

    assert registry.register(TaskCompleted) == "postroad.journal.events:TaskCompleted"
    with pytest.raises(InvalidInput, match="array_like"):
        registry.register(Row)


def _copies(backend: Backend) -> list[str]:
    """The event ids of all messages that wait for the group."""
    waiting = backend.queue("tasks--watchers").peek(limit=100)
    return [str(codec.decode(message.body).event_id) for message in waiting]


def _completed(request_id: str, *, age_ms: int = 0) -> JournalEvent:
    event = JournalEvent.create(
        "Task Completed",
        tenant_id=TENANT,
        entity_id=request_id,
        app=APP,
        properties={"requestId": request_id, "output": None, "durationMs": 1, "exitCode": 0},
    )
    return msgspec.structs.replace(event, timestamp=event.timestamp - age_ms)
