"""The threads of one run of a worker: one polls, some run tasks, and the caller's hears when to stop."""

from __future__ import annotations

import queue as queues
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from postroad.backoff import CHANCE, Backoff
from postroad.clock import Clock
from postroad.errors import NotSupported, PostroadError
from postroad.queues import Delivery, Queue
from postroad.tasks.children.pool import ChildPool
from postroad.tasks.config import WorkerConfig
from postroad.tasks.log import tell
from postroad.tasks.records import EventFactory, TaskRecords
from postroad.tasks.roles import thread_ended
from postroad.tasks.runner import TaskRunner, handle_safely


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all threads of a worker share."""

    worker_id: str
    tenant: str
    queue_name: str
    config: WorkerConfig
    queue: Queue
    records: TaskRecords
    factory: EventFactory
    pool: ChildPool
    clock: Clock
    keeps_large: bool
    """Whether there are blobs for what is too large for the journal and for leases."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set while the worker is being stopped."""
    chance: Callable[[], float] = field(default=CHANCE.random)
    unknown: set[str] = field(default_factory=set)
    """Names of tasks that nobody here knows and that were logged."""

    def now(self) -> float:
        """The wall clock in seconds."""
        return self.clock.now().timestamp()

    def ack(self, delivery: Delivery) -> None:
        """Forget the message."""
        self.queue.ack([delivery])

    def release(self, delivery: Delivery, *, after: float = 0.0, error: str | None = None) -> None:
        """Give the message back."""
        self.queue.release([delivery], after=after, error=error)

    def reject(self, delivery: Delivery, *, reason: str, error: str | None = None) -> None:
        """Move the message to the dead letters; a queue without any hides it for as long as it can."""
        try:
            self.queue.reject([delivery], reason=reason, error=error)
        except NotSupported:
            self.queue.release([delivery], after=self.config.visibility, error=error)


# How long a wait may be where waiting costs nothing, so that a stop is noticed soon.
_SLICE_SECONDS = 0.5
_SHORT_POLL_SECONDS = 0.2
_SHORT_LONG_POLL_SECONDS = 1.0
_MOST_AT_ONCE = 10
# The numbers of SQS are approximate: one look may miss a message that the next one sees.
_LOOKS_BEFORE_IDLE = 2


