"""JSON as a map of DynamoDB and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, DecimalException
from typing import Any, Final

import msgspec

_MOST_DIGITS: Final = 38


def text(value: str) -> dict[str, str]:
    """A text."""
    return {"S": value}


def number(value: float) -> dict[str, str]:
    """A number."""
    return {"N": str(value)}


def payload(data: bytes) -> dict[str, Any]:
    """A JSON object as a map; one with numbers that DynamoDB cannot keep stays as text."""
    try:
        return _value(json.loads(data, parse_float=Decimal))
    except (ValueError, DecimalException):
        return {"S": data.decode()}


def payload_json(value: Mapping[str, Any]) -> bytes:
    """The JSON that was kept."""
    return value["S"].encode() if "S" in value else msgspec.json.encode(_plain(value))


def _value(value: Any) -> dict[str, Any]:
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, dict):
        return {"M": {key: _value(child) for key, child in value.items()}}
    if isinstance(value, list):
        return {"L": [_value(child) for child in value]}
    return {"N": _digits(Decimal(value))}


def _digits(value: Decimal) -> str:
    """The number as DynamoDB takes it: up to 38 digits, 1E-130 to 1E+126."""
    shown = value.normalize()
    if len(shown.as_tuple().digits) > _MOST_DIGITS or (shown and not -130 <= shown.adjusted() <= 125):
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
