"""`postroad status`: what the `postroad up` on this data says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroad.cli.call import Call, verb
from postroad.cli.display import table
from postroad.cli.parameters import short_duration
from postroad.errors import Unauthorized, Unavailable
from postroad.telemetry import legible

if TYPE_CHECKING:
    from rich.text import Text

    from postroad.settings import Settings
    from postroad.views import Part, Status

_SECONDS: Final = 10.0
_COLORS: Final = {"running": "green", "starting": "yellow", "failed": "red"}


@verb("status", "--url sqlite:///shop.db")
def status(call: Call) -> None:
    """Show the parts of the `postroad up` that runs on this data; exit 1 if one has failed, 3 if none runs."""
    settings = call.settings()
    url = _address(settings)
    found = _ask(url, _token(settings))
    rows = (
        (part.name, part.process, part.pid, _state(part), part.restarts, part.missing or None) for part in found.parts
    )
    where = f"Postroad {found.version} at {url}, up for {short_duration(found.uptime_seconds)}"
    call.show(
        found,
        f"{where}{', read-only' if found.read_only else ''}, data {legible(found.backend.url)}",
        table(["PART", "PROCESS", ">PID", "STATE", ">RESTARTS", "WAITS FOR"], rows),
        ok=all(part.state != "failed" for part in found.parts),
    )


def _state(part: Part) -> Text:
    from rich.text import Text

    return Text(part.state, _COLORS[part.state])


def _address(settings: Settings) -> str:
    """Return the address that `postroad up` left beside its data."""
    import msgspec

    from postroad.settings import beside

    try:
        return str(msgspec.json.decode(beside(settings.url, "up").read_bytes())["url"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        raise _not_running(f"no `postroad up` runs on {settings.url}") from None


def _token(settings: Settings) -> str:
    from postroad.http import read_secret
    from postroad.settings import beside
    from postroad.up.command import token_of

    return token_of(settings) or read_secret(beside(settings.url, "token"))


def _ask(url: str, token: str) -> Status:
    """Return the status of the server at this address."""
    import urllib.error
    import urllib.request

    import msgspec

    from postroad.views import Status

    request = urllib.request.Request(f"{url}/status", headers={"Authorization": f"Bearer {token}"})  # noqa: S310  its own
    # The server is on this machine, where no proxy leads.
    open_directly = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    try:
        with open_directly(request, timeout=_SECONDS) as answer:
            return msgspec.json.decode(answer.read(), type=Status)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 401:
                raise Unauthorized(f"the server at {url} does not know the token of this data") from None
            raise _not_running(f"the server at {url} answered with status {error.code}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise _not_running(f"no `postroad up` answers at {url}: {getattr(error, 'reason', error)}") from error


def _not_running(message: str) -> Unavailable:
    return Unavailable(message, remedy="Start it with `postroad up`, or name its data with --url.")
