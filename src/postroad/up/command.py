"""`postroad up`: the checks before it starts, what it prints, and the lock on its data."""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import ipaddress
import os
import shlex
import shutil
import socket
import sys
import time
import webbrowser
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from postroad import __version__
from postroad.errors import ConfigurationError, Unavailable, without_credentials
from postroad.http import PREFIX, kept_secret, read_secret
from postroad.settings import METRICS, Settings, beside, data_path
from postroad.up.children import Child, ChildConfig, write_logs
from postroad.up.hello import COMMAND, subscribe
from postroad.up.runners import RUNNER_PARTS, try_modules
from postroad.up.supervisor import Supervisor
from postroad.views import Part
from postroad.wiring import connect


class Console:
    """Prints that everything is ready, and that it has stopped."""

    def __init__(self, settings: Settings, url: str, admin: str, *, as_json: bool) -> None:
        self._settings = settings
        self._admin = admin
        self._as_json = as_json
        self.url = url
        self.login_url = f"{url}/login#{admin}"

    def starting(self) -> None:
        """Tell people who wait that it starts."""
        if not self._as_json:
            print(f"starting on {self.url} ...", file=sys.stderr, flush=True)

    def ready(self, parts: tuple[Part, ...]) -> None:
        """Print where everything is."""
        settings = self._settings
        path, shown_url = data_path(settings.url), without_credentials(settings.url)
        data = shown_url if path is None else str(Path.cwd() / path)
        url_option = "" if shown_url == Settings().url else f" --url {shlex.quote(shown_url)}"
        # The secret that the operator set is not for the log of a service.
        is_set = settings.token is not None or settings.token_file is not None
        link = f"{self.url}/login" if is_set and not sys.stdout.isatty() else self.login_url
        self._print(
            f"Postroad {__version__}\n"
            f"dashboard  {link}\n"
            f"API  {self.url}/schema\n"
            f"data  {data}\n"
            f"try: {_program()} {COMMAND}{url_option}\n"
            "stop: Ctrl-C",
            event="ready",
            url=self.url,
            login_url=self.login_url,
            token=self._admin,
            data=data,
            pid=os.getpid(),
            version=__version__,
            parts=parts,
        )

    def stopped(self, reason: str, seconds: float) -> None:
        """Print that everything has stopped."""
        self._print("stopped", event="stopped", reason=reason, seconds=round(seconds, 3))

    def _print(self, text: str, **document: Any) -> None:
        print(msgspec.json.encode(document).decode() if self._as_json else text, flush=True)


def _program() -> str:
    """Return the command that starts this program, ready to be pasted into a shell."""
    if shutil.which("postroad") is not None:
        return "postroad"
    started_as = Path(sys.argv[0])
    if started_as.name == "postroad":
        return shlex.quote(str(started_as))
    return f"{shlex.quote(sys.executable)} -m postroad"


class _Runs(msgspec.Struct, frozen=True):
    pid: int
    url: str


