"""The consumer: receives events from a queue and makes the effect of each one once."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from postroad import receiving
from postroad.arguments import SecondsAboveZero, check, refusal, whole_number
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError, PostroadError, TransportError
from postroad.events import DomainEvent
from postroad.inbox.effects import (
    AsyncTimed,
    Decisions,
    InDatabase,
    Timed,
    Timing,
    Transaction,
    check_connections,
    choose,
    in_database,
)
from postroad.inbox.external import DEAD, RELEASED, OnUnknown, Outside, Renewals
from postroad.inbox.inbox import Inbox, Windows, check_windows
from postroad.queues import Delivery, Queue
from postroad.settings import aws_place
from postroad.signals import stopped_by_sigterm
from postroad.telemetry import gauge, get_logger, histogram, tracing

if TYPE_CHECKING:
    from prometheus_client import Gauge, Histogram
    from prometheus_client.metrics_core import Metric

_BATCH = 10
_MOST_THREADS = 1_000
_LONGEST_COVER = 43_200.0
_WAIT = 10.0
# A first failure is often a passing one, so its retry comes at once; every retry comes before the visibility ends.
_DELAYS = (0.0, 1.0, 5.0, 30.0, 120.0)
_COUNT_DEAD_SECONDS = 30.0
_PRUNE_BATCH, _PRUNE_EVERY, _PRUNE_AGAIN = 500, 60.0, 0.1

_Name = Annotated[str, Meta(min_length=1, max_length=200, description="1 to 200 printable characters")]
_Function = Annotated[Any, Meta(description="a function of the event and the connection or effect")]


@dataclass(frozen=True, slots=True)
class ConsumeReport:
    """How many messages one `run_once` received, and what was done with them."""

    received: int = 0
    """Messages that the poll returned."""
    handled: int = 0
    """Events whose effect was made now."""
    duplicates: int = 0
    """Events that had been handled before."""
    failed: int = 0
    """Messages whose handler failed."""
    released: int = 0
    """Released unhandled: behind a failed one of their group, handled elsewhere at the moment, or at a stop."""
    dead: int = 0
    """Messages moved to the dead letters."""
    ignored: int = 0
    """Events of types that the consumer does not take."""


class Consumer:
    """Calls `handler` for the events of a queue, so that the effect of each event is made once.

    Args:
        queue: The queue; FIFO where the order of the events of a key matters.
        handler: A function of the event and the connection (or the Effect, if `effects` is "external"). It may be
            async. The event is a DomainEvent, or an instance of its class if `types` names the class. If it raises,
            the message is delivered again: after `after` seconds if it is a `postroad.Retryable`, which also says
            that an external effect may be made again. After a `postroad.NonRetryable` it becomes a dead letter at once.
        name: The name under which the inbox remembers what was handled, in up to 200 printable characters. Consumers
            with different names handle the same event independently.
        inbox: Remembers the events, in the database that the handler writes to.
        effects: "database" runs the handler in one transaction with the inbox row. "external" is for effects that no
            transaction covers: the inbox writes before and after that they are made, and each has a fencing token.
        types: The events to handle, as classes, names, or prefixes such as "orders.*"; None: all. Others are acked.
        dead_letters: The queue for messages that cannot be handled; by default the redrive policy of `queue` decides.
        windows: How late a copy of an event may arrive; change it where the queue does not keep messages for 4 days.
        transaction: Opens a transaction of the application, such as `engine.begin`, instead of one of the inbox. An
            async handler needs an asynchronous one.
        concurrency: The number of messages that are handled at once, 1 to 1,000, by default 1.
        on_unknown: What to do if an external effect was begun and never finished: "dead_letter" moves the message to
            the dead letters, "retry" calls the handler again, with the status "unknown".
        service: The label `service` of its metrics.

    Raises:
        ConfigurationError: An argument cannot be used, or the inbox forgets events sooner than `windows` allows.

    Example:
        def post(event, connection):
            connection.execute("UPDATE accounts SET …", event.payload)

        Consumer(queue, post, name="ledger", inbox=inbox).run()  # until SIGTERM
    """

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
        check(name, _Name, "name", ConfigurationError)
        if not name.isprintable():
            raise refusal(name, _Name, "name", ConfigurationError)
        given: object = handler
        if not callable(given) or inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
            raise refusal(handler, _Function, "handler", ConfigurationError)
        check(concurrency, whole_number(1, _MOST_THREADS), "concurrency", ConfigurationError)
        check(effects, Literal["database", "external"], "effects", ConfigurationError)
        check(on_unknown, OnUnknown, "on_unknown", ConfigurationError)
        check_windows(inbox.retention, windows)
        check_connections(inbox, transaction, external=effects == "external")
        self.name = name
        self._inbox = inbox
        self._dead_letters, self._count_dead_at = dead_letters, 0.0
        self._prune_at = 0.0
        self._counts = receiving.Counts()
        self._telemetry = ConsumerTelemetry(name, queue.name, service, receiving.name_of(handler))
        self._timing = Timing(queue.name, queue.traits.visibility)
        self._is_async = receiving.is_async(handler)
        timed = (AsyncTimed if self._is_async else Timed)(handler, self._timing, self._telemetry)
        chores = []
        self._application: InDatabase | Outside
        if effects == "database":
            self._application = in_database(name, inbox, timed, transaction)
        else:
            renewals = Renewals(inbox, queue.traits.visibility, SYSTEM_CLOCK, wake=lambda: self._receiver.wake())
            chores.append(renewals)
            self._application = Outside(
                name=name, inbox=inbox, handler=timed, on_unknown=on_unknown, renewals=renewals, is_async=self._is_async
            )
        self._decisions = Decisions(choice=choose(types), application=self._application, telemetry=self._telemetry)
        self._reporting: Callable[[], AbstractContextManager[None]] = nullcontext
        self._receiver = receiving.Receiver(
            queue,
            self._decisions.adecide if self._is_async else self._decisions.decide,
            concurrency=concurrency,
            batch=max(_BATCH, concurrency),
            wait=_WAIT,
            retry_delays=[min(delay, queue.traits.visibility) for delay in _DELAYS],
            dead_letters=_by_redrive_policy if dead_letters is None else dead_letters,
            name=name,
            hooks=receiving.Hooks(
                observe=self._observe,
                ready=self._ready,
                chores=chores,
                longest=_LONGEST_COVER,
                during=lambda: self._reporting(),
            ),
        )

    @property
    def advice(self) -> Mapping[str, str]:
        """What should be changed, by the name of the warning, such as `visibility_too_short`."""
        return self._timing.advice

    def report_to_cloudwatch(
        self, interval: float = 60.0, *, region: str | None = None, endpoint_url: str | None = None
    ) -> None:
        """Report lag, dead letters and handler times to CloudWatch while the consumer runs, from its next start on.

        The metrics go to the namespace `Postroad`, with the same names as in Prometheus. Alarms on the lag treat
        missing data as breaching, so they notice a consumer that died. The credentials need `cloudwatch:PutMetricData`.

        Args:
            interval: Seconds between two reports. CloudWatch stores one value a minute, so 60 is usual.
            region: The AWS region; by default that of the environment.
            endpoint_url: The address of an emulator of CloudWatch.

        Raises:
            ConfigurationError: `interval` is not above 0, or no region is known.
        """
        check(interval, SecondsAboveZero, "interval", ConfigurationError)
        from postroad.connections.aws import AwsConnection
        from postroad.connections.cloudwatch import reporting

        place = region or aws_place()[0]
        AwsConnection(place, endpoint_url).close()

        @contextmanager
        def report() -> Iterator[None]:
            with (
                closing(AwsConnection(place, endpoint_url)) as connection,
                reporting(self._telemetry, connection, every=interval),
            ):
                yield

        self._reporting = report

    def run_once(self, *, wait: float = 0.0) -> ConsumeReport:
        """Receive once, handle the messages, and return a report on them; wait up to `wait` seconds for the first."""
        before = self._counts.read()
        try:
            self._receiver.run_once(wait=wait)
        finally:
            counted = {name: count - before.get(name, 0) for name, count in self._counts.read().items()}
        self._prune_inbox()
        return ConsumeReport(**counted)

    def run(self, stop: threading.Event | None = None) -> None:
        """Handle messages until `stop` is set or SIGTERM arrives; then finish running handlers and release the rest."""
        stopping = threading.Event() if stop is None else stop
        with stopped_by_sigterm(stopping):
            self._prepare()
            self._receiver.run(stopping)

    async def arun(self, stop: asyncio.Event | None = None) -> None:
        """Handle messages until `stop` is set or the task is cancelled; an async handler runs on this event loop."""
        await receiving.in_thread(self._prepare)
        await self._receiver.arun(stop)

    def start(self) -> None:
        """Handle messages on a thread; an async handler runs on the event loop of the caller, if there is one."""
        self._prepare()
        self._receiver.start()

    def stop(self, timeout: float | None = 20.0) -> None:
        """Start no more handlers, wait up to `timeout` seconds for running ones, release the rest. Safe to repeat."""
        self._receiver.stop(math.inf if timeout is None else timeout)

    def _prepare(self) -> None:
        if self._receiver.is_running:
            raise RuntimeError("the consumer is already started; stop it first")
        if self._inbox.owns_connections:
            with suppress(TransportError):
                self._inbox.check()
        # Alarms go off where no consumer shows its lag, so it is shown before the first message.
        _ = self._telemetry.in_handling

    def _observe(self, what: str, delivery: Delivery | None, /, **fields: Any) -> None:
        label = fields.get("label")
        if what in ("received", "released"):
            self._counts.add(what, len(fields["deliveries"]))
        elif what == "acked":
            self._counts.add(label or "handled")
        elif what == "retried":
            self._counts.add("released" if label == RELEASED else "failed")
        elif what == "rejected":
            self._counts.add("dead" if label == DEAD else "failed")
            if self._dead_letters is not None:
                self._telemetry.count_dead_letters(self._dead_letters)
        self._telemetry.observe(what, delivery, **fields)

    def _ready(self) -> None:
        """Raise while the database cannot be used: receiving then would only use up the receives of messages."""
        if self._decisions.database_failed:
            (self._receiver.complete if self._is_async else receiving.completed)(self._application.check())
            self._decisions.database_failed = False
        if self._dead_letters is not None and time.monotonic() >= self._count_dead_at:
            self._count_dead_at = time.monotonic() + _COUNT_DEAD_SECONDS
            self._telemetry.count_dead_letters(self._dead_letters)
        self._prune_inbox()

    def _prune_inbox(self) -> None:
        """Delete a batch of what is older than the retention, once a minute, or again soon if there is more."""
        if not self._inbox.owns_connections or time.monotonic() < self._prune_at:
            return
        pruned = 0
        try:
            pruned = self._inbox.prune_batch(_PRUNE_BATCH)
        except PostroadError as error:
            # It is tried again in a minute; handlers notice by themselves that the database is down.
            self._telemetry.warn("consumer_prune_failed", error=str(error))
        self._prune_at = time.monotonic() + (_PRUNE_AGAIN if pruned == _PRUNE_BATCH else _PRUNE_EVERY)


def _by_redrive_policy(queue: Queue, delivery: Delivery, *, reason: str, error: str | None) -> bool:
    """Move the message to the queue's own dead letters if its handler asked for that; others stay until their end."""
    return reason == receiving.NOT_RETRYABLE and receiving.OwnDeadLetters()(queue, delivery, reason=reason, error=error)


