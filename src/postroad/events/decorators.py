"""The decorators of event classes: `@event` declares one, `@upcast` lifts payloads of its older versions."""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CellType, FunctionType
from typing import Any, TypeVar, dataclass_transform, overload

import msgspec

from postroad.arguments import check, whole_number
from postroad.errors import InvalidInput, InvalidMessage
from postroad.events.models import is_model
from postroad.events.registry import default_registry, refuse_models_with_validators
from postroad.events.shapes import Upcaster, declare, identity_of

_OF_THE_OLD_CLASS = frozenset(
    {"__dict__", "__weakref__", "__slots__", "__getstate__", "__setstate__", "__match_args__"}
    | {"__dataclass_fields__", "__dataclass_params__"}
)


def frozen_dataclass(cls: type) -> type:
    """Return the class as a frozen, slotted dataclass; a class that already is one is returned unchanged."""
    params = vars(cls).get("__dataclass_params__")
    try:
        if params is None:
            return _slotted(cls)
        if params.frozen and "__slots__" in vars(cls):
            return cls
        options = {name: getattr(params, name) for name in ("init", "repr", "eq", "order", "unsafe_hash")}
        return _slotted(_without_dataclass(cls), **options)
    except (TypeError, ValueError) as error:
        why = f"{cls.__qualname__} cannot become a frozen dataclass: {error}"
        raise InvalidInput(why, remedy="Declare the fields as for @dataclass(frozen=True, slots=True).") from error


def _slotted(cls: type, **options: bool) -> type:
    made: type = dataclasses.dataclass(frozen=True, slots=True, **options)(cls)
    for cell in _cells(made):
        if cell.cell_contents is cls:
            cell.cell_contents = made
    return made


def _cells(cls: type) -> Iterator[CellType]:
    """Yield the cells in which methods keep classes: slots make a new class, but `super()` still means the old one."""
    for value in vars(cls).values():
        for part in (value, *(getattr(value, name, None) for name in ("__func__", "fget", "fset", "fdel"))):
            for cell in (part.__closure__ or ()) if isinstance(part, FunctionType) else ():
                # An empty cell raises when it is read.
                with suppress(ValueError):
                    if cell.cell_contents is not None:
                        yield cell