def _locked(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous process may have removed the file between opening and locking it.
            if path.exists() and path.stat().st_ino == os.fstat(handle).st_ino:
                return handle
        except BlockingIOError:
            os.close(handle)
            try:
                runs = msgspec.json.decode(path.read_bytes(), type=_Runs)
                who = f"with pid {runs.pid} at {runs.url}"
            except (OSError, msgspec.DecodeError):
                who = "and is still starting"
            raise Unavailable(
                f"postroad up already runs on this data {who}",
                remedy="Use that one, stop it first, or choose other data with --url.",
            ) from None
        os.close(handle)


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
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def token_of(settings: Settings) -> str | None:
    """Return the admin token that the operator set; None if one is made here."""
    if settings.token is not None:
        return settings.token
    return None if settings.token_file is None else read_secret(Path(settings.token_file))


INTERRUPTED = 130
_SLOW_SECONDS = 1.0


def run_up(
    settings: Settings,
    *,
    json_output: bool = False,
    open_browser: bool = False,
    demo: bool = False,
    narrated: bool = False,
) -> int:
    """Run everything until SIGTERM or Ctrl-C and return the exit code.

    Args:
        settings: Where the data is, where to listen, and what to load.
        json_output: Print JSON lines on stdout instead of text.
        open_browser: Open the browser once everything is ready.
        demo: Play the demo.
        narrated: Tell what happens in the demo.

    Raises:
        ConfigurationError: A setting is wrong, or the HTTP server is not installed.
        Unavailable: The port or the backend is not available, or another `postroad up` uses the data.
    """
    # On a terminal, the first thing to see is where everything is.
    quiet = not json_output and sys.stderr.isatty()
    write_logs(settings, quiet=quiet)
    token = _checked(settings, demo=demo)
    with ExitStack() as cleanup:
        # The lock of one `postroad up`; a file that a crash left behind holds none.
        path = beside(settings.url, "up")
        lock = _locked(path)
        cleanup.callback(os.close, lock)
        # It goes while it is still locked, so that no file of another process is removed.
        cleanup.callback(path.unlink, missing_ok=True)
        listener = _listen(settings.host, settings.port)
        cleanup.callback(listener.close)
        # What an earlier run has measured is gone.
        measured = beside(settings.url, METRICS)
        shutil.rmtree(measured, ignore_errors=True)
        measured.mkdir(mode=0o700)
        admin = token or kept_secret(beside(settings.url, "token"), PREFIX)
        host = f"[{settings.host.strip('[]')}]" if ":" in settings.host else settings.host
        url = f"http://{host}:{listener.getsockname()[1]}"
        console = Console(settings, url, admin, as_json=json_output)
        os.truncate(lock, 0)
        os.pwrite(lock, msgspec.json.encode(_Runs(os.getpid(), console.url)), 0)
        with connect(settings.url) as backend:
            if demo:
                from postroad.up.demo import story

                story.prepare(backend, settings)
                settings = story.demo_settings(settings, quiet=quiet)
            subscribe(backend)
        config = ChildConfig(settings=settings, admin=admin, parent=os.getpid(), report_to=-1, demo=demo, quiet=quiet)
        return asyncio.run(_run(config, listener, console, open_browser=open_browser, narrated=narrated))


def _checked(settings: Settings, *, demo: bool) -> str | None:
    """Check everything that can be checked before anything listens, and return the token that the operator set."""
    token = token_of(settings)
    check_exposure(settings, operator_token=token)
    if any(importlib.util.find_spec(name) is None for name in ("litestar", "uvicorn")):
        raise ConfigurationError("the HTTP server is not installed", remedy="Run: pip install 'postroad[http]'")
    if settings.load:
        try_modules(settings.load)
    if not demo:
        with connect(settings.url) as backend:
            backend.check()
        return token
    # What the scenes use is loaded only where a demo plays.
    from postroad.up.demo import story

    story.refuse_other_store(settings.url)
    with connect(settings.url) as backend:
        backend.check()
        story.refuse_other_data(backend)
    return token


async def _run(
    config: ChildConfig, listener: socket.socket, console: Console, *, open_browser: bool, narrated: bool
) -> int:
    supervisor = Supervisor(listener)
    supervisor.obey_signals()
    changed = supervisor.announce
    children = [
        Child("server", config, parts=("server",), listener=listener, changed=changed),
        Child("runners", config, parts=tuple(RUNNER_PARTS), listener=None, changed=changed),
    ]
    if config.demo:
        # On a terminal a line for each event of the demo would hide everything else.
        level = "error" if config.quiet else config.settings.log_level
        players = msgspec.structs.replace(config, settings=replace(config.settings, log_level=level))
        children.append(Child("demo", players, parts=("demo",), listener=None, changed=changed))
    supervisor.start(children)
    started = time.monotonic()
    slow = asyncio.get_running_loop().call_later(_SLOW_SECONDS, console.starting)
    try:
        was_ready = await supervisor.ready()
        slow.cancel()
        if was_ready:
            console.ready(supervisor.parts())
            write_logs(config.settings)
            supervisor.said_ready()
            if open_browser:
                webbrowser.open(console.login_url)
            async with _narration(config.settings.url) if narrated else nullcontext():
                await supervisor.signalled()
    finally:
        slow.cancel()
        in_order = await supervisor.stop()
    if was_ready:
        console.stopped(supervisor.reason, time.monotonic() - started)
    return 0 if in_order else INTERRUPTED


@asynccontextmanager
async def _narration(url: str) -> AsyncIterator[None]:
    from postroad.up.demo.story import narrate

    telling = asyncio.create_task(narrate(_program(), url, lambda text: print(text, flush=True)))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


def _listen(host: str, port: int) -> socket.socket:
    """Open the listening socket. It stays open while the server restarts, so callers only wait."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(2_048)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"cannot listen on port {port} of {host}: {error.strerror or error}",
            remedy="Choose another port with --port (0 picks a free one), or stop what uses it.",
        ) from error
    return listener
