"""Says in one InvalidMessage what msgspec found and where."""

from __future__ import annotations

import re

from postroad.errors import InvalidMessage

_SHOWN_REASON = 300
_PLACE = re.compile(r" - at (?:`key` in )?`\$(?P<place>[^`]*)`")
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")


def explained(error: Exception, data: bytes) -> str:
    """What msgspec says of the JSON, with the position where it names none."""
    text = str(error)
    if not text.endswith("truncated"):
        return text
    lone = _LONE_SURROGATE.search(data)
    return f"{text} (byte {len(data)})" if lone is None else f"a lone surrogate is not text (byte {lone.start()})"


def refusal(error: Exception, *, root: str = "", size: int = 0, remedy: str | None = None) -> InvalidMessage:
    """The error as InvalidMessage, with the path of the field at fault below `root` or the byte where it breaks off."""
    text = str(error)
    if text.endswith("truncated"):
        text += f" (byte {size})"
    path = _path(text, root)
    reason = _PLACE.sub("", text)[:_SHOWN_REASON] or type(error).__name__
    text = f"{path}: {reason}" if path else f"the message is not valid: {reason}"
    return InvalidMessage(text, field=path or None, remedy=remedy)


def _path(text: str, root: str) -> str:
    # A hook's own places come before the place at which msgspec called it.
    places = reversed(_PLACE.findall(text))
    missing = _MISSING.search(text)
    return (root + "".join(places) + (f".{missing['name']}" if missing else "")).removeprefix(".")
