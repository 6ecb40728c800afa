"""What people do with buses and sessions first, the same on every ground."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

from tests.bus.vocabulary import Stepped
from tests.examples.grounds import Ground
from tests.sessions.plans import AddStep, Plan
from tests.sessions.processes import process
from tests.sessions.reviews import Reviewer, ReviewLoop, ReviewRequest, ReviewResult
from tests.waiting import eventually

from postroad.bus import BusConfig, CircuitOpenError, PublishFailed
from postroad.sessions import (
    MainLoopCompleted,
    MainLoopRequest,
    PromptExecuted,
    PromptResponse,
    Session,
    SQSMainLoopClient,
    ToolInvoked,
)
from postroad.testing import FakeClock

QUICK = BusConfig(wait_time_seconds=1, poll_interval_seconds=0.01, retry_delays_seconds=(0,), max_receives=500)


def unique(stem: str) -> str:
    return f"{stem}-{uuid4().hex[:12]}"


def an_event_goes_round(ground: Ground) -> None:
    """The publisher's own handler runs once, on publish; another process's when it arrives."""
    name = unique("telemetry")
    bus, received = ground.bus(name, QUICK), list[Any]()
    bus.subscribe(PromptExecuted, received.append)
    bus.start_receiver()

    result = bus.publish(PromptExecuted("test", "openai", PromptResponse("test", "fine")))

    assert (result.ok, result.handled_count, result.remote) == (True, 1, "sent")
    eventually(lambda: ground.left(name) == 0)
    bus.stop_receiver()
    assert [event.prompt_name for event in received] == ["test"]


def ten_threads_publish_at_once(ground: Ground) -> None:
    """Nothing fails, and everything is there."""
    name = unique("stress")
    bus, seen = ground.bus(name, QUICK), list[str]()

    def publish(thread: int) -> bool:
        events = [PromptExecuted(f"{thread}-{number}", "openai", None) for number in range(20)]
        return all(bus.publish(event).ok for event in events)

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        published = list(pool.map(publish, range(10)))
    bus.subscribe(PromptExecuted, lambda event: seen.append(event.prompt_name))
    bus.start_receiver()

    eventually(lambda: len(seen) >= 200)
    bus.stop_receiver()
    assert all(published)
    assert sorted(seen) == sorted(f"{thread}-{number}" for thread in range(10) for number in range(20))


def workers_review_code_for_an_api(ground: Ground) -> None:
    """Requests on one queue, answers on another, telemetry of all workers gathered from a third."""
    names = [unique(stem) for stem in ("control", "answers", "telemetry")]
    control, answers, telemetry = (ground.bus(name, QUICK) for name in names)
    tokens, tools = list[Any](), list[str]()
    telemetry.subscribe(PromptExecuted, lambda event: tokens.append(event.usage.total_tokens if event.usage else None))
    telemetry.subscribe(ToolInvoked, lambda event: tools.append(event.result.value.text))
    telemetry.start_receiver()
    files = [f"{number}.py" for number in range(6)]
    with (
        process("reviewer", ground.url, *names, package="tests.examples"),
        process("reviewer", ground.url, *names, package="tests.examples"),
        SQSMainLoopClient(request_bus=control, response_bus=answers) as client,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        answers.start_receiver()

        completed = list(pool.map(lambda file: client.submit(ReviewRequest(file), timeout=60), files))

        eventually(lambda: len(tokens) == len(tools) == len(files))
        answers.stop_receiver()
    telemetry.stop_receiver()
    assert [answer.response.output for answer in completed] == [ReviewResult([f"{file} is fine"]) for file in files]
    assert (tokens, sorted(tools)) == ([10] * len(files), files)


def one_control_queue_carries_requests_and_answers(ground: Ground) -> None:
    """What reaches the one who has no handler for it goes back, and reaches the other."""
    name = unique("control")
    # Each side may take what is the other's, and cannot handle it: nothing is lost, it only takes longer.
    config = replace(QUICK, local_dispatch=False)
    worker, submitter = ground.bus(name, config), ground.bus(name, config)
    completed: list[MainLoopCompleted[Any]] = []
    with ReviewLoop(adapter=Reviewer(), bus=worker):
        submitter.subscribe(MainLoopCompleted, completed.append)
        request = MainLoopRequest(ReviewRequest("main.py"))
        assert submitter.publish(request).ok
        worker.start_receiver()
        submitter.start_receiver()

        eventually(lambda: completed)
        worker.stop_receiver()
        submitter.stop_receiver()
    assert [answer.request_id for answer in completed] == [request.request_id]
    assert completed[0].response.output == ReviewResult(["main.py is fine"])


def two_processes_keep_one_plan(ground: Ground) -> None:
    """What either session broadcasts, both have."""
    with (
        process("follower", ground.url) as other,
        ground.backend.bus("agent-state", config=QUICK) as bus,
        Session(bus=bus) as session,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        session.install(Plan)
        session[Plan].seed(Plan(steps=()))
        bus.start_receiver()

        session.broadcast(AddStep(step="research"))
        there = other.stdout.readline().split()
        other.stdin.write("write\n")
        other.stdin.flush()

        eventually(lambda: session[Plan].latest() == Plan(("research", "write")))
    assert there == ["research"]


def a_session_keeps_its_order_on_fifo(ground: Ground) -> None:
    """`${session_id}` is filled in on publish: each session is a group of its own."""
    name = unique("state") + ".fifo"
    config = replace(QUICK, message_group_id="${session_id}", local_dispatch=False)
    publisher = ground.bus(name, config)
    receivers = [ground.bus(name, config) for _ in range(2)]
    seen: list[tuple[str, int]] = []
    failed: set[str] = set()

    def follow(event: Stepped) -> None:
        if event.number == 2 and event.session_id not in failed:
            failed.add(event.session_id)
            raise ValueError("the first time")
        seen.append((event.session_id, event.number))

    for receiver in receivers:
        receiver.subscribe(Stepped, follow)
        receiver.start_receiver()

    results = publisher.publish_many(Stepped(session, number) for number in range(5) for session in "abc")

    eventually(lambda: len(seen) == 15)
    for receiver in receivers:
        receiver.stop_receiver()
    assert all(result.ok for result in results)
    assert all([number for who, number in seen if who == session] == [0, 1, 2, 3, 4] for session in "abc")


def a_breaker_spares_a_queue_that_is_gone(ground: Ground) -> None:
    """After five failures nothing is asked any more; local handlers still run, and a probe closes it again."""
    name, clock, seen = unique("guarded"), FakeClock(), list[object]()
    bus = ground.guarded(name, QUICK, clock)
    bus.subscribe(AddStep, seen.append)
    failures = [bus.publish(AddStep("research")) for _ in range(5)]

    refused = bus.publish(AddStep("write"))
    ground.make(name)
    clock.advance(30)
    probe = bus.publish(AddStep("review"))

    assert all(isinstance(failure.errors[0].error, PublishFailed) for failure in failures)
    assert isinstance(refused.errors[0].error, CircuitOpenError)
    assert (refused.handled_count, len(seen)) == (1, 7)
    assert (probe.ok, bus.health().publish_breaker) == (True, "closed")
    bus.close()


JOURNEYS: tuple[Callable[[Ground], None], ...] = (
    an_event_goes_round,
    ten_threads_publish_at_once,
    workers_review_code_for_an_api,
    one_control_queue_carries_requests_and_answers,
    two_processes_keep_one_plan,
    a_session_keeps_its_order_on_fifo,
    a_breaker_spares_a_queue_that_is_gone,
)
