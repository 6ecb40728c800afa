"""The list of tasks: each task once, newest first, by state, name and time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.tasks.benches import APP, TENANT

import postroad
from postroad.errors import InvalidCursor, InvalidInput, InvalidTask
from postroad.jobs import Jobs
from postroad.journal import FAILED, STARTED, TIMEOUT, JournalEvent
from postroad.tasks import EventFactory, TaskFilter, TaskId, TaskList, TaskProducer, TaskRecords, since_of
from postroad.testing import FakeClock


class Office:
    """Tasks that come into their states without workers, a second apart."""

    def __init__(self, backend: postroad.Backend, clock: FakeClock) -> None:
        self.clock = clock
        self.backend = backend
        self.producer = TaskProducer(backend, tenant_id=TENANT, app=APP)
        self.tasks = TaskList(backend, tenant=TENANT)
        self._records = TaskRecords(backend)
        self._factory = EventFactory(app=APP, environment="dev", origin="sqs-worker", clock=clock)

    def submit(self, *names: str) -> None:
        """Submit tasks whose ids are `name-number`."""
        for name in names:
            self.clock.advance(1)
            self.producer.submit(name.rpartition("-")[0], request_id=name)

    def now_ms(self) -> int:
        return self._factory.now_ms()

    def _task(self, request_id: str) -> TaskId:
        held = self._records.read(TENANT, request_id)
        assert held is not None
        self.clock.advance(1)
        return held.lease.task(TENANT, request_id)

    def start(self, request_id: str, attempt: int = 1) -> None:
        task = self._task(request_id)
        given = {"workerId": "w", "processId": 1, "attemptNumber": attempt}
        self._records.record([self._factory.event(STARTED, task, **given, effectiveUntil=2_000_000_000)])  # type: ignore[arg-type]  # plain values

    def fail(self, request_id: str) -> None:
        task = self._task(request_id)
        event = self._factory.event(FAILED, task, error="no", errorCategory="unknown", retryCount=1, source="worker")
        self._settle(task, event)

    def time_out(self, request_id: str) -> None:
        task = self._task(request_id)
        self._settle(task, self._factory.event(TIMEOUT, task, timeoutMs=1, elapsedMs=1, signal="SIGTERM"))

    def _settle(self, task: TaskId, event: JournalEvent) -> None:
        held = self._records.read(TENANT, task.request_id)
        assert held is not None
        self._records.write(TENANT, task.request_id, held.lease.settled(event), [event], expect=held)

    def ids(self, limit: int = 100, **wanted: object) -> list[str]:
        page = self.tasks.page(TaskFilter(**wanted), limit=limit)  # type: ignore[arg-type]  # the filters of a test
        assert page.cursor is None
        return [listed.state.request_id for listed in page.items]


@pytest.fixture
def office() -> Iterator[Office]:
    clock = FakeClock()
    with postroad.connect("memory://", clock=clock) as backend:
        yield Office(backend, clock)


def test_tasks_are_listed_newest_first_by_when_they_were_submitted(office: Office) -> None:
    office.submit("resize-1", "resize-2", "crop-1")
    office.fail("resize-1")

    assert office.ids() == ["crop-1", "resize-2", "resize-1"]


def test_tasks_of_a_state_are_listed_by_when_they_came_into_it(office: Office) -> None:
    office.submit("a-1", "a-2", "a-3", "a-4", "a-5")
    office.time_out("a-3")
    office.fail("a-1")
    office.start("a-2")
    office.producer.cancel("a-4")

    assert office.ids(state="failed") == ["a-1", "a-3"]
    assert office.ids(state="processing") == ["a-2"]
    assert office.ids(state="cancelled") == ["a-4"]
    assert office.ids(state="pending") == ["a-5"]
    assert office.ids(state="completed") == []


def test_a_task_that_was_retried_is_listed_once_in_the_state_of_its_last_run(office: Office) -> None:
    office.submit("a-1", "a-2")
    office.fail("a-1")
    office.producer.retry("a-1")
    again = office.ids(state="failed"), office.ids(state="pending"), office.ids()
    office.fail("a-1")
    office.fail("a-2")

    assert again == ([], ["a-1", "a-2"], ["a-1", "a-2"])
    assert office.ids(state="failed") == ["a-2", "a-1"]


def test_a_task_that_started_twice_is_listed_by_its_last_start(office: Office) -> None:
    office.submit("a-1", "a-2")
    office.start("a-1")
    office.start("a-2")
    # An interrupted attempt is given back, so the next one has its number.
    office.start("a-1")

    assert office.ids(state="processing") == ["a-1", "a-2"]


def test_tasks_are_listed_by_name_and_since_a_time(office: Office) -> None:
    office.submit("a-1", "b-1", "a-2")
    since = office.now_ms()
    office.submit("a-3", "b-2")

    assert office.ids(name="a") == ["a-3", "a-2", "a-1"]
    assert office.ids(name="a", since=since) == ["a-3", "a-2"]
    assert office.ids(until=since) == ["a-2", "b-1", "a-1"]


def test_a_task_of_a_job_that_was_cancelled_before_it_began_is_listed(office: Office) -> None:
    tasks = [{"taskId": "x", "name": "a"}, {"taskId": "y", "name": "b", "dependsOn": ["x"]}]
    jobs = Jobs(office.backend, tenant_id=TENANT, app=APP)
    jobs.submit_job(tasks, job_id="j")
    jobs.cancel("j")

    assert sorted(office.ids()) == ["j.x", "j.y"]
    assert office.ids(state="cancelled", name="b") == ["j.y"]


def test_all_pages_together_are_the_whole_list(office: Office) -> None:
    names = [f"a-{number}" for number in range(25)]
    office.submit(*names)
    for name in names:
        office.time_out(name) if name.endswith("7") else office.fail(name)

    found, cursor = list[str](), None
    while True:
        page = office.tasks.page(TaskFilter(state="failed"), limit=4, cursor=cursor)
        found += [listed.state.request_id for listed in page.items]
        # What happens meanwhile does not disturb the walk.
        office.submit(f"b-{len(found)}")
        office.fail(f"b-{len(found)}")
        if (cursor := page.cursor) is None:
            break

    assert found == names[::-1]


def test_another_list_does_not_accept_a_cursor(office: Office) -> None:
    office.submit("a-1", "a-2")
    cursor = office.tasks.page(TaskFilter(), limit=1).cursor
    assert cursor is not None

    for wrong, filters in ((cursor, TaskFilter(state="pending")), (cursor[:-3], TaskFilter()), ("é", TaskFilter())):
        with pytest.raises(InvalidCursor):
            office.tasks.page(filters, cursor=wrong)


def test_what_no_task_can_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="state: 'faild' is not one of") as caught:
        TaskFilter(state="faild")
    with pytest.raises(InvalidTask, match="name"):
        TaskFilter(name="a b")

    assert caught.value.nearest == "failed"


def test_a_time_is_a_duration_or_a_date_or_milliseconds() -> None:
    now = 1_800_000_000_000

    assert since_of("1h", now) == now - 3_600_000
    assert since_of("30", now) == now - 30_000
    assert since_of("2027-01-15T08:00:00Z", now) == now
    assert since_of("1800000000000", now) == since_of(now, 0) == now
    assert since_of(None, now) is None
    with pytest.raises(InvalidInput, match="since: 'yesterday' is not a time"):
        since_of("yesterday", now)
