"""One name for failures that are alike, so that a thousand dead letters read as three problems."""

from __future__ import annotations

import hashlib
import re

_TYPE = re.compile(r"[A-Za-z_][\w.]*")
_PLACE = re.compile(r"[^\[\]]+:[A-Za-z_<][\w<>.]*")
_VARYING = re.compile(
    r"""(?<!\w)'.*?'(?!\w)|(?<!\w)".*?"(?!\w)                              # quoted text
    |[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}                   # a UUID
    |\b0[xX][0-9a-fA-F]+\b|\b(?=[a-fA-F]*\d)[0-9a-fA-F]{4,}\b|\b[0-9a-fA-F]{8,}\b   # a run of hexadecimal digits
    |\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?                                      # a number
    """,
    re.VERBOSE | re.DOTALL,
)


def fingerprint(error: str | None, event_type: str | None = None) -> str:
    """Twelve digits for event type, class and place of the error; without a place its text counts, less what varies."""
    kind, message, place = _parts(error or "")
    where = place or _VARYING.sub("?", message)
    # A separator that no text contains keeps ("a", "bc") and ("ab", "c") apart.
    text = "\x00".join((event_type or "", kind, where))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _parts(error: str) -> tuple[str, str, str]:
    """Class, message and place of `ExcType: message [file:function]`; what has another form is all message."""
    head, bracket, tail = error.rpartition(" [")
    place = tail[:-1] if bracket and tail.endswith("]") and _PLACE.fullmatch(tail, 0, len(tail) - 1) else ""
    kind, _, message = (head if place else error).partition(": ")
    if _TYPE.fullmatch(kind) is None:
        return "", error, ""
    return kind, message, place
