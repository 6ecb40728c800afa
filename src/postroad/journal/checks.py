"""What may be part of an event: ids, times, and values that JSON holds."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from math import isfinite
from types import NoneType
from typing import Any, Final

import msgspec

from postroad.arguments import text
from postroad.errors import InvalidEvent

MIN_TIMESTAMP: Final = 10**12
MAX_TIMESTAMP: Final = 10**13 - 1
MAX_DEPTH: Final = 64
ID_PATTERN: Final = r"[A-Za-z0-9_.:-]{1,256}"
ID_REMEDY: Final = "Use 1 to 256 letters, digits, '_', '.', ':' or '-'."
_ID = re.compile(ID_PATTERN)
Id = text(ID_PATTERN, "an id", remedy=ID_REMEDY)
_ENTITY_TYPE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
EntityType = text(
    _ENTITY_TYPE.pattern, "the type of an entity", remedy="Name it in capitals, such as TASK, JOB or STORE."
)
_EVENT_TYPE = re.compile(r"[^\s#]+( [^\s#]+)*")
_MAX_EVENT_TYPE = 128
_SHOWN = 80
_SCALARS = frozenset({str, int, bool, NoneType})
_TEXT = frozenset({str})
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(dict[str, Any])
# Ids repeat: those that were found good are known again at the price of a look-up.
_remembered = functools.lru_cache(maxsize=8_192, typed=True)


@_remembered
def is_id(value: object) -> bool:
    """Whether this is the id of a tenant, app, entity or worker."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


@_remembered
def is_entity_type(value: object) -> bool:
    """Whether this is the type of an entity: TASK, JOB, STORE and the like."""
    return isinstance(value, str) and _ENTITY_TYPE.fullmatch(value) is not None


@_remembered
def is_event_type(value: object) -> bool:
    """Whether this can be the type of an event, known or not: words with single spaces between them."""
    fits = isinstance(value, str) and len(value) <= _MAX_EVENT_TYPE and value.isprintable()
    return fits and _EVENT_TYPE.fullmatch(str(value)) is not None


@_remembered
def are_names(event_type: str, entity_type: str, tenant_id: str, entity_id: str, app: str) -> bool:
    """Whether all of these can be the names of one event."""
    ids = is_id(tenant_id) and is_id(entity_id) and is_id(app)
    return ids and is_event_type(event_type) and is_entity_type(entity_type)


def check_event_type(value: object) -> None:
    """Refuse what cannot be the type of an event."""
    if not (isinstance(value, str) and is_event_type(value)):
        raise InvalidEvent(
            f"event_type: {_shown(value)} is not the type of an event",
            field="event_type",
            remedy=f"Use words with single spaces between them, without '#', {_MAX_EVENT_TYPE} characters at most.",
        )


def check_timestamp(value: object) -> None:
    """Refuse what is no time in milliseconds."""
    if type(value) is int and MIN_TIMESTAMP <= value <= MAX_TIMESTAMP:
        return
    raise InvalidEvent(
        f"timestamp: {_shown(value)} is not a whole number of milliseconds since 1970 with 13 digits",
        field="timestamp",
        remedy="Give milliseconds, not seconds: int(time.time() * 1000).",
    )


def is_simple(value: object, levels: int = MAX_DEPTH) -> bool:
    """Whether this is an object or array of JSON, but for its texts, which whoever encodes it looks at."""
    if levels < 1:
        return False
    if type(value) is dict:
        return _TEXT.issuperset(map(type, value)) and _are_simple(value.values(), levels - 1)
    return type(value) is list and _are_simple(value, levels - 1)


def _are_simple(children: Iterable[Any], levels: int) -> bool:
    if _SCALARS.issuperset(map(type, children)):
        return True
    for child in children:
        kind = type(child)
        if kind not in _SCALARS and not (isfinite(child) if kind is float else is_simple(child, levels)):
            return False
    return True


def json_copy(value: object, field: str) -> dict[str, Any]:
    """The JSON object with containers of its own, so that nobody changes them later; or why it is none."""
    plain = value if type(value) is dict and is_simple(value) else _plain(value)
    if (written := _written(plain)) is None:
        raise _refused(plain, field)
    return _DECODER.decode(written)


def check_json(value: object, field: str) -> None:
    """Refuse a value that is no JSON object, naming the path of what is at fault."""
    if _written(value) is None:
        raise _refused(value, field)


def _written(value: object) -> bytes | None:
    """The object as JSON; None when it is none."""
    if type(value) is not dict or not is_simple(value):
        return None
    try:
        return _ENCODER.encode(value)
    except (UnicodeEncodeError, ValueError):
        return None


def _plain(value: Any) -> Any:
    """The value with lists for tuples and dictionaries for what is like them."""
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {key: _plain(child) for key, child in value.items()}
    return [_plain(child) for child in value] if isinstance(value, list | tuple) else value


def _refused(value: object, field: str) -> InvalidEvent:
    path, reason = _fault(value, field, MAX_DEPTH) or (field, "is not a JSON object")
    return InvalidEvent(f"{path}: {reason}", field=path)


def _fault(value: Any, path: str, levels: int) -> tuple[str, str] | None:
    """The path and the name of the first thing that is at fault."""
    if type(value) not in (dict, list):
        return None if (why := _why(value)) is None else (path, why)
    if levels < 1:
        return path, f"is nested deeper than {MAX_DEPTH} levels"
    if type(value) is list:
        children = [(f"{path}[{index}]", child) for index, child in enumerate(value)]
    elif (key := next((key for key in value if type(key) is not str or _why(key)), None)) is not None:
        return path, f"its key {_shown(key)} is not text"
    else:
        children = [(f"{path}.{key}", child) for key, child in value.items()]
    faults = (_fault(child, place, levels - 1) for place, child in children)
    return next((found for found in faults if found is not None), None)


def _why(value: object) -> str | None:
    """Why a value that holds no others is none of JSON; None when it is one."""
    if type(value) is float:
        return None if isfinite(value) else f"{value} is not a number of JSON"
    if type(value) not in _SCALARS:
        return f"{type(value).__name__} is not a value of JSON"
    try:
        _ENCODER.encode(value)
    except UnicodeEncodeError:
        return "holds half a surrogate pair, which no encoding can carry"
    except ValueError:
        return "the number has more digits than Python writes"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
