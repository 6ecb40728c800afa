"""Pydantic models as events: their own validation reads them, their own serialization writes them.

Pydantic is not imported here: a class that is no model of it does not need it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from postroad.errors import InvalidInput

_encode = msgspec.json.Encoder().encode


def is_model(cls: object) -> bool:
    """Return whether it is a class that derives from `pydantic.BaseModel`."""
    return isinstance(cls, type) and hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_validate_json")


def fault_of_model(cls: Any) -> InvalidInput | None:
    """Return the error for a model that is no object in JSON, or that could not read what it has written."""
    if cls.__pydantic_root_model__:
        why = f"cls: {cls.__qualname__} is a RootModel, and the payload of an event is a JSON object"
        return InvalidInput(why, field="cls", remedy="Derive it from BaseModel, with the value in a field.")
    config = cls.model_config
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    for name, field in cls.model_fields.items():
        written, read = field.serialization_alias or name, field.validation_alias or name
        # An AliasChoices has several names.
        if written not in getattr(read, "choices", [read]) and not (by_name and written == name):
            why = f"cls: {cls.__qualname__}.{name} is written as {written!r} and read as {read!r}"
            return InvalidInput(why, field=name, remedy="Give the field one `alias` instead of two, or none.")
    return None


def write_model(value: Any) -> dict[str, Any]:
    """Return the model as a dict of JSON values, under its aliases."""
    try:
        written: dict[str, Any] = value.model_dump(mode="json", by_alias=True, round_trip=True, warnings="error")
    except Exception as error:
        # Pydantic's text may show the value, which belongs in no log.
        cls = type(value).__qualname__
        raise ValueError(f"{cls} holds a value that its fields do not declare ({type(error).__name__})") from None
    return written


def read_model(cls: Any, payload: Any) -> Any:
    """Return the model that the dict of JSON values describes, checked by its validators.

    Raises:
        msgspec.ValidationError: The first error that pydantic found, with its place.
    """
    try:
        return cls.model_validate_json(_encode(payload))
    except ValueError as error:
        found = getattr(error, "errors", None)
        if found is None:
            raise
        first = found(include_input=False, include_url=False, include_context=False)[0]
        place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
        raise msgspec.ValidationError(f"{first['msg']} - at `${place}`") from None
