"""A key has one holder at a time; who lost it changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tests.outbox.dispatching.conftest import QUICK, MakeDispatcher
from tests.outbox.dispatching.publishers import Recorder
from tests.outbox.fixtures import OutboxFixture
from tests.waiting import eventually

from postroad import OutgoingMessage
from postroad.outbox import DispatchReport

LEASE = 2.0


class Holding(Recorder):
    """Its first call waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.refuse = self._hold

    def _hold(self, messages: Sequence[OutgoingMessage]) -> None:
        self.entered.set()
        self.let_go.wait(120)


def test_a_key_that_one_dispatcher_holds_is_not_claimed_by_another(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    holding = Holding()
    for n in (1, 2):
        fixture.add(payload={"n": n})
    passing = threading.Thread(target=dispatcher_of(fixture.outbox, holding).run_once)
    passing.start()
    assert holding.entered.wait(120)
    fixture.add(payload={"n": 3})
    fixture.add(key={"transferId": "tr_2"}, payload={"n": 4})

    report = dispatcher_of(fixture.outbox, recorder).run_once()

    holding.let_go.set()
    passing.join()
    assert report.sent == 1
    assert (recorder.numbers("tr_1"), recorder.numbers("tr_2")) == ([], [4])
    assert holding.numbers("tr_1") == [1, 2]


def test_several_dispatchers_publish_every_row_once_and_in_order(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    for n in range(120):
        fixture.add(key={"transferId": f"tr_{n % 7}"}, payload={"n": n})
    dispatchers = [dispatcher_of(fixture.outbox, recorder, replace(QUICK, batch=5)) for _ in range(3)]

    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(lambda dispatcher: dispatcher.drain(), dispatchers))

    assert sum(report.sent for report in reports) == 120
    assert all(recorder.numbers(f"tr_{n}") == list(range(n, 120, 7)) for n in range(7))


def test_a_lease_with_less_than_half_left_is_renewed_before_the_next_call(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    left: list[float] = []

    def wait_for_half(messages: Sequence[OutgoingMessage]) -> None:
        left.append(_lease_left(fixture))
        if len(left) == 1:
            eventually(lambda: _lease_left(fixture) < LEASE / 2)

    for n in (1, 2):
        fixture.add(payload={"n": n})
    recorder = Recorder(refuse=wait_for_half)

    report = dispatcher_of(fixture.outbox, recorder, replace(QUICK, lease=LEASE)).run_once()

    assert report == DispatchReport(claimed=2, sent=2)
    assert left[1] > LEASE / 2


def test_who_lost_a_key_stops_it_and_settles_nothing(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    holding = Holding()
    for n in (1, 2, 3):
        fixture.add(payload={"n": n})
    late = dispatcher_of(fixture.outbox, holding, replace(QUICK, lease=0.2))
    reports: list[DispatchReport] = []
    passing = threading.Thread(target=lambda: reports.append(late.run_once()))
    passing.start()
    assert holding.entered.wait(120)
    successor = dispatcher_of(fixture.outbox, recorder)
    successor.start()
    eventually(lambda: fixture.outbox.status().sent == 3)

    holding.let_go.set()
    passing.join()

    assert reports == [DispatchReport(claimed=3, stale=3)]
    assert holding.numbers() == [1]
    assert recorder.numbers() == [1, 2, 3]
    assert fixture.run("SELECT attempts FROM outbox ORDER BY seq") == [(1,), (1,), (1,)]


def test_a_token_that_grew_meanwhile_makes_the_settlement_stale(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    fixture.add(payload={"n": 1})
    recorder = Recorder(refuse=lambda messages: _take_over(fixture))

    report = dispatcher_of(fixture.outbox, recorder).run_once()

    assert report == DispatchReport(claimed=1, stale=1)
    assert fixture.run("SELECT state, attempts FROM outbox") == [("PENDING", 0)]


def test_a_row_that_was_parked_meanwhile_is_not_counted_as_sent(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    fixture.add()
    holding = Holding()
    with ThreadPoolExecutor() as threads:
        passing = threads.submit(dispatcher_of(fixture.outbox, holding).run_once)
        assert holding.entered.wait(120)
        fixture.run("UPDATE outbox SET state = 'PARKED', lease_owner = NULL, lease_until = NULL")
        holding.let_go.set()

        assert passing.result() == DispatchReport(claimed=1, stale=1)


def test_tokens_grow_with_every_claim(fixture: OutboxFixture, dispatcher_of: MakeDispatcher) -> None:
    fixture.add(payload={"n": 1})
    dispatcher = dispatcher_of(
        fixture.outbox, Recorder(fail=lambda message: TimeoutError()), replace(QUICK, backoff=(0,))
    )
    tokens = []

    for _ in range(3):
        dispatcher.run_once()
        tokens += fixture.run("SELECT lease_token FROM outbox")

    assert tokens == sorted(set(tokens))


def _take_over(fixture: OutboxFixture) -> None:
    fixture.run("UPDATE outbox SET lease_token = lease_token + 1")


def _lease_left(fixture: OutboxFixture) -> float:
    text = "extract(epoch FROM lease_until - now())::float8"
    if not fixture.on_postgres:
        text = "(julianday(lease_until) - julianday('now')) * 86400"
    return float(
        fixture.run(f"SELECT {text} FROM outbox WHERE lease_until IS NOT NULL ORDER BY seq DESC LIMIT 1")[0][0]
    )