_standard = logging.getLogger("postroad.inbox")
_LINES = {
    "ack_failed": "consumer_ack_failed",
    "heartbeat_failed": "consumer_heartbeat_failed",
    "chore_failed": "consumer_chore_failed",
    "receive_failed": "consumer_paused",
    "settle_failed": "consumer_paused",
    "stop_timed_out": "consumer_stop_timed_out",
}
"""The log line of each failure around a message."""


class _InHandling:
    """The events that all consumers of one service and queue in this process are handling now."""

    def __init__(self) -> None:
        self._since: dict[object, datetime] = {}

    @contextmanager
    def holding(self, event: DomainEvent) -> Iterator[None]:
        token = object()
        self._since[token] = event.occurred_at
        try:
            yield
        finally:
            del self._since[token]

    def lag(self) -> float:
        """Return the age of the oldest of them in seconds; 0 if there is none."""
        oldest = min(self._since.copy().values(), default=None)
        return 0.0 if oldest is None else max(0.0, (SYSTEM_CLOCK.now() - oldest).total_seconds())


@cache
def _in_handling(service: str, queue: str) -> _InHandling:
    """Return the one object for these labels, whose lag a gauge shows."""
    made = _InHandling()
    gauge("event_consumer_lag_seconds").labels(service, queue).set_function(made.lag)
    return made


