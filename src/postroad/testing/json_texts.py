"""JSON that every port carries unchanged or refuses, for the one rule that all conformance suites share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroad.errors import InvalidInput

_DEEP: Final = 60

PLAIN: Final = (
    '{"a":1}',
    '  { "a" :\r\n\t[ ] } \n',
    '{"é漢😀":"e\u0301\u200d\u202e\ufeff"}',
    '"\u2028\u2029\u0085\u007f\u009f\ufffd\ufdd0"',
    r'"\u0000\u0001\u001f\b\f\n\r\t\\\"\/"',
    r'"\ufffe\uffff\ufdd0\u2028\ud83d\ude00"',
    "[1,1.0,-0.0,0.1,1e22,1E-7,1e300,12345678901234567890123456789012345678901234567890,true,null]",
    '{"a":1,"a":2,"":{"":[[],{}]}}',
    '"<&>%s{0}"',
    "{" + '"in":{' * _DEEP + "}" * _DEEP + "}",
    '{"Type":"Notification","TopicArn":"arn:aws:sns:us-east-1:123456789012:news","Message":"inner"}',
    '{"detail-type":"x","source":"y","detail":{"body":"inner","attributes":{}}}',
    '{"detail-type":"x","source":"y","detail":{"event_type":"Placed","payload":{}}}',
    '{"postroad_blob":{"key":"overflow/a","size":1}}',
    '"' + "x" * 100_000 + '"',
)
"""Texts of printable characters, and of others as escapes: every port takes them."""

DOUBTFUL: Final = (
    '"\ufffe"',
    '"\uffff"',
    '"a\x00b"',
    '"a\x01b\x1f"',
    '"\x0b\x0c"',
    r'"\ud800"',
    r'"\udfff\ud800"',
    '"\ud800"',
    '"\udfff\ud800"',
    "\ufeff{}",
)
"""Texts with characters that a port may refuse as they stand, but not change: SQS does, and some are no text."""


def accepted(send: Callable[[str], object], *texts: str) -> list[str]:
    """Send all plain and doubtful texts, or those that are given; return those that were not refused."""
    return [text for text in texts or (*PLAIN, *DOUBTFUL) if _is_accepted(send, text)]


def as_bytes(text: str) -> bytes:
    """The text for a port that carries bytes: surrogates too."""
    return text.encode("utf-8", "surrogatepass")


def _is_accepted(send: Callable[[str], object], text: str) -> bool:
    try:
        send(text)
    except InvalidInput:
        assert text not in PLAIN, f"{text[:80]!r} is refused"
        return False
    return True
