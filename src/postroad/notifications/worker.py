"""The worker: stores what users missed, relays the pushes and sends them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from postroad.clock import SYSTEM_CLOCK
from postroad.errors import ConfigurationError
from postroad.notifications.breaker import ProviderBreaker
from postroad.notifications.consumers import OfflineConsumer, PushConsumer, Queues, patience_for
from postroad.notifications.intake import Intake, Judge
from postroad.notifications.loops import Loop
from postroad.notifications.offline import OfflineProcessor
from postroad.notifications.places import queue_name, refuse_engine_file
from postroad.notifications.platforms import Platform
from postroad.notifications.push import PushProcessor
from postroad.notifications.relaying import relay
from postroad.notifications.report import WorkerReport
from postroad.notifications.results import PushSender
from postroad.notifications.store import (
    KEEP_DELIVERED,
    KEEP_RESULTS,
    KEEP_UNDELIVERED,
    NotificationStore,
    check_keep,
)
from postroad.notifications.telling import Teller, tell_disabled, tell_prune_failed, tell_pruned
from postroad.queues import Queue
from postroad.queues.burying import DeadLetters, GivenDeadLetters, OwnDeadLetters
from postroad.queues.tally import Tally

STOP_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 0.1
_SLICE_SECONDS: Final = 0.25
_SWEEP_SECONDS: Final = 60.0
_MOST_BATCH: Final = 10
_MOST_THREADS: Final = 1_000


class NotificationWorker:
    """Consumes the queues that it is given; a queue of None is left alone. Any number of workers may share them.

    Once a minute it deletes what `keep_delivered`, `keep_results` and `keep_undelivered` allow, as
    `NotificationStore.prune` says.
    """

    def __init__(
        self,
        backend: Queues,
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
        check_keep(**self._keep)
        refuse_engine_file(backend.url, store.url)
        self._backend, self.store, self._tally = backend, store, Tally()
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
        self._loops = {
            "offline": self._offline_loop(
                offline or OfflineProcessor(store), self._letters(self.offline_queue, offline_dlq, "offline_dlq")
            ),
            "push": self._push_loop(concurrency, self._letters(self.push_queue, push_dlq, "push_dlq")),
        }

    @property
    def loops(self) -> dict[str, Loop]:
        """The consumers that run, by the short names of their queues."""
        return {name: loop for name, loop in self._loops.items() if loop is not None}

    def run_once(self, *, wait: float = 0.0) -> WorkerReport:
        """Receive once from each queue, relay what is recorded, and tell what became of it."""
        self._resume()
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
        self._resume()
        if self._relay is not None:
            self._relay.start()
        threads = [
            threading.Thread(target=loop.run, args=(stop,), name=f"postroad-{name}", daemon=True)
            for name, loop in self.loops.items()
        ]
        threads.append(threading.Thread(target=self._sweep_until, args=(stop,), name="postroad-sweep", daemon=True))
        for thread in threads:
            thread.start()
        stop.wait()
        self._wind_up(threads)

    def close(self) -> None:
        """Give back what is held; store, backend and senders stay open for their owner."""
        self._processor.stop()
        for loop in self.loops.values():
            loop.intake.stop(0.0)

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

    def _wind_up(self, threads: list[threading.Thread]) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        self._processor.stop()
        for loop in self.loops.values():
            loop.intake.stop(max(0.0, deadline - time.monotonic()))
        if self._relay is not None:
            self._relay.stop(max(0.1, deadline - time.monotonic()))
        # A poll under way cannot be called back; what it brings is given back while the connection is still open.
        for thread in threads:
            thread.join(max(_GRACE_SECONDS, deadline - time.monotonic()))

    def _resume(self) -> None:
        self._processor.resume()
        for loop in self.loops.values():
            loop.intake.resume()

    def _receive(self, name: str, wait: float) -> int:
        loop = self._loops[name]
        most = self._most_pushes() if name == "push" else None
        if loop is None or most == 0:
            return 0
        received = loop.intake.receive(max(0.0, wait), most=most)
        loop.intake.wait_until_idle()
        return received

    def _most_pushes(self) -> int | None:
        """None for a whole batch; one while all providers only probe, none while none may be asked."""
        states = [breaker.state for breaker in self.breakers.values()]
        if "closed" in states:
            return None
        return 1 if "half_open" in states else 0

    def _opened(self, given: str | None, field: str) -> Queue | None:
        if given is None:
            tell_disabled(field, "no queue is named")
            return None
        queue = self._backend.queue(queue_name(given, field=field))
        if queue.traits.fifo:
            raise ConfigurationError(
                f"{field}: {queue.name!r} is FIFO, and pushes that wait for their provider need a standard queue",
                field=field, remedy="Name a standard queue.",
            )  # fmt: skip
        return queue

    def _letters(self, queue: Queue | None, given: str | None, field: str) -> DeadLetters:
        """The queue's own dead letters; where it has none, those that were named."""
        name = None if given is None else queue_name(given, field=field)
        if name is None or queue is None or queue.traits.max_receives is not None:
            return OwnDeadLetters()
        return GivenDeadLetters(self._backend.queue(name), SYSTEM_CLOCK)

    def _offline_loop(self, processor: OfflineProcessor, letters: DeadLetters) -> Loop | None:
        if self.offline_queue is None:
            return None
        patience = patience_for(self._backend, self.offline_queue, self._delays)
        consumer = OfflineConsumer(processor=processor, patience=patience, tally=self._tally)
        # On one thread and in one transaction: they all write to one database, and wait for nothing else.
        return self._loop(self.offline_queue, consumer, letters, concurrency=1, together=self._batch)

    def _push_loop(self, concurrency: int, letters: DeadLetters) -> Loop | None:
        if self.push_queue is None:
            return None
        if not self.breakers:
            tell_disabled("push_queue", "no sender is configured; pushes are queued and not sent")
            return None
        patience = patience_for(self._backend, self.push_queue, self._delays)
        consumer = PushConsumer(processor=self._processor, patience=patience, tally=self._tally)
        return self._loop(self.push_queue, consumer, letters, concurrency=concurrency, most=self._most_pushes)

    def _loop(
        self,
        queue: Queue,
        judge: Judge,
        letters: DeadLetters,
        *,
        concurrency: int,
        together: int = 1,
        most: Callable[[], int | None] = lambda: None,
    ) -> Loop:
        teller = Teller(queue.name)
        intake = Intake(
            queue, judge, batch=self._batch, concurrency=concurrency, together=together, visibility=self._visibility,
            dead_letters=letters, tally=self._tally, teller=teller,
        )  # fmt: skip
        return Loop(
            intake, teller, wait=self.wait, pause=self._pause, check_database=self.store.check, most=most
        )  # fmt: skip


def _check(*, batch: object, wait: object, concurrency: object, retry_delays: object) -> None:
    for name, value, most in (("batch", batch, _MOST_BATCH), ("concurrency", concurrency, _MOST_THREADS)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise _refused(name, value, f"a whole number from 1 to {most}")
    if not _is_seconds(wait, 20.0):
        raise _refused("wait", wait, "a number of seconds from 0 to 20")
    if not isinstance(retry_delays, tuple | list) or not all(_is_seconds(delay, 43_200.0) for delay in retry_delays):
        raise _refused("retry_delays", retry_delays, "numbers of seconds from 0 to 43200")


def _is_seconds(value: object, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


def _refused(field: str, value: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{field}: {value!r} is not {wanted}", field=field, remedy=f"Give {wanted}.")