class ConsumerTelemetry:
    """The log lines and metrics of one consumer."""

    def __init__(self, consumer: str, queue: str, service: str, handler: str) -> None:
        self.queue = queue
        """The queue that it receives from."""
        self._names = {"consumer": consumer, "queue": queue}
        self._labels, self._handler = (service, queue), handler

    def observe(self, what: str, delivery: Delivery | None, /, **fields: Any) -> None:
        log, event = get_logger("inbox"), fields.get("about")
        about: dict[str, Any] = dict(self._names)
        if delivery is not None:
            about |= {"message_id": delivery.message_id, "receives": delivery.receive_count}
        if isinstance(event, DomainEvent):
            about |= {"event_id": str(event.event_id), "type": event.type}
            if (trace_id := tracing.trace_id(event.traceparent)) is not None:
                about["trace_id"] = trace_id
        if what in ("retried", "rejected"):
            about |= {"error": fields["error"], "attempt": fields["attempt"], "handler": self._handler}
            about["duration_ms"] = fields["duration_ms"]
        if what == "received":
            if _standard.isEnabledFor(logging.INFO):
                log.info("consumer_received", messages=len(fields["deliveries"]), **about)
        elif what == "acked":
            if _standard.isEnabledFor(logging.INFO):
                log.info("consumer_settled", outcome=fields["label"] or "handled", **about)
        elif what == "retried" and fields["label"] != RELEASED:
            log.warning("consumer_retried", retry_in_seconds=fields["after"], **about)
        elif what == "rejected":
            log.warning("consumer_dead_lettered", reason=fields["reason"], **about)
        elif what == "released":
            log.info("consumer_released", messages=len(fields["deliveries"]), **about)
        elif what in _LINES:
            log.warning(_LINES[what], **({"error": str(fields["error"])} if "error" in fields else {}), **about)

    def warn(self, event: str, **fields: str) -> None:
        get_logger("inbox").warning(event, **fields, **self._names)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of this consumer, and of others with the same service and queue."""
        mine = dict(zip(("service", "queue"), self._labels, strict=True))
        of_consumers = gauge("event_consumer_lag_seconds"), gauge("dead_letter_count")
        for source in (*of_consumers, histogram("postroad_handler_seconds")):
            for metric in source.collect():
                metric.samples = [sample for sample in metric.samples if mine.items() <= sample.labels.items()]
                yield metric

    def count_dead_letters(self, letters: Queue) -> None:
        """Set the gauge of dead letters, if the queue answers."""
        with suppress(PostroadError):
            stats = letters.stats()
            self._dead_letters.set(stats.visible + stats.in_flight + stats.delayed)

    @cached_property
    def in_handling(self) -> _InHandling:
        return _in_handling(*self._labels)

    @cached_property
    def handler_seconds(self) -> Histogram:
        return histogram("postroad_handler_seconds").labels(*self._labels, self._handler)

    @cached_property
    def _dead_letters(self) -> Gauge:
        return gauge("dead_letter_count").labels(*self._labels)
