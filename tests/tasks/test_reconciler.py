"""What the reconciler sends again and what it forgets; what dead letters do to running tasks; lost messages."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.tasks.benches import APP, TENANT, Bench, is_alive, lines
from tests.waiting import eventually

from postroad import Backend, OutgoingMessage
from postroad.errors import ConfigurationError, InvalidEvent, InvalidTask, OverflowMismatch, Unavailable
from postroad.journal import JournalEvent, task_history, task_state
from postroad.journal.port import Entry
from postroad.queues import AckResult, Delivery
from postroad.tasks import DeadLetterHandler, Reconciler, TaskWorker
from postroad.tasks.leases import Lease, Outcome, TaskRecords
from postroad.tasks.reconciler import LeaseRound


def reconcile(bench: Bench, **options: Any) -> int:
    given = {"tenant_id": TENANT, "app": APP, "stale_after": 0, **options}
    return Reconciler(bench.backend, **given).run_once()


def pending(bench: Bench, request_id: str, **properties: Any) -> None:
    """Record a task as pending, as a dispatcher does that dies before it sends."""
    event = JournalEvent.create(
        "Task Pending",
        tenant_id=TENANT,
        entity_id=request_id,
        app=APP,
        properties={"requestId": request_id, "name": "echo", "input": {"n": 1}, **properties},
    )
    bench.backend.journal().append([event])


@pytest.mark.slow
def test_a_pending_task_without_a_lease_is_sent_and_runs_once(bench: Bench) -> None:
    pending(bench, "r1", run=1)
    pending(bench, "job-1.a", run=1, jobId="job-1", taskId="a", dependencyOutputs={"b": 2})

    assert (reconcile(bench), reconcile(bench)) == (2, 0)
    bench.work()

    assert [bench.state(name).output for name in ("r1", "job-1.a")] == [{"n": 1}, {"n": 1}]
    assert bench.last("job-1.a", "Task Completed").properties["jobId"] == "job-1"
    assert reconcile(bench) == 0


def test_a_run_whose_submission_died_before_it_was_recorded_is_sent(bench: Bench) -> None:
    records = TaskRecords(bench.backend, bench.backend.journal())
    given = {"requestId": "r1", "name": "echo", "input": {"n": 1}, "run": 1}
    event = JournalEvent.create("Task Pending", tenant_id=TENANT, entity_id="r1", app=APP, properties=given)
    records.put(TENANT, "r1", Lease(name="echo", queue="tasks"), expect=None, owes=[event])

    # The first round records what the lease owes, the second sends it.
    assert (reconcile(bench), reconcile(bench), reconcile(bench)) == (0, 1, 0)
    bench.work()

    assert bench.state("r1").output == {"n": 1}


def test_a_backlog_that_was_sent_is_not_sent_again(bench: Bench) -> None:
    for _ in range(5):
        bench.producer.submit("echo")

    assert reconcile(bench) == 0
    assert bench.backend.queue("tasks").stats().visible == 5


def test_a_young_pending_task_is_left_to_its_submitter(bench: Bench) -> None:
    pending(bench, "r1", run=1)

    assert reconcile(bench, stale_after=60) == 0


def test_a_pending_task_of_another_queue_or_tenant_is_left_alone(bench: Bench) -> None:
    pending(bench, "r1", run=1)
    TaskRecords(bench.backend).put(TENANT, "r1", Lease(queue="other"), expect=None)

    assert reconcile(bench) == 0
    assert reconcile(bench, queue="other") == 1
    assert reconcile(bench, tenant_id="stranger") == 0


def test_one_reconciler_looks_again_and_again(bench: Bench) -> None:
    reconciler = Reconciler(bench.backend, tenant_id=TENANT, app=APP, stale_after=0)
    assert reconciler.run_once() == 0

    pending(bench, "r1", run=1)
    time.sleep(0.002)

    assert [reconciler.run_once() for _ in range(3)] == [1, 0, 0]


def recorded_before(bench: Bench, request_id: str, **properties: Any) -> None:
    """Put a row into the journal that is no longer accepted, as an older version of the program did."""
    event = JournalEvent.create(
        "Task Pending",
        tenant_id=TENANT,
        entity_id=request_id,
        app=APP,
        properties={"requestId": request_id, "name": "echo", "input": {}},
    )
    odd = msgspec.structs.replace(event, properties={**event.properties, **properties})
    journal: Any = bench.backend.journal()
    assert journal._records.add([Entry.of(odd)], odd.timestamp, None) == [True]


@pytest.mark.slow
def test_a_row_that_no_worker_could_read_fails_alone_and_once(bench: Bench) -> None:
    pending(bench, "order:42")
    recorded_before(bench, "slow", timeoutMs=200_000.5)
    pending(bench, "other", requestId="another")
    pending(bench, "r1", run=1)

    assert [reconcile(bench) for _ in range(3)] == [1, 0, 0]
    bench.work()

    assert bench.state("r1").state == "completed"
    for name, field in (("order:42", "requestId"), ("slow", "timeoutMs"), ("other", "requestId")):
        failed = task_state(bench.backend.journal(), TENANT, name)
        assert failed is not None
        assert (failed.state, failed.error_category) == ("failed", "validation")
        assert failed.error is not None
        assert failed.error.startswith(f"the task cannot be sent: {field}: ")
        history = task_history(bench.backend.journal(), TENANT, name)
        assert [event.event_type for event in history] == ["Task Pending", "Task Failed"]


def test_an_altered_blob_of_an_input_fails_its_task_alone(on_sqlite: Backend, tmp_path: Path) -> None:
    bench = Bench(on_sqlite)
    pending(bench, "large", input={"text": "x" * 300_000})
    pending(bench, "r1")
    [blob] = [path for path in tmp_path.rglob("*-payload.json*") if path.is_file()]
    blob.write_bytes(blob.read_bytes().replace(b"xx", b"yy", 1))

    assert [reconcile(bench) for _ in range(2)] == [1, 0]
    bench.work()

    assert bench.state("r1").state == "completed"
    failed = bench.state("large")
    assert (failed.state, failed.error_category) == ("failed", "validation")
    assert [event.overflow_error is None for event in bench.producer.history("large")] == [False, True]
    with pytest.raises(OverflowMismatch):
        bench.producer.retry("large")


@pytest.mark.slow
def test_a_large_input_that_was_not_sent_is_read_from_its_blob(bench: Bench) -> None:
    pending(bench, "large", input={"text": "x" * 300_000})

    assert reconcile(bench) == 1
    bench.work()

    assert bench.state("large").output == {"text": "x" * 300_000}


def test_a_retry_of_a_row_that_no_worker_could_read_is_refused(bench: Bench) -> None:
    recorded_before(bench, "slow", timeoutMs=200_000.5)
    reconcile(bench)

    with pytest.raises(InvalidTask, match="timeoutMs"):
        bench.producer.retry("slow")


@pytest.mark.parametrize("given", [{"timeoutMs": 200_000.5}, {"timeoutMs": 0}, {"timeoutMs": 43_200_001}])
def test_a_timeout_that_is_none_is_refused_by_the_event(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent, match=r"properties\.timeoutMs"):
        JournalEvent.create(
            "Task Pending", tenant_id=TENANT, entity_id="r1", properties={"requestId": "r1", "name": "echo", **given}
        )


@pytest.mark.parametrize("name", ["run", "token"])
def test_a_number_that_no_store_holds_is_refused_by_the_event(name: str) -> None:
    with pytest.raises(InvalidEvent, match=rf"properties\.{name}"):
        JournalEvent.create(
            "Task Pending",
            tenant_id=TENANT,
            entity_id="r1",
            properties={"requestId": "r1", "name": "echo", name: 2**63},
        )


class BrokenQueues:
    """A backend whose queue of tasks does not take some messages."""

    def __init__(self, backend: Backend, broken: str) -> None:
        self._backend, self._broken = backend, broken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def queue(self, name: str) -> Any:
        return self if name == "tasks" else self._backend.queue(name)

    def send(self, messages: list[OutgoingMessage]) -> Any:
        if self._broken.encode() in messages[0].body:
            raise Unavailable("the queue does not answer")
        return self._backend.queue("tasks").send(messages)


def test_a_run_that_cannot_be_sent_now_keeps_no_other_waiting_and_is_sent_later(bench: Bench) -> None:
    for name in ("r1", "r2", "r3"):
        pending(bench, name, run=1)
    broken: Any = BrokenQueues(bench.backend, "r2")

    with pytest.raises(Unavailable):
        Reconciler(broken, tenant_id=TENANT, app=APP, stale_after=0).run_once()

    assert bench.backend.queue("tasks").stats().visible == 2
    assert reconcile(bench) == 1


def test_a_dead_letter_that_cannot_be_ended_keeps_no_other_waiting(bench: Bench) -> None:
    handles = [bench.producer.submit("echo", {"n": number}) for number in range(3)]
    queue, items = bench.backend.queue("tasks"), bench.backend.items()
    queue.reject(queue.receive(max_messages=10), reason="received too often")
    key = f"{TENANT}/LEASE#TASK#{handles[1].request_id}"
    items.put(key, b"this is no lease")

    assert bench.bury() == 2

    assert [bench.state(handle.request_id).state for handle in handles] == ["failed", "pending", "failed"]


def test_a_dead_letter_with_the_id_of_no_job_stays(bench: Bench) -> None:
    bench.backend.queue("tasks-dlq").send([OutgoingMessage(b'{"requestId": "r1", "name": "echo", "jobId": "a b"}')])

    assert bench.bury() == 0

    assert bench.backend.queue("tasks-dlq").stats().delayed + bench.backend.queue("tasks-dlq").stats().in_flight == 1


@pytest.mark.parametrize("stale_after", [-1, float("nan"), "x", True])
def test_a_patience_that_is_none_is_refused(stale_after: Any, bench: Bench) -> None:
    with pytest.raises(ConfigurationError):
        Reconciler(bench.backend, stale_after=stale_after)


def test_a_lease_is_kept_for_thirty_days_after_its_run_ended(bench: Bench) -> None:
    records, items, now = TaskRecords(bench.backend), bench.backend.items(), int(time.time() * 1000)
    day = 86_400_000
    for name, ended in (("old", 31 * day), ("young", 29 * day)):
        records.put(TENANT, name, Lease(outcome=Outcome("Task Completed", "x", now - ended)), expect=None)
    records.put(TENANT, "open", Lease(begun_at=now - 400 * day), expect=None)
    forgetting = LeaseRound(items, bench.backend.blobs(), TaskRecords(bench.backend), TENANT)

    assert forgetting.step(now) == 1

    assert [item.key.rpartition("#")[2] for item in items.scan(f"{TENANT}/").items] == ["open", "young"]
    reconcile(bench)
    assert records.read(TENANT, "young") is not None


@pytest.mark.slow
def test_a_dead_letter_of_a_running_task_waits_for_its_end(bench: Bench, tmp_path: Path) -> None:
    notes, go = tmp_path / "notes", tmp_path / "go"
    handle = bench.producer.submit("wait-for-file", {"notes": str(notes), "until": str(go)})
    [message] = bench.backend.queue("tasks").peek()
    worker = bench.worker()
    running = threading.Thread(target=worker.run)
    running.start()
    eventually(lambda: lines(notes))
    bench.backend.queue("tasks-dlq").send([OutgoingMessage(message.body, message.attributes)])

    assert bench.bury() == 0
    go.touch()
    eventually(lambda: bench.state(handle.request_id).state == "completed")
    worker.stop()
    running.join()

    assert bench.types(handle.request_id)[-1] == "Task Completed"


def test_a_dead_letter_of_a_task_that_was_received_too_often_fails_it(bench: Bench) -> None:
    handle = bench.producer.submit("echo")
    queue = bench.backend.queue("tasks")
    queue.reject(queue.receive(), reason="received too often")

    assert bench.bury() == 1

    state = bench.state(handle.request_id)
    assert (state.state, state.error_category) == ("failed", "max-retries")
    assert bench.producer.retry(handle.request_id).run == 2


def test_two_handlers_of_dead_letters_record_one_end(bench: Bench) -> None:
    handle = bench.producer.submit("echo")
    queue, letters = bench.backend.queue("tasks"), bench.backend.queue("tasks-dlq")
    [delivery] = queue.receive()
    letters.send([OutgoingMessage(delivery.body, delivery.attributes)] * 5)
    counts: list[int] = []

    def bury() -> None:
        counts.append(DeadLetterHandler(bench.backend, tenant_id=TENANT, app=APP).run_once())

    threads = [threading.Thread(target=bury) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(counts) == 1
    assert bench.types(handle.request_id) == ["Task Pending", "Task Failed"]


class ForgetfulBackend:
    """A backend whose messages cannot be extended."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.extensions: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def queue(self, name: str) -> Any:
        return _ForgetfulQueue(self._backend.queue(name), self)


