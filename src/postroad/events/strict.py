"""Strict JSON: no NaN, no endless nesting, no broken text, nothing above the size limit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from math import isfinite
from types import NoneType
from typing import Any, TypeGuard

import msgspec

from postroad.errors import InvalidMessage, MessageTooLarge

MAX_DEPTH = 64
MAX_BYTES = 104_857_600
_LEVELS_OF_PAYLOAD = MAX_DEPTH - 1
_SHOWN_PATH = 100

_ALWAYS_STRICT = frozenset({str, int, bool, NoneType})
_ONE_KIND_OF_BRACKET = bytes.maketrans(b"{}", b"[]")
_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def sendable(encoded: bytes) -> bytes:
    """The JSON with U+FFFE and U+FFFF as escapes: SQS refuses them as they stand, and they mean the same."""
    if encoded.isascii() or b"\xef\xbf" not in encoded:
        return encoded
    return encoded.replace(b"\xef\xbf\xbe", rb"\ufffe").replace(b"\xef\xbf\xbf", rb"\uffff")


def is_safe(data: object, max_bytes: int) -> TypeGuard[bytes]:
    """Whether the message surely is safe to parse; a quick look that most messages pass."""
    return type(data) is bytes and len(data) <= max_bytes and data.isascii() and _has_few_brackets(data)


def checked_bytes(data: object, max_bytes: int) -> bytes:
    """The message as bytes that are safe to parse: text of a bearable size and depth."""
    if isinstance(data, str):
        data = _utf8(data)
    elif isinstance(data, bytearray | memoryview):
        data = bytes(data)
    if not isinstance(data, bytes):
        raise InvalidMessage(f"the message is {type(data).__name__}, not bytes")
    if len(data) > max_bytes:
        raise too_large(len(data), max_bytes)
    if not data.isascii():
        _refuse_broken_text(data)
    if is_too_deep(data):
        raise InvalidMessage(f"the message is nested deeper than {MAX_DEPTH} levels")
    return data


def too_large(size: int, max_bytes: int) -> MessageTooLarge:
    """The error for a message above the codec's own limit."""
    return MessageTooLarge(f"the message has {size:,} bytes, above the limit of {max_bytes:,}")


def is_too_deep(data: bytes) -> bool:
    """Whether well-formed JSON is nested deeper than the limit; what is not well-formed is the parser's to refuse."""
    if _has_few_brackets(data):
        return False
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(unescaped.split(b'"')[::2]).translate(_ONE_KIND_OF_BRACKET, _ALL_BUT_BRACKETS)
    for _ in range(MAX_DEPTH):
        outer = brackets.replace(b"[]", b"")
        if len(outer) == len(brackets):
            return outer.count(b"[") > MAX_DEPTH
        brackets = outer
    return bool(brackets)


def _has_few_brackets(data: bytes) -> bool:
    # split stops above the limit and searches at memchr's speed.
    return len(data.split(b"{", MAX_DEPTH + 1)) + len(data.split(b"[", MAX_DEPTH + 1)) - 2 <= MAX_DEPTH


def is_strict(values: Iterable[Any], levels: int) -> bool:
    """Whether the JSON values hold neither NaN nor infinity and nest within the levels left."""
    doubtful = [value for value in values if type(value) not in _ALWAYS_STRICT]
    return not doubtful or all(_is_strict_value(value, levels) for value in doubtful)


def _is_strict_value(value: Any, levels: int) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return levels > 0 and is_strict(value.values(), levels - 1)
    if isinstance(value, list | tuple | set | frozenset):
        return levels > 0 and is_strict(value, levels - 1)
    return True


def refuse_what_json_cannot_hold(payload: dict[str, Any]) -> None:
    """Raise InvalidMessage, with the path, for NaN, infinity or too deep a nesting in a payload."""
    if not is_strict(payload.values(), _LEVELS_OF_PAYLOAD - 1):
        raise unsendable(payload, path="payload")


def unsendable(
    value: object, *, path: str, levels: int = _LEVELS_OF_PAYLOAD, why: Exception | None = None
) -> InvalidMessage:
    """The error that names the first place in the value that strict JSON cannot hold."""
    place, reason = _fault(value, path, levels) or (path, str(why) or "cannot be written as JSON")
    place = place.removeprefix(".")
    place = place if len(place) <= _SHOWN_PATH else f"{place[:_SHOWN_PATH]}…"
    return InvalidMessage(f"{place}: {reason}", field=place)


def _fault(value: object, path: str, levels: int) -> tuple[str, str] | None:
    if not _is_container(value):
        return _leaf_fault(value, path)
    if levels < 1:
        return path, f"nested deeper than {MAX_DEPTH} levels, or part of itself"
    if isinstance(value, dict):
        bad_keys = (found for key in value if (found := _leaf_fault({key: None}, path)) is not None)
        if (found := next(bad_keys, None)) is not None:
            return found
    faults = (_fault(child, place, levels - 1) for place, child in _children(value, path))
    return next((found for found in faults if found is not None), None)


def _leaf_fault(value: object, path: str) -> tuple[str, str] | None:
    if isinstance(value, BaseException):
        return None
    if isinstance(value, float) and not isfinite(value):
        return path, f"{value} is not a number of JSON"
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        return path, f"a lone surrogate at position {error.start} is not text"
    except Exception as error:
        return path, f"{type(value).__name__} cannot be written as JSON ({error})"
    return None


def _is_container(value: object) -> bool:
    return isinstance(value, dict | list | tuple | set | frozenset) or _is_dataclass_instance(value)


def _is_dataclass_instance(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _children(value: Any, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        return ((f"{path}.{key}", child) for key, child in value.items())
    if _is_dataclass_instance(value):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return ((f"{path}.{name}", getattr(value, name)) for name in names)
    return ((f"{path}[{index}]", child) for index, child in enumerate(value))


def _refuse_broken_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise InvalidMessage(f"byte {error.start}: not UTF-8 ({error.reason})") from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"character {error.start}: a lone surrogate is not text") from error


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
