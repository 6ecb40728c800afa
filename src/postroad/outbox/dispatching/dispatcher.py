"""The dispatcher: publishes committed events to a topic, key by key in the order of their commits."""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from postroad.errors import ConfigurationError, PostroadError
from postroad.outbox.dispatching.config import DispatcherConfig, DispatchReport
from postroad.outbox.dispatching.publisher import Outlet, Publisher, Render, Renderer, described
from postroad.outbox.dispatching.pump import PRUNE_BATCH, EventLog, Pump
from postroad.outbox.dispatching.store import DispatchStore, Gauges
from postroad.outbox.schema import prune_batch
from postroad.queues import Queue
from postroad.signals import stopped_by_sigterm
from postroad.telemetry import gauge, histogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from postroad.outbox.dispatching.postgres import Listener
    from postroad.outbox.dispatching.sqlite import Watcher
    from postroad.outbox.outbox import Outbox

_STOP_SECONDS = 20.0
_LONGEST_WAIT = 0.1
"""How long a caller's stop event may be set before the dispatcher sees it."""
_HEALTHY_SECONDS = 60.0
_RECONNECT = (0.05, 0.1, 0.2, 0.5, 1.0)
_FRESH_SECONDS = 0.05
_GAUGES: dict[str, dict[str, str]] = {
    "event_outbox_backlog": {},
    "event_publish_lag_seconds": {},
    "dead_letter_count": {"queue": ""},
}


