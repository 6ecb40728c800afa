"""`postroad up`: everything on one port, from the first check to the last word."""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import os
import socket
import time
import webbrowser
from contextlib import ExitStack
from pathlib import Path

from postroad.errors import ConfigurationError, Unavailable
from postroad.http import PREFIX, kept_secret, read_secret
from postroad.settings import Settings, beside, no_color
from postroad.telemetry import configure_logs
from postroad.up.children import Child, Job
from postroad.up.console import Console, UpFile
from postroad.up.runners import RUNNER_PARTS
from postroad.up.supervisor import Supervisor
from postroad.wiring import connect

STRONG_TOKEN = 32


def check_exposure(settings: Settings, *, operator_token: str | None) -> None:
    """Refuse to listen beyond loopback without a token set by the operator and `allowed_hosts`."""
    if is_loopback(settings.host):
        return
    if operator_token is None or len(operator_token) < STRONG_TOKEN:
        raise ConfigurationError(
            f"host: {settings.host} is reachable from outside, and no token of {STRONG_TOKEN} characters is set",
            field="host",
            remedy="Set POSTROAD_TOKEN or token_file, or listen on 127.0.0.1.",
        )
    if not settings.allowed_hosts:
        raise ConfigurationError(
            f"host: {settings.host} is reachable from outside, and allowed_hosts is empty",
            field="allowed_hosts",
            remedy="Name the hosts that clients use in POSTROAD_ALLOWED_HOSTS, or listen on 127.0.0.1.",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def token_of(settings: Settings) -> str | None:
    """The admin token that the operator set; None when one is made here."""
    if settings.token is not None:
        return settings.token
    return None if settings.token_file is None else read_secret(Path(settings.token_file))


INTERRUPTED = 130
_CHILDREN = (("server", ("server",)), ("runners", tuple(part.name for part in RUNNER_PARTS)))


def run_up(settings: Settings, *, json_output: bool = False, open_browser: bool = False) -> int:
    """Run everything until SIGTERM or Ctrl-C and return the exit code; what cannot start raises why."""
    configure_logs(settings.log_level, settings.log_format, color=not no_color())
    token = token_of(settings)
    check_exposure(settings, operator_token=token)
    if any(importlib.util.find_spec(name) is None for name in ("litestar", "uvicorn")):
        raise ConfigurationError("the HTTP server is not installed", remedy="Run: pip install 'postroad[http]'")
    # What is wrong with the backend is said before anything listens.
    with connect(settings.url) as backend:
        backend.check()
    with ExitStack() as cleanup:
        up_file = UpFile(beside(settings.url, "up"))
        cleanup.callback(up_file.release)
        listener = _listen(settings.host, settings.port)
        cleanup.callback(listener.close)
        admin = token or kept_secret(beside(settings.url, "token"), PREFIX)
        console = Console(settings, _url_of(settings.host, listener), admin, as_json=json_output)
        up_file.announce(console.url)
        job = Job(settings=settings, admin=admin, parent=os.getpid(), report_to=-1)
        return asyncio.run(_run(job, listener, console, open_browser=open_browser))


async def _run(job: Job, listener: socket.socket, console: Console, *, open_browser: bool) -> int:
    supervisor = Supervisor(listener)
    supervisor.obey_signals()
    supervisor.start([_child(name, parts, job, listener, supervisor) for name, parts in _CHILDREN])
    started = time.monotonic()
    try:
        was_ready = await supervisor.ready()
        if was_ready:
            console.ready(supervisor.parts())
            if open_browser:
                webbrowser.open(console.login_url)
            await supervisor.told_to_stop()
    finally:
        in_order = await supervisor.stop()
    if was_ready:
        console.stopped(supervisor.reason, time.monotonic() - started)
    return 0 if in_order else INTERRUPTED


def _child(name: str, parts: tuple[str, ...], job: Job, listener: socket.socket, supervisor: Supervisor) -> Child:
    return Child(
        name,
        job,
        parts=parts,
        listener=listener if name == "server" else None,
        changed=supervisor.announce,
    )


def _listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections. It stays open while the server is started again, so callers only wait."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(2_048)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"port {port} on {host} cannot be listened on: {error.strerror or error}",
            remedy="Choose another port with --port (0 picks a free one), or stop what uses it.",
        ) from error
    return listener


def _url_of(host: str, listener: socket.socket) -> str:
    name = f"[{host.strip('[]')}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"
