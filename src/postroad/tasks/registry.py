"""The tasks a process knows by name. A name in a message is looked up here, never imported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from postroad.errors import ConfigurationError, UnknownTask
from postroad.settings import nearest
from postroad.tasks.definitions import TaskDefinition, TaskFunction, check_function

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
                f"command: {command!r} is not a list of words", field="command",
                remedy='Give the program and its arguments apart, such as ["node", "/srv/scrape.js"].',
            )  # fmt: skip
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
