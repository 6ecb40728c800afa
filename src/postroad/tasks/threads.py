"""The threads of a worker: one polls, some run tasks, the caller's waits for a stop, and each role has its own."""

from __future__ import annotations

import queue as queues
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Self

from postroad.backoff import CHANCE, Backoff
from postroad.clock import Clock
from postroad.errors import NotSupported, PostroadError
from postroad.queues import Delivery, Queue
from postroad.tasks.leases import TaskRecords
from postroad.tasks.messages import EventFactory, log_event
from postroad.tasks.pool import ChildPool
from postroad.tasks.presence import RunningTasks
from postroad.tasks.runner import TaskRunner
from postroad.telemetry import tracing

if TYPE_CHECKING:
    from postroad.tasks.worker import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all threads of a worker use."""

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
    """Whether there are blobs for what is too large for the journal."""
    address: Mapping[str, str] = field(default_factory=dict)
    """`POSTROAD_URL` as tasks see it that ask for it."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set while the worker is being stopped."""
    chance: Callable[[], float] = field(default=CHANCE.random)
    running: RunningTasks = field(default_factory=RunningTasks)
    """The tasks that run now."""
    unknown: set[str] = field(default_factory=set)
    """Unknown names of tasks that were logged."""

    def now(self) -> float:
        return self.clock.now().timestamp()

    def release(self, delivery: Delivery, *, after: float = 0.0, error: str | None = None) -> None:
        self.queue.release([delivery], after=after, error=error)

    def reject(self, delivery: Delivery, *, reason: str, error: str | None = None) -> None:
        """Move the message to the dead letters; a queue without dead letters hides it as long as it can."""
        try:
            with tracing.dead_lettering(self.queue.name, delivery, delivery.message_id):
                self.queue.reject([delivery], reason=reason, error=error)
        except NotSupported:
            self.queue.release([delivery], after=self.config.visibility, error=error)


# The longest wait where short waits cost nothing, so that a stop is noticed soon.
_SLICE_SECONDS = 0.5
_SHORT_POLL_SECONDS = 0.2
_SHORT_LONG_POLL_SECONDS = 1.0
_MOST_AT_ONCE = 10
# How long a poller with nothing to do leaves its runner to the other queues; far away each look costs a request.
_YIELD_SECONDS = 0.1
_FAR_YIELD_SECONDS = 5.0
# The numbers of SQS are approximate: a second look may see a message that the first one missed.
_LOOKS_BEFORE_IDLE = 2


class FreeRunners:
    """The runners of a worker that wait for a task; the pollers of all its queues share them."""

    def __init__(self, concurrency: int, stopping: threading.Event) -> None:
        self._free = threading.Semaphore(concurrency)
        self._lock = threading.Lock()
        self._wanted = 0
        self.busy = 0
        """How many runners have a task."""
        self.handed_out = 0
        """How many messages were passed to runners."""
        self.stopping = stopping
        self.work: queues.SimpleQueue[tuple[Shared, Delivery] | None] = queues.SimpleQueue()

    @property
    def are_wanted(self) -> bool:
        """Whether a poller waits because no runner is free."""
        return self._wanted > 0

    def claim(self, most: int) -> int:
        """Return how many free runners the next receive is for; 0 if none becomes free for a while."""
        if not self._free.acquire(blocking=False):
            with self._lock:
                self._wanted += 1
            try:
                if not self._free.acquire(timeout=_SLICE_SECONDS):
                    return 0
            finally:
                with self._lock:
                    self._wanted -= 1
        claimed = 1
        while claimed < most and self._free.acquire(blocking=False):
            claimed += 1
        return claimed

    def give_back(self, count: int) -> None:
        """Let other receives have runners for which there is no task."""
        if count:
            self._free.release(count)

    def hand_out(self, shared: Shared, deliveries: Sequence[Delivery]) -> bool:
        """Pass messages to claimed runners; return False if the worker stops, so that it passes on none."""
        with self._lock:
            if self.stopping.is_set():
                return False
            self.busy += len(deliveries)
            self.handed_out += len(deliveries)
            for delivery in deliveries:
                self.work.put((shared, delivery))
        return True

    def done(self) -> None:
        with self._lock:
            self.busy -= 1
        self._free.release()

    def stop_if_idle(self, handed_out: int) -> bool:
        """Stop if no runner has a task and none got one since so many were passed on; return whether it did."""
        with self._lock:
            if self.busy or self.handed_out != handed_out:
                return False
            self.stopping.set()
        return True

    def stop(self) -> None:
        """Pass on no more messages."""
        with self._lock:
            self.stopping.set()


