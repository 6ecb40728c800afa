"""Waiting for tasks: a handle returns the result, or raises why there is none."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tasks import chores, errands
from tests.tasks.benches import APP, TENANT, Bench, working
from tests.tasks.errands import Store

import postroad
from postroad import Backend
from postroad.engine import disk
from postroad.errors import InvalidTask, NotFound, TaskRunCancelled, TaskRunFailed
from postroad.jobs import Jobs
from postroad.tasks import TaskHandle, TaskProducer

SECONDS = 30.0
BOTH = ("tests.tasks.errands", "tests.tasks.chores")


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Every store, with one worker."""
    path = tmp_path_factory.mktemp("handles") / "tasks.db"
    with postroad.connect("memory://" if request.param == "memory" else f"sqlite:///{path}") as backend:
        with working(Bench(backend), imports=BOTH) as bench:
            yield bench


def test_a_handle_is_what_it_was_before(bench: Bench) -> None:
    handle = bench.producer.submit(errands.scrape, "s1", 1)

    assert handle == TaskHandle(handle.request_id, 1, True)
    assert repr(handle) == f"TaskHandle(request_id={handle.request_id!r}, run=1, created=True)"


def test_a_failure_is_raised_with_its_error_category_and_traceback(bench: Bench) -> None:
    handle = bench.producer.submit(errands.fails_below, n=2)

    with pytest.raises(TaskRunFailed) as failed:
        handle.wait(SECONDS)

    error = failed.value
    assert (error.request_id, error.run, error.category) == (handle.request_id, 1, "parse")
    assert error.error.startswith("JSONDecodeError: ")
    assert "in fails_below" in error.traceback
    assert error.traceback.splitlines()[-1].startswith("json.decoder.JSONDecodeError")
    assert str(error) == f"task {handle.request_id!r} failed: {error.error}"
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_a_task_without_attempts_left_is_a_failure_too(bench: Bench) -> None:
    handle = bench.producer.submit("segfault")
    burying = threading.Event()

    def bury() -> None:
        while not burying.wait(0.05):
            bench.bury()

    thread = threading.Thread(target=bury)
    thread.start()
    try:
        with pytest.raises(TaskRunFailed) as failed:
            handle.wait(SECONDS)
    finally:
        burying.set()
        thread.join()

    assert failed.value.category == "crash"
    assert failed.value.traceback == ""


def test_a_timeout_of_the_task_is_a_failure_and_that_of_the_wait_is_not(bench: Bench) -> None:
    slow = bench.producer.options(timeout=0.3).submit(errands.slowly, 20)
    with pytest.raises(TaskRunFailed, match="timed out") as failed:
        slow.wait(SECONDS)
    waiting = bench.producer.submit(errands.slowly, 20)

    with pytest.raises(TimeoutError, match=r"did not end within 0\.2 seconds"):
        waiting.wait(0.2)

    assert failed.value.category == "timeout"
    assert waiting.cancel()


def test_a_cancelled_run_is_raised_as_such_and_wakes_the_waiting_thread(bench: Bench) -> None:
    handle = bench.producer.options(delay=60).submit(errands.scrape, "s1")
    threading.Timer(0.2, handle.cancel).start()

    with pytest.raises(TaskRunCancelled, match="cancelled on request") as cancelled:
        handle.wait(SECONDS)

    assert cancelled.value.request_id == handle.request_id
    assert vars(pickle.loads(pickle.dumps(cancelled.value))) == vars(cancelled.value)
    assert handle.cancel() is False
    assert bench.state(handle.request_id).state == "cancelled"


def test_each_run_has_its_own_end(bench: Bench, tmp_path: Path) -> None:
    first = bench.producer.options(delay=60, request_id="again").submit(errands.asks_for_time, str(tmp_path / "n"), 0)
    first.cancel()

    second = bench.producer.retry("again")

    assert second.wait(SECONDS) == 2
    assert first.cancel() is False
    with pytest.raises(TaskRunCancelled):
        first.wait(SECONDS)


def test_a_handle_tells_the_state_and_is_found_again_by_its_id(bench: Bench) -> None:
    handle = bench.producer.submit(errands.scrape, store_id="s1")
    handle.wait(SECONDS)

    found = bench.producer.handle(handle.request_id)

    state = handle.status()
    assert state is not None
    assert (state.state, state.request_id) == ("completed", handle.request_id)
    assert found == TaskHandle(handle.request_id, 1, False)
    assert found.wait() == Store("s1", 2, [])
    with pytest.raises(NotFound):
        bench.producer.handle("nobody")


def test_a_repeated_submission_waits_for_the_same_result(bench: Bench) -> None:
    once = bench.producer.options(request_id="same-result").submit(errands.scrape, "s1")
    again = bench.producer.options(request_id="same-result").submit("scrape", {"store_id": "s1"})

    assert (once.created, again.created) == (True, False)
    assert once.wait(SECONDS) == again.wait(SECONDS) == Store("s1", 2, [])


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_a_time_to_wait_that_is_none_is_refused(timeout: Any, bench: Bench) -> None:
    handle = bench.producer.submit(errands.scrape, "s1")

    with pytest.raises(InvalidTask) as refused:
        handle.wait(timeout)

    assert refused.value.field == "timeout"


def test_a_handle_of_no_producer_says_where_to_get_one() -> None:
    with pytest.raises(InvalidTask) as refused:
        TaskHandle("r1", 1, True).wait()

    assert "producer.handle" in refused.value.remedy


