"""A main loop on the bus of one process."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.sessions.reviews import DeadBus, Reviewer, ReviewLoop, ReviewRequest, ReviewResult, failing, heard

from postroad.bus import InProcessEventBus
from postroad.errors import DeadlineExceeded
from postroad.sessions import (
    Budget,
    MainLoop,
    MainLoopCompleted,
    MainLoopConfig,
    MainLoopFailed,
    MainLoopRequest,
    PromptResponse,
    ToolInvoked,
)

PAST = datetime.now(UTC) - timedelta(seconds=1)
LATER = datetime.now(UTC) + timedelta(hours=1)


def test_a_request_on_the_bus_is_answered_on_it(bus: InProcessEventBus) -> None:
    answers = heard(bus, MainLoopCompleted, MainLoopFailed)
    reviewer = Reviewer()
    ReviewLoop(adapter=reviewer, bus=bus)
    request = MainLoopRequest(ReviewRequest("main.py"))

    result = bus.publish(request)

    assert result.ok
    assert [answer.request_id for answer in answers] == [request.request_id]
    assert answers[0].response == PromptResponse("review", output=ReviewResult(["main.py is fine"]))
    assert answers[0].session_id == reviewer.calls[0]["session"].session_id


class AsyncReviewer:
    """Answers on an event loop."""

    async def evaluate(self, prompt: Any, *, session: Any, **limits: Any) -> Any:
        await asyncio.sleep(0)
        return Reviewer().evaluate(prompt, session=session, **limits)


def test_an_async_adapter_answers_requests_on_the_bus_and_directly(bus: InProcessEventBus) -> None:
    answers = heard(bus, MainLoopCompleted, MainLoopFailed)
    loop = ReviewLoop(adapter=AsyncReviewer(), bus=bus)

    published = bus.publish(MainLoopRequest(ReviewRequest("main.py")))
    awaited = asyncio.run(bus.apublish(MainLoopRequest(ReviewRequest("main.py"))))
    response, session = loop.execute(ReviewRequest("main.py"))
    session.close()
    loop.close()

    assert published.ok
    assert awaited.ok
    assert [answer.response.output for answer in answers] == [response.output] * 2
    assert bus.publish(MainLoopRequest(ReviewRequest("main.py"))).handled_count == 0


def test_answers_go_to_the_response_bus_where_there_is_one(bus: InProcessEventBus) -> None:
    responses = InProcessEventBus()
    here, there = heard(bus, MainLoopCompleted), heard(responses, MainLoopCompleted)
    ReviewLoop(adapter=Reviewer(), bus=bus, response_bus=responses)

    bus.publish(MainLoopRequest(ReviewRequest("main.py")))

    assert (len(here), len(there)) == (0, 1)


def test_a_request_can_be_executed_directly(bus: InProcessEventBus) -> None:
    answers = heard(bus, MainLoopCompleted)

    response, session = ReviewLoop(adapter=Reviewer(), bus=bus).execute(ReviewRequest("main.py"))

    assert response.output == ReviewResult(["main.py is fine"])
    assert dict(session.tags) == {"loop": "review"}
    assert answers == []


def test_an_answer_that_cannot_be_published_fails_the_delivery(bus: InProcessEventBus) -> None:
    responses = DeadBus()
    ReviewLoop(adapter=Reviewer(), bus=bus, response_bus=responses)

    result = bus.publish(MainLoopRequest(ReviewRequest("main.py")))

    assert not result.ok
    assert [type(event) for event in responses.published] == [MainLoopCompleted]


def test_a_failure_is_published_and_raised_to_who_published_here(bus: InProcessEventBus) -> None:
    answers = heard(bus, MainLoopCompleted, MainLoopFailed)
    ReviewLoop(adapter=Reviewer(failing(ValueError("no such file"))), bus=bus)
    request = MainLoopRequest(ReviewRequest("main.py"))

    result = bus.publish(request)

    assert [(type(answer), answer.request_id, str(answer.error)) for answer in answers] == [
        (MainLoopFailed, request.request_id, "no such file")
    ]
    assert [str(failure.error) for failure in result.errors] == ["no such file"]


def test_a_failure_that_cannot_be_published_fails_the_delivery(bus: InProcessEventBus) -> None:
    ReviewLoop(adapter=Reviewer(failing(ValueError("no such file"))), bus=bus, response_bus=DeadBus())

    result = bus.publish(MainLoopRequest(ReviewRequest("main.py")))

    assert "no network" in repr(result.errors[0].error)


def test_the_session_of_a_request_stops_hearing_the_bus_when_it_is_answered(bus: InProcessEventBus) -> None:
    for work in (lambda file: ReviewResult([]), failing(ValueError("no such file"))):
        with ReviewLoop(adapter=Reviewer(work), bus=bus):
            bus.publish(MainLoopRequest(ReviewRequest("main.py")))

    assert bus.subscriptions(ToolInvoked) == ()


@pytest.mark.parametrize(
    ("config", "deadline"),
    [(None, PAST), (MainLoopConfig(deadline=PAST), None), (MainLoopConfig(deadline=LATER), PAST)],
)
def test_a_deadline_that_is_past_fails_without_calling_the_adapter(
    bus: InProcessEventBus, config: MainLoopConfig | None, deadline: datetime | None
) -> None:
    answers = heard(bus, MainLoopFailed)
    reviewer = Reviewer()
    ReviewLoop(adapter=reviewer, bus=bus, config=config)

    bus.publish(MainLoopRequest(ReviewRequest("main.py"), deadline=deadline))

    assert [type(answer.error) for answer in answers] == [DeadlineExceeded]
    assert reviewer.calls == []


def test_the_limits_of_a_request_win_over_those_of_the_loop(bus: InProcessEventBus) -> None:
    reviewer = Reviewer()
    ReviewLoop(adapter=reviewer, bus=bus, config=MainLoopConfig(deadline=PAST, budget=Budget(10)))

    bus.publish(MainLoopRequest(ReviewRequest("main.py"), budget=Budget(20), deadline=LATER))

    assert [(call["deadline"], call["budget"]) for call in reviewer.calls] == [(LATER, Budget(20))]


def test_limits_of_the_loop_hold_for_requests_without_any(bus: InProcessEventBus) -> None:
    reviewer = Reviewer()
    ReviewLoop(adapter=reviewer, bus=bus, config=MainLoopConfig(deadline=LATER, budget=Budget(10)))

    bus.publish(MainLoopRequest(ReviewRequest("main.py")))

    assert [(call["deadline"], call["budget"]) for call in reviewer.calls] == [(LATER, Budget(10))]


def test_an_adapter_is_not_told_of_limits_that_nobody_set(bus: InProcessEventBus) -> None:
    reviewer = Reviewer()

    ReviewLoop(adapter=reviewer, bus=bus).execute(ReviewRequest("main.py"))

    assert set(reviewer.calls[0]) == {"prompt", "session"}


def test_a_deadline_needs_a_time_zone(bus: InProcessEventBus) -> None:
    naive = datetime(2030, 1, 1)

    for use in (
        lambda: MainLoopConfig(deadline=naive),
        lambda: MainLoopRequest(ReviewRequest("main.py"), deadline=naive),
        lambda: ReviewLoop(adapter=Reviewer(), bus=bus).execute(ReviewRequest("main.py"), deadline=naive),
    ):
        with pytest.raises(ValueError, match="deadline"):
            use()


def test_a_closed_loop_takes_no_requests(bus: InProcessEventBus) -> None:
    reviewer = Reviewer()
    loop = ReviewLoop(adapter=reviewer, bus=bus)

    loop.close()
    loop.close()
    bus.publish(MainLoopRequest(ReviewRequest("main.py")))

    assert reviewer.calls == []


def test_a_loop_says_how_a_request_becomes_a_prompt_and_a_session(bus: InProcessEventBus) -> None:
    with pytest.raises(TypeError, match="create_prompt"):
        MainLoop(adapter=Reviewer(), bus=bus)  # type: ignore[abstract]  # the test is about it
