"""The types of a dataclass's fields; a name that cannot be found is read as Any."""

from __future__ import annotations

import builtins
import sys
from dataclasses import Field, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints


def field_types(annotation: Any) -> list[tuple[Field[Any], Any]]:
    """Each field of a dataclass with its type, the arguments of a generic one filled in."""
    cls = get_origin(annotation) or annotation
    arguments = _type_arguments(annotation)
    return [(field, _filled(_resolved(field.type, _Names(_owner(cls, field))), arguments)) for field in fields(cls)]


class _Names(dict[str, Any]):
    """What the annotations of a class can see, and Any for what exists for type checkers only."""

    def __init__(self, owner: type) -> None:
        super().__init__(vars(builtins))
        self.update(vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {})
        self.update({parameter.__name__: parameter for parameter in getattr(owner, "__type_params__", ())})
        self[owner.__name__] = owner

    def __missing__(self, name: str) -> Any:
        return Any


def _owner(cls: type, field: Field[Any]) -> type:
    """The class whose body declares the field: dataclasses hand their Field objects down."""
    holders = [base for base in cls.__mro__ if vars(base).get("__dataclass_fields__", {}).get(field.name) is field]
    return holders[-1]


def _resolved(hint: Any, names: _Names) -> Any:
    holder = type("Holder", (), {"__annotations__": {"hint": hint}})
    try:
        return get_type_hints(holder, globalns={}, localns=names, include_extras=True)["hint"]
    except Exception:
        return Any


def _type_arguments(annotation: Any) -> dict[Any, Any]:
    """What the type variables of the class and of its generic bases stand for."""
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
