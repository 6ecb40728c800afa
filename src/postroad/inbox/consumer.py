"""The consumer: takes events from a queue and makes each one's effect once."""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Literal

from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError, PostroadError, TransportError
from postroad.events import DomainEvent
from postroad.inbox.applying import Application, InDatabase, OnUnknown, Outside
from postroad.inbox.choosing import choose
from postroad.inbox.inbox import Inbox
from postroad.inbox.judging import Judge, Timed
from postroad.inbox.patience import Patience
from postroad.inbox.renewing import Renewals
from postroad.inbox.report import ConsumeReport
from postroad.inbox.settling import Settler
from postroad.inbox.shift import Shift
from postroad.inbox.telling import Teller
from postroad.inbox.timing import Timing
from postroad.inbox.windows import Windows, check_windows
from postroad.inbox.working import Work
from postroad.queues import Delivery, Queue
from postroad.queues.acking import Acker
from postroad.queues.burying import GivenDeadLetters
from postroad.queues.holding import Holdings
from postroad.queues.housekeeping import Housekeeper
from postroad.queues.tally import Tally
from postroad.settings import aws_place
from postroad.signals import stopped_by_sigterm

_BATCH = 10
_OTHER_FUNCTIONS = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_LONGEST_NAME = 200
_MOST_THREADS = 1_000
_LONGEST_COVER = 43_200.0
# How long one receive waits: briefly where that costs nothing, so that a stop is noticed soon.
_SHORT_WAIT, _LONG_WAIT = 0.5, 10.0
_COUNT_DEAD_SECONDS = 30.0
_PRUNE_BATCH, _PRUNE_EVERY, _PRUNE_AGAIN = 500, 60.0, 0.1


