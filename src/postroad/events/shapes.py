"""The class of an event: the name and version it was declared with, and how msgspec reads and writes it."""

from __future__ import annotations

import builtins
import dataclasses
import sys
from collections import abc
from collections.abc import Callable, Collection, Iterator
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from postroad.arguments import build_types, check, whole_number
from postroad.errors import InvalidMessage, InvalidName
from postroad.events.models import is_model

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

MAX_NAME_LENGTH = 256
_ATTRIBUTE = "__postroad_event__"


@dataclass(frozen=True, slots=True)
class Identity:
    """The name and version that an event class was declared with, and the functions that lift older payloads to it."""

    name: str | None = None
    version: int = 1
    upcasters: dict[int, Upcaster] = field(default_factory=dict)


_UNDECLARED = Identity()


def declare(cls: type, *, name: str | None, version: int) -> None:
    """Store name and version on the class, where every registry finds them."""
    check(version, whole_number(1), "version")
    setattr(cls, _ATTRIBUTE, Identity(checked_name(name) if name is not None else None, version))


def identity_of(cls: type) -> Identity:
    """Return what the class itself was declared with; a parent's name is not inherited."""
    found = vars(cls).get(_ATTRIBUTE, _UNDECLARED)
    return found if isinstance(found, Identity) else _UNDECLARED


def default_name(cls: type) -> str:
    """Return `module:QualName`; for a class of `__main__` with the name by which other processes import the script."""
    module = cls.__module__
    if module in ("__main__", "__mp_main__"):
        main = sys.modules.get(module)
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = str(spec.name) if spec is not None else Path(file).stem if file else "__main__"
    return f"{module}:{cls.__qualname__}"


def checked_name(name: object) -> str:
    """Return the name if a message and its attributes can carry it, else raise InvalidName."""
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() and " " not in name:
        return name
    remedy = f"Use 1 to {MAX_NAME_LENGTH} printable characters without spaces, such as 'orders.placed'."
    raise InvalidName(f"name: {str(name)[:80]!r} cannot name an event", field="name", remedy=remedy)


def field_types(annotation: Any) -> list[tuple[Field[Any], Any]]:
    """Return each field of a dataclass with its type, where the arguments of a generic one are filled in."""
    cls = get_origin(annotation) or annotation
    arguments = _type_arguments(annotation)
    return [(field, _filled(_resolved(field.type, _Names(_owner(cls, field))), arguments)) for field in fields(cls)]


class _Names(dict[str, Any]):
    """The names that the annotations of a class can see, with Any for those that only type checkers know."""

    def __init__(self, owner: type) -> None:
        super().__init__(vars(builtins))
        self.update(vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {})
        self.update({parameter.__name__: parameter for parameter in getattr(owner, "__type_params__", ())})
        self[owner.__name__] = owner

    def __missing__(self, name: str) -> Any:
        return Any


def _owner(cls: type, field: Field[Any]) -> type:
    """Return the class whose body declares the field: subclasses inherit the same Field object."""
    return [base for base in cls.__mro__ if vars(base).get("__dataclass_fields__", {}).get(field.name) is field][-1]


def _resolved(hint: Any, names: _Names) -> Any:
    holder = type("Holder", (), {"__annotations__": {"hint": hint}})
    try:
        return get_type_hints(holder, globalns={}, localns=names, include_extras=True)["hint"]
    except Exception:
        return Any