def _without_dataclass(cls: type) -> type:
    """Return the class as it was before @dataclass: its fields declared, nothing generated."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    own = vars(cls).get("__annotations__", {})

    def is_generated(name: str, value: Any) -> bool:
        if name in _OF_THE_OLD_CLASS or name in fields or (name == "__hash__" and value is None):
            return True
        # What @dataclass writes has no source file.
        return isinstance(value, FunctionType) and inspect.unwrap(value).__code__.co_filename == "<string>"

    body = {name: value for name, value in vars(cls).items() if not is_generated(name, value)}
    body |= {name: field for name, field in fields.items() if name in own}
    return type(cls)(cls.__name__, cls.__bases__, body)


T = TypeVar("T")

_HAVE_A_FORM_OF_THEIR_OWN = (BaseException, enum.Enum, tuple, dict, msgspec.Struct)


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def event(cls: type[T], /) -> type[T]: ...


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def event(*, name: str | None = None, version: int = 1) -> Callable[[type[T]], type[T]]: ...


def event(cls: Any = None, /, *, name: str | None = None, version: int = 1) -> Any:
    """Make the class a frozen, slotted dataclass and register it as an event.

    A pydantic model stays as it is, and is validated when it is received.

    Args:
        name: The name in messages, by default `module:QualName`. Give one, so that the class can change its module.
        version: The version of its fields. Raise it when old payloads no longer fit, and write an `@upcast` for them.

    Raises:
        InvalidName: The name has spaces or more than 256 characters, or means another class already.
        InvalidInput: The class cannot become a dataclass, is a pydantic model that could not read what it has written,
            or the version is below 1.

    Example:
        @postroad.event(name="orders.placed")
        class OrderPlaced:
            order_id: str
            amount: int = 0
    """

    def decorate(cls: type[T]) -> type[T]:
        if not isinstance(cls, type):
            remedy = "Write @event above a class; with a name it is @event(name='orders.placed')."
            raise InvalidInput(f"@event: {cls!r} is not a class", field="cls", remedy=remedy)
        refuse_models_with_validators(cls)
        if issubclass(cls, _HAVE_A_FORM_OF_THEIR_OWN) or getattr(cls, "_is_protocol", False):
            raise InvalidInput(
                f"@event: {cls.__qualname__} cannot become a dataclass",
                field="cls",
                remedy="Write @event above a plain class, a dataclass or a pydantic model; exceptions and Structs go "
                "to registry.register.",
            )
        made = cls if is_model(cls) else frozen_dataclass(cls)
        declare(made, name=name, version=version)
        default_registry.register(made)
        return made

    return decorate if cls is None else decorate(cls)


def upcast(cls: type, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
    """Register a function that lifts a payload of `from_version` to the next version of the class.

    Args:
        cls: The event's class, at a higher version.
        from_version: The version of the payloads that the function takes; it returns those of the next version.

    Raises:
        InvalidInput: The class is not newer, has such a function already, or would have a gap between versions.

    Example:
        @postroad.upcast(OrderPlaced, from_version=1)
        def add_currency(payload: dict[str, Any]) -> dict[str, Any]:
            return {**payload, "currency": "EUR"}
    """
    if not isinstance(cls, type):
        raise InvalidInput(f"cls: {cls!r} is not a class", field="cls", remedy="Pass the event's class itself.")
    identity = identity_of(cls)
    check(from_version, whole_number(1), "version")
    _refuse_gaps(cls.__qualname__, from_version, identity.version, identity.upcasters)

    def register(function: Upcaster) -> Upcaster:
        if not callable(function):
            raise InvalidInput(f"upcast: {function!r} is not a function", field="function")
        identity.upcasters[from_version] = function
        return function

    return register


def lifted(cls: type, payload: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the payload in the class's own version; the given payload is not changed."""
    identity = identity_of(cls)
    if version > identity.version:
        raise InvalidMessage(
            f"version: {version} is newer than version {identity.version} of {cls.__qualname__} known here",
            field="version",
            remedy="Deploy the newer class to this process, then redrive the message.",
        )
    current = copy.deepcopy(payload)
    for step in range(version, identity.version):
        if step not in identity.upcasters:
            why = f"version: nothing lifts {cls.__qualname__} from version {step} to {step + 1}"
            raise InvalidMessage(why, field="version", remedy=f"Register @upcast({cls.__name__}, from_version={step}).")
        try:
            current = identity.upcasters[step](current)
        except Exception as error:
            raise _failed(cls, step, f"{type(error).__name__}: {error}") from error
        if not isinstance(current, dict):
            raise _failed(cls, step, f"it returned {type(current).__name__} in place of a dict")
    return current


def _failed(cls: type, version: int, why: str) -> InvalidMessage:
    return InvalidMessage(
        f"payload: the upcast of {cls.__qualname__} from version {version} failed: {why}", field="payload"
    )


def _refuse_gaps(name: str, from_version: int, version: int, known: dict[int, Upcaster]) -> None:
    if from_version >= version:
        why = f"{name} is at version {version}, so there is nothing to lift from version {from_version}"
    elif from_version in known:
        why = f"{name} already has an upcast from version {from_version}"
    elif known and not min(known) - 1 <= from_version <= max(known) + 1:
        missing = max(known) + 1 if from_version > max(known) else min(known) - 1
        why = f"{name} would have a gap: register the upcast from version {missing} first"
    else:
        return
    remedy = "Each version before the class's own is lifted by exactly one upcast, without gaps."
    raise InvalidInput(f"from_version: {why}", field="from_version", remedy=remedy)