class Poller:
    """Passes the messages of one queue to runners until stopped or, with `until_idle`, until all queues are empty.

    A poller whose queue is empty keeps at most one runner from those of the other queues, and none while they need it.
    """

    def __init__(self, shared: Shared, runners: FreeRunners, queues: Sequence[Queue], *, until_idle: bool) -> None:
        self._shared = shared
        self._runners = runners
        self._queues = queues
        self._until_idle = until_idle
        self._found = False

    def run(self) -> None:
        backoff, empty, handed_out, stopping = Backoff(), 0, 0, self._runners.stopping
        while not stopping.is_set():
            if not empty:
                handed_out = self._runners.handed_out
            shares = len(self._queues) > 1
            wanted = self._runners.claim(1 if shares and not self._found else _MOST_AT_ONCE)
            yielding = shares and not self._found and self._runners.are_wanted
            deliveries: Sequence[Delivery] = ()
            try:
                if wanted:
                    deliveries = self._shared.queue.receive(
                        max_messages=wanted,
                        # Only one runner waits with the poller; the others are for the other queues.
                        wait=0.0 if yielding or (shares and wanted > 1) else self._wait(),
                        visibility=self._shared.config.visibility,
                    )
                idle = self._until_idle and wanted and not self._runners.busy and not deliveries
                empty = empty + 1 if idle and self._all_empty() else 0
            except Exception as error:
                # Any error: the worker must go on polling, as the next poll may succeed.
                if not backoff.failures:
                    log_event("task_receive_failed", error=error)
                stopping.wait(backoff.next(self._shared.chance()))
            else:
                if backoff.failures:
                    log_event("task_receive_recovered", failures=backoff.failures)
                backoff.reset()
            self._hand_out(deliveries)
            self._runners.give_back(wanted - len(deliveries))
            self._found = bool(deliveries) if wanted else self._found
            if empty >= _LOOKS_BEFORE_IDLE:
                # All pollers end at once: what a task of one queue submits to another must find a poller there.
                empty = 0
                self._runners.stop_if_idle(handed_out)
            if yielding and wanted and not deliveries:
                stopping.wait(_YIELD_SECONDS if self._shared.queue.traits.short_waits else _FAR_YIELD_SECONDS)

    def _all_empty(self) -> bool:
        """Return whether no queue holds a message; a task of one queue may submit to another."""
        found = (queue.stats() for queue in self._queues)
        return all(stats.visible + stats.in_flight + stats.delayed == 0 for stats in found)

    def _wait(self) -> float:
        short = self._shared.queue.traits.short_waits
        if self._until_idle:
            return min(self._shared.config.wait, _SHORT_POLL_SECONDS if short else _SHORT_LONG_POLL_SECONDS)
        return min(self._shared.config.wait, _SLICE_SECONDS) if short else self._shared.config.wait

    def _hand_out(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            return
        with tracing.receiving(self._shared.queue.name, deliveries):
            handed_out = self._runners.hand_out(self._shared, deliveries)
        if handed_out:
            return
        for delivery in deliveries:
            try:
                self._shared.release(delivery)
            except PostroadError as error:
                log_event("task_handling_failed", message_id=delivery.message_id, error=error)


class Waker:
    """Wakes one thread from any other thread or from a signal handler."""

    def __init__(self) -> None:
        self._calls: queues.SimpleQueue[None] = queues.SimpleQueue()

    def wake(self) -> None:
        """Wake the waiting thread, or the next one that waits. A signal handler may call it."""
        self._calls.put(None)

    def wait(self, seconds: float) -> None:
        with suppress(queues.Empty):
            self._calls.get(timeout=None if seconds == inf else max(0.0, seconds))


class WorkerRun:
    """The threads of one run of a worker.

    Args:
        sources: What the threads use, once for each queue.
        waker: Wakes the thread that calls `run`.
        stops: Returns how often `stop()` was called.
        until_idle: Whether to end when all queues are empty.
    """

    def __init__(self, sources: Sequence[Shared], waker: Waker, stops: Callable[[], int], *, until_idle: bool) -> None:
        self._config = sources[0].config
        self._waker = waker
        self._stops = stops
        sources[0].stopping.clear()
        self._free = FreeRunners(self._config.concurrency, sources[0].stopping)
        queues = [source.queue for source in sources]
        self._pollers = [Poller(source, self._free, queues, until_idle=until_idle) for source in sources]
        # A worker that runs until idle does not wait for another worker that may know a task.
        grace = 0.0 if until_idle else self._config.unknown_grace
        # With several queues a runner that goes on with its own would keep the others waiting.
        single = len(sources) == 1
        self._runners = [
            TaskRunner(sources[0], unknown_grace=grace, takes_next=single) for _ in range(self._config.concurrency)
        ]
        self._finished = 0
        self._ended_pollers = 0
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Run until stopped, or until there is nothing left to do; raise an error if a thread ended before that."""
        try:
            for runner in self._runners:
                runner.open()
                self._start(self._serve, runner, name="postroad-runner")
            for poller in self._pollers:
                self._start(self._receive, poller, name="postroad-task-poller")
            self._control()
        finally:
            self._free.stop()
            for runner in self._runners:
                runner.close()
        if self._error is not None:
            raise thread_ended("a thread of the worker", self._error)

    def _start(self, target: Callable[..., None], *arguments: TaskRunner | Poller, name: str) -> None:
        # A daemon, so that a poll that is still under way does not keep the process alive.
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _receive(self, poller: Poller) -> None:
        try:
            poller.run()
        except BaseException as error:
            self._error = error
            self._free.stop()
        finally:
            self._ended_pollers += 1
            self._waker.wake()

    @property
    def _received(self) -> bool:
        return self._ended_pollers == len(self._pollers)

    def _serve(self, runner: TaskRunner) -> None:
        try:
            while (work := self._free.work.get()) is not None:
                shared, delivery = work
                try:
                    runner.handle(shared, delivery)
                except Exception as error:
                    # The message comes back when its visibility ends; the runner continues with other tasks.
                    log_event("task_handling_failed", message_id=delivery.message_id, error=error)
                self._free.done()
        except BaseException as error:
            self._error = error
            self._free.stop()
        finally:
            self._finished += 1
            self._waker.wake()

    def _control(self) -> None:
        """Wait for stops and for the end of the work; kill children after `drain_timeout`, or at a second stop."""
        kill_at, killed = inf, 0
        dismissed = False
        while not (dismissed and self._finished == len(self._runners) and (self._received or killed > 1)):
            self._waker.wait(kill_at - time.monotonic())
            stops = self._stops()
            if (stops or self._received) and not dismissed:
                dismissed = True
                # Pass on no more messages, and let each runner end after its task.
                self._free.stop()
                for _ in self._runners:
                    self._free.work.put(None)
                kill_at = time.monotonic() + self._config.drain_timeout if stops else inf
            if stops and kill_at == inf and not killed:
                kill_at = time.monotonic() + self._config.drain_timeout
            if time.monotonic() >= kill_at:
                kill_at, killed = inf, 1
                self._halt(self._config.kill_grace)
            if stops > 1 and killed < 2:
                kill_at, killed = inf, 2
                self._halt(0.0)
        for thread in self._threads[: len(self._runners)]:
            thread.join()

    def _halt(self, grace: float) -> None:
        for runner in self._runners:
            runner.halt(grace)


_LEAST_PAUSE_SECONDS = 0.5
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Role:
    """A periodic duty of a worker: its name, its interval in seconds, and a function that returns how much it did."""

    name: str
    every: float
    run_once: Callable[[], int]
    close: Callable[[], object] = lambda: None
    """Called when the role ends."""


@dataclass(slots=True)
class _Turn:
    """A role with the time when it is due next, and its failures in a row."""

    role: Role
    due: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)
    error: Exception | None = None
    """The error of the last turn; None after a success."""

    def take(self, is_over: Callable[[], bool] = lambda: False) -> int:
        """Run the role once. After an error it runs again after a pause; the first error in a row is logged."""
        try:
            done = self.role.run_once()
        except Exception as error:
            if is_over():
                # The store was closed meanwhile, so the error does not matter.
                return 0
            # Any error: the next turn may succeed, and the other roles must not wait for it.
            if self.error is None:
                log_event("worker_role_failed", role=self.role.name, error=error)
            self.error = error
            self.due = time.monotonic() + max(_LEAST_PAUSE_SECONDS, self.backoff.next())
            return 0
        if self.error is not None:
            log_event("worker_role_recovered", role=self.role.name, failures=self.backoff.failures)
            self.error = None
            self.backoff.reset()
        self.due = time.monotonic() + self.role.every
        return done


class RoleThreads:
    """Runs each role on its own thread whenever it is due, so that no role waits for another.

    Args:
        roles: The roles to run.
        ended: Called when a thread ends by itself; leaving the `with` block then raises an error.
    """

    def __init__(self, roles: Sequence[Role], *, ended: Callable[[], object] = lambda: None) -> None:
        self._turns = [_Turn(role) for role in roles]
        self._ended = ended
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(turn,), name=f"postroad-{turn.role.name}", daemon=True)
            for turn in self._turns
        ]
        self._error: BaseException | None = None

    def once(self) -> int:
        """Run every role once and return how much was done; if nothing was, raise the first error of a role."""
        done = sum(turn.take() for turn in self._turns)
        error = next((turn.error for turn in self._turns if turn.error is not None), None)
        if not done and error is not None:
            raise error
        return done

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopping.set()
        # Do not wait for a long poll that is under way: its messages come back by themselves.
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for turn in self._turns:
            turn.role.close()
        if self._error is not None and error is None:
            raise thread_ended("the thread of a role", self._error)

    def _run(self, turn: _Turn) -> None:
        try:
            while not self._stopping.is_set():
                turn.take(self._stopping.is_set)
                self._stopping.wait(max(0.0, turn.due - time.monotonic()))
        except BaseException as error:
            self._error = error
            log_event("worker_roles_ended", role=turn.role.name, error=error)
            self._ended()


def thread_ended(what: str, error: BaseException) -> PostroadError:
    """Return the error of a worker that cannot continue because one of its threads ended."""
    found = PostroadError(
        f"{what} ended: {type(error).__name__}: {error}",
        remedy="Start the worker again; POSTROAD_DEBUG=1 shows where it happened.",
    )
    found.__cause__ = error
    return found