class Poller:
    """Hands messages to runners through `work` until it is stopped or, if so asked, finds nothing left to do."""

    def __init__(self, shared: Shared, *, until_idle: bool) -> None:
        self._shared = shared
        self._until_idle = until_idle
        self._free = threading.Semaphore(shared.config.concurrency)
        self._lock = threading.Lock()
        self._busy = 0
        self.stopping = shared.stopping
        self.work: queues.SimpleQueue[Delivery | None] = queues.SimpleQueue()

    def run(self) -> None:
        """Receive until stopped or idle."""
        backoff, empty = Backoff(), 0
        while not self.stopping.is_set():
            wanted = self._claim_runners()
            deliveries: Sequence[Delivery] = ()
            try:
                if wanted:
                    deliveries = self._shared.queue.receive(
                        max_messages=wanted, wait=self._wait(), visibility=self._shared.config.visibility
                    )
                empty = 0 if deliveries or not self._looks_idle(wanted) else empty + 1
            except Exception as error:
                # Whatever it was, the worker must not fall silent: it may not happen the next time.
                if not backoff.failures:
                    tell("task_receive_failed", error=error)
                self.stopping.wait(backoff.next(self._shared.chance()))
            else:
                if backoff.failures:
                    tell("task_receive_recovered", failures=backoff.failures)
                backoff.reset()
            self._hand_out(deliveries)
            self._free.release(wanted - len(deliveries)) if wanted > len(deliveries) else None
            if self._until_idle and empty >= _LOOKS_BEFORE_IDLE:
                return

    def done(self) -> None:
        """A runner is free again."""
        with self._lock:
            self._busy -= 1
        self._free.release()

    def stop(self) -> None:
        """Hand out nothing from now on."""
        with self._lock:
            self.stopping.set()

    def _claim_runners(self) -> int:
        """As many free runners as one receive may serve, at least one; 0 when none becomes free for a while."""
        if not self._free.acquire(timeout=_SLICE_SECONDS):
            return 0
        claimed = 1
        while claimed < _MOST_AT_ONCE and self._free.acquire(blocking=False):
            claimed += 1
        return claimed

    def _wait(self) -> float:
        short = self._shared.queue.traits.short_waits
        if self._until_idle:
            return min(self._shared.config.wait, _SHORT_POLL_SECONDS if short else _SHORT_LONG_POLL_SECONDS)
        return min(self._shared.config.wait, _SLICE_SECONDS) if short else self._shared.config.wait

    def _looks_idle(self, wanted: int) -> bool:
        """Whether no runner works and the queue holds nothing."""
        if not self._until_idle or not wanted or self._busy:
            return False
        stats = self._shared.queue.stats()
        return stats.visible + stats.in_flight + stats.delayed == 0

    def _hand_out(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            if not self.stopping.is_set():
                self._busy += len(deliveries)
                for delivery in deliveries:
                    self.work.put(delivery)
                return
        for delivery in deliveries:
            self._give_back(delivery)

    def _give_back(self, delivery: Delivery) -> None:
        try:
            self._shared.release(delivery)
        except PostroadError as error:
            tell("task_handling_failed", message_id=delivery.message_id, error=error)


class Waker:
    """Wakes one thread from any other thread or from a signal handler."""

    def __init__(self) -> None:
        self._sender, self._receiver = socket.socketpair()
        for end in (self._sender, self._receiver):
            end.setblocking(False)

    def wake(self) -> None:
        """Wake who waits. Takes no lock, so that a signal handler may do it."""
        try:
            self._sender.send(b"!")
        except OSError:
            # It is full of wake-ups that were not heard yet, or closed: nobody has to be woken.
            return

    def wait(self, seconds: float) -> None:
        """Wait until somebody wakes it, at most so long."""
        if select.select([self._receiver], [], [], None if seconds == inf else max(0.0, seconds))[0]:
            self._receiver.recv(4096)

    def close(self) -> None:
        """Give both ends back."""
        self._sender.close()
        self._receiver.close()


class WorkerRun:
    """The threads of one run. `stops` says how often the worker was told to stop."""

    def __init__(self, shared: Shared, waker: Waker, stops: Callable[[], int], *, until_idle: bool) -> None:
        self._shared = shared
        self._waker = waker
        self._stops = stops
        shared.stopping.clear()
        self._poller = Poller(shared, until_idle=until_idle)
        # Whoever works until idle waits for no other worker that might know a task.
        grace = 0.0 if until_idle else shared.config.unknown_grace
        self._runners = [TaskRunner(shared, unknown_grace=grace) for _ in range(shared.config.concurrency)]
        self._finished = 0
        self._received = False
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Work until told to stop, or until there is nothing left to do.

        Raises an error when one of the threads ended before that.
        """
        try:
            for runner in self._runners:
                runner.open()
                self._start(self._serve, runner, name="postroad-runner")
            self._start(self._receive, name="postroad-task-poller")
            self._control()
        finally:
            self._poller.stop()
            for runner in self._runners:
                runner.close()
        if self._error is not None:
            raise thread_ended("a thread of the worker", self._error)

    def _start(self, target: Callable[..., None], *arguments: TaskRunner, name: str) -> None:
        # A daemon, so that a poll that nobody waits for any more does not keep the process alive.
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _receive(self) -> None:
        try:
            self._poller.run()
        except BaseException as error:
            self._error = error
        finally:
            self._received = True
            self._waker.wake()

    def _serve(self, runner: TaskRunner) -> None:
        try:
            while (delivery := self._poller.work.get()) is not None:
                handle_safely(runner, delivery)
                self._poller.done()
        except BaseException as error:
            self._error = error
            self._poller.stop()
        finally:
            self._finished += 1
            self._waker.wake()

    def _control(self) -> None:
        """Hear stops and the end of the work; children get `drain_timeout`, then a kill, at a second stop at once."""
        kill_at, killed = inf, 0
        dismissed = False
        while not (dismissed and self._finished == len(self._runners) and (self._received or killed > 1)):
            self._waker.wait(kill_at - time.monotonic())
            stops = self._stops()
            if (stops or self._received) and not dismissed:
                dismissed = True
                self._dismiss()
                kill_at = time.monotonic() + self._shared.config.drain_timeout if stops else inf
            if stops and kill_at == inf and not killed:
                kill_at = time.monotonic() + self._shared.config.drain_timeout
            if time.monotonic() >= kill_at:
                kill_at, killed = inf, 1
                self._halt(self._shared.config.kill_grace)
            if stops > 1 and killed < 2:
                kill_at, killed = inf, 2
                self._halt(0.0)
        for thread in self._threads[: len(self._runners)]:
            thread.join()

    def _dismiss(self) -> None:
        """Hand out nothing more, and let each runner end after what it runs."""
        self._poller.stop()
        for _ in self._runners:
            self._poller.work.put(None)

    def _halt(self, grace: float) -> None:
        for runner in self._runners:
            runner.halt(grace)
