"""The tasks that a process knows by name. A name in a message is looked up here, never imported."""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar, overload

from msgspec import Meta

from postroad.arguments import MAX_LIFE, check, check_settings, seconds_of, text, whole_number
from postroad.errors import ConfigurationError, InvalidTask, UnknownTask
from postroad.tasks.schedules import CatchUp, Schedule
from postroad.tasks.signatures import Signature

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
TaskName = text(NAME.pattern, "the name of a task", remedy="Use 1 to 64 letters, digits, '_' or '-'.")
_Fraction = Annotated[float, Meta(ge=0, le=1, description="is not a number from 0 to 1")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The second argument of a task: one attempt of one run.

    Attributes:
        request_id: The task.
        name: Its name.
        tenant_id: Its tenant.
        run: Which run it is, from 1.
        attempt: Which attempt of the run it is, from 1.
        job_id: The job that it belongs to.
        task_id: Its id in the job.
        send_activity: Reports a step to the worker.
        send_progress: Reports progress to the worker; call `progress` instead.
        counts: The usage so far.
    """

    request_id: str
    name: str
    tenant_id: str
    run: int
    attempt: int
    token: int
    """Grows with every attempt of the task on any worker; use it to fence writes to other systems."""
    deadline: datetime
    """When the attempt is ended."""
    job_id: str | None = None
    task_id: str | None = None
    dependency_outputs: Mapping[str, Any] = field(default_factory=dict)
    """The results of the tasks that this task depends on, by task id."""
    send_activity: Callable[[dict[str, Any]], None] = field(default=lambda activity: None, repr=False)
    send_progress: Callable[[dict[str, Any]], None] = field(default=lambda progress: None, repr=False)
    counts: dict[str, int] = field(default_factory=dict, repr=False)

    def activity(self, type: str, step_name: str) -> None:
        """Report the current step `step_name` as `type`; the next heartbeat carries it."""
        self.send_activity({"type": str(type)[:100], "stepName": str(step_name)[:200], "timestamp": int(time.time())})

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Report how much is done; `handle.status()`, `postroad task status` and `GET /tasks/{id}` show it.

        Args:
            fraction: From 0 to 1.
            message: What is done, for people, in at most 200 characters.

        Raises:
            InvalidTask: The fraction is not a number from 0 to 1.

        Example:
            ctx.progress(0.4, "page 4 of 10")
        """
        check(fraction, _Fraction, "progress", InvalidTask, remedy="Give a fraction, such as page / pages.")
        self.send_progress({"fraction": fraction, "message": None if message is None else str(message)[:200]})

    def usage(self, **counts: Any) -> None:
        """Add `counts` to the usage of the task, such as tokens; the sums are recorded when it completes."""
        for name, count in counts.items():
            check(count, whole_number(0), f"usage.{name}", InvalidTask)
            self.counts[name] = self.counts.get(name, 0) + count


MAX_TIMEOUT = 43_200.0
TaskFunction = Callable[..., Any]
Timeout = Annotated[
    float, Meta(gt=0, le=MAX_TIMEOUT, description=f"is not above 0 and at most {MAX_TIMEOUT:.0f} seconds")
]
Pause = Annotated[float, Meta(ge=0, le=MAX_TIMEOUT, description=f"is not from 0 to {MAX_TIMEOUT:.0f} seconds")]
_QueueName = text(r"[A-Za-z0-9_-]{1,60}", "the name of a queue: 1 to 60 letters, digits, '_' or '-'")
Lifetime = Annotated[float, Meta(ge=0, le=MAX_LIFE, description=f"is not from 0 to {MAX_LIFE:g} seconds")]
Variables = Annotated[
    tuple[Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\*?\Z")], ...],
    Meta(
        description="a list of names of environment variables",
        extra={"remedy": "Name variables, such as pass_env=('AWS_REGION', 'SHOP_*'); their values are the worker's."},
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """One task; where an option is None, the worker's setting applies."""

    name: str
    """1 to 64 letters, digits, '_' or '-'."""
    function: TaskFunction | None = None
    """Called with the arguments that it names, or as `function(input, ctx)`."""
    command: tuple[str, ...] | None = None
    """A program with its arguments, instead of a function."""
    timeout: Timeout | None = None
    """Seconds that an attempt may take."""
    max_attempts: Annotated[int, Meta(ge=1)] | None = None
    """How often the task is tried."""
    memory_limit: Annotated[int, Meta(ge=1)] | None = None
    """Bytes of address space; None for no limit."""
    pass_env: Variables = ()
    """Environment variables that this task sees besides those of the worker's children."""
    fresh: bool = False
    """Whether each attempt runs in a new interpreter instead of a fork."""
    retry_on: tuple[type[Exception], ...] = ()
    """Errors after which another attempt is made."""
    never_retry: tuple[type[Exception], ...] = ()
    """Errors that fail the task at once."""
    retry_base: Pause | None = None
    """Seconds before the second attempt; doubled before each further one."""
    retry_cap: Pause | None = None
    """The longest pause between two attempts, in seconds."""
    queue: str | None = None
    """The queue that producers send it to."""
    signature: Signature | None = field(init=False, repr=False, compare=False, default=None)
    """How the function is called; None for a command."""
    schedule: Schedule | None = None
    """When it runs by itself; None for never."""

    def __post_init__(self) -> None:
        check(self.name, TaskName, "name", InvalidTask)
        check_settings(self)
        check(self.queue, _QueueName | None, "queue", ConfigurationError)
        for name in ("retry_on", "never_retry"):
            for each in getattr(self, name):
                if not isinstance(each, type) or not issubclass(each, Exception):
                    raise ConfigurationError(
                        f"{name}: {each!r} is not an exception class",
                        field=name,
                        remedy=f"Name classes, such as {name}=(ConnectionError,).",
                    )
        if both := [each.__name__ for each in self.retry_on if each in self.never_retry]:
            raise ConfigurationError(
                f"never_retry: {', '.join(both)} is in retry_on, too",
                field="never_retry",
                remedy="Name each error in one of the two.",
            )
        if self.function is not None:
            object.__setattr__(self, "signature", Signature(self.function, TaskContext))
        needed = [] if self.schedule is None or self.signature is None else self.signature.required
        if needed:
            raise ConfigurationError(
                f"schedule: {self.name} runs by itself and needs the argument {needed[0]!r}",
                field="schedule",
                remedy=f"Give {needed[0]} a default, or leave the schedule out.",
            )

    def retries(self, error: BaseException) -> bool | None:
        """Return whether the task's own lists say to try again after `error`; None if they do not name it.

        The nearest class decides: `retry_on=(JSONDecodeError,)` counts before `never_retry=(ValueError,)`. They name an
        exception group only by a class of groups; otherwise its members decide.
        """
        for kind in type(error).__mro__:
            if isinstance(error, BaseExceptionGroup) and not issubclass(kind, BaseExceptionGroup):
                return None
            if kind in self.never_retry or kind in self.retry_on:
                return kind in self.retry_on
        return None


def passed(names: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with these names; `SHOP_*` names all that begin with `SHOP_`."""
    names = frozenset(names)
    starts = tuple(name[:-1] for name in names if name.endswith("*"))
    return {name: value for name, value in env.items() if name in names or name.startswith(starts)}


F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = (
    *("timeout", "max_attempts", "retry_on", "never_retry", "retry_base", "retry_cap", "queue", "memory_limit"),
    *("pass_env", "fresh", "schedule", "every", "tz", "catch_up"),
)


class TaskRegistry:
    """Tasks by their names; a registry of your own keeps them apart from those of `@task`.

    Example:
        registry = TaskRegistry()
        registry.command("scrape", ["node", "/srv/scrape.js"], timeout=60)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskDefinition] = {}

    def register(self, function: F, name: str | None = None, **options: Any) -> F:
        """Register a function as a task and return the function.

        Args:
            function: Any function with named parameters, as `@task` describes it; it may be `async def`.
            name: The name of the task; by default that of the function.
            options: The options of `@task`.

        Raises:
            ConfigurationError: It takes `*args`, an argument cannot be written as JSON, it is a generator, an option is
                not valid, or another function has the name.
            InvalidTask: The name is not valid.
        """
        _check_function(function)
        own_name = name or getattr(function, "__name__", None) or ""
        self._add(TaskDefinition(name=own_name, function=function, **_frozen(options)))
        return function

    def command(self, name: str, command: Any, **options: Any) -> None:
        """Register a program as a task; it is started directly, never through a shell.

        Args:
            name: The name of the task.
            command: The program and its arguments, as a list of texts.
            options: `timeout`, `max_attempts`, `memory_limit`, `pass_env` and the schedule of `@task`.

        Raises:
            ConfigurationError: The command is not a list of texts, or another task has the name.
        """
        if isinstance(command, str) or not command or not all(isinstance(part, str) and part for part in command):
            raise ConfigurationError(
                f"command: {command!r} is not a list of texts",
                field="command",
                remedy='Give the program and its arguments separately, such as ["node", "/srv/scrape.js"].',
            )
        self._add(TaskDefinition(name=name, command=tuple(command), **_frozen(options)))

    def get(self, name: str) -> TaskDefinition:
        """Return the task `name`, or raise `UnknownTask`."""
        found = self._tasks.get(name)
        if found is None:
            raise UnknownTask(
                f"name: there is no task {str(name)[:100]!r}",
                field="name",
                nearest=_nearest(str(name)[:100], self._tasks),
            )
        return found

    def find(self, task: Any) -> TaskDefinition | None:
        """Return the definition of `task`, a name or a function; None if there is none."""
        if isinstance(task, str):
            return self._tasks.get(task)
        return next((each for each in self._tasks.values() if each.function == task), None)

    def names(self) -> list[str]:
        """Return the names of all tasks, sorted."""
        return sorted(self._tasks)

    def definitions(self) -> list[TaskDefinition]:
        """Return all tasks, sorted by name."""
        return [self._tasks[name] for name in self.names()]

    def _add(self, definition: TaskDefinition) -> None:
        with self._lock:
            before = self._tasks.get(definition.name)
            if before is not None and _place(before) != _place(definition):
                raise ConfigurationError(
                    f"name: there is a task {definition.name!r} already", field="name", remedy="Choose another name."
                )
            self._tasks[definition.name] = definition


def _check_function(function: Any) -> None:
    if not callable(function):
        raise ConfigurationError(f"function: {function!r} is not a function", field="function")
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(each) for is_kind in kinds for each in (function, type(function).__call__)):
        raise ConfigurationError(
            f"function: {getattr(function, '__name__', function)} is a generator, which has no result",
            field="function",
            remedy="Return the result instead of yielding it; `async def` itself is fine.",
        )


default_tasks = TaskRegistry()


@overload
def task(name: F, /) -> F: ...
@overload
def task(
    name: str | None = None,
    *,
    timeout: float | str | timedelta | None = None,
    max_attempts: int | None = None,
    retry_on: type[Exception] | Sequence[type[Exception]] = (),
    never_retry: type[Exception] | Sequence[type[Exception]] = (),
    retry_base: float | str | timedelta | None = None,
    retry_cap: float | str | timedelta | None = None,
    queue: str | None = None,
    memory_limit: int | None = None,
    pass_env: Sequence[str] = (),
    fresh: bool = False,
    schedule: str | None = None,
    every: str | float | timedelta | None = None,
    tz: str | None = None,
    catch_up: CatchUp | None = None,
    registry: TaskRegistry = default_tasks,
) -> Callable[[F], F]: ...
def task(name: Any = None, *, registry: TaskRegistry = default_tasks, **options: Any) -> Any:
    """Register a function as a task, with or without options: `@task` or `@task("resize", timeout="5m")`.

    The function stays as it is. Its arguments travel by name, as JSON, and are checked against their annotations when
    the task is submitted and again before it runs; a parameter annotated `TaskContext` gets the context of the attempt.
    A function with the parameters `(input, ctx)` gets the whole input instead.

    Args:
        name: The name of the task; by default that of the function.
        timeout: How long an attempt may take, in seconds or as "90s", "5m" or "2h"; by default the worker's, 200 s.
        max_attempts: How often it is tried; by default the worker's, 3.
        retry_on: Exception classes after which another attempt is made.
        never_retry: Exception classes that fail the task at once. What neither names is left to the classifier, which
            retries transient errors of networks, servers and databases and no others.
        retry_base: The pause before the second attempt, doubled before each further one; by default the worker's, 1 s.
        retry_cap: The longest pause between two attempts; by default the worker's, 30 s.
        queue: The queue that producers send it to; by default that of the producer. Start a worker with this queue.
        memory_limit: Bytes of address space of its child; by default no limit.
        pass_env: Environment variables that it sees besides those of the worker's children; `SHOP_*` is every
            variable that begins so. With `POSTROAD_URL`, `postroad.connect()` in the task opens the worker's store.
        fresh: Whether each attempt runs in a new interpreter; for libraries that do not survive a fork.
        schedule: A cron expression of five fields at whose times it runs by itself, without an input.
        every: The interval at which it runs by itself, instead of `schedule`: seconds, or a text such as '10m'.
        tz: The time zone of `schedule`, such as 'Europe/Athens'; UTC by default.
        catch_up: What happens to runs that no worker was there for: 'none' skips them, 'one' runs the last of them and
            is the default, 'all' runs each.
        registry: Where it is registered; by default where workers look for it.
        options: The options above, from `timeout` to `fresh`.

    Raises:
        ConfigurationError: An option is not valid, the function takes `*args`, or an argument cannot be written as
            JSON; nothing is registered.

    Example:
        @task(max_attempts=4, retry_on=(ConnectionError,), timeout="5m")
        def scrape(store_id: str, depth: int = 2) -> Store: ...
    """
    if callable(name):
        return registry.register(name)
    return lambda function: registry.register(function, name, **options)


def _nearest(name: str, candidates: Iterable[str]) -> str | None:
    # Children import this module, and need no settings.
    from postroad.settings import nearest

    return nearest(name, candidates)


def _frozen(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as `TaskDefinition` takes them; raise `ConfigurationError` for one that does not exist."""
    unknown = next((name for name in options if name not in _OPTIONS), None)
    if unknown is not None:
        raise ConfigurationError(
            f"{unknown}: is not an option of a task",
            field=unknown,
            nearest=_nearest(unknown, _OPTIONS),
            remedy=f"The options are {', '.join(_OPTIONS)}.",
        )
    given = dict(options)
    for name in ("pass_env", "retry_on", "never_retry"):
        value = given.get(name, ())
        # What is no list of values is refused later, where its field is known.
        is_list = isinstance(value, Iterable) and not isinstance(value, type | str)
        given[name] = tuple(value) if is_list else value if name == "pass_env" else (value,)
    for name in ("timeout", "retry_base", "retry_cap"):
        if name in given:
            given[name] = seconds_of(given[name], name, ConfigurationError)
    return {"schedule": Schedule.of(given), **given}


def _place(definition: TaskDefinition) -> object:
    """Return where a task is defined: a module that is imported twice defines the same task again."""
    function: TaskFunction | None = definition.function
    if function is None:
        return definition.command
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return (name, code.co_filename if code is not None else function.__module__)
