"""How a value is read from a flag, a variable or the file: a reader returns it in its own type or refuses it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from postroad.settings.adapters import adapter

Reader = Callable[[Any], Any]
_OWN_URL = re.compile(r"sqlite:///.+|memory://.*|aws://.*")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Refused(Exception):
    """The value does not have the accepted form; the text says which one that is."""


def text(pattern: str, form: str) -> Reader:
    """Text that the whole pattern fits."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise Refused(form)
        return value

    return read


def whole(low: int, high: int) -> Reader:
    """A whole number within bounds, as such or in digits."""

    def read(value: Any) -> int:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value) else value
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise Refused(f"a whole number from {low} to {high}")
        return number

    return read


def address(value: Any) -> str:
    """The address of a backend: of our own, or of an adapter that is installed."""
    if isinstance(value, str):
        if _OWN_URL.fullmatch(value) is not None:
            return value
        scheme = _SCHEME.match(value)
        if scheme is not None and adapter(scheme[1]) is not None:
            return value
    raise Refused("sqlite:///path, memory:// or aws://region[?endpoint_url=…&stage=…]")


def choice(*words: str) -> Reader:
    """One of a few words."""

    def read(value: Any) -> str:
        if value not in words:
            raise Refused(f"one of {', '.join(words)}")
        return str(value)

    return read


def truth(value: Any) -> bool:
    """Yes or no, in the usual words."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in _WORDS:
        raise Refused("true or false")
    return _WORDS[value.lower()]


def names(pattern: str, form: str) -> Reader:
    """Several names: a list, or text with commas between them."""

    def read(value: Any) -> tuple[str, ...]:
        parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise Refused(form)
        found = tuple(part for part in parts if part != "")
        if not all(isinstance(part, str) and re.fullmatch(pattern, part) for part in found):
            raise Refused(form)
        return found

    return read
