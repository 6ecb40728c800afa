"""One child of `postroad up`: started, heard, and started again when it dies."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from postroad.errors import ConfigurationError, PostroadError, Unavailable
from postroad.settings import Settings
from postroad.telemetry import get_logger
from postroad.views import Part, PartState

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 10.0
STEADY_SECONDS = 60.0
DEATHS_TO_FAIL = 5
WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often a part died lately, and how long it waits before it starts again."""

    deaths: tuple[float, ...] = ()
    total: int = 0
    delay: float = FIRST_SECONDS
    failed: bool = False

    def died(self, now: float, *, started_at: float) -> Restarts:
        """The state after a death at `now` of what was started at `started_at`; `pause` says how long to wait."""
        recent = (*(death for death in self.deaths if now - death < WINDOW_SECONDS), now)
        steady = now - started_at >= STEADY_SECONDS
        delay = FIRST_SECONDS if steady or not self.deaths else min(self.delay * 2, LONGEST_SECONDS)
        return replace(self, deaths=recent, delay=delay, failed=len(recent) >= DEATHS_TO_FAIL)

    def started_again(self) -> Restarts:
        """The state after the start that followed a death."""
        return replace(self, total=self.total + 1)


class Job(msgspec.Struct, frozen=True):
    """The first line to a child: all it needs to know. Secrets travel here and never in its arguments."""

    settings: Settings
    admin: str
    parent: int
    report_to: int
    listener: int | None = None


class Notice(msgspec.Struct, frozen=True):
    """A later line to a child: how everything is, and what is to be done.

    `stopping`: finish what runs and begin nothing new; `closing`: end now.
    """

    parts: tuple[Part, ...]
    phase: Literal["running", "stopping", "closing"] = "running"


class PartReport(msgspec.Struct, frozen=True):
    """How one part of a child is."""

    name: str
    state: PartState
    restarts: int = 0
    missing: str | msgspec.UnsetType = msgspec.UNSET


class Report(msgspec.Struct, frozen=True):
    """A line from a child: how its parts are, or why it cannot start at all."""

    parts: tuple[PartReport, ...] = ()
    refused: str | None = None
    remedy: str | None = None
    kind: Literal["configuration", "unavailable"] | None = None


def line(message: msgspec.Struct) -> bytes:
    """One message as a line."""
    return msgspec.json.encode(message) + b"\n"


_log = get_logger("up")


class Child:
    """A process that does one job. `changed` is called whenever what `parts()` says is no longer true."""

    def __init__(
        self,
        name: str,
        job: Job,
        *,
        parts: tuple[str, ...],
        listener: socket.socket | None,
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self._job = job
        self._listener = listener
        self._changed = changed
        self._reports = {part: PartReport(name=part, state="starting") for part in parts}
        self._process: Process | None = None
        self._restarts = Restarts()
        self._stopping = False
        self.refused: PostroadError | None = None

    @property
    def failed(self) -> bool:
        """Whether it died so often that it is not started any more."""
        return self._restarts.failed

    @property
    def pid(self) -> int | None:
        """Its process, while there is one."""
        return None if self._process is None else self._process.pid

    def parts(self) -> tuple[Part, ...]:
        """How each of its parts is."""
        return tuple(
            Part(
                name=report.name,
                process=self.name,
                pid=self.pid,
                state=self._state(report),
                restarts=self._restarts.total + report.restarts,
                missing=report.missing,
            )
            for report in self._reports.values()
        )

    async def keep_running(self) -> None:
        """Start it, and start it again whenever it dies, until it is told to stop or died too often."""
        while await self._live_until_death():
            _log.warning(
                "part_failed" if self.failed else "part_stopped", part=self.name, restart_in=self._restarts.delay
            )
            if not self.failed:
                await asyncio.sleep(self._restarts.delay)
                self._restarts = self._restarts.started_again()

    def tell(self, notice: Notice) -> None:
        """Pass a notice on; one that is dead hears nothing."""
        self._stopping = self._stopping or notice.phase != "running"
        if self._process is not None and self._process.stdin is not None:
            with suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(line(notice))

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _live_until_death(self) -> bool:
        """One life; whether the death was untimely."""
        if self._stopping or self.failed:
            return False
        started_at = time.monotonic()
        await self._live()
        if not self._stopping:
            self._restarts = self._restarts.died(time.monotonic(), started_at=started_at)
            self._changed()
        return not self._stopping

    async def _live(self) -> None:
        """One life, from start to death."""
        reader, writer = os.pipe()
        try:
            self._process = await self._start(writer)
        finally:
            os.close(writer)
        _log.info("part_started", part=self.name, pid=self.pid)
        hearing = asyncio.create_task(self._hear(reader))
        self._changed()
        await self._process.wait()
        await hearing
        self._process = None
        self._reports = {part: PartReport(name=part, state="starting") for part in self._reports}

    async def _start(self, writer: int) -> Process:
        listener = None if self._listener is None else self._listener.fileno()
        job = msgspec.structs.replace(self._job, report_to=writer, listener=listener)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "postroad.up.child", self.name),
            stdin=asyncio.subprocess.PIPE,
            # Whatever a child prints belongs to the log: our stdout carries the answers that programs read.
            stdout=sys.stderr,
            pass_fds=[writer] if listener is None else [writer, listener],
        )
        assert process.stdin is not None
        process.stdin.write(line(job))
        return process

    async def _hear(self, reader: int) -> None:
        """Take in the child's reports until its end of the pipe is closed."""
        stream = asyncio.StreamReader(limit=1_048_576)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reader, "rb", buffering=0)
        )
        try:
            while text := await stream.readline():
                self._take(msgspec.json.decode(text, type=Report))
        finally:
            transport.close()

    def _take(self, report: Report) -> None:
        if report.refused is not None:
            kind = ConfigurationError if report.kind == "configuration" else Unavailable
            self.refused = kind(report.refused, remedy=report.remedy)
            _log.error("part_failed", part=self.name, error=report.refused)
        self._reports |= {part.name: part for part in report.parts}
        self._changed()

    def _state(self, report: PartReport) -> PartState:
        if self.failed:
            return "failed"
        return report.state if self._process is not None else "starting"
