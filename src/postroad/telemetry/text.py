"""Text from elsewhere: made safe to show, and without the secrets that slipped into it."""

from __future__ import annotations

import re
from typing import Final

from postroad.errors import without_credentials


def legible(value: object) -> str:
    """The text with control characters and direction marks spelt out: no data forges a line or drives a terminal."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


HIDDEN: Final = "***"
_KEY: Final = re.compile(
    r"""(?<![\w-])(?![\w-]{0,60}(?:Error|Exception)\b)      # a class of error is no name of a secret
    (?P<name>[\w-]{0,30}(?:passw(?:or)?d|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)s?[\w-]{0,30}
    ["']?\ ?[=:]\ ?)(?P<value>"[^"]*"|'[^']*'|[^\s"',;&)\]}]+)""",
    re.VERBOSE | re.IGNORECASE,
)
_BEARER: Final = re.compile(r"\b(?P<name>(?:bearer|basic) +)[\w.~+/=-]{8,}", re.IGNORECASE)
_KNOWN: Final = re.compile(
    r"""\b(?:AKIA|ASIA)[A-Z0-9]{16}\b                         # AWS
    |\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*                           # a JSON web token
    |\b(?:pr_|gh[pousr]_|sk_live_|xox[abpr]-)[\w-]{16,}       # Postroad, GitHub, Stripe, Slack
    |(?<=hooks\.slack\.com/services/)[\w/]+
    |-----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|$)""",
    re.VERBOSE | re.DOTALL,
)


def redact(text: str) -> str:
    """The text with passwords, tokens and keys hidden, as far as their form or their name gives them away."""
    text = _KNOWN.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\g<name>{HIDDEN}", text)
    text = without_credentials(text)
    return _KEY.sub(rf"\g<name>{HIDDEN}", text)
