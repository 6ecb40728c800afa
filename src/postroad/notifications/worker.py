"""The worker: stores messages for offline users, sends their pushes to the queue, and from there to the devices."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from msgspec import Meta

from postroad.arguments import check, seconds_between, whole_number
from postroad.connections import dialect_of, path_of
from postroad.errors import ConfigurationError, describe
from postroad.notifications import consumers
from postroad.notifications.consumers import EventLog, OfflineConsumer, PushConsumer, RetryPolicy
from postroad.notifications.devices import Platform, PushSender
from postroad.notifications.offline import OfflineProcessor
from postroad.notifications.push import ProviderBreaker, ProviderBreakers, PushProcessor
from postroad.notifications.store import KEEP_DELIVERED, KEEP_RESULTS, KEEP_UNDELIVERED, NotificationStore, check_keep
from postroad.outbox import DispatcherConfig, OutboxDispatcher
from postroad.ports import Store
from postroad.queues import Delivery, Queue, check_name
from postroad.receiving import Counts, Decide, DecideTogether, Hooks, Receiver, name_of
from postroad.settings import data_path
from postroad.telemetry import get_logger

STOP_SECONDS: Final = 5.0
_SLICE_SECONDS: Final = 0.25
_SWEEP_SECONDS: Final = 60.0

_Delays = Annotated[
    tuple[Annotated[float, Meta(ge=0, le=43_200)], ...], Meta(description="numbers of seconds from 0 to 43200")
]
# A push that cannot be sent to the queue holds back no other one. The lease is short, so that another worker soon
# replaces one that died: a push that is sent to the queue twice is recognised there.
_RELAY: Final = DispatcherConfig(policy="skip", lease=5.0)
_log = get_logger("notifications")


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one `run_once` did with messages, pushes and devices.

    Attributes:
        stored: Messages that were stored.
        duplicates: Messages that were stored before.
        retried: Messages that come again because their handling failed.
        deferred: Messages that come again without having been tried.
        dead_lettered: Messages that were given up.
    """

    stored: int = 0
    duplicates: int = 0
    relayed: int = 0
    """Pushes that were sent from the outbox to the queue."""
    sent: int = 0
    """Devices to which a push was sent."""
    dropped: int = 0
    """Devices whose tokens are dead."""
    retried: int = 0
    deferred: int = 0
    dead_lettered: int = 0