def test_handles_are_awaited_many_at_a_time_and_fail_as_they_do_elsewhere(bench: Bench) -> None:
    async def main() -> list[Any]:
        handles = [await bench.producer.asubmit(errands.add, n, b=n) for n in range(20)]
        failing = await bench.producer.asubmit(errands.fails_below, 1)
        results: list[Any] = await asyncio.gather(*handles)
        with pytest.raises(TaskRunFailed):
            await failing
        endless = await bench.producer.options(delay=60).asubmit("slowly", {"seconds": 1.0})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_of(endless), 0.2)
        endless.cancel()
        with pytest.raises(TaskRunCancelled):
            await endless
        return results

    threads = threading.active_count()
    assert asyncio.run(main()) == [2 * n for n in range(20)]
    assert threading.active_count() < threads + 40


async def _of(handle: TaskHandle[Any]) -> Any:
    return await handle


def test_a_waiting_handle_is_woken_and_does_not_poll(on_sqlite: Backend) -> None:
    bench = Bench(on_sqlite)
    items, reads = on_sqlite.items(), []
    get = items.get
    items.get = lambda key: (reads.append(key), get(key))[1]  # type: ignore[method-assign, func-returns-value]
    handle = bench.producer.options(delay=60).submit(errands.scrape, "s1")
    threading.Timer(2.0, handle.cancel).start()
    started = time.monotonic()

    with pytest.raises(TaskRunCancelled):
        handle.wait(SECONDS)

    assert time.monotonic() - started < SECONDS
    assert len(reads) < 12


ELSEWHERE = """
import sys
import postroad
from postroad.tasks import TaskProducer
from tests.tasks import errands

with postroad.connect(sys.argv[1]) as backend:
    producer = TaskProducer(backend, tenant_id="acme", app="shop")
    print(producer.handle(sys.argv[2]).wait(120), flush=True)
"""


def test_a_process_that_only_waits_is_woken_by_the_worker_of_another(on_sqlite: Backend, tmp_path: Path) -> None:
    bench = Bench(on_sqlite)
    handle = bench.producer.submit(errands.scrape, "s1")
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    waiting = subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, url, handle.request_id], stdout=subprocess.PIPE, text=True
    )

    with working(bench, imports=BOTH):
        printed = waiting.communicate(timeout=SECONDS)[0]

    assert printed.strip() == "Store(store_id='s1', depth=2, pages=[], price=None)"


def test_a_closed_backend_ends_the_wait(tmp_path: Path) -> None:
    backend = postroad.connect(f"sqlite:///{tmp_path / 'closing.db'}")
    handle = TaskProducer(backend, tenant_id=TENANT, app=APP).submit(chores.echo)
    threading.Timer(0.3, backend.close).start()

    with pytest.raises(postroad.errors.ConfigurationError, match="closed"):
        handle.wait(SECONDS)


def test_a_handle_is_found_without_a_lease_and_before_the_task_of_a_job_begins(on_sqlite: Backend) -> None:
    bench = Bench(on_sqlite)
    done = bench.run_one("echo", {"n": 1})
    on_sqlite.items().delete(f"{TENANT}/LEASE#TASK#{done.request_id}")
    jobs = Jobs(on_sqlite, tenant_id=TENANT, app=APP)
    tasks: list[dict[str, Any]] = [{"taskId": "a", "name": "echo"}, {"taskId": "b", "name": "echo", "dependsOn": ["a"]}]
    jobs.submit_job(tasks, job_id="job-1")

    assert bench.producer.handle(done.request_id).wait(120) == {"n": 1}
    waiting = bench.producer.handle("job-1.b")
    assert (waiting.run, waiting.status()) == (1, None)
    assert waiting.cancel()
    with pytest.raises(TaskRunCancelled):
        waiting.wait(5)


def test_a_run_until_idle_leaves_what_used_up_its_attempts_to_the_handler(backend: Backend) -> None:
    handle = Bench(backend).producer.submit("fail-loudly", {"again": True})

    Bench(backend).work(max_attempts=2, dead_letters=True)

    assert Bench(backend).bury() == 1
    with pytest.raises(TaskRunFailed, match="Max retries exhausted: no such order"):
        handle.wait(SECONDS)


@pytest.mark.slow
def test_a_worker_that_runs_on_ends_what_used_up_its_attempts(backend: Backend) -> None:
    with working(Bench(backend), max_attempts=1, dead_letters=True) as running:
        handle = running.producer.submit("fail-loudly", {"again": True})

        with pytest.raises(TaskRunFailed, match="Max retries exhausted: no such order"):
            handle.wait(SECONDS)


def test_an_end_is_on_the_disk_before_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with postroad.connect(f"sqlite:///{tmp_path / 'p.db'}") as backend:
        handle = TaskProducer(backend).submit("echo")
        handle.cancel()
        synced: list[int] = []
        monkeypatch.setattr(disk, "to_disk", synced.append)

        with pytest.raises(TaskRunCancelled):
            handle.wait(SECONDS)

        assert synced


def test_an_end_is_told_inside_a_transaction_of_the_caller(tmp_path: Path) -> None:
    async def main() -> None:
        with postroad.connect(f"sqlite:///{tmp_path / 'p.db'}") as backend:
            handle = TaskProducer(backend).submit("echo")
            handle.cancel()

            with backend.transaction():
                with pytest.raises(TaskRunCancelled):
                    handle.wait(SECONDS)
                with pytest.raises(TaskRunCancelled):
                    await asyncio.wait_for(_of(handle), SECONDS)

    asyncio.run(main())
