"""The worker: stores what users missed, relays the pushes and sends them."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Annotated, Any, Final, Self

from msgspec import Meta

from postroad.arguments import check, seconds_between, whole_number
from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError
from postroad.notifications.consumers import DATABASE, OfflineConsumer, PushConsumer, retries_for
from postroad.notifications.devices import Platform, PushSender
from postroad.notifications.offline import OfflineProcessor
from postroad.notifications.push import PushProcessor
from postroad.notifications.relay import queue_name, refuse_engine_file, relay
from postroad.notifications.reports import EventLog, WorkerReport, tell_disabled, tell_prune_failed, tell_pruned
from postroad.notifications.retries import ProviderBreaker, ProviderBreakers
from postroad.notifications.store import (
    KEEP_DELIVERED,
    KEEP_RESULTS,
    KEEP_UNDELIVERED,
    Keep,
    NotificationStore,
)
from postroad.ports import Store
from postroad.queues import Delivery, Queue
from postroad.receiving import (
    Breaker,
    Counts,
    DeadLetters,
    Decide,
    DecideTogether,
    GivenDeadLetters,
    Hooks,
    OwnDeadLetters,
    Receiver,
)

STOP_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 0.1
_SLICE_SECONDS: Final = 0.25
_SWEEP_SECONDS: Final = 60.0
_MOST_BATCH: Final = 10
_LONGEST_COVER: Final = 43_200.0
_AFTER_A_BUG_SECONDS: Final = 300.0
_MOST_THREADS: Final = 1_000

_Delays = Annotated[
    tuple[Annotated[float, Meta(ge=0, le=43_200)], ...], Meta(description="numbers of seconds from 0 to 43200")
]


class NotificationWorker:
    """Consumes the queues that it is given; a queue of None is left alone. Any number of workers may share them.

    Once a minute it deletes what `keep_delivered`, `keep_results` and `keep_undelivered` allow, as
    `NotificationStore.prune` says.
    """

    def __init__(
        self,
        backend: Store,
        store: NotificationStore,
        *,
        push_queue: str | None,
        offline_queue: str | None,
        apns: PushSender | None = None,
        fcm: PushSender | None = None,
        batch: int = 10,
        wait: float = 20.0,
        concurrency: int = 8,
        retry_delays: tuple[float, ...] = (60, 300),
        breaker_failures: int = 5,
        breaker_seconds: float = 30.0,
        push_dlq: str | None = None,
        offline_dlq: str | None = None,
        visibility: float | None = None,
        pause: float = 0.0,
        offline: OfflineProcessor | None = None,
        keep_delivered: float | None = KEEP_DELIVERED,
        keep_results: float | None = KEEP_RESULTS,
        keep_undelivered: float | None = KEEP_UNDELIVERED,
    ) -> None:
        _check(batch=batch, wait=wait, concurrency=concurrency, retry_delays=retry_delays)
        self._keep = {
            "keep_delivered": keep_delivered,
            "keep_results": keep_results,
            "keep_undelivered": keep_undelivered,
        }
        for name, seconds in self._keep.items():
            check(seconds, Keep | None, name, ConfigurationError)
        refuse_engine_file(backend.url, store.url)
        self._backend, self.store, self._tally = backend, store, Counts()
        self._swept_at: float | None = None
        self._batch, self.wait, self._pause, self._visibility = batch, wait, pause, visibility
        self._delays = tuple(float(delay) for delay in retry_delays)
        senders: dict[Platform, PushSender | None] = {"apns": apns, "fcm": fcm}
        self.breakers: dict[Platform, ProviderBreaker] = {
            platform: ProviderBreaker(failures=breaker_failures, seconds=breaker_seconds)
            for platform, sender in senders.items()
            if sender is not None
        }
        self.push_queue = self._opened(push_queue, "push_queue")
        self.offline_queue = self._opened(offline_queue, "offline_queue")
        self._processor = PushProcessor(store, apns=apns, fcm=fcm, concurrency=concurrency, gates=self.breakers)
        self._relay = None if self.push_queue is None else relay(store, self.push_queue)
        self._database_failed = False
        self._receivers = {
            "offline": self._offline_receiver(
                offline or OfflineProcessor(store), self._letters(self.offline_queue, offline_dlq, "offline_dlq")
            ),
            "push": self._push_receiver(concurrency, self._letters(self.push_queue, push_dlq, "push_dlq")),
        }

    @property
    def receivers(self) -> dict[str, Receiver]:
        """The consumers that run, by the short names of their queues."""
        return {name: receiver for name, receiver in self._receivers.items() if receiver is not None}

    def run_once(self, *, wait: float = 0.0) -> WorkerReport:
        """Receive once from each queue, relay what is recorded, and tell what became of it."""
        self._processor.resume()
        self._sweep()
        deadline = time.monotonic() + wait
        while True:
            received = self._receive("offline", min(_SLICE_SECONDS, deadline - time.monotonic()))
            relayed = 0 if self._relay is None else self._relay.run_once().sent
            self._tally.add("relayed", relayed)
            received += self._receive("push", 0.0 if received else min(_SLICE_SECONDS, deadline - time.monotonic()))
            if received or relayed or time.monotonic() >= deadline:
                return WorkerReport(**self._tally.take())

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; then finish what is in hand within five seconds and give back the rest."""
        self._processor.resume()
        if self._relay is not None:
            self._relay.start()
        for receiver in self.receivers.values():
            receiver.start()
        sweeping = threading.Thread(target=self._sweep_until, args=(stop,), name="postroad-sweep", daemon=True)
        sweeping.start()
        stop.wait()
        self._wind_up()
        sweeping.join(_GRACE_SECONDS)

    def close(self) -> None:
        """Give back what is held; store, backend and senders stay open for their owner."""
        self._processor.stop()
        for receiver in self.receivers.values():
            receiver.stop(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _sweep_until(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._sweep()
            stop.wait(_SWEEP_SECONDS)

    def _sweep(self) -> None:
        """Delete what is kept no longer, once a minute."""
        if self._swept_at is not None and time.monotonic() - self._swept_at < _SWEEP_SECONDS:
            return
        self._swept_at = time.monotonic()
        try:
            tell_pruned(self.store.prune(**self._keep))
        except Exception as error:
            # The next minute has another try; messages and pushes do not wait for it.
            tell_prune_failed(error)

    def _wind_up(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        self._processor.stop()
        for receiver in self.receivers.values():
            receiver.stop(max(0.0, deadline - time.monotonic()))
        if self._relay is not None:
            self._relay.stop(max(0.1, deadline - time.monotonic()))

    def _receive(self, name: str, wait: float) -> int:
        receiver = self._receivers[name]
        return 0 if receiver is None else receiver.run_once(wait=max(0.0, wait)).get("received", 0)

    def _opened(self, given: str | None, field: str) -> Queue | None:
        if given is None:
            tell_disabled(field, "no queue is named")
            return None
        queue = self._backend.queue(queue_name(given, field=field))
        if queue.traits.fifo:
            raise ConfigurationError(
                f"{field}: {queue.name!r} is FIFO, and pushes that wait for their provider need a standard queue",
                field=field,
                remedy="Name a standard queue.",
            )
        return queue

    def _letters(self, queue: Queue | None, given: str | None, field: str) -> DeadLetters:
        """The queue's own dead letters; where it has none, those that were named."""
        name = None if given is None else queue_name(given, field=field)
        if name is None or queue is None or queue.traits.max_receives is not None:
            return OwnDeadLetters()
        return GivenDeadLetters(self._backend.queue(name), SYSTEM_CLOCK)

    def _offline_receiver(self, processor: OfflineProcessor, letters: DeadLetters) -> Receiver | None:
        if self.offline_queue is None:
            return None
        retries = retries_for(self._backend, self.offline_queue, self._delays)
        consumer = OfflineConsumer(processor=processor, retries=retries, tally=self._tally)
        decide = consumer if self._batch > 1 else lambda delivery: consumer([delivery])[0]
        # On one thread and in one transaction: they all write to one database, and wait for nothing else.
        return self._receiver(self.offline_queue, decide, letters, concurrency=1, together=self._batch)

    def _push_receiver(self, concurrency: int, letters: DeadLetters) -> Receiver | None:
        if self.push_queue is None:
            return None
        if not self.breakers:
            tell_disabled("push_queue", "no sender is configured; pushes are queued and not sent")
            return None
        retries = retries_for(self._backend, self.push_queue, self._delays)
        consumer = PushConsumer(processor=self._processor, retries=retries, tally=self._tally)
        breaker = ProviderBreakers(self.breakers.values())
        return self._receiver(self.push_queue, consumer, letters, concurrency=concurrency, breaker=breaker)

    def _receiver(
        self,
        queue: Queue,
        decide: Decide | DecideTogether,
        letters: DeadLetters,
        *,
        concurrency: int,
        together: int = 1,
        breaker: Breaker | None = None,
    ) -> Receiver:
        event_log = EventLog(queue.name)

        def observe(what: str, delivery: Delivery | None, /, **fields: Any) -> None:
            self._count(what, fields)
            event_log.observe(what, delivery, **fields)

        return Receiver(
            queue,
            decide,
            concurrency=concurrency,
            batch=self._batch,
            together=together,
            wait=self.wait,
            visibility=self._visibility,
            retry_delays=(_AFTER_A_BUG_SECONDS,),
            dead_letters=letters,
            breaker=breaker,
            hooks=Hooks(
                observe=observe,
                ready=self._check_database,
                longest=_LONGEST_COVER,
                idle_pause=self._pause,
                releases_late=True,
            ),
        )

    def _count(self, what: str, fields: dict[str, Any]) -> None:
        if what == "retried":
            self._tally.add("retried")
            self._database_failed |= fields["about"] is DATABASE
        elif what == "deferred":
            self._tally.add("deferred")
        elif what == "rejected":
            self._tally.add("dead_lettered")

    def _check_database(self) -> None:
        """Raise while the database cannot be used: receiving then would only use up receives."""
        if self._database_failed:
            self.store.check()
            self._database_failed = False


def _check(*, batch: object, wait: object, concurrency: object, retry_delays: object) -> None:
    check(batch, whole_number(1, _MOST_BATCH), "batch", ConfigurationError)
    check(concurrency, whole_number(1, _MOST_THREADS), "concurrency", ConfigurationError)
    check(wait, seconds_between(0, 20), "wait", ConfigurationError)
    check(retry_delays, _Delays, "retry_delays", ConfigurationError)