class NotificationWorker:
    """Stores messages of `offline_queue`, and sends the pushes of `push_queue`. Any number of workers may share them.

    Args:
        backend: Where the queues are.
        store: Where messages, devices and results are stored.
        push_queue: The queue of pushes, by name or URL; None: no pushes are sent. It must not be FIFO.
        offline_queue: The queue of messages for offline users, likewise.
        apns: Sends to Apple's devices. Without a sender, pushes stay in the queue.
        fcm: Sends to Google's devices.
        batch: Messages that one receive takes, 1 to 10, by default 10.
        wait: Seconds that a receive waits for messages, 0 to 20, by default 20.
        concurrency: Pushes that are sent at once, by default 8. More helps where providers are slow to answer.
        retry_delays: Seconds before each further try of a message, give or take a fifth, by default 60 and 300. Their
            number is the number of further tries.
        breaker_failures: Consecutive failures after which a provider is paused, by default 5.
        breaker_seconds: Seconds of the first pause, by default 30; then one push probes.
        push_dlq: The dead letters of `push_queue`, if the queue has no redrive policy of its own.
        offline_dlq: Those of `offline_queue`, likewise.
        visibility: Seconds for which a received message is hidden from other workers; by default those of its queue.
        pause: Seconds between a receive that found nothing and the next, by default 0.
        offline: Stores the messages; by default an `OfflineProcessor(store)`.
        keep_delivered: How long delivered messages are kept, in seconds. This and the next two are those of
            `NotificationStore.prune`, which the worker calls once a minute.
        keep_results: How long the results of pushes are kept.
        keep_undelivered: How long messages wait for their users.

    Raises:
        ConfigurationError: A value cannot be used, or a queue is FIFO.
        QueueNotFound: A queue does not exist.

    Example:
        with NotificationWorker(backend, store, push_queue="push", offline_queue="offline", fcm=fcm) as worker:
            worker.run(stop)
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
        check(batch, whole_number(1, 10), "batch", ConfigurationError)
        check(concurrency, whole_number(1, 1_000), "concurrency", ConfigurationError)
        check(wait, seconds_between(0, 20), "wait", ConfigurationError)
        check(retry_delays, _Delays, "retry_delays", ConfigurationError)
        self._keep = {
            "keep_delivered": keep_delivered,
            "keep_results": keep_results,
            "keep_undelivered": keep_undelivered,
        }
        check_keep(**self._keep)
        refuse_engine_file(backend.url, store.url)
        self._backend, self.store, self._counts = backend, store, Counts()
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
        """The receivers of the queues, by "offline" and "push"; without those of queues that are not consumed."""
        return {name: receiver for name, receiver in self._receivers.items() if receiver is not None}

    def run_once(self, *, wait: float = 0.0) -> WorkerReport:
        """Receive once from each queue, send recorded pushes to the queue, and report; wait up to `wait` seconds."""
        self._processor.resume()
        self._sweep()
        deadline = time.monotonic() + wait
        while True:
            received = self._receive("offline", min(_SLICE_SECONDS, deadline - time.monotonic()))
            relayed = 0 if self._relay is None else self._relay.run_once().sent
            self._counts.add("relayed", relayed)
            received += self._receive("push", 0.0 if received else min(_SLICE_SECONDS, deadline - time.monotonic()))
            if received or relayed or time.monotonic() >= deadline:
                return WorkerReport(**self._counts.take())

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; then finish what is in progress within five seconds and release the rest."""
        self._processor.resume()

        def sweep() -> None:
            while not stop.is_set():
                self._sweep()
                stop.wait(_SWEEP_SECONDS)

        sweeping = threading.Thread(target=sweep, name="postroad-sweep", daemon=True)
        try:
            if self._relay is not None:
                self._relay.start()
            for receiver in self.receivers.values():
                receiver.start()
            sweeping.start()
            while not stop.wait(_SLICE_SECONDS):
                for receiver in self.receivers.values():
                    receiver.check()
        finally:
            deadline = time.monotonic() + STOP_SECONDS
            for finish in self._halted():
                finish(max(0.0, deadline - time.monotonic()))
            if self._relay is not None:
                self._relay.stop(max(0.1, deadline - time.monotonic()))
        sweeping.join(0.1)

    def close(self) -> None:
        """Release the messages that are held; store, backend and senders stay open."""
        for finish in self._halted():
            finish(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sweep(self) -> None:
        """Prune the store, once a minute."""
        if self._swept_at is not None and time.monotonic() - self._swept_at < _SWEEP_SECONDS:
            return
        self._swept_at = time.monotonic()
        try:
            pruned = self.store.prune(**self._keep)
        except Exception as error:
            # It is tried again in a minute; messages and pushes do not wait for it.
            _log.warning("notification_prune_failed", error=describe(error))
            return
        if any(pruned):
            _log.info("notification_pruned", **pruned._asdict())

    def _halted(self) -> list[Callable[[float], bool]]:
        """Begin nothing more, and return what ends the rest."""
        finishing = [receiver.halt() for receiver in self.receivers.values()]
        # Not earlier: pushes that were still received, and not sent, would use up their receives.
        self._processor.stop()
        return finishing

    def _receive(self, name: str, wait: float) -> int:
        receiver = self._receivers[name]
        return 0 if receiver is None else receiver.run_once(wait=max(0.0, wait)).get("received", 0)

    def _opened(self, given: str | None, field: str) -> Queue | None:
        if given is None:
            _log.warning("notification_consumer_disabled", queue=field, why="no queue is named")
            return None
        queue = self._backend.queue(queue_name(given, field=field))
        if queue.traits.fifo:
            why = f"{field}: {queue.name!r} is FIFO, and pushes that wait for their provider need a standard queue"
            raise ConfigurationError(why, field=field, remedy="Name a standard queue.")
        return queue

    def _letters(self, queue: Queue | None, given: str | None, field: str) -> Queue | None:
        """Return the queue of dead letters that was named; None for those of the queue itself, if it has any."""
        name = None if given is None else queue_name(given, field=field)
        if name is None or queue is None or queue.traits.max_receives is not None:
            return None
        return self._backend.queue(name)

    def _offline_receiver(self, processor: OfflineProcessor, letters: Queue | None) -> Receiver | None:
        if self.offline_queue is None:
            return None
        consumer = OfflineConsumer(processor=processor, retries=self._retries(self.offline_queue), counts=self._counts)
        decide = consumer if self._batch > 1 else lambda delivery: consumer([delivery])[0]
        # On one thread and in one transaction: they all write to one database, and wait for nothing else.
        return self._receiver(self.offline_queue, type(processor), decide, letters, together=self._batch)

    def _push_receiver(self, concurrency: int, letters: Queue | None) -> Receiver | None:
        if self.push_queue is None:
            return None
        if not self.breakers:
            why = "no sender is configured; pushes are queued and not sent"
            _log.warning("notification_consumer_disabled", queue="push_queue", why=why)
            return None
        retries, breaker = self._retries(self.push_queue), ProviderBreakers(self.breakers.values())
        consumer = PushConsumer(processor=self._processor, retries=retries, counts=self._counts)
        options = {"concurrency": concurrency, "breaker": breaker}
        return self._receiver(self.push_queue, PushProcessor, consumer, letters, **options)

    def _retries(self, queue: Queue) -> RetryPolicy:
        retention = self._backend.queue_spec(queue.name).retention
        return RetryPolicy(delays=self._delays, max_receives=queue.traits.max_receives, retention=retention)

    def _receiver(
        self, queue: Queue, handler: type, decide: Decide | DecideTogether, letters: Queue | None, **options: Any
    ) -> Receiver:
        event_log = EventLog(queue.name, name_of(handler), self._counts)

        def observe(what: str, delivery: Delivery | None, /, **fields: Any) -> None:
            if what == "retried" and fields["about"] is consumers.DATABASE:
                self._database_failed = True
            event_log.observe(what, delivery, **fields)

        return Receiver(
            queue,
            decide,
            batch=self._batch,
            wait=self.wait,
            visibility=self._visibility,
            retry_delays=(300.0,),
            dead_letters=letters,
            hooks=Hooks(
                observe=observe,
                ready=self._check_database,
                longest=43_200.0,
                idle_pause=self._pause,
                releases_late=True,
            ),
            **options,
        )

    def _check_database(self) -> None:
        """Raise while the database cannot be used: receiving then would only use up the receives of messages."""
        if self._database_failed:
            self.store.check()
            self._database_failed = False


def queue_name(text: str, *, field: str) -> str:
    """Return the name of a queue that is given by its name or its URL."""
    name = urlsplit(text).path.rpartition("/")[2] if "://" in text else text
    return check_name(name, field=field)


def refuse_engine_file(backend_url: str, database_url: str, *, field: str = "url") -> None:
    """Raise ConfigurationError for a database in the backend's own file: two SQLite libraries would damage it."""
    dialect, engine = dialect_of(database_url), data_path(backend_url)
    if engine is None or dialect != "sqlite":
        return
    own = Path(path_of(database_url))
    try:
        is_same = engine.samefile(own)
    except OSError:
        is_same = engine.absolute().resolve() == own.absolute().resolve()
    if is_same:
        why = f"{field}: {own} is the backend's own file {engine}"
        raise ConfigurationError(why, field=field, remedy="Name another file; the backend needs its file for itself.")


def relay(store: NotificationStore, push_queue: Queue) -> OutboxDispatcher:
    return OutboxDispatcher(store.outbox, push_queue, _RELAY, service="notifications", render=consumers.push_message)
