"""Arguments: the accepted values are declared as a type, and one function refuses all others.

    Limit = Annotated[int, Meta(ge=1, le=100)]
    check(limit, Limit, "limit")    # InvalidInput: limit: 0 is not a whole number from 1 to 100

A description in the `Meta` replaces the text that is made from the bounds. It completes "is not", or is a whole
predicate such as "is neither 'a' nor 'b'". `extra={"remedy": ...}` replaces the remedy.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from postroad.errors import ConfigurationError, InvalidInput, PostroadError

FINITE: Final = sys.float_info.max
"""The upper bound of numbers that only have to be finite."""
MAX_LIFE: Final = 315_360_000.0
"""The longest time that can be given, in seconds: ten years."""
Seconds = Annotated[float, Meta(ge=0, le=FINITE, description="a number of seconds of 0 or more")]
SecondsAboveZero = Annotated[float, Meta(gt=0, le=FINITE, description="a number of seconds above 0")]
Count = Annotated[int, Meta(ge=1, description="a whole number of 1 or more")]
_SHOWN = 120
# msgspec must not accept a text for a time, or a number for a duration.
_AS_THEY_ARE = (datetime, timedelta)


building = threading.RLock()
"""Held by the thread that lets msgspec look at types which other threads may be the first to use, too."""
_built: set[type] = set()


def build_types(*kinds: Any) -> None:
    """Let msgspec build its description of each type now, in one thread at a time.

    msgspec shows a description to other threads before it is complete, so the process may crash if two threads are
    the first to read values of a type. A type that msgspec cannot read is left alone.
    """
    with building:
        for kind in kinds:
            with suppress(NameError, TypeError):
                msgspec.msgpack.Decoder(kind)


def build_structs() -> None:
    """Build the types of all Structs of Postroad that are loaded. Call this before threads start."""
    waiting: list[type] = [msgspec.Struct]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind not in _built and kind.__module__.startswith("postroad."):
            build_types(kind)
            _built.add(kind)


@lru_cache(maxsize=256)
def whole_number(low: int, high: int | None = None) -> Any:
    """Return the type of whole numbers from `low` to `high`, or from `low` on."""
    return Annotated[int, Meta(ge=low, le=high)]


@lru_cache(maxsize=256)
def seconds_between(low: float, high: float) -> Any:
    """Return the type of numbers of seconds from `low` to `high`."""
    return Annotated[float, Meta(ge=low, le=high, description=f"a number of seconds from {low:g} to {high:.0f}")]


def text(pattern: str, what: str, *, remedy: str | None = None) -> Any:
    """Return the type of texts that match the whole pattern; `what` describes such a text."""
    extra = None if remedy is None else {"remedy": remedy}
    return Annotated[str, Meta(pattern=rf"\A(?:{pattern})\Z", description=what, extra=extra)]


_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd]?)")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


def duration_of(text: str) -> float | None:
    """Return the seconds of a text such as "90", "90s", "5m", "2h" or "7d"; None if it is not a duration."""
    found = _DURATION.fullmatch(text)
    return None if found is None else float(found[1]) * _SECONDS[found[2]]


def seconds_of(value: Any, field: str, error: type[PostroadError] = InvalidInput) -> Any:
    """Return the seconds of a timedelta or of a duration with its unit, such as "5m"; anything else as it is."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        return value
    # In code a number is a number: a text without a unit is a mistake.
    if (seconds := duration_of(value)) is None or value[-1].isdigit():
        text = f"{field}: {shown(value)} is not a duration"
        raise error(text, field=field, remedy="Write '30s', '5m', '2h' or '7d'.")
    return seconds


def check(
    value: object, kind: Any, field: str, error: type[PostroadError] = InvalidInput, *, remedy: str | None = None
) -> None:
    """Raise an error if a value is not of the declared type.

    Args:
        value: The value that was passed.
        kind: A type that msgspec validates, usually `Annotated[..., Meta(...)]`.
        field: The name of the argument, for the error.
        error: The class of the error.
        remedy: What to do about it; by default to give a value that the type accepts.

    Raises:
        PostroadError: `error`, which names the field, the value, the bounds and the remedy.
    """
    try:
        msgspec.convert(value, kind, builtin_types=_AS_THEY_ARE)
    except msgspec.ValidationError:
        raise refusal(value, kind, field, error, remedy=remedy) from None


def check_settings(settings: Any, error: type[PostroadError] = ConfigurationError) -> None:
    """Raise an error if a field of a dataclass is not of its declared type."""
    for field, kind in _declared(cast(Any, type(settings))):
        check(getattr(settings, field), kind, field, error)


def refusal(
    value: object, kind: Any, field: str, error: type[PostroadError] = InvalidInput, *, remedy: str | None = None
) -> PostroadError:
    """Return the error for a value that is not of the declared type."""
    wanted = _wanted(kind)
    predicate = wanted if wanted.startswith("is ") else f"is not {wanted}"
    own = next((meta.extra["remedy"] for meta in _metas(kind) if meta.extra), None)
    instead = None if wanted.startswith("is ") else f"Give {wanted}."
    return error(f"{field}: {shown(value)} {predicate}", field=field, remedy=remedy or own or instead)


def shown(value: object) -> str:
    """Return the value as an error shows it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@lru_cache(maxsize=64)
def _declared(settings: Any) -> list[tuple[str, Any]]:
    """Return the fields whose types have bounds or a list of values."""
    hints = get_type_hints(settings, include_extras=True)
    named = ((field.name, hints[field.name]) for field in fields(settings))
    return [(name, kind) for name, kind in named if kind is bool or get_origin(kind) is Literal or any(_metas(kind))]


def _metas(kind: Any) -> Iterator[Meta]:
    """Yield the annotations of the type itself or of a member of a union."""
    if get_origin(kind) is Annotated:
        yield from (each for each in kind.__metadata__ if isinstance(each, Meta))
    elif get_origin(kind) not in (tuple, list, dict, Literal):
        for member in get_args(kind):
            yield from _metas(member)


def _wanted(kind: Any) -> str:
    """Return a description of what the type accepts."""
    for meta in _metas(kind):
        upper = "on" if meta.le is None else f"to {meta.le}"
        return meta.description or f"a whole number from {meta.ge} {upper}"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return "true or false" if kind is bool else f"of type {getattr(kind, '__name__', kind)}"
