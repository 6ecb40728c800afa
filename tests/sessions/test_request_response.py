"""Requests and answers through a backend: workers share requests, and each client hears its own answers only."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.plans import Note
from tests.sessions.processes import process
from tests.sessions.reviews import Reviewer, ReviewLoop, ReviewRequest, ReviewResult, failing, heard
from tests.waiting import eventually

import postroad
from postroad import Backend
from postroad.bus import BusConfig, EventBus, HandlerFailure, PublishResult
from postroad.errors import DeadlineExceeded, InvalidMessage, RequestFailed
from postroad.sessions import MainLoopClient, MainLoopCompleted, MainLoopFailed, MainLoopRequest

pytestmark = pytest.mark.slow

QUICK = BusConfig(wait_time_seconds=1, retry_delays_seconds=(0.05,))


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with postroad.connect("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/b.db") as opened:
        yield opened


@pytest.fixture
def client(backend: Backend) -> Iterator[MainLoopClient]:
    with MainLoopClient.connect(backend) as connected:
        yield connected


def serve(backend: Backend, adapter: Reviewer) -> ReviewLoop:
    return ReviewLoop.serve(backend, adapter=adapter, bus_config=QUICK)


def test_a_served_loop_answers_a_connected_client(backend: Backend) -> None:
    with serve(backend, Reviewer()), MainLoopClient.connect(backend) as client:
        completed = client.submit(ReviewRequest("main.py"), timeout=20)

    assert completed.response.output == ReviewResult(["main.py is fine"])


def test_a_request_submitted_before_any_worker_is_there_waits_for_one(backend: Backend, client: MainLoopClient) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(client.submit, ReviewRequest("main.py"), timeout=20)
        eventually(lambda: backend.queue("mainloop-requests--workers").stats().visible == 1)

        with serve(backend, Reviewer()):
            completed = submitted.result(120)

    assert completed.response.output == ReviewResult(["main.py is fine"])


def test_workers_share_the_requests_and_clients_get_their_own_answers(backend: Backend) -> None:
    workers = [Reviewer(), Reviewer()]
    with (
        serve(backend, workers[0]),
        serve(backend, workers[1]),
        MainLoopClient.connect(backend) as one,
        MainLoopClient.connect(backend) as other,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        asked = [(client, f"{number}.py") for client in (one, other) for number in range(10)]
        answers = list(pool.map(lambda ask: ask[0].submit(ReviewRequest(ask[1]), timeout=20), asked))

    assert [answer.response.output for answer in answers] == [ReviewResult([f"{file} is fine"]) for _, file in asked]
    assert sum(len(worker.calls) for worker in workers) == 20


def test_no_client_hears_the_answers_of_another_though_the_environment_gives_both_one_name(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROAD_SQS_PUBLISHER_ID", "one-host")
    with serve(backend, Reviewer()), MainLoopClient.connect(backend) as one, MainLoopClient.connect(backend) as other:
        heard_there = heard(other._response_bus, MainLoopCompleted)
        heard_here = heard(one._response_bus, MainLoopCompleted)

        one.submit(ReviewRequest("main.py"), timeout=20)
        other.submit(ReviewRequest("other.py"), timeout=20)

    assert len(heard_here) == len(heard_there) == 1


def test_a_failure_that_came_through_the_transport_is_settled_and_not_run_again(
    backend: Backend, client: MainLoopClient
) -> None:
    reviewer = Reviewer(failing(ValueError("no such file")))
    with serve(backend, reviewer) as loop:
        with pytest.raises(RequestFailed) as caught:
            client.submit(ReviewRequest("main.py"), timeout=20)
        health: Any = loop._bus
        eventually(lambda: health.health().handled == 1)
        eventually(lambda: _is_empty(backend))

    assert isinstance(caught.value.__cause__, ValueError)
    assert len(reviewer.calls) == 1


def _is_empty(backend: Backend) -> bool:
    stats = backend.queue("mainloop-requests--workers").stats()
    return (stats.visible, stats.in_flight) == (0, 0)


def test_an_error_whose_class_is_unknown_to_the_client_still_tells_its_name(
    backend: Backend, client: MainLoopClient
) -> None:
    class Local(Exception):
        """Known to the worker only."""

    with serve(backend, Reviewer(failing(Local("odd")))):
        with pytest.raises(RequestFailed, match=r"Local.*odd"):
            client.submit(ReviewRequest("main.py"), timeout=20)


def test_a_deadline_that_passed_on_the_way_fails_the_request(backend: Backend, client: MainLoopClient) -> None:
    reviewer = Reviewer()
    with serve(backend, reviewer):
        with pytest.raises(RequestFailed) as caught:
            client.submit(ReviewRequest("main.py"), timeout=20, deadline=datetime.now(UTC) - timedelta(seconds=1))

    assert isinstance(caught.value.error, DeadlineExceeded)
    assert reviewer.calls == []


def test_an_answer_that_can_never_be_sent_is_a_failure(backend: Backend, client: MainLoopClient) -> None:
    reviewer = Reviewer(lambda file: float("nan"))
    with serve(backend, reviewer):
        with pytest.raises(RequestFailed) as caught:
            client.submit(ReviewRequest("main.py"), timeout=20)

    assert isinstance(caught.value.error, InvalidMessage)
    assert len(reviewer.calls) == 1


class FailingAtFirst:
    """A bus whose first publish fails."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._failed = threading.Event()

    def subscribe(self, event_type: type[object], handler: Any) -> None:
        self._bus.subscribe(event_type, handler)

    def unsubscribe(self, event_type: type[object], handler: Any) -> bool:
        return self._bus.unsubscribe(event_type, handler)

    def publish(self, event: object) -> PublishResult[Any]:
        if self._failed.is_set():
            return self._bus.publish(event)
        self._failed.set()
        return PublishResult(event, (), (HandlerFailure(self.publish, ConnectionError("no network")),), remote="failed")


