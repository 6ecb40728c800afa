"""A task as it is registered: a function or a command, with its limits."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from postroad.arguments import check, check_settings
from postroad.errors import ConfigurationError, InvalidTask
from postroad.tasks.naming import TaskName

MAX_TIMEOUT = 43_200.0
TaskFunction = Callable[..., Any]
Timeout = Annotated[
    float, Meta(gt=0, le=MAX_TIMEOUT, description=f"is not above 0 and at most {MAX_TIMEOUT:.0f} seconds")
]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """One task. What is None is the worker's to decide."""

    name: str
    function: TaskFunction | None = None
    command: tuple[str, ...] | None = None
    timeout: Timeout | None = None
    max_attempts: Annotated[int, Meta(ge=1)] | None = None
    memory_limit: Annotated[int, Meta(ge=1)] | None = None
    pass_env: tuple[str, ...] = ()
    fresh: bool = False

    def __post_init__(self) -> None:
        check(self.name, TaskName, "name", InvalidTask)
        check_settings(self)
        check_variables(self.pass_env)


def check_function(function: Any) -> None:
    """Refuse what a worker cannot call as `function(input, ctx)`."""
    name = getattr(function, "__name__", repr(function))
    if not callable(function):
        raise ConfigurationError(f"function: {function!r} is not a function", field="function")
    called = (function, type(function).__call__)
    if any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in called):
        raise ConfigurationError(
            f"function: {name} is async, and a worker calls plain functions", field="function",
            remedy="Register a plain function that calls asyncio.run(...) on the async one.",
        )  # fmt: skip
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
