"""Text from elsewhere, made safe to show."""

from __future__ import annotations


def legible(value: object) -> str:
    """The text with control characters and direction marks spelt out: no data forges a line or drives a terminal."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
