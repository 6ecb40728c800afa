"""A task as it is registered: a function or a command, with its limits."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from postroad.errors import ConfigurationError
from postroad.tasks.naming import check_name

MAX_TIMEOUT = 43_200.0
TaskFunction = Callable[..., Any]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """One task. What is None is the worker's to decide."""

    name: str
    function: TaskFunction | None = None
    command: tuple[str, ...] | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    memory_limit: int | None = None
    pass_env: tuple[str, ...] = ()
    fresh: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.timeout is not None:
            check_timeout(self.timeout)
        if self.max_attempts is not None:
            check_whole(self.max_attempts, "max_attempts")
        if self.memory_limit is not None:
            check_whole(self.memory_limit, "memory_limit")
        check_variables(self.pass_env)


def check_function(function: Any) -> None:
    """Refuse what a worker cannot call as `function(input, ctx)`."""
    name = getattr(function, "__name__", repr(function))
    if not callable(function):
        raise ConfigurationError(f"function: {function!r} is not a function", field="function")
    if any(inspect.isasyncgenfunction(each) for each in (function, type(function).__call__)):
        raise ConfigurationError(
            f"function: {name} is an async generator, which has no result",
            field="function",
            remedy="Return the result instead of yielding it; `async def` itself is fine.",
        )
    try:
        # A decorator's own parameters count, not those of the function that it wraps.
        inspect.signature(function, follow_wrapped=False).bind({}, None)
    except TypeError as error:
        raise ConfigurationError(
            f"function: {name} cannot be called with an input and a context: {error}", field="function",
            remedy="Write it as def task(input, ctx); give every other parameter a default.",
        ) from None  # fmt: skip
    except ValueError:
        # A function of C that does not tell its parameters.
        return


def check_timeout(value: Any, field: str = "timeout") -> float:
    """Return the seconds, or refuse what is not above 0 and at most 43,200."""
    if not is_number(value) or not 0 < value <= MAX_TIMEOUT:
        raise ConfigurationError(
            f"{field}: {value!r} is not above 0 and at most {MAX_TIMEOUT:.0f} seconds", field=field
        )
    return float(value)


def check_whole(value: Any, field: str, high: int | None = None) -> int:
    """Return the whole number, or refuse what is below 1 or above `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (high is not None and value > high):
        upwards = "on" if high is None else f"to {high}"
        raise ConfigurationError(f"{field}: {value!r} is not a whole number from 1 {upwards}", field=field)
    return value


def check_variables(names: Any) -> None:
    """Refuse what is not the name of an environment variable."""
    bad = [name for name in names if not isinstance(name, str) or _VARIABLE.fullmatch(name) is None]
    if isinstance(names, str) or bad:
        raise ConfigurationError(
            f"pass_env: {(bad or names)!r} are not names of environment variables", field="pass_env",
            remedy="Name variables, such as pass_env=('AWS_REGION',); their values are the worker's.",
        )  # fmt: skip


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
