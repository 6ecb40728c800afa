"""Says in one InvalidMessage what msgspec found and where."""

from __future__ import annotations

import re

from postroad.errors import InvalidMessage

_PLACE = re.compile(r" - at `(?P<place>[^`]*)`")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")


def refusal(error: Exception, *, root: str = "") -> InvalidMessage:
    """The error as InvalidMessage, with the path of the field at fault below `root`."""
    text = str(error)
    path = _path(text, root)
    reason = _PLACE.sub("", text) or type(error).__name__
    return InvalidMessage(f"{path}: {reason}" if path else f"the message is not valid: {reason}", field=path or None)


def _path(text: str, root: str) -> str:
    # A hook's own places come before the place at which msgspec called it.
    places = [place.removeprefix("$") for place in reversed(_PLACE.findall(text)) if place.startswith("$")]
    missing = _MISSING.search(text)
    return (root + "".join(places) + (f".{missing['name']}" if missing else "")).removeprefix(".")
