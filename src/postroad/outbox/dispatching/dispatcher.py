"""The dispatcher: moves committed events, key by key in the order of their commits, onto a topic."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from postroad.errors import ConfigurationError, PostroadError
from postroad.outbox.dialects import Phrases
from postroad.outbox.dispatching.config import DispatcherConfig, DispatchReport
from postroad.outbox.dispatching.messages import Render, Renderer
from postroad.outbox.dispatching.metrics import EventLog, OutboxMetrics
from postroad.outbox.dispatching.publisher import Outlet, Publisher, Sender, described
from postroad.outbox.dispatching.pump import PRUNE_BATCH, Pump
from postroad.outbox.dispatching.store import Dispatchable, store_for, waker_for
from postroad.outbox.upkeep import prune_batch
from postroad.signals import stopped_by_sigterm

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_STOP_SECONDS = 20.0
_LONGEST_WAIT = 0.1
"""How long a caller's stop event may be set before it is seen."""
_HEALTHY_SECONDS = 60.0
_RECONNECT = (0.05, 0.1, 0.2, 0.5, 1.0)


class OutboxDispatcher:
    """Publishes what an outbox holds. Several may work on one outbox, in one process or in many."""

    def __init__(
        self,
        outbox: Dispatchable,
        publisher: Publisher | Sender,
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
        # Two dispatchers of one name must not take each other's leases for their own.
        self._store = store_for(outbox, owner=f"{self.name}/{secrets.token_hex(4)}", config=config)
        self._event_log = EventLog(self.name)
        self._metrics = OutboxMetrics(service, self._store.gauges, metrics)
        renderer = Renderer(max_bytes=outbox.max_bytes, decrypt=outbox.opened, service=service, render=render)
        self._pump = Pump(
            self._store,
            Outlet(publisher),
            renderer.message,
            config,
            event_log=self._event_log,
            observe=self._metrics.observe,
            prune=self._pruning(),
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
        """Whether it runs, the database answers and the target takes messages."""
        return self._running and self._connected and not self._pump.target.paused

    @property
    def healthy(self) -> bool:
        """Whether it goes on: it does not run, or its thread did something within the last minute."""
        return not self._running or time.monotonic() - self._turned_at < _HEALTHY_SECONDS

    def run_once(self) -> DispatchReport:
        """One pass: claim, publish, settle."""
        with self._at_work():
            self._pump.look()
            self._finish(_STOP_SECONDS)
            self._pump.prune()
            return self._pump.take_report()

    def drain(self, timeout: float = 30.0, *, stop: threading.Event | None = None) -> DispatchReport:
        """Pass after pass, until nothing is due, the time is over or it is told to stop."""
        deadline = time.monotonic() + timeout
        with self._at_work():
            self._pump.look()
            self._pump.work(looking=True)
            while not self._pump.drained and (left := deadline - time.monotonic()) > 0:
                if stop is not None and stop.is_set():
                    break
                self._pump.wait(min(left, _LONGEST_WAIT), looking=True)
                self._pump.work(looking=True)
            self._pump.give_back()
            self._finish(_STOP_SECONDS)
            return self._pump.take_report()

    def run(self, stop: threading.Event | None = None) -> DispatchReport:
        """Publish until told to stop or SIGTERM arrives; then calls under way end, and the rest is given back."""
        self._stopping.clear()
        with stopped_by_sigterm(self._stopping):
            return self._run(stop)

    def start(self) -> None:
        """Run in a thread. What cannot work (no tables, a read-only server) is raised here."""
        with self._at_work():
            self._stopping.clear()
        self._thread = threading.Thread(target=self._run_on, name="postroad-outbox-dispatch", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """Stop what `start` or `run` began: no new claims, running calls end and settle, leases are given back."""
        self._stop_seconds = timeout
        self._stopping.set()
        self._pump.wake()
        if self._thread is not None:
            self._thread.join(timeout + _LONGEST_WAIT)

    def _pruning(self) -> Callable[[], int] | None:
        older_than = self.config.keep_sent
        if older_than is None:
            return None
        words = Phrases(self._outbox.names, self._outbox.dialect)
        return lambda: prune_batch(self._outbox.database, words, older_than=older_than, batch=PRUNE_BATCH)

    def _run(self, stop: threading.Event | None = None) -> DispatchReport:
        def told_to_stop() -> bool:
            return self._stopping.is_set() or (stop is not None and stop.is_set())

        with self._at_work(), self._woken():
            self._turned_at = time.monotonic()
            self._running = True
            self._event_log.tell("outbox_started")
            try:
                self._pump.wake()
                while not told_to_stop():
                    self._undeterred(self._flow, told_to_stop)
            finally:
                self._running = False
                self._wind_up(time.monotonic() + self._stop_seconds)
            return self._pump.take_report()

    def _run_on(self) -> None:
        """Run in a thread that `start` made, whatever the database does."""
        while not self._stopping.is_set():
            try:
                self._run()
            except PostroadError as error:
                self._event_log.tell("outbox_database_lost", error=described(error))
                self._stopping.wait(_RECONNECT[-1])

    def _flow(self) -> None:
        self._pump.work(looking=True)
        self._pump.wait(_LONGEST_WAIT, looking=True)

    def _ebb(self) -> None:
        self._pump.work(looking=False)
        self._pump.wait(_LONGEST_WAIT, looking=False)

    def _finish(self, seconds: float) -> None:
        """Let everything that was claimed come to its end."""
        deadline = time.monotonic() + seconds
        self._pump.work(looking=False)
        while not self._pump.idle and (left := deadline - time.monotonic()) > 0:
            self._pump.wait(min(left, _LONGEST_WAIT), looking=False)
            self._pump.work(looking=False)

    def _wind_up(self, deadline: float) -> None:
        """Give back what is not in a call, wait for what is, and write down what became of it."""

        def is_over() -> bool:
            return self._pump.idle or time.monotonic() >= deadline

        self._pump.give_back()
        while not is_over():
            self._undeterred(self._ebb, is_over)
        self._event_log.tell("outbox_stopped" if self._pump.idle else "outbox_stop_timed_out")

    def _undeterred(self, step: Callable[[], None], give_up: Callable[[], bool]) -> None:
        """Take a step; when the database fails, connect anew until it answers or there is no point any more."""
        self._turned_at = time.monotonic()
        try:
            step()
        except PostroadError as error:
            self._connected = False
            self._event_log.tell("outbox_database_lost", error=described(error))
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
                self._event_log.tell("outbox_database_back")
                return

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """One at a time, with an open database, which is closed in the end."""
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
            self._pump.close(timeout=1.0)
            self._working.release()

    @contextmanager
    def _woken(self) -> Iterator[None]:
        """Be woken when rows are added, where that is possible."""
        waker = waker_for(self._outbox, self._pump.wake) if self.config.listen else None
        if waker is not None and not waker.start():
            self._event_log.tell("outbox_listen_unavailable", poll=self.config.poll)
        try:
            yield
        finally:
            if waker is not None:
                waker.stop()
