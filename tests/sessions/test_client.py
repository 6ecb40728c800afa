"""A client that waits for the answers of a main loop, on the bus of one process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from tests.sessions.reviews import DeadBus, Reviewer, ReviewLoop, ReviewRequest, ReviewResult, failing, heard

from postroad.bus import InProcessEventBus
from postroad.errors import DeadlineExceeded, RequestFailed, RequestTimeout
from postroad.sessions import (
    Budget,
    MainLoopClient,
    MainLoopCompleted,
    MainLoopFailed,
    MainLoopRequest,
    PromptResponse,
    SQSMainLoopClient,
)


@pytest.fixture
def client(bus: InProcessEventBus) -> SQSMainLoopClient:
    return SQSMainLoopClient(request_bus=bus, response_bus=bus)


def waiting(client: SQSMainLoopClient) -> None:
    """Wait until a request is pending."""
    until = threading.Event()
    for _ in range(1000):
        if client.pending():
            return
        until.wait(0.01)
    raise AssertionError("nothing is pending")


def test_a_request_gets_its_answer(bus: InProcessEventBus, client: SQSMainLoopClient) -> None:
    ReviewLoop(adapter=Reviewer(), bus=bus)

    completed = client.submit(ReviewRequest("main.py"))

    assert completed.response.output == ReviewResult(["main.py is fine"])
    assert client.pending() == ()


def test_limits_go_with_the_request(bus: InProcessEventBus, client: SQSMainLoopClient) -> None:
    reviewer = Reviewer()
    later = datetime.now(UTC) + timedelta(hours=1)
    ReviewLoop(adapter=reviewer, bus=bus)

    client.submit(ReviewRequest("main.py"), budget=Budget(5), deadline=later)

    assert (reviewer.calls[0]["budget"], reviewer.calls[0]["deadline"]) == (Budget(5), later)


def test_a_failure_is_raised_with_its_cause(bus: InProcessEventBus, client: SQSMainLoopClient) -> None:
    ReviewLoop(adapter=Reviewer(failing(ValueError("no such file"))), bus=bus)

    with pytest.raises(RequestFailed) as caught:
        client.submit(ReviewRequest("main.py"))

    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.error is caught.value.__cause__
    assert client.pending() == ()


def test_a_deadline_that_is_past_is_a_failure(bus: InProcessEventBus, client: SQSMainLoopClient) -> None:
    ReviewLoop(adapter=Reviewer(), bus=bus)

    with pytest.raises(RequestFailed) as caught:
        client.submit(ReviewRequest("main.py"), deadline=datetime.now(UTC) - timedelta(seconds=1))

    assert isinstance(caught.value.error, DeadlineExceeded)


def test_no_answer_in_time_is_a_timeout_and_leaves_nothing_pending(client: SQSMainLoopClient) -> None:
    with pytest.raises(RequestTimeout) as caught:
        client.submit(ReviewRequest("main.py"), timeout=0.01)

    assert isinstance(caught.value, TimeoutError)
    assert client.pending() == ()


def test_a_publish_that_fails_is_raised_and_leaves_nothing_pending() -> None:
    client = SQSMainLoopClient(request_bus=DeadBus(), response_bus=InProcessEventBus())

    with pytest.raises(ConnectionError):
        client.submit(ReviewRequest("main.py"))

    assert client.pending() == ()


def test_late_strange_and_repeated_answers_are_ignored(bus: InProcessEventBus, client: SQSMainLoopClient) -> None:
    asked: list[MainLoopRequest[ReviewRequest]] = heard(bus, MainLoopRequest)
    with pytest.raises(RequestTimeout):
        client.submit(ReviewRequest("main.py"), timeout=0.01)
    answer: MainLoopCompleted[object] = MainLoopCompleted(asked[0].request_id, PromptResponse("review"), uuid4())

    results = [bus.publish(event) for event in (answer, answer, MainLoopFailed(uuid4(), ValueError("whose?")))]

    assert all(result.ok for result in results)


def test_what_waits_can_be_seen(bus: InProcessEventBus, client: SQSMainLoopClient) -> None:
    seen = []
    bus.subscribe(MainLoopRequest, lambda event: seen.append(client.pending()))
    ReviewLoop(adapter=Reviewer(), bus=bus)

    completed = client.submit(ReviewRequest("main.py"))

    assert [pending.request_id for pending in seen[0]] == [completed.request_id]
    assert seen[0][0].submitted_at <= datetime.now(UTC)
    assert seen[0][0].future.result() == completed


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon", None])
def test_no_time_to_wait_is_refused_and_nothing_is_published(
    bus: InProcessEventBus, client: SQSMainLoopClient, timeout: float
) -> None:
    asked = heard(bus, MainLoopRequest)

    with pytest.raises(ValueError, match="timeout"):
        client.submit(ReviewRequest("main.py"), timeout=timeout)
    with pytest.raises(ValueError, match="timeout"):
        asyncio.run(client.asubmit(ReviewRequest("main.py"), timeout=timeout))

    assert asked == []
    assert client.pending() == ()


def test_a_deadline_without_a_time_zone_is_refused_and_nothing_is_published(
    bus: InProcessEventBus, client: SQSMainLoopClient
) -> None:
    asked = heard(bus, MainLoopRequest)

    with pytest.raises(ValueError, match="deadline"):
        client.submit(ReviewRequest("main.py"), deadline=datetime(2030, 1, 1))

    assert asked == []
    assert client.pending() == ()


def test_closing_cancels_what_waits(client: SQSMainLoopClient) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(client.submit, ReviewRequest("main.py"))
        waiting(client)

        client.close()
        client.close()

        assert isinstance(submitted.exception(10), concurrent.futures.CancelledError)
    assert client.pending() == ()


def test_a_closed_client_submits_nothing(bus: InProcessEventBus, client: SQSMainLoopClient) -> None:
    asked = heard(bus, MainLoopRequest)
    with client:
        pass

    with pytest.raises(RuntimeError, match="closed"):
        client.submit(ReviewRequest("main.py"))

    assert asked == []
    assert bus.subscriptions(MainLoopCompleted) == ()


def test_an_async_program_submits_without_blocking_its_loop(bus: InProcessEventBus, client: SQSMainLoopClient) -> None:
    go_on = threading.Event()
    ReviewLoop(adapter=Reviewer(lambda file: go_on.wait(120) and ReviewResult([])), bus=bus)

    async def program() -> MainLoopCompleted[ReviewResult]:
        submitted = asyncio.create_task(client.asubmit(ReviewRequest("main.py")))
        while not client.pending():
            await asyncio.sleep(0)
        go_on.set()
        return await submitted

    assert asyncio.run(program()).response.output == ReviewResult([])


def test_an_async_program_hears_of_failures_and_timeouts_alike(
    bus: InProcessEventBus, client: SQSMainLoopClient
) -> None:
    with pytest.raises(RequestTimeout):
        asyncio.run(client.asubmit(ReviewRequest("main.py"), timeout=0.01))
    ReviewLoop(adapter=Reviewer(failing(ValueError("no such file"))), bus=bus)

    with pytest.raises(RequestFailed):
        asyncio.run(client.asubmit(ReviewRequest("main.py")))

    assert client.pending() == ()


def test_an_async_program_that_stops_waiting_leaves_nothing_pending(client: SQSMainLoopClient) -> None:
    async def program() -> None:
        submitted = asyncio.create_task(client.asubmit(ReviewRequest("main.py")))
        while not client.pending():
            await asyncio.sleep(0)
        submitted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitted

    asyncio.run(program())

    assert client.pending() == ()


def test_closing_cancels_what_an_async_program_waits_for(client: SQSMainLoopClient) -> None:
    async def program() -> None:
        submitted = asyncio.create_task(client.asubmit(ReviewRequest("main.py")))
        while not client.pending():
            await asyncio.sleep(0)
        await asyncio.to_thread(client.close)
        with pytest.raises(asyncio.CancelledError):
            await submitted

    asyncio.run(program())


def test_its_other_name_means_the_same() -> None:
    assert MainLoopClient is SQSMainLoopClient
