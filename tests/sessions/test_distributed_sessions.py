"""Sessions across processes: what one broadcasts, all others reduce, once each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.sessions.plans import AddStep, Count, DropSteps, Note, Plan
from tests.sessions.processes import process
from tests.waiting import eventually

import postroad
from postroad import Backend
from postroad.bus import BusConfig, HandlingContext, TopicEventBus, current_context
from postroad.sessions import PromptExecuted, PromptResponse, Session, TokenUsage, ToolInvoked, ToolResult

pytestmark = pytest.mark.slow

QUICK = BusConfig(wait_time_seconds=1, retry_delays_seconds=(0.05,))


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with postroad.connect("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/b.db") as opened:
        yield opened


@pytest.fixture
def buses(backend: Backend) -> Iterator[tuple[TopicEventBus, TopicEventBus]]:
    with backend.bus("agent-state", config=QUICK) as one, backend.bus("agent-state", config=QUICK) as other:
        one.start_receiver()
        other.start_receiver()
        yield one, other


def following(bus: TopicEventBus) -> Session:
    session = Session(bus=bus)
    session.install(Plan, initial=Plan)
    session.install(Count, initial=Count)
    return session


def test_what_one_session_broadcasts_the_other_reduces(buses: tuple[TopicEventBus, TopicEventBus]) -> None:
    here, there = map(following, buses)

    here.broadcast(AddStep("research"))
    now = here[Plan].latest()
    eventually(lambda: there[Plan].latest() == Plan(("research",)))
    there.broadcast(AddStep("write"))
    eventually(lambda: here[Plan].latest() == Plan(("research", "write")))

    assert now == Plan(("research",))
    assert here[Count].latest() == there[Count].latest() == Count(2)


def test_an_event_that_was_applied_is_not_applied_again_when_it_is_delivered_again(
    buses: tuple[TopicEventBus, TopicEventBus],
) -> None:
    here, there = map(following, buses)
    failed_once = threading.Event()

    def failing_once(event: AddStep) -> None:
        if not failed_once.is_set():
            failed_once.set()
            raise ConnectionError("not now")

    buses[1].subscribe(AddStep, failing_once)

    here.broadcast(AddStep("research"))
    eventually(lambda: buses[1].health().handled == 1)

    assert there[Count].latest() == Count(1)


def test_a_failing_reducer_fails_the_delivery_which_is_retried_for_it_alone(
    buses: tuple[TopicEventBus, TopicEventBus],
) -> None:
    here, there = map(following, buses)
    attempts: list[str] = []

    def fragile(values: tuple[Note, ...], event: AddStep) -> list[Note]:
        attempts.append(event.step)
        if len(attempts) == 1:
            raise ConnectionError("not now")
        return [*values, Note(event.step)]

    there[Note].register(AddStep, fragile)

    here.broadcast(AddStep("research"))
    eventually(lambda: there[Note].all())

    assert attempts == ["research", "research"]
    assert there[Plan].latest() == Plan(("research",))
    assert there[Count].latest() == Count(1)


def test_a_reducer_that_never_succeeds_sends_the_event_to_the_dead_letters(
    backend: Backend, buses: tuple[TopicEventBus, TopicEventBus]
) -> None:
    here, there = map(following, buses)
    there[Note].register(AddStep, lambda values, event: [1 / 0])  # type: ignore[list-item]  # what fails

    here.broadcast(AddStep("research"))
    eventually(lambda: buses[1].health().dead_lettered == 1)

    letters = backend.queue("agent-state--dead").peek()
    assert [b"research" in _bytes(letter.body) for letter in letters] == [True]
    assert there[Plan].latest() == Plan(("research",))


def _bytes(body: bytes | str) -> bytes:
    return body.encode() if isinstance(body, str) else body


def test_a_replay_adds_nothing_to_a_session_that_has_seen_it_all(
    backend: Backend, buses: tuple[TopicEventBus, TopicEventBus]
) -> None:
    archive = backend.archive("agent-state")
    here, there = map(following, buses)
    here.broadcast(AddStep("research"))
    there.broadcast(AddStep("write"))
    eventually(lambda: here[Count].latest() == there[Count].latest() == Count(2))
    eventually(lambda: archive.run_once() or len(list(archive.events())) == 2)
    late = following(buses[0])

    archive.replay(here)
    archive.replay(late)

    assert here[Count].latest() == Count(2)
    assert late[Count].latest() == Count(2)


def test_an_event_published_in_a_handler_says_what_caused_it(
    buses: tuple[TopicEventBus, TopicEventBus],
) -> None:
    asking, answering = buses
    asked: list[HandlingContext] = []
    answered: list[HandlingContext] = []

    def answer(event: AddStep) -> None:
        asked.append(context())
        answering.publish(Note(event.step)).raise_if_errors()

    answering.subscribe(AddStep, answer)
    asking.subscribe(Note, lambda event: answered.append(context()))

    asking.publish(AddStep("research"))
    eventually(lambda: answered)

    cause, effect = asked[0].envelope, answered[0].envelope
    assert effect.causation_id == str(cause.event_id)
    assert effect.correlation_id == (cause.correlation_id or str(cause.event_id))
    assert effect.traceparent == cause.traceparent


def context() -> HandlingContext:
    found = current_context()
    assert found is not None
    return found


def test_an_event_published_in_a_handler_is_addressed_to_who_published_the_handled_one(backend: Backend) -> None:
    answers: list[Any] = []
    with (
        backend.bus("questions", config=QUICK) as asking,
        backend.bus("questions", config=QUICK) as answering,
        backend.bus("answers", config=QUICK) as sending,
        backend.bus("answers", attributes={"ReplyTo": [asking.publisher_id]}, config=QUICK) as mine,
        backend.bus("answers", attributes={"ReplyTo": ["somebody else"]}, config=QUICK) as others,
    ):
        answering.subscribe(AddStep, lambda event: sending.publish(Note(event.step)).raise_if_errors())
        mine.subscribe(Note, lambda event: answers.append(("mine", event)))
        others.subscribe(Note, lambda event: answers.append(("others", event)))
        for bus in (answering, mine, others):
            bus.start_receiver()

        asking.publish(AddStep("research"))
        eventually(lambda: answers)

    assert answers == [("mine", Note("research"))]


def test_sessions_with_one_order_of_events_end_in_one_state(backend: Backend) -> None:
    config = BusConfig(wait_time_seconds=1, message_group_id="plan")
    with (
        backend.bus("agent-state", fifo=True, local=False, config=config) as one,
        backend.bus("agent-state", fifo=True, local=False, config=config) as other,
    ):
        sessions = [following(one), following(other)]
        histories: list[list[object]] = [[], []]
        for session, history in zip(sessions, histories, strict=True):
            session.observe(Plan, lambda old, new, history=history: history.append(new[-1]))  # type: ignore[misc]
        one.start_receiver()
        other.start_receiver()

        threads = [threading.Thread(target=_steps_and_drops, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: all(len(history) == 20 for history in histories))

    assert histories[0] == histories[1]


def _steps_and_drops(session: Session) -> None:
    for number in range(5):
        session.broadcast(AddStep(f"{session.session_id} {number}")).raise_if_errors()
        session.broadcast(DropSteps()).raise_if_errors()


def test_telemetry_of_all_workers_is_aggregated(backend: Backend) -> None:
    tokens: list[int | None] = []
    tools: list[str] = []
    with (
        backend.bus("agent-telemetry", "aggregator", config=QUICK) as aggregating,
        backend.bus("agent-telemetry", config=QUICK) as one,
        backend.bus("agent-telemetry", config=QUICK) as other,
    ):
        aggregating.subscribe(
            PromptExecuted, lambda event: tokens.append(event.usage.total_tokens if event.usage else None)
        )
        aggregating.subscribe(ToolInvoked, lambda event: tools.append(event.result.value.text))
        aggregating.start_receiver()

        for number, bus in enumerate((one, other)):
            bus.publish(PromptExecuted("review", "openai", PromptResponse("review"), usage=TokenUsage(number, 10)))
            bus.publish(ToolInvoked("review", "openai", "search", {}, ToolResult("found", Note(f"{number}"))))
        eventually(lambda: len(tokens) == len(tools) == 2)

    assert sorted(map(str, tokens)) == ["10", "11"]
    assert sorted(tools) == ["0", "1"]


def test_two_processes_keep_one_plan(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/b.db"
    with process("follower", url) as other, postroad.connect(url) as backend:
        assert other.stdin is not None
        assert other.stdout is not None
        with backend.bus("agent-state", config=QUICK) as bus, following(bus) as session:
            bus.start_receiver()

            session.broadcast(AddStep("research"))
            seen_there = other.stdout.readline().split()
            other.stdin.write("write\n")
            other.stdin.flush()
            written_there = other.stdout.readline().split()
            eventually(lambda: session[Count].latest() == Count(2))

            assert (seen_there, written_there) == (["research"], ["research", "write"])
            assert session[Plan].latest() == Plan(("research", "write"))


def test_a_session_may_ignore_what_names_another_session_wherever_it_comes_from(
    buses: tuple[TopicEventBus, TopicEventBus],
) -> None:
    own = Session(bus=buses[1], scope="own", session_id=UUID(int=1))

    for number in (2, 1):
        buses[0].publish(ToolInvoked("review", "openai", "search", {}, ToolResult("found"), UUID(int=number)))
    eventually(lambda: own[ToolInvoked].all())

    assert [event.session_id for event in own[ToolInvoked].all()] == [UUID(int=1)]
