"""The threads of a server: results and errors come back, context variables go along, and no more run than allowed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from postroad.http.threads import Threads

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(2, name="test")
    yield made
    made.shutdown()


def test_work_returns_its_result_and_sees_the_variables_of_its_caller(threads: Threads) -> None:
    async def call() -> tuple[str, str]:
        WHO.set("ann")
        return await threads.run(lambda: (WHO.get(), threading.current_thread().name))

    who, where = asyncio.run(call())

    assert (who, where) == ("ann", "test-0")


def test_an_error_reaches_the_caller_and_the_thread_goes_on(threads: Threads) -> None:
    def fail() -> None:
        raise ValueError("no")

    async def call() -> str:
        with pytest.raises(ValueError, match="no"):
            await threads.run(fail)
        return await threads.run(lambda: threading.current_thread().name)

    assert asyncio.run(call()) == "test-0"


def test_no_more_threads_run_than_allowed(threads: Threads) -> None:
    both = threading.Barrier(2)

    async def call() -> set[str]:
        def meet() -> str:
            both.wait(timeout=120)
            return threading.current_thread().name

        return set(await asyncio.gather(*(threads.run(meet) for _ in range(6))))

    assert asyncio.run(call()) == {"test-0", "test-1"}


def test_while_no_thread_can_be_started_those_that_run_do_the_work(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def call() -> list[str]:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                await threads.run(lambda: "never")
        await threads.run(lambda: None)
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            work = [threads.run(lambda: threading.current_thread().name) for _ in range(3)]
            return await asyncio.gather(*work)

    assert asyncio.run(call()) == ["test-0"] * 3


def test_a_caller_that_is_cancelled_leaves_the_thread_to_others(threads: Threads) -> None:
    go_on = threading.Event()

    async def call() -> str:
        waiting = asyncio.create_task(threads.run(lambda: go_on.wait(timeout=120)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()
        return await threads.run(lambda: "done")

    assert asyncio.run(call()) == "done"


def test_work_that_outlives_its_event_loop_disturbs_nobody(threads: Threads) -> None:
    go_on, finished = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait(timeout=120)
        finished.set()

    async def leave() -> None:
        asyncio.ensure_future(threads.run(work)).cancel()
        asyncio.ensure_future(threads.run(work))  # noqa: RUF006  # the loop ends before it does
        await asyncio.sleep(0)

    asyncio.run(leave())
    go_on.set()

    assert finished.wait(timeout=120)
    assert asyncio.run(threads.run(lambda: "done")) == "done"