class OutboxDispatcher:
    """Publishes the events of an outbox. Several dispatchers may share an outbox, in one process or in many.

    Args:
        outbox: The outbox, with a DSN or path of its own.
        publisher: A topic, a queue, or an object with `publish(messages)` that returns a result with `ok` and `error`
            for each message. Events of one key are published in the order of their commits.
        config: How it claims, publishes and retries. The defaults suit a topic that answers within a second.
        name: Its name in leases and log lines; by default host name and process id.
        service: The label `service` of its metrics, and the attribute `PublisherId` of its messages.
        metrics: The Prometheus registry of its metrics; by default the global one.
        render: Makes the message of an event, where the default body and attributes do not fit. Its `dedup_id` is
            replaced by the event's id.

    Raises:
        ConfigurationError: The outbox has no DSN or path, or the publisher neither `publish` nor `send`.

    Example:
        dispatcher = OutboxDispatcher(outbox, backend.topic("transfers.fifo", fifo=True))
        dispatcher.run()  # until SIGTERM
    """

    def __init__(
        self,
        outbox: Outbox,
        publisher: Publisher | Queue,
        config: DispatcherConfig = DispatcherConfig(),  # noqa: B008  it is frozen
        *,
        name: str | None = None,
        service: str = "default",
        metrics: CollectorRegistry | None = None,
        render: Render | None = None,
    ) -> None:
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self.config = config
        self._outbox = outbox
        # Two dispatchers of the same name must not take each other's leases for their own.
        self._store = store_for(outbox, owner=f"{self.name}/{secrets.token_hex(4)}", config=config)
        outlet = Outlet(publisher, lambda: outbox.submit_tasks)
        self._event_log = EventLog(self.name, outlet.name)
        self._metrics = OutboxMetrics(service, self._store.gauges, metrics)
        renderer = Renderer(max_bytes=outbox.max_bytes, decrypt=outbox.opened, service=service, render=render)
        self._pump = Pump(
            self._store,
            outlet,
            renderer.message,
            config,
            event_log=self._event_log,
            observe=self._metrics.observe,
            prune=None
            if config.keep_sent is None
            else partial(prune_batch, outbox.database, outbox.tables, older_than=config.keep_sent, batch=PRUNE_BATCH),
        )
        self._working = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._connected = False
        self._running = False
        self._turned_at = 0.0
        self._stop_seconds = _STOP_SECONDS

    @property
    def ready(self) -> bool:
        """Whether it runs, the database answers and the target accepts messages."""
        return self._running and self._connected and not self._pump.target.paused

    @property
    def healthy(self) -> bool:
        """False if it runs, but its thread did nothing within the last minute."""
        return not self._running or time.monotonic() - self._turned_at < _HEALTHY_SECONDS

    def run_once(self) -> DispatchReport:
        """Claim, publish and settle once; return what was done."""
        with self._at_work():
            self._pump.look()
            self._finish()
            self._pump.prune()
            return self._pump.take_report()

    def drain(self, timeout: float = 30.0, *, stop: threading.Event | None = None) -> DispatchReport:
        """Publish until no row is due, and return what was done.

        Args:
            timeout: Stop after this many seconds, even if rows are due.
            stop: Stop soon after this event is set.
        """

        def is_over() -> bool:
            return self._pump.drained or (stop is not None and stop.is_set())

        with self._at_work():
            self._pump.look()
            self._work_until(is_over, timeout, looking=True)
            self._pump.release()
            self._finish()
            return self._pump.take_report()

    def run(self, stop: threading.Event | None = None) -> DispatchReport:
        """Publish until `stop` is set, `stop()` is called or SIGTERM arrives.

        Then running calls finish, and the other rows are released.
        """
        self._stopping.clear()
        with stopped_by_sigterm(self._stopping):
            return self._run(stop)

    def start(self) -> None:
        """Run in a thread; raise what makes it impossible, such as missing tables or a read-only server."""
        with self._at_work():
            self._stopping.clear()
        self._thread = threading.Thread(target=self._run_on, name="postroad-outbox-dispatch", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """Stop what `start` or `run` began: wait `timeout` seconds for running calls, release the other rows."""
        self._stop_seconds = timeout
        self._stopping.set()
        self._pump.wake()
        if self._thread is not None:
            self._thread.join(timeout + _LONGEST_WAIT)

    def _run(self, stop: threading.Event | None = None) -> DispatchReport:
        def is_stopped() -> bool:
            return self._stopping.is_set() or (stop is not None and stop.is_set())

        with self._at_work(), self._woken():
            self._turned_at = time.monotonic()
            self._running = True
            self._event_log.write("outbox_started")
            try:
                self._pump.wake()
                while not is_stopped():
                    self._step(is_stopped, looking=True)
            finally:
                self._running = False
                self._wind_up(time.monotonic() + self._stop_seconds)
            return self._pump.take_report()

    def _run_on(self) -> None:
        """Run in the thread that `start` made, and start again after errors of the database, and after any other."""
        while not self._stopping.is_set():
            try:
                self._run()
            except BaseException as error:
                lost = isinstance(error, PostroadError)
                self._event_log.write("outbox_database_lost" if lost else "outbox_run_failed", error=described(error))
                self._stopping.wait(_RECONNECT[-1])

    def _finish(self) -> None:
        self._work_until(lambda: self._pump.idle, _STOP_SECONDS, looking=False)

    def _work_until(self, is_over: Callable[[], bool], seconds: float, *, looking: bool) -> None:
        deadline = time.monotonic() + seconds
        self._pump.work(looking=looking)
        while not is_over() and (left := deadline - time.monotonic()) > 0:
            self._pump.wait(min(left, _LONGEST_WAIT), looking=looking)
            self._pump.work(looking=looking)

    def _wind_up(self, deadline: float) -> None:
        """Release the rows that are not in a call, wait for those that are, and settle them."""

        def is_over() -> bool:
            return self._pump.idle or time.monotonic() >= deadline

        self._pump.release()
        while not is_over():
            self._step(is_over, looking=False)
        self._event_log.write("outbox_stopped" if self._pump.idle else "outbox_stop_timed_out")

    def _step(self, give_up: Callable[[], bool], *, looking: bool) -> None:
        """Work and wait once; if the database fails, reconnect until it answers or `give_up` returns True."""
        self._turned_at = time.monotonic()
        try:
            self._pump.work(looking=looking)
            self._pump.wait(_LONGEST_WAIT, looking=looking)
        except PostroadError as error:
            self._connected = False
            self._event_log.write("outbox_database_lost", error=described(error))
            self._reconnect(give_up)

    def _reconnect(self, give_up: Callable[[], bool]) -> None:
        failures = 0
        while not give_up():
            self._turned_at = time.monotonic()
            self._stopping.wait(_RECONNECT[min(failures, len(_RECONNECT) - 1)])
            failures += 1
            with suppress(PostroadError):
                self._store.open()
                self._pump.doubt_leases()
                self._connected = True
                self._event_log.write("outbox_database_back")
                return

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Let one caller at a time work, and open the database for it."""
        if not self._working.acquire(blocking=False):
            raise ConfigurationError(
                f"dispatcher {self.name!r} is at work already",
                field="dispatcher",
                remedy="Stop it first, or make another one.",
            )
        try:
            self._store.open()
            self._connected = True
            yield
        finally:
            self._connected = False
            self._store.close()
            self._working.release()

    @contextmanager
    def _woken(self) -> Iterator[None]:
        """Be woken when rows are added, if that is possible here."""
        waker = _waker_for(self._outbox, self._pump.wake) if self.config.listen else None
        try:
            if waker is not None and not waker.start():
                self._event_log.write("outbox_listen_unavailable", poll=self.config.poll)
            yield
        finally:
            if waker is not None:
                waker.stop()


def store_for(outbox: Outbox, *, owner: str, config: DispatcherConfig) -> DispatchStore:
    """Return the rows of the outbox for the dispatcher that is called `owner` in leases."""
    store: Callable[..., DispatchStore]
    if outbox.dialect == "postgresql":
        from postroad.outbox.dispatching.postgres import PostgresDispatchStore as store
    else:
        from postroad.outbox.dispatching.sqlite import SQLiteDispatchStore as store
    database: Any = outbox.database
    return store(database, outbox.tables, owner=owner, lease=config.lease, policy=config.policy)


def _waker_for(outbox: Outbox, wake: Callable[[], None]) -> Listener | Watcher:
    """Return a thread that calls `wake` soon after rows were added."""
    database: Any = outbox.database
    if outbox.dialect == "postgresql":
        from postroad.outbox.dispatching.postgres import Listener

        return Listener(database, outbox.tables, wake)
    from postroad.outbox.dispatching.sqlite import Watcher

    return Watcher(database, wake)


class OutboxMetrics:
    """The gauges and the histogram of one dispatcher. The gauges read NaN once this object is gone."""

    def __init__(self, service: str, count: Callable[[], Gauges], registry: CollectorRegistry | None) -> None:
        self._count = count
        self._counted: tuple[float, Gauges] | None = None
        self.observe: Callable[[float], None] = (
            histogram("postroad_publish_seconds", registry).labels(service=service).observe
        )
        mine: ref[OutboxMetrics] = ref(self)
        for place, (name, labels) in enumerate(_GAUGES.items()):
            gauge(name, registry).labels(service=service, **labels).set_function(partial(_read, mine, place))

    def read(self, place: int) -> float:
        """Return one of the gauges; all that are read together share a query. NaN if the database does not answer."""
        now = time.monotonic()
        if self._counted is None or now - self._counted[0] > _FRESH_SECONDS:
            try:
                self._counted = now, self._count()
            except PostroadError:
                return math.nan
        return float(self._counted[1][place])


def _read(mine: ref[OutboxMetrics], place: int) -> float:
    metrics = mine()
    return math.nan if metrics is None else metrics.read(place)
