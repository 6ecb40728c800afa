"""The child `server`: the HTTP API on the socket that the supervisor opened."""

from __future__ import annotations

import asyncio
import os
import resource
import socket

from postroad.http import MAX_OPEN, Context, create_app, make_context, make_server
from postroad.up.child import Line
from postroad.up.children import Notice, PartReport
from postroad.up.work import load_modules, moved_here
from postroad.views import Part
from postroad.wiring import connect


def _unheard() -> tuple[Part, ...]:
    """What is known until the supervisor has spoken: nobody may take this server for ready."""
    return (
        Part(name="server", process="server", pid=os.getpid(), state="starting"),
        Part(name="runners", process="runners", pid=None, state="starting"),
    )


# Connections that wait for nothing, the database, sockets and logs.
_OTHER_FILES = 500


def _most_that_wait() -> int:
    """Let the process have as many open files as streams need; how many streams and long polls then fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_OPEN if soft == resource.RLIM_INFINITY else min(MAX_OPEN, max(soft // 2, soft - _OTHER_FILES))


def serve(to_supervisor: Line) -> None:
    """Serve until the supervisor says stop."""
    job = to_supervisor.job
    assert job.listener is not None
    load_modules(job.settings.load)
    with (
        connect(job.settings.url, trail_keep=job.settings.trail_keep) as backend,
        socket.socket(fileno=job.listener) as listener,
        moved_here(backend),
    ):
        context = make_context(job.settings, backend, admin=job.admin, max_polls=_most_that_wait())
        asyncio.run(_serve(to_supervisor, context, listener))


async def _serve(to_supervisor: Line, context: Context, listener: socket.socket) -> None:
    context.parts.describe(_unheard())
    server = make_server(create_app(context))
    loop = asyncio.get_running_loop()
    stopping, closing = asyncio.Event(), asyncio.Event()

    def hear(notice: Notice) -> None:
        context.parts.describe(notice.parts)
        if notice.phase != "running":
            loop.call_soon_threadsafe(stopping.set)
        if notice.phase == "closing":
            loop.call_soon_threadsafe(closing.set)

    serving = asyncio.create_task(server.serve(sockets=[listener]))
    to_supervisor.listen(hear)
    to_supervisor.report(PartReport(name="server", state="running"))
    await stopping.wait()
    await context.stop()
    await closing.wait()
    server.should_exit = True
    await serving
    context.close()