def test_a_request_whose_answer_could_not_be_published_comes_again(backend: Backend, client: MainLoopClient) -> None:
    reviewer = Reviewer()
    with (
        backend.bus("mainloop-requests", "workers", config=QUICK) as requests,
        backend.bus("mainloop-responses", config=QUICK) as responses,
    ):
        ReviewLoop(adapter=reviewer, bus=requests, response_bus=FailingAtFirst(responses))
        requests.start_receiver()

        completed = client.submit(ReviewRequest("main.py"), timeout=20)

    assert completed.response.output == ReviewResult(["main.py is fine"])
    assert len(reviewer.calls) == 2


def test_waiting_on_the_thread_that_would_bring_the_answer_is_refused(backend: Backend) -> None:
    refusals: list[BaseException] = []
    with (
        serve(backend, Reviewer()),
        backend.bus("mainloop-requests", config=QUICK) as requests,
        backend.bus("mainloop-responses", config=QUICK) as responses,
        backend.bus("mainloop-responses", config=QUICK) as elsewhere,
        MainLoopClient(request_bus=requests, response_bus=responses) as client,
    ):

        def submit_here(event: Note) -> None:
            try:
                client.submit(ReviewRequest("main.py"), timeout=20)
            except RuntimeError as error:
                refusals.append(error)

        responses.subscribe(Note, submit_here)
        responses.start_receiver()

        elsewhere.publish(Note("wake up"))
        eventually(lambda: refusals)
        completed = client.submit(ReviewRequest("main.py"), timeout=20)

    assert "receiver" in str(refusals[0])
    assert completed.response.output == ReviewResult(["main.py is fine"])


def test_two_processes_review_code(tmp_path: Path) -> None:
    url, seen = f"sqlite:///{tmp_path}/b.db", tmp_path / "seen"
    with process("worker", url, str(seen)) as one, process("worker", url, str(seen)) as other:
        with postroad.connect(url) as backend, MainLoopClient.connect(backend) as client:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                files = [f"{number}.py" for number in range(8)]
                answers = list(pool.map(lambda file: client.submit(ReviewRequest(file), timeout=30), files))

    outputs: list[Any] = [answer.response.output for answer in answers]
    findings = [output.findings[0] for output in outputs]
    workers = {int(finding.split()[-1]) for finding in findings}
    assert [finding.split()[0] for finding in findings] == files
    assert workers <= {one.pid, other.pid}
    assert sorted(line.split()[1] for line in seen.read_text().splitlines()) == files


def test_a_killed_worker_leaves_its_request_to_another_and_the_client_gets_one_answer(tmp_path: Path) -> None:
    url, seen = f"sqlite:///{tmp_path}/b.db", tmp_path / "seen"
    with postroad.connect(url) as backend, MainLoopClient.connect(backend) as client:
        answers = heard(client._response_bus, MainLoopCompleted, MainLoopFailed)
        with process("worker", url, str(seen), "stuck") as stuck, concurrent.futures.ThreadPoolExecutor(1) as pool:
            submitted = pool.submit(client.submit, ReviewRequest("main.py"), timeout=60)
            eventually(seen.exists)
            with process("worker", url, str(seen)) as other:
                os.kill(stuck.pid, signal.SIGKILL)

                completed = submitted.result(120)
                # Behind it every further answer to the first request has come.
                client.submit(ReviewRequest("next.py"), timeout=60)

    assert completed.response.output == ReviewResult([f"main.py reviewed by {other.pid}"])
    assert seen.read_text() == f"{stuck.pid} main.py\n{other.pid} main.py\n{other.pid} next.py\n"
    assert len(answers) == 2


def test_a_request_of_the_old_kind_is_answered_too(backend: Backend) -> None:
    """Without a client: whoever publishes a request hears the answer on the bus of answers."""
    with (
        serve(backend, Reviewer()),
        backend.bus("mainloop-requests", config=QUICK) as requests,
        backend.bus("mainloop-responses", config=QUICK) as responses,
    ):
        answers = heard(responses, MainLoopCompleted)
        responses.start_receiver()
        request = MainLoopRequest(ReviewRequest("main.py"))

        assert requests.publish(request).ok
        eventually(lambda: answers)

    assert answers[0].request_id == request.request_id