def _type_arguments(annotation: Any) -> dict[Any, Any]:
    """Return what the type variables of the class and of its generic bases stand for."""
    cls = get_origin(annotation) or annotation
    found = dict(zip(getattr(cls, "__parameters__", ()), get_args(annotation), strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        if hasattr(get_origin(base), "__parameters__"):
            found |= _type_arguments(_filled(base, found))
    return found


def _filled(hint: Any, arguments: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return arguments.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if isinstance(hint, type) or not any(parameter in arguments for parameter in parameters):
        return hint
    return hint[tuple(arguments.get(parameter, parameter) for parameter in parameters)]


_OF_OBJECTS = {list: list[object], set: set[object], frozenset: frozenset[object], tuple: tuple[object, ...]}
_SEQUENCES = (list, set, frozenset, tuple, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Set, abc.MutableSet)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
_PLAIN = frozenset(
    {inspect.StrType, inspect.IntType, inspect.BoolType, inspect.NoneType, inspect.BytesType, inspect.DecimalType}
    | {inspect.UUIDType, inspect.DateTimeType, inspect.DateType, inspect.TimeType, inspect.TimeDeltaType}
    | {inspect.EnumType, inspect.LiteralType, inspect.UnionType, inspect.DataclassType, inspect.Field}
    | {inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType, inspect.TupleType}
)


class Slot(type):
    """The type of the values that msgspec leaves to the hook: everything that the hook returns is an instance.

    `target` is a dataclass or model, an enum of mixed values, or a union whose dataclasses carry their names.
    """

    target: Any

    def __instancecheck__(cls, instance: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class OpenField:
    """A field of an open class: the type it is read as, and whether it is a dataclass that needs no tag."""

    name: str
    reads: Any
    closed: bool
    nested: bool
    init: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A class as msgspec reads it.

    `plain`: it has neither floats nor recursion nor keys other than text, so what msgspec writes needs no check.
    `fields`: None if msgspec knows the whole class; else the class is open, and `reads` is a Struct of the same fields.
    """

    cls: type
    version: int
    has_event_id: bool
    has_session_id: bool
    reads: Any
    checks: Any
    """What an event holds that is written, without the open fields and without code of its class; None for a model."""
    plain: bool
    fields: tuple[OpenField, ...] | None
    is_model: bool = False
    """Whether pydantic reads and writes it."""


def shape_of(annotation: Any) -> Shape:
    """Return the shape of a dataclass or Struct, or of a generic one with its arguments.

    msgspec reads every Struct by itself; a field of a Struct that takes any value holds plain JSON.
    """
    cls: Any = get_origin(annotation) or annotation
    if is_model(cls):
        return _shape(cls, cls.model_fields, reads=cls, checks=None, plain=False, fields=None, is_model=True)
    is_struct = hasattr(cls, "__struct_fields__")
    if not is_struct and not hasattr(cls, "__dataclass_fields__"):
        raise InvalidMessage(f"{cls.__qualname__} is not a dataclass, so it cannot travel as an event")
    kinds = _kinds(annotation)
    is_open = _is_open(kinds) and not is_struct
    declared = () if is_struct else tuple(_open_field(*found) for found in field_types(annotation))
    fields = declared if is_open else None
    names = cls.__struct_fields__ if is_struct else [field.name for field in dataclasses.fields(cls)]
    return _shape(
        cls,
        names,
        reads=annotation if fields is None else _mirror(cls, fields),
        checks=annotation if is_struct else _mirror(cls, tuple(each for each in declared if each.closed and each.init)),
        plain=kinds <= _PLAIN,
        fields=fields,
    )


def _shape(cls: Any, names: Collection[str], **reading: Any) -> Shape:
    build_types(reading["reads"], reading["checks"])
    own = {name: name in names or hasattr(cls, name) for name in ("event_id", "session_id")}
    version, has_event_id, has_session_id = identity_of(cls).version, own["event_id"], own["session_id"]
    return Shape(cls=cls, version=version, has_event_id=has_event_id, has_session_id=has_session_id, **reading)


def _mirror(cls: Any, fields: tuple[OpenField, ...]) -> type:
    """Return a Struct of the same fields, which msgspec reads in place of the class."""
    required = {
        field.name
        for field in dataclasses.fields(cls)
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    declared = [(f.name, f.reads) if f.name in required else (f.name, f.reads, msgspec.UNSET) for f in fields]
    return msgspec.defstruct(cls.__name__, declared, kw_only=True)


def json_schema(cls: type) -> dict[str, Any]:
    """Return the JSON Schema of the class; open fields take any value."""

    def of_open(tp: type) -> dict[str, Any]:
        if isinstance(tp, Slot) and _has_fields(tp.target):
            return {"type": "object", "title": tp.__name__}
        return {"description": "Any JSON value; a registered type carries its name in __type__."}

    shape = shape_of(cls)
    if shape.is_model:
        return cast(Any, cls).model_json_schema()  # type: ignore[no-any-return]  # pydantic returns a dict
    return msgspec.json.schema(shape.reads, schema_hook=of_open)


def _open_field(field: dataclasses.Field[Any], hint: Any) -> OpenField:
    reads = _readable(hint)
    parts = (reads, *(get_args(reads) if is_union(reads) else ()))
    nested = any(isinstance(part, Slot) and _has_fields(part.target) for part in parts)
    return OpenField(field.name, reads, not _is_open(_kinds(hint)), nested, field.init)


def _readable(hint: Any) -> Any:
    """Return the hint with `object` wherever it allows any value: there msgspec calls the hook."""
    if not _is_open(_kinds(hint)):
        return hint
    origin, args = get_origin(hint) or hint, get_args(hint)
    if _has_fields(hint) or (isinstance(origin, type) and issubclass(origin, Enum)):
        return Slot(getattr(origin, "__name__", "object"), (), {"target": hint})
    if isinstance(origin, type) and issubclass(origin, BaseException):
        return hint
    if origin in (Annotated, Final):
        return _readable(args[0])
    if is_union(hint):
        # msgspec cannot tell a hook's type from others, so the only other member can be None.
        members = [arg for arg in args if arg is not NoneType]
        only = _readable(members[0]) if len(members) == 1 else Slot(str(hint), (), {"target": hint})
        return object if only is object else only | None
    if origin in _MAPPINGS:
        if not args:
            return dict[str, object]
        return cast(Any, origin)[str if _is_open(_kinds(args[0])) else args[0], _readable(args[1])]
    if origin in _SEQUENCES:
        if not args:
            return _OF_OBJECTS.get(origin, list[object])
        return cast(Any, origin)[tuple(arg if arg is ... else _readable(arg) for arg in args)]
    return object


def is_union(hint: Any) -> bool:
    """Return whether the annotation is `A | B`."""
    return get_origin(hint) in (Union, UnionType)


def _has_fields(hint: Any) -> bool:
    origin = get_origin(hint) or hint
    return dataclasses.is_dataclass(origin) or is_model(origin)


def _is_open(kinds: frozenset[type]) -> bool:
    return inspect.AnyType in kinds or inspect.CustomType in kinds


def _kinds(annotation: Any) -> frozenset[type]:
    """Return every kind of msgspec type that a value of the annotation may hold; Any if msgspec does not know one."""
    kinds: set[type] = set()
    try:
        for node, is_again in nodes_of(annotation):
            if is_again:
                kinds.add(_Again)
            elif not (isinstance(node, inspect.DictType) and isinstance(node.key_type, inspect.StrType)):
                kinds.add(type(node))
    except Exception:
        return frozenset({inspect.AnyType})
    return frozenset(kinds)


def nodes_of(annotation: Any) -> Iterator[tuple[Any, bool]]:
    """Yield every msgspec type in the annotation, and whether it occurred before; raise if msgspec does not know it."""
    seen: set[int] = set()
    waiting: list[Any] = [inspect.type_info(annotation)]
    while waiting:
        node = waiting.pop()
        is_again = id(node) in seen
        yield node, is_again
        if not is_again:
            seen.add(id(node))
            waiting += _parts(node)


class _Again:
    """The kind of a type that is part of itself, or occurs twice."""


def _parts(node: Any) -> list[Any]:
    values = [getattr(node, name) for name in node.__struct_fields__ if name not in ("default", "default_factory")]
    flat = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    return [part for part in flat if isinstance(part, inspect.Type | inspect.Field)]
