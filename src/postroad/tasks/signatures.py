"""The signature of a task: the arguments it takes, and how they and its result travel as JSON."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field, is_dataclass, make_dataclass
from functools import cached_property
from types import GenericAlias
from typing import Any, get_args

import msgspec
from msgspec import inspect as types

from postroad import events
from postroad.errors import ConfigurationError, InvalidMessage, InvalidTask
from postroad.events import Shape

_WORD = re.compile(r"\w+")
_NAMED = re.compile(r"'(\w+)'")
_RESULT = "result"
_tagging = events.Tagging(events.default_registry)


class Signature:
    """How a worker calls a function, and how its arguments and its result travel.

    `takes_input`: it is called as `function(input, ctx)`, with the whole input. Otherwise its arguments are the members
    of the input, by name.
    """

    def __init__(self, function: Callable[..., Any], context_class: type) -> None:
        self._name = getattr(function, "__name__", type(function).__name__)
        self._module, found = _signature(function)
        parameters = [] if found is None else list(found.parameters.values())
        self.takes_input = found is None or _takes_input(parameters)
        self.context: str | None = None
        """The parameter that gets the context."""
        if found is None:
            return
        self._check_parameters(found)
        if self.takes_input:
            return
        self._context_class = context_class
        hints = self._hints(parameters)
        for name, hint in hints.items():
            self._check_hint(name, hint)
        contexts = [name for name, hint in hints.items() if hint is context_class]
        if len(contexts) > 1:
            raise ConfigurationError(
                f"{contexts[1]}: {self._name} gets its context as {contexts[0]} already",
                field=contexts[1],
                remedy=f"Annotate one parameter as {context_class.__name__}.",
            )
        self.context = contexts[0] if contexts else None
        self._bound = found.replace(parameters=[each for each in parameters if each.name != self.context])
        self._check_hint("return", self._resolved_result())

    @property
    def required(self) -> list[str]:
        """The arguments that have no default."""
        if self.takes_input:
            return []
        found = self._bound.parameters.values()
        return [each.name for each in found if each.default is each.empty and each.kind is not each.VAR_KEYWORD]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the input of a call with these arguments.

        Raises:
            InvalidTask: An argument is missing, unknown, of another type or not JSON; `field` names it.
        """
        # Children import this module, and write no messages.
        from postroad.tasks.messages import check_input

        if self.takes_input:
            return check_input(self._input(args, kwargs))
        try:
            given = self._bound.bind(*args, **kwargs).arguments
        except TypeError as error:
            found = _NAMED.search(str(error))
            raise InvalidTask(f"{self._name}: {error}", field=found[1] if found else None) from None
        given |= given.pop(self._further, {}) if self._further else {}
        shape = self._arguments
        try:
            written = _tagging.write(shape.cls(**self._folded(given)), shape)
        except Exception as error:
            raise _refused(events.unsendable(given, path="", why=error)) from error
        payload = self._unfolded(written, given)
        self.check(payload)
        return check_input(payload)

    def check(self, input: dict[str, Any]) -> None:
        """Raise `InvalidTask` if the function cannot be called with this input."""
        if not self.takes_input:
            self._read(input)

    def arguments(self, input: dict[str, Any], context: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what to call the function with, by position and by name; raise `InvalidTask` if that cannot be."""
        if self.takes_input:
            return (input, context), {}
        named = self._read(input)
        if self.context is not None:
            named[self.context] = context
        return (), named

    def write_result(self, output: Any) -> Any:
        """Return the result as JSON values.

        Raises:
            InvalidTask: It is not what the function says that it returns, or it cannot be written as JSON.
        """
        shape = self._result
        try:
            written = _tagging.write(shape.cls(output), shape)[_RESULT]
        except Exception as error:
            raise _refused(events.unsendable(output, path=_RESULT, why=error)) from error
        if self._result_hint not in (Any, object):
            self.read_result(written)
        return written

    def read_result(self, output: Any) -> Any:
        """Return the result of a run as the function's return annotation says, or raise `InvalidTask`."""
        if self.takes_input:
            return output
        try:
            return getattr(_tagging.read({_RESULT: output}, self._result), _RESULT)
        except Exception as error:
            raise _refused(events.refusal(error)) from error

    def prepare(self) -> None:
        """Work out now what the first call would have to."""
        if not self.takes_input:
            _ = self._arguments, self._result

    def _hints(self, parameters: list[inspect.Parameter]) -> dict[str, Any]:
        """Return the type of each parameter; Any where there is none, or where its name is not known yet."""
        raw = {each.name: Any if each.annotation is each.empty else each.annotation for each in parameters}
        hints = _resolved(self._module, raw)
        context = self._context_class
        for name, annotation in raw.items():
            # Its import may be for type checkers only, and it may be optional.
            hidden = _WORD.findall(annotation) if hints[name] is Any and isinstance(annotation, str) else ()
            if context.__name__ in hidden or (events.is_union(hints[name]) and context in get_args(hints[name])):
                hints[name] = context
        return hints

    @cached_property
    def _further(self) -> str | None:
        """The parameter that takes further arguments: `**further`."""
        return next((name for name, each in self._bound.parameters.items() if each.kind is each.VAR_KEYWORD), None)

    @cached_property
    def _arguments(self) -> Shape:
        """The arguments as a dataclass, which the codec reads and writes; made late, as a type may follow its use."""
        parameters = list(self._bound.parameters.values())
        hints = self._hints(parameters)
        fields: list[tuple[str, Any, Any]] = []
        for each in parameters:
            hint: Any = hints[each.name]
            is_further = each.kind is each.VAR_KEYWORD
            # Absent arguments stay absent: the function has their defaults.
            default = field() if each.default is each.empty and not is_further else field(default=None)
            fields.append((each.name, GenericAlias(dict, (str, hint)) if is_further else hint, default))
        return _tagging.shape(make_dataclass(self._name, fields, kw_only=True))

    def _resolved_result(self) -> Any:
        annotation = self._bound.return_annotation
        return _resolved(self._module, {_RESULT: Any if annotation is self._bound.empty else annotation})[_RESULT]

    @cached_property
    def _result_hint(self) -> Any:
        return self._resolved_result()

    @cached_property
    def _result(self) -> Shape:
        return _tagging.shape(make_dataclass(self._name, [(_RESULT, self._result_hint)]))

    def _read(self, input: dict[str, Any]) -> dict[str, Any]:
        known = self._bound.parameters
        if not self._further and (unknown := next((name for name in input if name not in known), None)) is not None:
            raise InvalidTask(f"{unknown[:100]}: {self._name} has no such argument", field=unknown[:100])
        try:
            read = _tagging.read(self._folded(input), self._arguments)
        except Exception as error:
            raise _refused(events.refusal(error)) from error
        return self._unfolded(vars(read), input)

    def _folded(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with further ones under the name of their parameter."""
        if self._further is None:
            return dict(given)
        own = self._bound.parameters.keys() - {self._further}
        further = {name: value for name, value in given.items() if name not in own}
        return {**{name: value for name, value in given.items() if name in own}, self._further: further}

    def _unfolded(self, values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        further = {} if self._further is None else values[self._further]
        return {name: further[name] if name in further else values[name] for name in given}

    def _input(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if len(args) + len(kwargs) > 1 or kwargs.keys() - {"input"}:
            raise InvalidTask(
                f"input: {self._name}(input, ctx) takes one input",
                field="input",
                remedy=f'Write submit({self._name}, {{"storeId": 7}}), or give the function arguments of its own.',
            )
        return args[0] if args else kwargs.get("input")

    def _check_parameters(self, found: inspect.Signature) -> None:
        if self.takes_input:
            try:
                found.bind({}, None)
            except TypeError as error:
                raise ConfigurationError(
                    f"function: {self._name} cannot be called with an input and a context: {error}",
                    field="function",
                    remedy="Write it as def task(input, ctx), or give its arguments other names.",
                ) from None
            return
        for each in found.parameters.values():
            if each.kind in (each.VAR_POSITIONAL, each.POSITIONAL_ONLY):
                shown = f"*{each.name}" if each.kind is each.VAR_POSITIONAL else each.name
                raise ConfigurationError(
                    f"function: {self._name} takes {shown}, and arguments travel by name",
                    field="function",
                    remedy="Name each parameter, such as def scrape(store_id: str, depth: int = 2).",
                )

    def _check_hint(self, name: str, hint: Any) -> None:
        found = None if hint is self._context_class else _unencodable(hint)
        if found is not None:
            what = "its result" if name == "return" else f"the argument {name!r}"
            raise ConfigurationError(
                f"{name}: {what} of {self._name} is {found.__qualname__}, which cannot be written as JSON",
                field=name,
                remedy="Use text, numbers, times, lists, dataclasses, msgspec Structs or pydantic models; pass an id"
                " instead of a connection or a file.",
            )


def _signature(function: Any) -> tuple[str, inspect.Signature | None]:
    """Return the module whose names the annotations use, and the signature; None for a C function without one."""
    try:
        # A decorator's own parameters count, unless it passes everything on.
        found = inspect.signature(function, follow_wrapped=False)
    except ValueError:
        return "builtins", None
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None and any(each.kind is each.VAR_POSITIONAL for each in found.parameters.values()):
        return _signature(wrapped)
    written = function
    while isinstance(written, functools.partial):
        written = written.func
    if not inspect.isroutine(written):
        written = type(written).__call__
    return str(getattr(written, "__module__", "builtins")), found


def _takes_input(parameters: list[inspect.Parameter]) -> bool:
    """Return whether these are the parameters of `function(input, ctx)`, or have no names to pass arguments by."""
    named = [each.name.lstrip("_") for each in parameters[:2]]
    return named in (["input", "ctx"], ["input", "context"]) or (
        len(parameters) > 1 and parameters[0].kind is inspect.Parameter.POSITIONAL_ONLY
    )


def _resolved(module: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annotations as types, where a text stands for what the module calls so."""
    if not raw:
        return {}
    holder = make_dataclass("Holder", list(raw.items()), namespace={"__module__": module})
    return {each.name: hint for each, hint in events.field_types(holder)}


def _unencodable(hint: Any) -> type | None:
    """Return the class in an annotation of which no value can be written as JSON; None if there is none."""
    if events.is_union(hint):
        return next((found for each in get_args(hint) if (found := _unencodable(each)) is not None), None)
    # Unions of classes and the like are not known; the values themselves are checked when they are submitted.
    with suppress(Exception):
        for node, _ in events.nodes_of(hint):
            if isinstance(node, types.CustomType) and not _may_travel(node.cls):
                return node.cls
    return None


def _may_travel(cls: type) -> bool:
    """Return whether values of a class that msgspec does not know may be written: those of its subclasses, perhaps."""
    if cls is object or issubclass(cls, BaseException) or events.is_model(cls):
        return True
    if cls.__module__.partition(".")[0] in ("collections", "typing"):
        return False
    below, seen = [cls], set[type]()
    while below:
        each = below.pop()
        if is_dataclass(each) or issubclass(each, msgspec.Struct) or events.is_model(each):
            return True
        new = [one for one in type.__subclasses__(each) if one not in seen]
        seen.update(new)
        below += new
    return inspect.isabstract(cls) or bool(getattr(cls, "_is_protocol", False))


def _refused(error: InvalidMessage) -> InvalidTask:
    return InvalidTask(error.message.removeprefix("the message is not valid: "), field=error.field)
