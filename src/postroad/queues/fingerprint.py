"""One name for failures that are alike, so that a thousand dead letters read as three problems."""

from __future__ import annotations

import hashlib
import re

_ERROR = re.compile(
    r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*?))??(?: \[(?P<place>[^\[\]]+:[A-Za-z_<][\w<>.]*)\])?", re.DOTALL
)
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
    found = _ERROR.fullmatch(error or "")
    if found is None:
        kind, where = "", _VARYING.sub("?", error or "")
    else:
        kind, where = found["type"], found["place"] or _VARYING.sub("?", found["message"] or "")
    # A separator that no text contains keeps ("a", "bc") and ("ab", "c") apart.
    text = "\x00".join((event_type or "", kind, where))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
