"""The `@event` decorator."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform, overload

import msgspec

from postroad.errors import InvalidInput
from postroad.events.freezing import frozen_dataclass
from postroad.events.ids import declare
from postroad.events.registry import default_registry, refuse_models_with_validators

T = TypeVar("T")

_HAVE_A_FORM_OF_THEIR_OWN = (BaseException, enum.Enum, tuple, dict, msgspec.Struct)


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def event(cls: type[T], /) -> type[T]: ...


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def event(*, name: str | None = None, version: int = 1) -> Callable[[type[T]], type[T]]: ...


def event(cls: Any = None, /, *, name: str | None = None, version: int = 1) -> Any:
    """Make the class a frozen, slotted dataclass and register it under `name`, by default `module:QualName`."""

    def decorate(cls: type[T]) -> type[T]:
        _refuse_odd_classes(cls)
        made = frozen_dataclass(cls)
        declare(made, name=name, version=version)
        default_registry.register(made)
        return made

    return decorate if cls is None else decorate(cls)


def _refuse_odd_classes(cls: object) -> None:
    if not isinstance(cls, type):
        raise InvalidInput(f"@event: {cls!r} is not a class", field="cls", remedy="Write @event above a class.")
    refuse_models_with_validators(cls)
    if issubclass(cls, _HAVE_A_FORM_OF_THEIR_OWN) or getattr(cls, "_is_protocol", False):
        raise InvalidInput(
            f"@event: {cls.__qualname__} cannot become a dataclass",
            field="cls",
            remedy="Write @event above a plain class or a dataclass; exceptions go to registry.register.",
        )
