"""Says in one InvalidMessage what msgspec found and where."""

from __future__ import annotations

import re

from postroad.errors import InvalidMessage

_SHOWN_REASON = 300
_PLACE = re.compile(r" - at (?:`key` in )?`\$(?P<place>[^`]*)`")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")


def refusal(error: Exception, *, root: str = "", size: int = 0) -> InvalidMessage:
    """The error as InvalidMessage, with the path of the field at fault below `root` or the byte where it breaks off."""
    text = str(error)
    if text.endswith("truncated"):
        text += f" (byte {size})"
    path = _path(text, root)
    reason = _PLACE.sub("", text)[:_SHOWN_REASON] or type(error).__name__
    return InvalidMessage(f"{path}: {reason}" if path else f"the message is not valid: {reason}", field=path or None)


def _path(text: str, root: str) -> str:
    # A hook's own places come before the place at which msgspec called it.
    places = reversed(_PLACE.findall(text))
    missing = _MISSING.search(text)
    return (root + "".join(places) + (f".{missing['name']}" if missing else "")).removeprefix(".")
