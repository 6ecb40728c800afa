"""The tasks a process knows by name. A name in a message is looked up here, never imported."""

from __future__ import annotations

import inspect
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypeVar, overload

from msgspec import Meta

from postroad.arguments import check, check_settings
from postroad.errors import ConfigurationError, InvalidTask, UnknownTask
from postroad.settings import nearest
from postroad.tasks.messages import TaskName

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """One attempt of one run. `token` grows with every attempt anywhere: use it to fence writes to other systems."""

    request_id: str
    name: str
    tenant_id: str
    run: int
    attempt: int
    token: int
    deadline: datetime
    job_id: str | None = None
    task_id: str | None = None
    dependency_outputs: Mapping[str, Any] = field(default_factory=dict)
    tell: Tell = field(default=lambda activity: None, repr=False)
    counts: dict[str, int] = field(default_factory=dict, repr=False)

    def activity(self, type: str, step_name: str) -> None:
        """Say what is being done; the next heartbeat carries it."""
        self.tell({"type": str(type)[:100], "stepName": str(step_name)[:200], "timestamp": int(time.time())})

    def usage(self, **counts: Any) -> None:
        """Add to what the task used; the sums are recorded when it completes."""
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise InvalidTask(f"usage.{name}: {count!r} is not a whole number from 0 on", field=f"usage.{name}")
            self.counts[name] = self.counts.get(name, 0) + count


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
            f"function: {name} cannot be called with an input and a context: {error}",
            field="function",
            remedy="Write it as def task(input, ctx); give every other parameter a default.",
        ) from None
    except ValueError:
        # A function of C that does not tell its parameters.
        return


def check_variables(names: Any) -> None:
    """Refuse what is not the name of an environment variable."""
    bad = [name for name in names if not isinstance(name, str) or _VARIABLE.fullmatch(name) is None]
    if isinstance(names, str) or bad:
        raise ConfigurationError(
            f"pass_env: {(bad or names)!r} are not names of environment variables",
            field="pass_env",
            remedy="Name variables, such as pass_env=('AWS_REGION',); their values are the worker's.",
        )


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


F = TypeVar("F", bound=Callable[..., Any])


class TaskRegistry:
    """Tasks by their names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskDefinition] = {}

    def register(self, function: F, name: str | None = None, **options: Any) -> F:
        """Make the function a task, under its own name unless another is given; returns the function.

        Raises:
            ConfigurationError: It cannot be called as `function(input, ctx)`, or it is an async generator.
        """
        check_function(function)
        own_name = getattr(function, "__name__", None)
        self._add(TaskDefinition(name=name or own_name or "", function=function, **_frozen(options)))
        return function

    def command(self, name: str, command: Any, **options: Any) -> None:
        """Make a program a task: it is started directly, never through a shell."""
        if isinstance(command, str) or not command or not all(isinstance(part, str) and part for part in command):
            raise ConfigurationError(
                f"command: {command!r} is not a list of words",
                field="command",
                remedy='Give the program and its arguments apart, such as ["node", "/srv/scrape.js"].',
            )
        self._add(TaskDefinition(name=name, command=tuple(command), **_frozen(options)))

    def get(self, name: str) -> TaskDefinition:
        """The task of this name, or `UnknownTask`."""
        found = self._tasks.get(name)
        if found is None:
            raise UnknownTask(
                f"name: there is no task {str(name)[:100]!r}",
                field="name",
                nearest=nearest(str(name)[:100], self._tasks),
            )
        return found

    def names(self) -> list[str]:
        """The names of all tasks, sorted."""
        return sorted(self._tasks)

    def definitions(self) -> list[TaskDefinition]:
        """All tasks, by name."""
        return [self._tasks[name] for name in self.names()]

    def _add(self, definition: TaskDefinition) -> None:
        with self._lock:
            before = self._tasks.get(definition.name)
            if before is not None and _place(before) != _place(definition):
                raise ConfigurationError(
                    f"name: there is a task {definition.name!r} already", field="name", remedy="Choose another name."
                )
            self._tasks[definition.name] = definition


default_tasks = TaskRegistry()


@overload
def task(name: F, /) -> F: ...
@overload
def task(
    name: str | None = None,
    /,
    *,
    timeout: float | None = None,
    max_attempts: int | None = None,
    memory_limit: int | None = None,
    pass_env: Sequence[str] = (),
    fresh: bool = False,
    registry: TaskRegistry = default_tasks,
) -> Callable[[F], F]: ...
def task(name: Any = None, /, *, registry: TaskRegistry = default_tasks, **options: Any) -> Any:
    """Make a function `(input, ctx)` a task; `@task` alone takes the function's own name."""
    if callable(name):
        return registry.register(name)

    def register(function: F) -> F:
        return registry.register(function, name, **options)

    return register


def _frozen(options: dict[str, Any]) -> dict[str, Any]:
    given = options.get("pass_env", ())
    return {**options, "pass_env": given if isinstance(given, str) else tuple(given)}


def _place(definition: TaskDefinition) -> object:
    """Where a task is defined: a module that is read twice defines the same one again."""
    function: TaskFunction | None = definition.function
    if function is None:
        return definition.command
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return (name, code.co_filename if code is not None else function.__module__)
