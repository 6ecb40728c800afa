"""The registry of event classes by name. A name in a message is looked up here and never imported."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from postroad.errors import InvalidInput, InvalidName, UnknownEventType
from postroad.events.models import fault_of_model, is_model
from postroad.events.shapes import checked_name, default_name, identity_of, json_schema


class EventRegistry:
    """The event classes that this process reads and writes, by name.

    `find(name)` and `known_name(cls)` return None for what is not registered; `type_of` and `name_of` raise. `@event`
    registers classes in `default_registry`; make another registry to keep the classes of one bus apart.

    Example:
        registry = EventRegistry()
        registry.register(OrderPlaced, "orders.placed")
    """

    def __init__(self) -> None:
        self._types: dict[str, type] = {}
        self._names: dict[type, str] = {}
        self._lock = threading.Lock()
        # The dictionaries' own methods: the codec asks once for each message.
        self.find: Callable[[str], type | None] = self._types.get
        self.known_name: Callable[[type], str | None] = self._names.get

    def register(self, cls: type, name: str | None = None) -> str:
        """Register the class and return the name under which it is written.

        Args:
            cls: A dataclass, a pydantic model, a msgspec Struct or an exception.
            name: The name in messages; by default the one it has, else that of `@event`, else `module:QualName`.
                The names that a class had before are still read.

        Raises:
            InvalidName: The name is not valid, or means another class already.
            InvalidInput: Instances of the class cannot be written as JSON objects.
        """
        _check_class(cls)
        with self._lock:
            chosen = checked_name(name) if name is not None else self._names.get(cls)
            chosen = chosen or identity_of(cls).name or default_name(cls)
            self._claim(chosen, cls)
            self._names[cls] = chosen
        return chosen

    def register_module(self, module: ModuleType) -> list[str]:
        """Register every dataclass, Struct and exception that `module` exports, as `module:QualName`.

        A name given with @event wins. The name by the defining module is read too.
        """
        if not isinstance(module, ModuleType):
            raise InvalidInput(f"module: {module!r} is not a module", field="module")
        public = [name for name in vars(module) if not name.startswith("_")]
        found: list[Any] = [getattr(module, name, None) for name in getattr(module, "__all__", public)]
        classes = dict.fromkeys(value for value in found if can_travel(value))
        for cls in classes:
            _check_class(cls)
        names = []
        for cls in classes:
            exported = f"{module.__name__}:{cls.__qualname__}"
            names.append(self.register(cls, identity_of(cls).name or exported))
            with self._lock:
                self._claim(exported, cls)
                self._claim(default_name(cls), cls)
        return names

    def name_of(self, cls: object) -> str:
        """Return the name under which the class is written, or raise UnknownEventType."""
        name = self.known_name(cls) if isinstance(cls, type) else None
        if name is None:
            shown = getattr(cls, "__qualname__", repr(cls))
            raise UnknownEventType(f"event_type: {shown} is not registered", field="event_type")
        return name

    def names_of(self, cls: type) -> list[str]:
        """Return every name under which the class is read: the one it is written under, and those it had before."""
        with self._lock:
            return sorted(name for name, known in self._types.items() if known is cls)

    def classes(self) -> list[type]:
        """Return all registered classes."""
        with self._lock:
            return list(self._names)

    def type_of(self, name: object) -> type:
        """Return the class that was registered under `name`, or raise UnknownEventType."""
        cls = self.find(name) if isinstance(name, str) else None
        if cls is None:
            raise UnknownEventType(f"event_type: {str(name)[:200]!r} is not registered", field="event_type")
        return cls

    def json_schema(self, cls: type) -> dict[str, Any]:
        """Return the JSON Schema of the payload of a registered class."""
        self.name_of(cls)
        return json_schema(cls)

    def _claim(self, name: str, cls: type) -> None:
        holder = self._types.get(name, cls)
        # A reloaded module or a notebook cell that runs again defines the same class again: the newer one wins.
        if holder is not cls and (holder.__module__, holder.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidName(
                f"name: {name!r} already means {holder.__module__}.{holder.__qualname__}, "
                f"so it cannot mean {cls.__module__}.{cls.__qualname__} as well",
                field="name",
                remedy="Give one of the two classes another name, as in @event(name='orders.placed').",
            )
        self._types[name] = cls


def can_travel(value: object) -> bool:
    """Return whether it is a class whose instances can be events. A Struct that becomes a JSON array cannot."""
    if not isinstance(value, type) or dataclasses.is_dataclass(value):
        return isinstance(value, type)
    if is_model(value):
        return fault_of_model(value) is None
    config = getattr(value, "__struct_config__", None)
    return issubclass(value, BaseException | msgspec.Struct) and not (config is not None and config.array_like)


def never_an_event(cls: type) -> str | None:
    """Return why neither the class nor one that derives from it can be an event; None if one can."""
    if cls.__module__ == "builtins" and cls is not object and not issubclass(cls, BaseException):
        return "is built into Python and cannot be the class of an event"
    if any(base in (tuple, dict, enum.Enum) for base in cls.__mro__):
        return "is a tuple, a dict or an enum, which cannot be an event"
    try:
        refuse_models_with_validators(cls)
    except InvalidInput as error:
        return f"cannot be an event: {error.message.removeprefix('cls: ')}"
    return None


def _check_class(cls: object) -> None:
    if not isinstance(cls, type):
        raise InvalidInput(f"cls: {cls!r} is not a class", field="cls", remedy="Pass the class itself.")
    refuse_models_with_validators(cls)
    if not can_travel(cls):
        raise InvalidInput(
            f"cls: {cls.__qualname__} is no dataclass, pydantic model, msgspec Struct or exception",
            field="cls",
            remedy="Decorate it with @event or @dataclass, or derive it from pydantic.BaseModel or from msgspec.Struct "
            "without array_like.",
        )
    params = getattr(cls, "__dataclass_params__", None)
    names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    taken = inspect.signature(cls).parameters if params is not None and params.init else {}
    if init_only := [name for name in taken if name not in names]:
        raise InvalidInput(
            f"cls: {cls.__qualname__} takes arguments that are not fields and cannot travel: {', '.join(init_only)}",
            field=init_only[0],
            remedy="Make them fields; an InitVar, or a parameter of an __init__ of your own, is none.",
        )
    if inspect.isabstract(cls):
        raise InvalidInput(f"cls: {cls.__qualname__} is abstract", field="cls", remedy="Register what derives from it.")


def refuse_models_with_validators(cls: type) -> None:
    """Refuse dataclasses of pydantic and classes of attrs, which would silently lose their validation as events."""
    if is_model(cls):
        if (fault := fault_of_model(cls)) is not None:
            raise fault
        return
    for library, mark in (("pydantic", "__pydantic_fields__"), ("attrs", "__attrs_attrs__")):
        if hasattr(cls, mark):
            instead = "or derive it from pydantic.BaseModel" if library == "pydantic" else "and validate it yourself"
            raise InvalidInput(
                f"cls: {cls.__qualname__} is a class of {library}, whose validation an event would not run",
                field="cls",
                remedy=f"Write @event above a plain class with the same fields, {instead}.",
            )


default_registry = EventRegistry()
