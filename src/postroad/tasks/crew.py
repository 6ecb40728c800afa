"""One run of a worker: a receiver, its lanes, and the one who hears when to stop."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from math import inf

from postroad.tasks.lanes import Lane, settle_quietly
from postroad.tasks.receiving import Receiver
from postroad.tasks.roles import thread_ended
from postroad.tasks.shop import Shop


class Bell:
    """Rung by any thread or signal handler, heard by one thread."""

    def __init__(self) -> None:
        self._rung, self._heard = socket.socketpair()
        for end in (self._rung, self._heard):
            end.setblocking(False)

    def ring(self) -> None:
        """Wake who waits. Takes no lock, so that a signal handler may do it."""
        try:
            self._rung.send(b"!")
        except OSError:
            # It is full of rings that were not heard yet, or closed: nobody has to be woken.
            return

    def wait(self, seconds: float) -> None:
        """Wait for a ring, at most so long."""
        if select.select([self._heard], [], [], None if seconds == inf else max(0.0, seconds))[0]:
            self._heard.recv(4096)

    def close(self) -> None:
        """Give both ends back."""
        self._rung.close()
        self._heard.close()


class Crew:
    """The threads of one run. `stops` says how often the worker was told to stop."""

    def __init__(self, shop: Shop, bell: Bell, stops: Callable[[], int], *, until_idle: bool) -> None:
        self._shop = shop
        self._bell = bell
        self._stops = stops
        shop.stopping.clear()
        self._receiver = Receiver(shop, until_idle=until_idle)
        # Whoever works until idle waits for no other worker that might know a task.
        grace = 0.0 if until_idle else shop.config.unknown_grace
        self._lanes = [Lane(shop, unknown_grace=grace) for _ in range(shop.config.concurrency)]
        self._finished = 0
        self._received = False
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Work until told to stop, or until there is nothing left to do.

        Raises an error when one of the threads ended before that.
        """
        try:
            for lane in self._lanes:
                lane.open()
                self._start(self._serve, lane, name="postroad-lane")
            self._start(self._receive, name="postroad-task-receiver")
            self._control()
        finally:
            self._receiver.stop()
            for lane in self._lanes:
                lane.close()
        if self._error is not None:
            raise thread_ended("a thread of the worker", self._error)

    def _start(self, target: Callable[..., None], *arguments: Lane, name: str) -> None:
        # A daemon, so that a poll that nobody waits for any more does not keep the process alive.
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _receive(self) -> None:
        try:
            self._receiver.run()
        except BaseException as error:
            self._error = error
        finally:
            self._received = True
            self._bell.ring()

    def _serve(self, lane: Lane) -> None:
        try:
            while (delivery := self._receiver.work.get()) is not None:
                settle_quietly(lane, delivery)
                self._receiver.done()
        except BaseException as error:
            self._error = error
            self._receiver.stop()
        finally:
            self._finished += 1
            self._bell.ring()

    def _control(self) -> None:
        """Hear stops and the end of the work; children get `drain_timeout`, then a kill, at a second stop at once."""
        kill_at, killed = inf, 0
        dismissed = False
        while not (dismissed and self._finished == len(self._lanes) and (self._received or killed > 1)):
            self._bell.wait(kill_at - time.monotonic())
            stops = self._stops()
            if (stops or self._received) and not dismissed:
                dismissed = True
                self._dismiss()
                kill_at = time.monotonic() + self._shop.config.drain_timeout if stops else inf
            if stops and kill_at == inf and not killed:
                kill_at = time.monotonic() + self._shop.config.drain_timeout
            if time.monotonic() >= kill_at:
                kill_at, killed = inf, 1
                self._halt(self._shop.config.kill_grace)
            if stops > 1 and killed < 2:
                kill_at, killed = inf, 2
                self._halt(0.0)
        for thread in self._threads[: len(self._lanes)]:
            thread.join()

    def _dismiss(self) -> None:
        """Hand out nothing more, and let each lane end after what it runs."""
        self._receiver.stop()
        for _ in self._lanes:
            self._receiver.work.put(None)

    def _halt(self, grace: float) -> None:
        for lane in self._lanes:
            lane.halt(grace)