class _ForgetfulQueue:
    def __init__(self, queue: Any, owner: ForgetfulBackend) -> None:
        self._queue = queue
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def extend(self, deliveries: list[Delivery], *, seconds: float) -> list[AckResult]:
        self._owner.extensions.append(seconds)
        return [AckResult(ok=False) for _ in deliveries]


@pytest.mark.slow
def test_three_extensions_that_fail_in_a_row_kill_the_child_and_record_nothing(bench: Bench, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    handle = bench.producer.submit("sleep", {"notes": str(notes)})
    forgetful: Any = ForgetfulBackend(bench.backend)
    worker = TaskWorker(
        forgetful,
        imports=["tests.tasks.chores"],
        tenant_id=TENANT,
        app=APP,
        kill_grace=0.3,
        visibility_extension=30,
        extension_interval=0.1,
    )
    running = threading.Thread(target=worker.run)
    running.start()
    eventually(lambda: lines(notes))

    eventually(lambda: not is_alive(int(lines(notes)[0])))
    worker.stop()
    running.join()

    assert forgetful.extensions == [30, 30, 30]
    kinds = [kind for kind in bench.types(handle.request_id) if kind != "Task Heartbeat"]
    assert kinds == ["Task Pending", "Task Processing Started"]
    held = TaskRecords(bench.backend).read(TENANT, handle.request_id)
    assert held is not None
    assert held.lease.attempts == 1
