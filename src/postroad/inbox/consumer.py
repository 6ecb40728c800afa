"""The consumer: takes events from a queue and makes each one's effect once."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from typing import Annotated, Any, Literal

from msgspec import Meta

from postroad.arguments import FINITE, check
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError, PostroadError, TransportError
from postroad.inbox.applications import (
    DEAD,
    RELEASED,
    Application,
    OnUnknown,
    Outside,
    Renewals,
    Transaction,
    check_connections,
    in_database,
)
from postroad.inbox.decisions import AsyncTimed, Decisions, Timed, choose
from postroad.inbox.inbox import Inbox, Windows, check_windows
from postroad.inbox.telemetry import ConsumeReport, ConsumerTelemetry, Timing
from postroad.queues import Delivery, Queue
from postroad.receiving import NO_DEAD_LETTERS, Counts, Hooks, Receiver, completed, in_thread, is_async
from postroad.settings import aws_place
from postroad.signals import stopped_by_sigterm

_BATCH = 10
_OTHER_FUNCTIONS = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_LONGEST_NAME = 200
_MOST_THREADS = 1_000
_LONGEST_COVER = 43_200.0
_WAIT = 10.0
# A first failure is often a passing one, so its retry comes at once; in every case before the visibility would end.
_DELAYS = (0.0, 1.0, 5.0, 30.0, 120.0)
_COUNT_DEAD_SECONDS = 30.0
_PRUNE_BATCH, _PRUNE_EVERY, _PRUNE_AGAIN = 500, 60.0, 0.1

_Interval = Annotated[float, Meta(gt=0, le=FINITE, description="a number of seconds above 0")]


class Consumer:
    """Hands the events of a queue to `handler`, of which each is handled once in the name of this consumer."""

    def __init__(
        self,
        queue: Queue,
        handler: Callable[[Any, Any], Any],
        *,
        name: str,
        inbox: Inbox,
        effects: Literal["database", "external"] = "database",
        types: Iterable[str | type] | None = None,
        dead_letters: Queue | None = None,
        windows: Windows = Windows(),  # noqa: B008  # frozen
        transaction: Transaction | None = None,
        concurrency: int = 1,
        on_unknown: OnUnknown = "dead_letter",
        service: str = "default",
    ) -> None:
        _check(name=name, handler=handler, concurrency=concurrency, effects=effects, on_unknown=on_unknown)
        check_windows(inbox.retention, windows)
        check_connections(inbox, transaction, external=effects == "external")
        self.name = name
        self._inbox = inbox
        self._dead_letters, self._count_dead_at = dead_letters, 0.0
        self._prune_at = 0.0
        self._tally = Counts()
        self._teller = ConsumerTelemetry(name, queue.name, service)
        self._timing = Timing(queue.name, queue.traits.visibility)
        renewals = Renewals(inbox, queue.traits.visibility, SYSTEM_CLOCK)
        self._is_async = is_async(handler)
        timed = (AsyncTimed if self._is_async else Timed)(handler, self._timing, self._teller)
        self._application: Application = (
            in_database(name, inbox, timed, transaction)
            if effects == "database"
            else Outside(
                name=name,
                inbox=inbox,
                handler=timed,
                on_unknown=on_unknown,
                renewals=renewals,
                is_async=self._is_async,
            )
        )
        self._decisions = Decisions(choice=choose(types), application=self._application, teller=self._teller)
        self._reporting: Callable[[], AbstractContextManager[None]] = nullcontext
        self._receiver = Receiver(
            queue,
            self._decisions.adecide if self._is_async else self._decisions.decide,
            concurrency=concurrency,
            batch=max(_BATCH, concurrency),
            wait=_WAIT,
            retry_delays=[min(delay, queue.traits.visibility) for delay in _DELAYS],
            dead_letters=NO_DEAD_LETTERS if dead_letters is None else dead_letters,
            name=name,
            hooks=Hooks(
                observe=self._observe,
                ready=self._look_around,
                chores=[renewals],
                longest=_LONGEST_COVER,
                during=lambda: self._reporting(),
            ),
        )
        renewals.wake = self._receiver.wake

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
        check(interval, _Interval, "interval", ConfigurationError)
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
        before = self._tally.read()
        try:
            self._receiver.run_once(wait=wait)
        finally:
            counted = {name: count - before.get(name, 0) for name, count in self._tally.read().items()}
        self._prune_inbox()
        return ConsumeReport(**counted)

    def run(self, stop: threading.Event | None = None) -> None:
        """Handle what comes until `stop` is set or SIGTERM arrives; then end what runs and give back the rest."""
        stopping = threading.Event() if stop is None else stop
        with stopped_by_sigterm(stopping):
            self._prepare()
            self._receiver.run(stopping)

    async def arun(self, stop: asyncio.Event | None = None) -> None:
        """Handle what comes until `stop` is set or the task is cancelled; an async handler runs on this loop."""
        await in_thread(self._prepare)
        await self._receiver.arun(stop)

    def start(self) -> None:
        """Handle what comes on a thread of its own; an async handler runs on the loop of the caller, if it has one."""
        self._prepare()
        self._receiver.start()

    def stop(self, timeout: float | None = 20.0) -> None:
        """Begin nothing more, let running handlers end and settle, give back the rest. Stopping twice is ok."""
        self._receiver.stop(math.inf if timeout is None else timeout)

    def _prepare(self) -> None:
        if self._receiver.is_running:
            raise RuntimeError("the consumer is already started; stop it first")
        self._refuse_wrong_tables()
        self._teller.begin()

    def _observe(self, what: str, delivery: Delivery | None, /, **fields: Any) -> None:
        if what == "received":
            self._tally.add("received", len(fields["deliveries"]))
        elif what == "acked":
            self._tally.add(fields["label"] or "handled")
        elif what == "released":
            self._tally.add("released", len(fields["deliveries"]))
        elif what == "retried":
            self._tally.add("released" if fields["label"] == RELEASED else "failed")
        elif what == "rejected":
            self._tally.add("dead" if fields["label"] == DEAD else "failed")
            if self._dead_letters is not None:
                self._teller.count_dead_letters(self._dead_letters)
        self._teller.observe(what, delivery, **fields)

    def _look_around(self) -> None:
        """Raise while the database cannot be used: receiving then would only wear out the messages."""
        if self._decisions.database_failed:
            (self._receiver.complete if self._is_async else completed)(self._application.check())
            self._decisions.database_failed = False
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


def _check(*, name: object, handler: object, concurrency: object, effects: object, on_unknown: object) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
        raise _refused("name", name, f"1 to {_LONGEST_NAME} printable characters")
    if not callable(handler) or any(is_another(handler) for is_another in _OTHER_FUNCTIONS):
        raise _refused("handler", handler, "a function of the event and the connection or effect")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= _MOST_THREADS:
        raise _refused("concurrency", concurrency, f"a whole number from 1 to {_MOST_THREADS}")
    if effects not in ("database", "external"):
        raise _refused("effects", effects, "'database' or 'external'")
    if on_unknown not in ("dead_letter", "retry"):
        raise _refused("on_unknown", on_unknown, "'dead_letter' or 'retry'")


def _refused(field: str, value: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{field}: {value!r} is not {wanted}", field=field, remedy=f"Give {wanted}.")
