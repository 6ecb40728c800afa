"""Numbers, sizes and times as people read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

NOTHING: Final = "\N{EN DASH}"
# "ValueError: the amount is negative [ledger.py:book]"
_ERROR: Final = re.compile(
    r"(?:(?P<kind>[A-Za-z_][\w.]*): )?(?P<text>.*?)(?: \[(?P<place>[^\[\]]+:[^\[\]]+)\])?", re.DOTALL
)
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def seconds(length: float | None) -> str:
    """Return a length of time as people say it, such as `3 min`; a dash for None."""
    if length is None:
        return NOTHING
    for name, size in _UNITS:
        if length >= size:
            return f"{int(length // size)} {name}"
    return "0 s"


def ago(at: datetime | str | None, now: datetime) -> Markup | str:
    """Return a time relative to now, with the exact time in its title; a text is in ISO 8601."""
    if at is None:
        return NOTHING
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    length = (now - moment).total_seconds()
    text = f"{seconds(length)} ago" if length >= 1 else "now" if length > -1 else f"in {seconds(-length)}"
    exact = moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, text)


def number(value: float | None) -> str:
    """Return a number with separators; a dash for None."""
    return NOTHING if value is None else f"{value:,}"


def size(count: int) -> str:
    """Return a number of bytes, such as `12 kB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1_000:
            return f"{count} {unit}"
        count //= 1_000
    return f"{count:,} GB"


def error_parts(error: str | None) -> tuple[str, str, str]:
    """Return the type of a recorded error, its message, and the place where it was raised, as far as they are known."""
    if not error:
        return "no error recorded", "", ""
    match = _ERROR.fullmatch(error)
    assert match is not None
    text, place = match["text"], match["place"] or ""
    return (match["kind"], text, place) if match["kind"] else (text, "", place)


def with_code(text: str) -> Markup:
    """Return a text in which what is between backticks is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return Markup("{}").format(text)
    code = [as_code(part) for part in parts[1::2]]
    return Markup("").join(each for pair in zip(parts[::2], [*code, ""], strict=True) for each in pair)


def as_code(text: str) -> Markup:
    """Return code that breaks between its words; browsers would also break a command behind each hyphen."""
    words = [Markup("<span>{}</span>").format(word) for word in text.split(" ")]
    return Markup("<code>{}</code>").format(Markup(" ").join(words) if len(words) > 1 else text)
