"""Connections: many pushes at once, and what becomes of them when the provider ends the connection."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hyperframe.frame import DataFrame, GoAwayFrame, PingFrame
from tests.notifications.people import push_to
from tests.notifications.senders.conftest import PUSH
from tests.notifications.senders.standins import ApnsStandIn, Fault, apns_stand_in

from postroad.notifications import NotificationStore, NotificationWorker, TokenResult
from postroad.notifications.senders import APNSSender, addresses
from postroad.notifications.senders.connection import GoAwayFilter
from postroad.queues import OutgoingMessage
from postroad.wiring import Backend

TOKENS = [f"{number:064x}" for number in range(8)]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(len(TOKENS)) as pool:
        yield pool


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def send_all(apple: ApnsStandIn, apns: APNSSender, pool: ThreadPoolExecutor) -> list[Future[TokenResult]]:
    """Send to all devices at once; Apple has all pushes in hand and has answered none."""
    for token in TOKENS:
        apple.fail(token, Fault(instead="hold"))
    sending = [pool.submit(apns.send, PUSH, token, push_id="offline:1") for token in TOKENS]
    eventually(lambda: len(apple.seen) == len(TOKENS))
    return sending


def test_what_apple_still_answers_after_its_goaway_is_awaited_and_not_sent_again(
    apple: ApnsStandIn, pool: ThreadPoolExecutor
) -> None:
    with APNSSender(**apple.arguments(timeout=60.0)) as apns:
        sending = send_all(apple, apns, pool)
        apple.go_away(promised=len(TOKENS))
        later = apns.send(PUSH, "ab" * 32, push_id="offline:1")
        apple.answer_held()
        results = [each.result() for each in sending]

    assert [later.outcome, *(result.outcome for result in results)] == ["sent"] * 9
    assert Counter(seen.token for seen in apple.seen) == Counter([*TOKENS, "ab" * 32])
    assert apple.connections == 2


@pytest.mark.parametrize("promised", [0, 5])
def test_what_apple_does_not_answer_any_more_is_sent_at_once_on_a_new_connection_under_its_id(
    apple: ApnsStandIn, pool: ThreadPoolExecutor, promised: int
) -> None:
    with APNSSender(**apple.arguments(timeout=60.0)) as apns:
        sending = send_all(apple, apns, pool)
        order = [seen.token for seen in apple.seen]
        apple.go_away(promised=promised)
        eventually(lambda: len(apple.seen) == 2 * len(TOKENS) - promised)
        apple.answer_held()
        results = [each.result() for each in sending]

    assert {result.outcome for result in results} == {"sent"}
    again = [seen.token for seen in apple.seen[len(TOKENS) :]]
    assert sorted(again) == sorted(order[promised:])
    for token in again:
        assert len({seen.headers["apns-id"] for seen in apple.seen if seen.token == token}) == 1
    assert apple.connections == 2


def test_a_warning_before_the_end_moves_new_pushes_and_the_last_word_moves_the_rest(
    apple: ApnsStandIn, pool: ThreadPoolExecutor
) -> None:
    with APNSSender(**apple.arguments(timeout=60.0)) as apns:
        sending = send_all(apple, apns, pool)
        apple.go_away(promised=1_000)
        later = apns.send(PUSH, "ab" * 32, push_id="offline:1")
        apple.go_away(promised=6)
        eventually(lambda: len(apple.seen) == 1 + len(TOKENS) + 2)
        apple.answer_held()
        results = [each.result() for each in sending]

    assert {later.outcome, *(result.outcome for result in results)} == {"sent"}
    assert apple.connections == 2


def test_a_push_that_two_connections_refuse_is_a_retry_and_no_third_is_opened(
    apple: ApnsStandIn, apns: APNSSender
) -> None:
    apple.fail(TOKENS[0], Fault(instead="goaway_before"), Fault(instead="goaway_before"))

    result = apns.send(PUSH, TOKENS[0], push_id="offline:1")
    after = apns.send(PUSH, TOKENS[0], push_id="offline:1")

    assert (result.outcome, result.status, result.reason) == ("retry", None, "GoAway")
    assert (after.outcome, apple.connections, len(apple.seen)) == ("sent", 3, 3)


def test_a_connection_that_goes_away_while_it_is_idle_costs_nothing(apple: ApnsStandIn, apns: APNSSender) -> None:
    apple.fail(TOKENS[0], Fault(instead="hold"))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(apns.send, PUSH, TOKENS[0], push_id="offline:1")
        eventually(lambda: len(apple.seen) == 1)
        apple.go_away(promised=1)
        apple.answer_held()

        assert first.result().outcome == "sent"

    assert apns.send(PUSH, TOKENS[1], push_id="offline:1").outcome == "sent"
    assert len(apple.seen) == 2


def test_eight_pushes_lost_with_one_connection_name_that_connection(
    apple: ApnsStandIn, apns: APNSSender, pool: ThreadPoolExecutor
) -> None:
    sending = send_all(apple, apns, pool)
    apple.hang_up()
    results = [each.result() for each in sending]
    sending = send_all_again(apple, apns, pool)
    apple.hang_up()
    others = [each.result() for each in sending]

    assert {result.outcome for result in results + others} == {"retry"}
    (first,), (second,) = ({result.lost_connection for result in each} for each in (results, others))
    assert None not in (first, second)
    assert first != second


def send_all_again(apple: ApnsStandIn, apns: APNSSender, pool: ThreadPoolExecutor) -> list[Future[TokenResult]]:
    apple.seen.clear()
    return send_all(apple, apns, pool)


def test_an_answer_is_heard_while_seven_others_are_awaited(apple: ApnsStandIn, pool: ThreadPoolExecutor) -> None:
    with APNSSender(**apple.arguments(timeout=60.0)) as apns:
        sending = send_all(apple, apns, pool)
        quick = [apns.send(PUSH, "ab" * 32, push_id=f"offline:{number}") for number in range(20)]
        apple.answer_held()
        results = [each.result() for each in sending]

    assert {result.outcome for result in quick + results} == {"sent"}
    assert apple.connections == 1


@pytest.mark.parametrize("limits", [{"streams": 1}, {"window": 40}], ids=["one stream", "little room"])
def test_a_provider_that_allows_little_at_a_time_gets_every_push(
    tmp_path: Path, pool: ThreadPoolExecutor, limits: dict[str, int]
) -> None:
    with apns_stand_in(tmp_path, **limits) as apple, APNSSender(**apple.arguments(timeout=60.0)) as apns:
        results = list(pool.map(lambda token: apns.send(PUSH, token, push_id="offline:1"), TOKENS * 3))

        assert {result.outcome for result in results} == {"sent"}
        assert (len(apple.seen), apple.connections) == (len(TOKENS) * 3, 1)


def test_pushes_go_through_the_proxy_that_the_environment_names(
    apple: ApnsStandIn, apns: APNSSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tunnel() as (proxy, asked):
        # The stand-in is on this machine, for which no proxy is used otherwise.
        monkeypatch.setattr(addresses, "proxy_for", lambda url: proxy)
        results = [apns.send(PUSH, token, push_id="offline:1").outcome for token in TOKENS]

    assert results == ["sent"] * len(TOKENS)
    (request,) = asked
    assert request.splitlines()[0] == f"CONNECT {apple.url.removeprefix('https://')} HTTP/1.1"
    assert "Proxy-Authorization: Basic a2ltOnNlY3JldA==" in request


@contextmanager
def tunnel() -> Iterator[tuple[str, list[str]]]:
    """A proxy for one connection: its address, and what it was asked."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                asked.append(client.recv(4096).decode())
                host, _, port = asked[0].split()[1].partition(":")
                with socket.create_connection((host, int(port))) as server:
                    client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                    back = threading.Thread(target=pass_on, args=(server, client))
                    back.start()
                    pass_on(client, server)
                    back.join()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://kim:secret@127.0.0.1:{listener.getsockname()[1]}", asked


def pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65_536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


def test_answers_that_never_come_on_a_connection_that_still_speaks_are_failures_of_their_own(
    apple: ApnsStandIn, pool: ThreadPoolExecutor
) -> None:
    apple.fail(TOKENS[0], Fault(instead="silence"))

    with APNSSender(**apple.arguments(timeout=1.0)) as apns:
        overdue = pool.submit(apns.send, PUSH, TOKENS[0], push_id="offline:1")
        while not overdue.done():
            apns.send(PUSH, TOKENS[1], push_id="offline:1")

    assert (overdue.result().reason, overdue.result().lost_connection) == ("Timeout", None)


def run_until(worker: NotificationWorker, holds: Callable[[], bool], act: Callable[[], None]) -> None:
    stop = threading.Event()
    running = threading.Thread(target=worker.run, args=(stop,))
    running.start()
    try:
        eventually(holds)
        act()
        eventually(lambda: worker.push_queue is not None and settled(worker))
    finally:
        stop.set()
        running.join()


def settled(worker: NotificationWorker) -> bool:
    assert worker.push_queue is not None
    stats = worker.push_queue.stats()
    return stats.visible == stats.in_flight == 0


@pytest.mark.parametrize("ending", ["go away", "hang up"])
def test_a_worker_loses_one_connection_and_its_breaker_stays_closed(
    backend: Backend, store: NotificationStore, apple: ApnsStandIn, ending: str
) -> None:
    for token in TOKENS:
        apple.fail(token, Fault(instead="hold"))
    bodies = [push_to(token).to_json() for token in TOKENS]
    backend.queue("push-queue").send([OutgoingMessage(body) for body in bodies])

    def end() -> None:
        if ending == "go away":
            apple.go_away(promised=4)
            apple.answer_held()
        else:
            apple.hang_up()

    with APNSSender(**apple.arguments(timeout=60.0)) as apns:
        worker = NotificationWorker(
            backend, store, push_queue="push-queue", offline_queue=None, apns=apns, wait=0.2, breaker_failures=2
        )
        run_until(worker, lambda: len(apple.seen) == len(TOKENS), end)

    waiting = backend.queue("push-queue").stats().delayed
    assert worker.breakers["apns"].state == "closed"
    assert (waiting, len(apple.seen)) == ((0, 12) if ending == "go away" else (8, 8))


def test_goaways_are_found_however_the_bytes_are_cut() -> None:
    away = GoAwayFrame(0, last_stream_id=7, additional_data=b"bye").serialize()
    others = [PingFrame(0, b"12345678").serialize(), DataFrame(5, b"x" * 300).serialize()]
    sent = others[0] + away + others[1] + away + others[0]

    for size in range(1, len(sent) + 1):
        frames, passed, found = GoAwayFilter(), b"", list[int]()
        for start in range(0, len(sent), size):
            rest, last_streams = frames.split(sent[start : start + size])
            passed += rest
            found += last_streams

        assert (passed, found) == (others[0] + others[1] + others[0], [7, 7])
