"""JSON as a map of DynamoDB and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, DecimalException
from typing import Any, Final

import msgspec

_MOST_DIGITS: Final = 38
_MOST_LEVELS: Final = 30
"""DynamoDB takes 32, and does not say whether the item and the innermost value count."""
_MOST_KEY_BYTES: Final = 65_535


def text(value: str) -> dict[str, str]:
    """A text."""
    return {"S": value}


def number(value: float) -> dict[str, str]:
    """A number."""
    return {"N": str(value)}


def payload(data: bytes) -> dict[str, Any]:
    """A JSON object as a map; one that would be refused, or come back as another one, stays as text."""
    try:
        return _value(json.loads(data, parse_float=Decimal, object_pairs_hook=_object), _MOST_LEVELS)
    except (ValueError, DecimalException):
        return {"S": data.decode()}


def payload_json(value: Mapping[str, Any]) -> bytes:
    """The JSON that was kept."""
    return value["S"].encode() if "S" in value else msgspec.json.encode(_plain(value))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of an object, each of which a map can hold under its name."""
    members = dict(pairs)
    if len(members) < len(pairs) or any(not 0 < len(name.encode()) <= _MOST_KEY_BYTES for name in members):
        raise ValueError("names that a map of DynamoDB cannot have")
    return members


def _value(value: Any, levels: int) -> dict[str, Any]:
    if isinstance(value, dict | list) and levels == 0:
        raise ValueError("nested deeper than DynamoDB takes")
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, dict):
        return {"M": {key: _value(child, levels - 1) for key, child in value.items()}}
    if isinstance(value, list):
        return {"L": [_value(child, levels - 1) for child in value]}
    return {"N": _digits(value)}


def _digits(value: int | Decimal) -> str:
    """The number as DynamoDB takes it: up to 38 digits, 1E-130 to 1E+126.

    It gives back 1.0 as 1, so a fraction of zero cannot be kept as a number.
    """
    if isinstance(value, Decimal) and value == value.to_integral_value():
        raise ValueError("a number that comes back without its fraction")
    told = Decimal(value)
    digits = "".join(map(str, told.as_tuple().digits)).strip("0")
    if len(digits) > _MOST_DIGITS or (digits and not -130 <= told.adjusted() <= 125):
        raise ValueError("a number that DynamoDB cannot keep")
    return str(value)


def _plain(value: Mapping[str, Any]) -> Any:
    [(kind, held)] = value.items()
    if kind == "M":
        return {key: _plain(child) for key, child in held.items()}
    if kind == "L":
        return [_plain(child) for child in held]
    if kind == "N":
        return msgspec.Raw(held.encode())
    return None if kind == "NULL" else held
