"""Exceptions as values: what travels of one, and what comes back."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import msgspec

from postroad.errors import RemoteError
from postroad.events.ids import default_name
from postroad.events.strict import is_strict

EXCEPTION_KEY = "__exception__"
_LEVELS_OF_ARGUMENTS = 32
BUILT_IN = {
    default_name(value): value
    for value in vars(builtins).values()
    if isinstance(value, type) and issubclass(value, BaseException)
}


def written(error: BaseException, name: str, write: Callable[[Any], Any]) -> dict[str, Any]:
    """The exception as type name, message and args; an argument that JSON cannot hold travels as its repr."""
    if isinstance(error, RemoteError):
        return _as_json(error.type_name, error.message, error.remote_args, write)
    return _as_json(name, str(error), error.args, write)


def read(cls: type | None, name: str, message: str, args: list[Any]) -> BaseException:
    """The exception as the class that is known here, else as RemoteError."""
    known = cls or BUILT_IN.get(name)
    if known is None or not issubclass(known, BaseException):
        return RemoteError(name, message, tuple(args))
    return _made(known, args) or RemoteError(name, message, tuple(args))


def _as_json(name: str, message: str, args: tuple[Any, ...], write: Callable[[Any], Any]) -> dict[str, Any]:
    # The name of a file may hold what is not text; the message is for people, so it is shown escaped.
    text = message.encode(errors="backslashreplace").decode()
    return {EXCEPTION_KEY: name, "message": text, "args": [_argument(arg, write) for arg in args]}


def _argument(value: Any, write: Callable[[Any], Any]) -> Any:
    try:
        result = write(value)
        msgspec.json.encode(result)
    except Exception:
        return repr(value)
    return result if is_strict((result,), _LEVELS_OF_ARGUMENTS) else repr(value)


def _made(cls: type[BaseException], args: list[Any]) -> BaseException | None:
    try:
        return cls(*args)
    except Exception:
        # A constructor of other parameters than args: the class and its args still come back, without its own fields.
        return _without_constructor(cls, args)


def _without_constructor(cls: type[BaseException], args: list[Any]) -> BaseException | None:
    try:
        return cls.__new__(cls, *args)
    except Exception:
        return None
