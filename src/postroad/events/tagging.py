"""Writes events as JSON values and reads them back; where any value may stand, a value carries its type's name."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from postroad.events import exceptions
from postroad.events.exceptions import EXCEPTION_KEY
from postroad.events.ids import default_name
from postroad.events.registry import EventRegistry
from postroad.events.shapes import OpenField, Shape, Slot, shape_of

TYPE_KEY = "__type__"


class Tagging:
    """Turns instances of dataclasses into dicts of JSON values and back, with the types of one registry."""

    def __init__(self, registry: EventRegistry) -> None:
        self._registry = registry
        self._shapes: dict[Any, Shape] = {}

    def shape(self, annotation: Any) -> Shape:
        """How the class is read and written; found out once."""
        known = self._shapes.get(annotation)
        if known is None:
            known = self._shapes[annotation] = shape_of(annotation)
        return known

    def write(self, value: Any, shape: Shape) -> dict[str, Any]:
        """The instance as a dict of JSON values."""
        if shape.plain:
            return msgspec.to_builtins(value)  # type: ignore[no-any-return]  # a dataclass becomes a dict
        if shape.fields is None:
            return msgspec.to_builtins(value, str_keys=True)  # type: ignore[no-any-return]  # a dataclass becomes a dict
        return {field.name: self._write_field(getattr(value, field.name), field) for field in shape.fields}

    def read(self, payload: Any, shape: Shape) -> Any:
        """The instance that the dict of JSON values describes."""
        if shape.plain:
            return msgspec.convert(payload, shape.reads)
        found = msgspec.convert(payload, shape.reads, str_keys=True, dec_hook=self._read_open)
        return found if shape.fields is None else _built(shape.cls, found, shape.fields)

    def tag(self, value: Any) -> Any:
        """The value as JSON; dataclasses and exceptions in it say what they are."""
        if isinstance(value, dict):
            return {_key(key): self.tag(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.tag(item) for item in value]
        if isinstance(value, type):
            return msgspec.to_builtins(value)
        if dataclasses.is_dataclass(value):
            return {TYPE_KEY: self._name(type(value)), **self.write(value, self.shape(type(value)))}
        if isinstance(value, BaseException):
            return exceptions.written(value, self._name(type(value)), self.tag)
        return msgspec.to_builtins(value, str_keys=True)

    def revive(self, value: Any) -> Any:
        """The value that `tag` wrote; what this registry does not know stays a plain dict."""
        if isinstance(value, list):
            return [self.revive(item) for item in value]
        if not isinstance(value, dict):
            return value
        if EXCEPTION_KEY in value:
            return self._revive_exception(value)
        name = value.get(TYPE_KEY)
        cls = self._registry.find(name) if isinstance(name, str) else None
        if dataclasses.is_dataclass(cls):
            return self._read_nested(value, cls)
        return {key: self.revive(item) for key, item in value.items()}

    def _write_field(self, value: Any, field: OpenField) -> Any:
        if field.closed:
            return msgspec.to_builtins(value, str_keys=True)
        if field.nested and dataclasses.is_dataclass(value):
            return self.write(value, self.shape(type(value)))
        return self.tag(value)

    def _read_open(self, tp: Any, value: Any) -> Any:
        if tp is object:
            return self.revive(value)
        if isinstance(tp, Slot):
            return self._read_nested(value, tp.target)
        found = self.revive(value)
        if not isinstance(found, tp):
            raise ValueError(f"Expected `{tp.__name__}`, got `{type(found).__name__}`")
        return found

    def _read_nested(self, value: Any, annotation: Any) -> Any:
        try:
            return self.read(value, self.shape(annotation))
        except msgspec.ValidationError as error:
            # Of a hook's errors msgspec adds the place to a ValueError only.
            raise ValueError(str(error)) from error

    def _revive_exception(self, value: dict[str, Any]) -> BaseException:
        name, message, args = value[EXCEPTION_KEY], value.get("message"), value.get("args")
        if not isinstance(name, str) or not isinstance(message, str) or not isinstance(args, list):
            raise ValueError(f"Expected an exception's `{EXCEPTION_KEY}`, `message` and `args`")
        return exceptions.read(self._registry.find(name), name, message, self.revive(args))

    def _name(self, cls: type) -> str:
        return self._registry.known_name(cls) or default_name(cls)


def _key(key: Any) -> Any:
    return key if isinstance(key, str) else next(iter(msgspec.to_builtins({key: None}, str_keys=True)))


def _built(cls: type, found: Any, fields: tuple[OpenField, ...]) -> Any:
    given = [(field, value) for field in fields if (value := getattr(found, field.name)) is not msgspec.UNSET]
    try:
        made = cls(**{field.name: value for field, value in given if field.init})
    except Exception as error:
        raise msgspec.ValidationError(f"{type(error).__name__}: {error}") from error
    for field, value in given:
        if not field.init:
            object.__setattr__(made, field.name, value)
    return made
