"""How msgspec is to read and write a class: what it knows by itself, and where any value may stand."""

from __future__ import annotations

import dataclasses
from collections import abc
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from postroad.errors import InvalidMessage
from postroad.events.annotations import field_types
from postroad.events.ids import identity_of

_ITEMS_STAND_OPEN = {list: list[object], set: set[object], frozenset: frozenset[object], tuple: tuple[object, ...]}
_SEQUENCES = (list, set, frozenset, tuple, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Set, abc.MutableSet)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
_PLAIN = frozenset(
    {inspect.StrType, inspect.IntType, inspect.BoolType, inspect.NoneType, inspect.BytesType, inspect.DecimalType}
    | {inspect.UUIDType, inspect.DateTimeType, inspect.DateType, inspect.TimeType, inspect.TimeDeltaType}
    | {inspect.EnumType, inspect.LiteralType, inspect.UnionType, inspect.DataclassType, inspect.Field}
    | {inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType, inspect.TupleType}
)


class Slot(type):
    """The type of the places that msgspec leaves to the hook: whatever the hook returns is an instance."""

    target: Any

    def __instancecheck__(cls, instance: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class OpenField:
    """A field of an open class: what it is read as, and whether it is a dataclass that needs no tag."""

    name: str
    reads: Any
    closed: bool
    nested: bool
    init: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A class as msgspec reads it.

    `plain`: neither floats nor recursion nor keys other than text, so what msgspec writes needs no second look.
    `fields`: None when msgspec knows the whole class by itself; else the class is open and `reads` mirrors it.
    """

    cls: type
    version: int
    has_event_id: bool
    has_session_id: bool
    reads: Any
    plain: bool
    fields: tuple[OpenField, ...] | None


def shape_of(annotation: Any) -> Shape:
    """The shape of a dataclass or Struct, or of a generic one with its arguments.

    msgspec knows every Struct by itself: where any value may stand in one, there stands plain JSON.
    """
    cls: Any = get_origin(annotation) or annotation
    is_struct = hasattr(cls, "__struct_fields__")
    if not is_struct and not hasattr(cls, "__dataclass_fields__"):
        raise InvalidMessage(f"{cls.__qualname__} is not a dataclass, so it cannot travel as an event")
    kinds = _kinds(annotation)
    is_open = _is_open(kinds) and not is_struct
    fields = tuple(_open_field(*found) for found in field_types(annotation)) if is_open else None
    names = cls.__struct_fields__ if is_struct else [field.name for field in dataclasses.fields(cls)]
    return Shape(
        cls=cls,
        version=identity_of(cls).version,
        has_event_id="event_id" in names or hasattr(cls, "event_id"),
        has_session_id="session_id" in names or hasattr(cls, "session_id"),
        reads=annotation if fields is None else _mirror(cls, fields),
        plain=kinds <= _PLAIN,
        fields=fields,
    )


def _mirror(cls: Any, fields: tuple[OpenField, ...]) -> type:
    """A struct of the same fields, which msgspec reads in the class's place."""
    optional = {field.name for field in dataclasses.fields(cls) if _has_default(field)}
    declared = [(f.name, f.reads, msgspec.UNSET) if f.name in optional else (f.name, f.reads) for f in fields]
    return msgspec.defstruct(cls.__name__, declared, kw_only=True)


def json_schema(cls: type) -> dict[str, Any]:
    """The JSON Schema of the class; open places take any value."""
    return msgspec.json.schema(shape_of(cls).reads, schema_hook=_open_schema)


def _open_schema(tp: type) -> dict[str, Any]:
    if isinstance(tp, Slot):
        return {"type": "object", "title": tp.__name__}
    return {"description": "Any JSON value; a registered type carries its name in __type__."}


def _has_default(field: dataclasses.Field[Any]) -> bool:
    given = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return given or not field.init


def _open_field(field: dataclasses.Field[Any], hint: Any) -> OpenField:
    reads = _readable(hint)
    nested = any(isinstance(part, Slot) for part in (reads, *(get_args(reads) if _is_union(reads) else ())))
    return OpenField(field.name, reads, not _is_open(_kinds(hint)), nested, field.init)


def _readable(hint: Any) -> Any:
    """The hint with `object` wherever any value may stand: there msgspec asks the hook."""
    if not _is_open(_kinds(hint)):
        return hint
    origin, args = get_origin(hint) or hint, get_args(hint)
    if dataclasses.is_dataclass(origin):
        return Slot(getattr(origin, "__name__", "object"), (), {"target": hint})
    if isinstance(origin, type) and issubclass(origin, BaseException):
        return hint
    if origin in (Annotated, Final):
        return _readable(args[0])
    if _is_union(hint):
        return _readable_union([arg for arg in args if arg is not NoneType])
    if origin in _MAPPINGS:
        return _readable_mapping(origin, args)
    return _readable_sequence(origin, args) if origin in _SEQUENCES else object


def _readable_union(members: list[Any]) -> Any:
    # msgspec cannot tell apart a hook's type and others, so only None may stand beside one.
    only = _readable(members[0]) if len(members) == 1 else object
    return object if only is object else only | None


def _readable_mapping(origin: Any, args: tuple[Any, ...]) -> Any:
    if not args:
        return dict[str, object]
    key = str if _is_open(_kinds(args[0])) else args[0]
    return origin[key, _readable(args[1])]


def _readable_sequence(origin: Any, args: tuple[Any, ...]) -> Any:
    if not args:
        return _ITEMS_STAND_OPEN.get(origin, list[object])
    return origin[tuple(arg if arg is ... else _readable(arg) for arg in args)]


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _is_open(kinds: frozenset[type]) -> bool:
    return inspect.AnyType in kinds or inspect.CustomType in kinds


def _kinds(annotation: Any) -> frozenset[type]:
    """Every kind of msgspec type that a value of the annotation may hold; Any where msgspec does not know the type."""
    try:
        root = inspect.type_info(annotation)
    except Exception:
        return frozenset({inspect.AnyType})
    kinds: set[type] = set()
    seen: set[int] = set()
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            kinds.add(_Again)
            continue
        seen.add(id(node))
        if not (isinstance(node, inspect.DictType) and isinstance(node.key_type, inspect.StrType)):
            kinds.add(type(node))
        waiting += _parts(node)
    return frozenset(kinds)


class _Again:
    """The kind of a type that is part of itself, or of two parts of it."""


def _parts(node: Any) -> list[Any]:
    values = [getattr(node, name) for name in node.__struct_fields__ if name not in ("default", "default_factory")]
    flat = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return [part for part in flat if isinstance(part, inspect.Type | inspect.Field)]
