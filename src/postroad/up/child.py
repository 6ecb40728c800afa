"""A child of `postroad up`: `python -m postroad.up.child server|runners|demo`, configured on stdin; the HTTP server."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

from postroad.errors import ConfigurationError, PostroadError
from postroad.signals import die_with_parent
from postroad.telemetry import get_logger
from postroad.up.children import ChildConfig, Notice, PartReport, Report, SupervisorLink
from postroad.views import Part

if TYPE_CHECKING:
    from postroad.http import Context, Demo
    from postroad.wiring import Backend

# Connections that wait for nothing, the database, sockets and logs.
_OTHER_FILES = 500
_FIRST_BYTES = 65_536
# The length of a key, its padding and two numbers.
_BESIDE_KEY = 32


class AllocatedMetrics(MmapedDict):
    """A file of metrics that has its blocks before they are written.

    A write into a hole of a mapped file kills the process if the disk is full. Without room it goes on in memory, where
    `GET /metrics` sees nothing of it until the child is started again.
    """

    _f: Any
    _m: Any

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        has_room = False
        with suppress(OSError), Path(filename).open("ab") as file:
            has_room = _allocate(file.fileno(), _FIRST_BYTES)
        super().__init__(filename if has_room else _in_memory(), read_mode)  # type: ignore[no-untyped-call]

    def _init_value(self, key: str) -> None:
        if self._used + len(key.encode()) + _BESIDE_KEY > self._capacity:
            self._grow(2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _grow(self, size: int) -> None:
        held = self._m[:]
        if not _allocate(self._f.fileno(), size):
            self._f.close()
            self._f = Path(_in_memory()).open("a+b")  # noqa: SIM115  # open as long as the process lives
            self._f.truncate(size)
        self._m, self._capacity = mmap.mmap(self._f.fileno(), size), size
        self._m[: len(held)] = held


def _allocate(file: int, size: int) -> bool:
    """Give the file blocks for `size` bytes; return False if the disk has no room."""
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:  # as on macOS
        os.ftruncate(file, size)
    except OSError:
        return False
    return True


def _in_memory() -> str:
    """Return the path of a new file that has no room on a disk."""
    get_logger("up").warning("metrics_in_memory")
    return f"/proc/self/fd/{os.memfd_create('metrics')}"


def main(kind: str) -> int:
    """Run the child until the supervisor stops it, and return the exit code."""
    # Ctrl-C reaches the whole process group; only the supervisor decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Unbuffered, so that a thread that still reads holds no lock when the process ends.
    notices = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115  # open as long as the process lives
    config = msgspec.json.decode(notices.readline(), type=ChildConfig)
    die_with_parent(config.parent)
    supervisor = SupervisorLink(config, notices)
    values.MmapedDict = AllocatedMetrics  # type: ignore[attr-defined]  # the library has no other place for it
    try:
        if kind == "server":
            serve(supervisor)
        else:
            from postroad.up.runners import RUNNER_PARTS, run

            if kind == "demo":
                from postroad.up.demo.story import play

                run(supervisor, {"demo": play})
            else:
                run(supervisor, RUNNER_PARTS)
    except PostroadError as error:
        supervisor.send(
            Report(
                refused=str(error),
                remedy=error.remedy,
                kind="configuration" if isinstance(error, ConfigurationError) else "unavailable",
            )
        )
        return 1
    return 0


def serve(supervisor: SupervisorLink) -> None:
    """Serve the HTTP API on the socket that the supervisor opened, until it stops this child."""
    # What is loaded stays: to look through it for garbage again and again would take a tenth of the start.
    gc.disable()
    from postroad.http import Context
    from postroad.up.runners import load_modules, move_events_here
    from postroad.wiring import connect

    config = supervisor.config
    assert config.listener is not None
    load_modules(config.settings.load)
    with (
        connect(config.settings.url, trail_keep=config.settings.trail_keep) as backend,
        socket.socket(fileno=config.listener) as listener,
        move_events_here(backend, config.settings),
        _demo(backend, config) as demo,
    ):
        context = Context(config.settings, backend, admin=config.admin, max_polls=_max_polls(), demo=demo)
        asyncio.run(_serve(supervisor, context, listener))


@contextmanager
def _demo(backend: Backend, config: ChildConfig) -> Iterator[Demo | None]:
    if not config.demo:
        yield None
        return
    from postroad.http import Demo
    from postroad.up.demo.notifications import OFFLINE_QUEUE, PUSH_QUEUE, chat_file
    from postroad.up.demo.story import Story, demo_database

    with closing(demo_database(config.settings.url)) as database:
        # What shows notifications looks for their database and queues in the environment.
        os.environ["NOTIFICATIONS_DATABASE_URL"] = f"sqlite:///{chat_file(database)}"
        os.environ |= {"SQS_PUSH_QUEUE_URL": PUSH_QUEUE, "SQS_OFFLINE_QUEUE_URL": OFFLINE_QUEUE}
        story = Story(backend, database)
        yield Demo(story.show, lambda actor: story.repair(actor=actor))


def _max_polls() -> int:
    """Raise the limit of open files as far as allowed, and return how many streams and long polls then fit."""
    from postroad.http import MAX_OPEN

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_OPEN if soft == resource.RLIM_INFINITY else min(MAX_OPEN, max(soft // 2, soft - _OTHER_FILES))


async def _serve(supervisor: SupervisorLink, context: Context, listener: socket.socket) -> None:
    from postroad.http import create_app, make_server

    # Until the supervisor has described the parts, this server must not be ready.
    context.parts = (
        Part(name="server", process="server", pid=os.getpid(), state="starting"),
        Part(name="runners", process="runners", pid=None, state="starting"),
    )
    server = make_server(create_app(context))
    loop = asyncio.get_running_loop()
    stopping, closing = asyncio.Event(), asyncio.Event()

    def on_notice(notice: Notice) -> None:
        context.parts = notice.parts
        if notice.phase != "running":
            loop.call_soon_threadsafe(stopping.set)
        if notice.phase == "closing":
            loop.call_soon_threadsafe(closing.set)

    gc.freeze()
    gc.enable()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    if not context.settings.read_only:
        threading.Thread(target=context.operations.resume, name="operations", daemon=True).start()
    sampling = asyncio.create_task(context.overviews.keep_sampling())
    supervisor.listen(on_notice)
    supervisor.send(Report(parts=(PartReport(name="server", state="running"),)))
    await stopping.wait()
    sampling.cancel()
    await context.stop()
    await closing.wait()
    server.should_exit = True
    await serving
    context.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
