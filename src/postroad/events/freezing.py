"""Turns a class into a frozen, slotted dataclass, whether or not it already is a dataclass."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from types import CellType, FunctionType
from typing import Any

from postroad.errors import InvalidInput

_OF_THE_OLD_CLASS = frozenset(
    {"__dict__", "__weakref__", "__slots__", "__getstate__", "__setstate__", "__match_args__"}
    | {"__dataclass_fields__", "__dataclass_params__"}
)


def frozen_dataclass(cls: type) -> type:
    """The class as a frozen, slotted dataclass; one that is already both comes back itself."""
    params = vars(cls).get("__dataclass_params__")
    try:
        if params is None:
            return _slotted(cls)
        if params.frozen and "__slots__" in vars(cls):
            return cls
        options = {name: getattr(params, name) for name in ("init", "repr", "eq", "order", "unsafe_hash")}
        return _slotted(_without_dataclass(cls), **options)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{cls.__qualname__} cannot become a frozen dataclass: {error}",
            remedy="Declare the fields as for @dataclass(frozen=True, slots=True).",
        ) from error


def _slotted(cls: type, **options: bool) -> type:
    made: type = dataclasses.dataclass(frozen=True, slots=True, **options)(cls)
    for cell in _cells(made):
        if cell.cell_contents is cls:
            cell.cell_contents = made
    return made


def _cells(cls: type) -> Iterator[CellType]:
    """The cells in which methods keep classes: slots make a new one, and `super()` in them still means the old."""
    for value in vars(cls).values():
        for part in (value, *(getattr(value, name, None) for name in ("__func__", "fget", "fset", "fdel"))):
            if isinstance(part, FunctionType):
                yield from (cell for cell in part.__closure__ or () if _is_filled(cell))


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _without_dataclass(cls: type) -> type:
    """The class as it was before @dataclass: its fields declared, nothing generated."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    own = vars(cls).get("__annotations__", {})
    body = {name: value for name, value in vars(cls).items() if not _is_generated(name, value, fields)}
    body |= {name: field for name, field in fields.items() if name in own}
    return type(cls)(cls.__name__, cls.__bases__, body)


def _is_generated(name: str, value: Any, fields: dict[str, Any]) -> bool:
    if name in _OF_THE_OLD_CLASS or name in fields or (name == "__hash__" and value is None):
        return True
    # What @dataclass writes has no source file.
    return isinstance(value, FunctionType) and inspect.unwrap(value).__code__.co_filename == "<string>"
