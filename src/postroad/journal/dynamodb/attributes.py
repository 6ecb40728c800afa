"""Values of JSON as attributes of DynamoDB, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_MAX_LEVELS: Final = 30
_SMALLEST, _LARGEST = 1e-130, 9.9e125
_TOO_LARGE = 10**37


def written(value: Any) -> dict[str, Any]:
    """A value of JSON as an attribute."""
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, int | float):
        return {"N": repr(value)}
    if isinstance(value, dict):
        return {"M": {key: written(child) for key, child in value.items()}}
    return {"NULL": True} if value is None else {"L": [written(child) for child in value]}


def written_document(value: dict[str, Any]) -> dict[str, Any]:
    """An object as an attribute: as a map, or as JSON text where a map of DynamoDB would refuse or change it."""
    return written(value) if _fits(value, _MAX_LEVELS) else {"S": msgspec.json.encode(value).decode()}


def read(attribute: Mapping[str, Any]) -> Any:
    """An attribute as the value of JSON that was written."""
    ((kind, value),) = attribute.items()
    if kind == "N":
        return _number(value)
    if kind == "M":
        return {key: read(child) for key, child in value.items()}
    if kind == "L":
        return [read(child) for child in value]
    return None if kind == "NULL" else value


def read_document(attribute: Mapping[str, Any]) -> Any:
    """An object, whichever way it was written."""
    return msgspec.json.decode(attribute["S"]) if "S" in attribute else read(attribute)


def _fits(value: Any, levels: int) -> bool:
    if isinstance(value, int):
        return -_TOO_LARGE < value < _TOO_LARGE
    if isinstance(value, float):
        # DynamoDB gives back 1.0 as 1.
        return not value.is_integer() and _SMALLEST <= abs(value) <= _LARGEST
    if isinstance(value, dict):
        return levels > 0 and "" not in value and all(_fits(child, levels - 1) for child in value.values())
    return not isinstance(value, list) or (levels > 0 and all(_fits(child, levels - 1) for child in value))


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)
