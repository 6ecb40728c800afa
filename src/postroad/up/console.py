"""What `postroad up` says on stdout, and the lock that tells which one runs on this data."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from postroad import __version__
from postroad.errors import Unavailable, without_credentials
from postroad.settings import Settings, beside, data_path
from postroad.views import Part


class Console:
    """Says that everything is ready, and that it has stopped."""

    def __init__(self, settings: Settings, url: str, admin: str, *, as_json: bool) -> None:
        self._settings = settings
        self._admin = admin
        self._as_json = as_json
        self.url = url
        self.login_url = f"{url}/login#{admin}"

    def ready(self, parts: tuple[Part, ...]) -> None:
        """The first word: where everything is."""
        if self._as_json:
            self._say_json(
                event="ready",
                url=self.url,
                login_url=self.login_url,
                token=self._admin,
                data=self._data(),
                pid=os.getpid(),
                version=__version__,
                parts=parts,
            )
        else:
            _say("\n".join(self._lines()))

    def stopped(self, reason: str, seconds: float) -> None:
        """The last word."""
        if self._as_json:
            self._say_json(event="stopped", reason=reason, seconds=round(seconds, 3))
        else:
            _say("stopped")

    def _lines(self) -> list[str]:
        settings = self._settings
        own_token = settings.token or settings.token_file
        return [
            f"Postroad {__version__}",
            f"API  {self.url}/schema",
            f"token  {'set by you' if own_token else beside(settings.url, 'token')}",
            f"data  {self._data()}",
            f"try: {self._first_thing_to_try()}",
            "stop: Ctrl-C",
        ]

    def _data(self) -> str:
        path = data_path(self._settings.url)
        return without_credentials(self._settings.url) if path is None else str(Path.cwd() / path)

    def _first_thing_to_try(self) -> str:
        given = without_credentials(self._settings.url)
        url = "" if given == Settings().url else f" --url {shlex.quote(given)}"
        program = _program()
        return f"{program} queue create hello{url} && {program} queue send hello --body world{url}"

    def _say_json(self, **document: Any) -> None:
        _say(msgspec.json.encode(document).decode())


def _program() -> str:
    """What to type so that this program is found, pasted as it stands."""
    if shutil.which("postroad") is not None:
        return "postroad"
    started_as = Path(sys.argv[0])
    return (
        shlex.quote(str(started_as)) if started_as.name == "postroad" else f"{shlex.quote(sys.executable)} -m postroad"
    )


def _say(text: str) -> None:
    print(text, flush=True)


class _Runs(msgspec.Struct, frozen=True):
    pid: int
    url: str


class UpFile:
    """The lock of one `postroad up`. A file left behind by a crash holds no lock and is no obstacle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = _locked(path)

    def announce(self, url: str) -> None:
        """Say where this one can be found."""
        data = msgspec.json.encode(_Runs(os.getpid(), url))
        os.truncate(self._handle, 0)
        os.pwrite(self._handle, data, 0)

    def release(self) -> None:
        """Make room for the next one."""
        # Removed while it is still locked: a file that somebody else locked meanwhile must not be removed.
        self.path.unlink(missing_ok=True)
        os.close(self._handle)


def _locked(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking, the one before us may have removed the file; then the lock is on nothing.
            if path.exists() and path.stat().st_ino == os.fstat(handle).st_ino:
                return handle
        except BlockingIOError:
            os.close(handle)
            raise _taken(path) from None
        os.close(handle)


def _taken(path: Path) -> Unavailable:
    try:
        runs = msgspec.json.decode(path.read_bytes(), type=_Runs)
        who = f"with pid {runs.pid} at {runs.url}"
    except (OSError, msgspec.DecodeError):
        who = "and is just starting"
    return Unavailable(
        f"postroad up already runs on this data {who}",
        remedy="Use that one, stop it first, or choose other data with --url.",
    )
