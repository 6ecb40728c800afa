"""Sessions and main loops on emulated AWS: the same code, the same promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.sessions.plans import AddStep, Plan
from tests.sessions.reviews import Reviewer, ReviewLoop, ReviewRequest, ReviewResult, failing, heard
from tests.waiting import eventually

import postroad
from postroad import Backend
from postroad.bus import BusConfig
from postroad.errors import RequestFailed
from postroad.sessions import MainLoopClient, MainLoopCompleted, Session

pytestmark = pytest.mark.aws
QUICK = BusConfig(wait_time_seconds=1)


@pytest.fixture
def backend(ministack_url: str) -> Iterator[Backend]:
    with postroad.connect(f"aws://us-east-1?endpoint_url={ministack_url}") as opened:
        yield opened


def test_clients_get_their_own_answers(backend: Backend, unique: Callable[[str], str]) -> None:
    name = unique("loop")
    with (
        ReviewLoop.serve(backend, adapter=Reviewer(), name=name, bus_config=QUICK),
        MainLoopClient.connect(backend, name=name) as one,
        MainLoopClient.connect(backend, name=name) as other,
    ):
        heard_there = heard(other._response_bus, MainLoopCompleted)

        answers = [client.submit(ReviewRequest("main.py"), timeout=30) for client in (one, other)]

    assert [answer.response.output for answer in answers] == [ReviewResult(["main.py is fine"])] * 2
    assert [answer.request_id for answer in heard_there] == [answers[1].request_id]


def test_a_failure_comes_back_as_what_it_was(backend: Backend, unique: Callable[[str], str]) -> None:
    name = unique("loop")
    adapter = Reviewer(failing(ValueError("no such file")))
    with (
        ReviewLoop.serve(backend, adapter=adapter, name=name, bus_config=QUICK),
        MainLoopClient.connect(backend, name=name) as client,
    ):
        with pytest.raises(RequestFailed) as caught:
            client.submit(ReviewRequest("main.py"), timeout=30)

    assert isinstance(caught.value.__cause__, ValueError)


def test_two_sessions_keep_one_plan(backend: Backend, unique: Callable[[str], str]) -> None:
    topic = unique("plan")
    with backend.bus(topic, config=QUICK) as one, backend.bus(topic, config=QUICK) as other:
        sessions = [Session(bus=bus) for bus in (one, other)]
        for session, bus in zip(sessions, (one, other), strict=True):
            session.install(Plan, initial=Plan)
            bus.start_receiver()

        sessions[0].broadcast(AddStep("research"))
        eventually(lambda: sessions[1][Plan].latest() == Plan(("research",)))

    assert sessions[0][Plan].latest() == Plan(("research",))