class Consumer:
    """Hands the events of a queue to `handler`, of which each is handled once in the name of this consumer."""

    def __init__(
        self,
        queue: Queue,
        handler: Callable[[DomainEvent, Any], Any],
        *,
        name: str,
        inbox: Inbox,
        effects: Literal["database", "external"] = "database",
        types: Iterable[str] | None = None,
        dead_letters: Queue | None = None,
        windows: Windows = Windows(),  # noqa: B008  # frozen
        transaction: Callable[[], AbstractContextManager[Any]] | None = None,
        concurrency: int = 1,
        on_unknown: OnUnknown = "dead_letter",
        service: str = "default",
    ) -> None:
        _check(name=name, handler=handler, concurrency=concurrency, effects=effects, on_unknown=on_unknown)
        check_windows(inbox.retention, windows)
        if not inbox.owns_connections and (transaction is None or effects == "external"):
            raise ConfigurationError(
                "inbox: has no connections of its own", field="inbox",
                remedy="Give the inbox a DSN or path, or the consumer a `transaction`.",
            )  # fmt: skip
        self.name = name
        self._queue, self._inbox, self._concurrency = queue, inbox, concurrency
        self._dead_letters, self._count_dead_at = dead_letters, 0.0
        self._prune_at = 0.0
        self._visibility = queue.traits.visibility
        self._teller = Teller(name, queue.name, service)
        self._timing = Timing(queue.name, self._visibility)
        acker = Acker(SYSTEM_CLOCK, self._teller.ack_failed)
        self._holdings = Holdings(
            visibility=self._visibility, most=_LONGEST_COVER, clock=SYSTEM_CLOCK, failed=self._teller.heartbeat_failed
        )
        renewals = Renewals(inbox, self._visibility, SYSTEM_CLOCK)
        keeper = Housekeeper(SYSTEM_CLOCK, [acker, self._holdings, renewals], failed=self._teller.chore_failed)
        acker.wake = self._holdings.wake = renewals.wake = keeper.wake
        timed = Timed(handler, self._timing, self._teller)
        self._application: Application = (
            _in_database(name, inbox, timed, transaction)
            if effects == "database"
            else Outside(name=name, inbox=inbox, handler=timed, on_unknown=on_unknown, renewals=renewals)
        )
        self._judge = Judge(choice=choose(types), application=self._application, teller=self._teller)
        self._patience = Patience(SYSTEM_CLOCK, enabled=queue.traits.fifo)
        letters = None if dead_letters is None else GivenDeadLetters(dead_letters, SYSTEM_CLOCK)
        self._settler = Settler(
            queue=queue, visibility=self._visibility, dead_letters=letters, acker=acker, holdings=self._holdings,
            patience=self._patience, tally=Tally(), teller=self._teller,
        )  # fmt: skip
        self._reporting: Callable[[], AbstractContextManager[None]] = nullcontext
        self._lifecycle = threading.Lock()
        self._work: Work | None = None

    @property
    def advice(self) -> Mapping[str, str]:
        """What should be changed, by the name of its warning, such as `visibility_too_short`."""
        return self._timing.advice

    def report_to_cloudwatch(
        self, interval: float = 60.0, *, region: str | None = None, endpoint_url: str | None = None
    ) -> None:
        """Report lag, dead letters and handler times to CloudWatch from the next start on, for as long as it runs.

        The figures go to the namespace `Postroad` under the names that Prometheus sees. Alarms on the lag treat missing
        figures as a fault, so a consumer that died is noticed. The credentials need `cloudwatch:PutMetricData`.

        Args:
            interval: Seconds from one report to the next. CloudWatch keeps one figure a minute, so 60 is usual.
            region: The region of CloudWatch; by default that of the environment.
            endpoint_url: Another address of CloudWatch, such as that of an emulator.

        Raises:
            ConfigurationError: `interval` is not a time above zero, or no region is known.
        """
        _check_interval(interval)
        from postroad.connections.aws import AwsConnection
        from postroad.connections.cloudwatch import reporting

        place = region or aws_place()[0]
        AwsConnection(place, endpoint_url).close()

        @contextmanager
        def report() -> Iterator[None]:
            with (
                closing(AwsConnection(place, endpoint_url)) as connection,
                reporting(self._teller, connection, every=interval),
            ):
                yield

        self._reporting = report

    def run_once(self, *, wait: float = 0.0) -> ConsumeReport:
        """Receive once, handle what came, and tell what became of it."""
        shift = self._new_shift(raises=True)
        try:
            shift.hand_out(self._receive(wait))
            shift.wait_until_idle()
        finally:
            shift.stop(timeout=0.0)
        self._prune_inbox()
        return shift.report()

    def run(self, stop: threading.Event | None = None) -> None:
        """Handle what comes until `stop` is set or SIGTERM arrives; then end what runs and give back the rest."""
        stopping = threading.Event() if stop is None else stop
        with stopped_by_sigterm(stopping):
            work = self._begin()
            try:
                while work.thread.is_alive() and not stopping.wait(_SHORT_WAIT):
                    continue
            finally:
                self.stop(timeout=None)
        if work.error is not None:
            raise work.error

    def start(self) -> None:
        """Handle what comes on a thread of its own."""
        self._begin()

    def stop(self, timeout: float | None = 20.0) -> None:
        """Begin nothing more, let running handlers end and settle, give back the rest. Stopping twice is ok."""
        with self._lifecycle:
            work, self._work = self._work, None
        if work is not None and not work.stop(timeout):
            self._teller.stop_timed_out()

    def _begin(self) -> Work:
        self._refuse_wrong_tables()
        with self._lifecycle:
            if self._work is not None:
                raise RuntimeError("the consumer is already started; stop it first")
            self._teller.begin()
            self._work = Work(
                self._new_shift(raises=False), self._receive, self._look_around, self._teller, self._reporting
            )
            self._work.thread.start()
            return self._work

    def _new_shift(self, *, raises: bool) -> Shift:
        settler = replace(self._settler, tally=Tally())
        return Shift(self._judge, settler, self._holdings, concurrency=self._concurrency, raises=raises)

    def _receive(self, wait: float | None = None) -> list[Delivery]:
        if wait is None:
            wait = _SHORT_WAIT if self._queue.traits.short_waits else _LONG_WAIT
        most = self._patience.batch(max(_BATCH, self._concurrency), wait)
        found = self._queue.receive(max_messages=most, wait=wait, visibility=self._visibility)
        self._patience.seen(found)
        return found

    def _look_around(self, *, database_failed: bool) -> None:
        """Raise while the database cannot be used: receiving then would only wear out the messages."""
        if database_failed:
            self._application.check()
        if self._dead_letters is not None and time.monotonic() >= self._count_dead_at:
            self._count_dead_at = time.monotonic() + _COUNT_DEAD_SECONDS
            self._teller.count_dead_letters(self._dead_letters)
        self._prune_inbox()

    def _prune_inbox(self) -> None:
        """Forget a batch of what is older than the retention, once a minute, or soon again where there is more."""
        if not self._inbox.owns_connections or time.monotonic() < self._prune_at:
            return
        pruned = 0
        try:
            pruned = self._inbox.prune_batch(_PRUNE_BATCH)
        except PostroadError as error:
            # It has another minute; what keeps handlers from the database is seen where they use it.
            self._teller.prune_failed(error)
        self._prune_at = time.monotonic() + (_PRUNE_AGAIN if pruned == _PRUNE_BATCH else _PRUNE_EVERY)

    def _refuse_wrong_tables(self) -> None:
        if self._inbox.owns_connections:
            with suppress(TransportError):
                self._inbox.check()


def _in_database(
    name: str, inbox: Inbox, handler: Timed, transaction: Callable[[], AbstractContextManager[Any]] | None
) -> InDatabase:
    made = InDatabase(name=name, inbox=inbox, handler=handler, transaction=transaction or inbox.transaction)
    if transaction is None:
        made.proven.set()
    return made


def _check(*, name: object, handler: object, concurrency: object, effects: object, on_unknown: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
        raise _refused("name", name, f"1 to {_LONGEST_NAME} printable characters")
    if not callable(handler) or any(is_another(handler) for is_another in _OTHER_FUNCTIONS):
        raise _refused("handler", handler, "a plain function of the event and the connection or effect")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= _MOST_THREADS:
        raise _refused("concurrency", concurrency, f"a whole number from 1 to {_MOST_THREADS}")
    if effects not in ("database", "external"):
        raise _refused("effects", effects, "'database' or 'external'")
    if on_unknown not in ("dead_letter", "retry"):
        raise _refused("on_unknown", on_unknown, "'dead_letter' or 'retry'")


def _check_interval(interval: object) -> None:
    if isinstance(interval, bool) or not isinstance(interval, int | float) or not 0 < interval < math.inf:
        raise _refused("interval", interval, "a number of seconds above 0")


def _refused(field: str, value: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{field}: {value!r} is not {wanted}", field=field, remedy=f"Give {wanted}.")
