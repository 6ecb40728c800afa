"""The code that runs in a child: it finds the tasks, runs its orders, and replies with results and failures."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no stubs; the functions of signal touch many pages
import atexit
import gc
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, NoReturn

import msgspec

from postroad.errors import (
    ConfigurationError,
    InvalidTask,
    NonRetryable,
    Retryable,
    describe,
    named,
    retry_wish,
    text_of,
)
from postroad.events import checked_bytes
from postroad.signals import die_with_parent
from postroad.tasks import processes
from postroad.tasks.error_categories import ErrorClass, class_of_group, classify_exception
from postroad.tasks.processes import Order, Plan, TaskEntry
from postroad.tasks.registry import TaskContext, TaskDefinition, TaskRegistry, default_tasks
from postroad.tasks.signatures import Signature

ORDERS, REPLIES = 4, 3
_FIRST_TO_CLOSE = 5
# The most descriptors that a monitor opens.
_MONITORS_OWN = 32
_SIGINT = int(signal.SIGINT)
_RESET_SIGNALS = tuple(map(int, (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)))
BOOT = "import sys; sys.path[:] = sys.argv[1:]; from postroad.tasks.{0} import {1}; {1}()"
_decode = msgspec.msgpack.Decoder(Order).decode


class ChildSetup(NamedTuple):
    """What a child inherits from its zygote."""

    tasks: TaskRegistry
    plan: Plan
    encoded_plan: bytes
    environment: Mapping[str, str] = {}
    """The environment that each order begins with; set by the monitor."""
    highest: int = 0
    """Above every descriptor that a child inherits; set by the monitor."""


def run_child(setup: ChildSetup, ends: Sequence[int], monitor: int) -> NoReturn:
    """Run orders until the end of the process; never return to the monitor's code.

    `ends` are the pipes for standard output, standard error, replies and orders.
    """
    code = 1
    try:
        _settle_in(setup, ends, monitor)
        code = _work(setup)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _leave(code)


def prepare_for_children(setup: ChildSetup) -> ChildSetup:
    """Do once in the monitor what its children inherit; each would make its own copies of what this touches.

    Give up privileges, forget exit functions, read from nothing, and open no descriptor where children have pipes.
    """
    processes.give_up_privileges()
    atexit._clear()
    while (nothing := os.open(os.devnull, os.O_RDONLY)) < _FIRST_TO_CLOSE:
        continue
    os.dup2(nothing, 0)
    os.close(nothing)
    highest = max(int(entry.name) for entry in os.scandir("/dev/fd"))
    return setup._replace(environment=dict(os.environ), highest=highest + _MONITORS_OWN)


def _settle_in(setup: ChildSetup, ends: Sequence[int], monitor: int) -> None:
    """Set up its own session and pipes, close everything else, and reset signal handlers.

    Every function and object that this uses costs the child a copy of its page, so it uses few.
    """
    os.setsid()
    die_with_parent(monitor)
    out, err, replies, orders = ends
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.dup2(replies, REPLIES, False)
    os.dup2(orders, ORDERS, False)
    os.closerange(_FIRST_TO_CLOSE, setup.highest)
    for number in _RESET_SIGNALS:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_SIGINT, _signal.default_int_handler)
    _signal.set_wakeup_fd(-1)
    reply(processes.SETTLED)


def reply(data: bytes) -> None:
    processes.write_all(REPLIES, processes.frame(data))


def _report(name: str, value: dict[str, Any]) -> None:
    reply(processes.REPORTED + json.dumps({name: value}).encode())


def _work(setup: ChildSetup) -> int:
    pid, environment = os.getpid(), setup.environment
    for number in range(1, setup.plan.child_reuse + 1):
        if (data := processes.read_frame(ORDERS)) is None:
            return 0
        order = _decode(data)
        task = setup.tasks.get(order.name)
        _prepare(task, order, setup.environment, environment)
        if task.command is not None or task.fresh:
            _become(task, setup)
        try:
            answer = call(task, order, max_output_bytes=setup.plan.max_output_bytes)
        except MemoryError:
            answer = OUT_OF_MEMORY
        if os.getpid() != pid:
            # The task forked, and this is the copy: only the child itself replies.
            return 0
        reply(answer)
        if answer[:1] == processes.FAILURE:
            return 1
        if number < setup.plan.child_reuse:
            gc.collect(0)
            environment = dict(os.environ)
    return 0


def _prepare(task: TaskDefinition, order: Order, clean: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Set directory, environment and memory limit; `before` is the environment as it is."""
    os.chdir(order.directory)
    ids = {"ID": order.request_id, "RUN": order.run, "ATTEMPT": order.attempt, "TOKEN": order.token}
    environment = {**clean, **order.env, **{f"POSTROAD_TASK_{name}": str(value) for name, value in ids.items()}}
    if "PWD" in environment:
        environment["PWD"] = order.directory
    for name in before.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if before.get(name) != value:
            os.environ[name] = value
    processes.limit_memory(task.memory_limit)


def _become(task: TaskDefinition, setup: ChildSetup) -> NoReturn:
    """Exec the task's program, or a new interpreter; the rest of the pipe becomes its standard input."""
    os.dup2(ORDERS, 0)
    os.close(ORDERS)
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    command = task.command
    if command is None:
        os.set_inheritable(REPLIES, True)
        command = (sys.executable, "-c", BOOT.format("task_child", "run_fresh"), *setup.plan.sys_path)
    try:
        os.execvp(command[0], command)  # noqa: S606  # a fixed program with fixed arguments, never a shell
    except OSError as error:
        reply(failed(error))
        os._exit(127)


def _leave(code: int) -> NoReturn:
    """End as an interpreter does: join threads, run exit functions, flush the output."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends its forked children
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = code or 1
    finally:
        os._exit(code & 0xFF)


def run_fresh() -> None:
    """Run one order in a new interpreter; standard input holds the plan and the order."""
    plan_data, order_data = processes.read_frame(0), processes.read_frame(0)
    assert plan_data is not None
    assert order_data is not None
    os.set_inheritable(REPLIES, False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    plan, order = msgspec.msgpack.decode(plan_data, type=Plan), _decode(order_data)
    try:
        answer = call(find_tasks(plan).get(order.name), order, max_output_bytes=plan.max_output_bytes)
    except Exception as error:
        answer = failed(error)
    reply(answer)
    sys.exit(0 if answer[:1] == processes.RESULT else 1)


_REHEARSALS = 8
"""After so many calls the interpreter has prepared a function for faster ones."""


def rehearse() -> list[bytes]:
    """Run two tasks of our own in the zygote and return their replies.

    Its children inherit the code and the caches that this prepares; without it each of them would prepare its copy.
    """
    tasks, replies = TaskRegistry(), list[bytes]()
    tasks.register(_plain, "plain")
    tasks.register(_typed, "typed")
    for definition in tasks.definitions():
        order = Order(
            name=definition.name,
            request_id="rehearsal",
            tenant_id="rehearsal",
            run=1,
            attempt=1,
            token=1,
            document=b'{"input":{"number":1}}',
            timeout=1.0,
            kill_grace=1.0,
            deadline=0.0,
        )
        data = processes.encode(order)
        replies += [call(definition, _decode(data), max_output_bytes=len(data)) for _ in range(_REHEARSALS)]
    return replies


def _plain(input: dict[str, Any], ctx: TaskContext) -> None:
    """Do nothing."""


def _typed(number: int) -> int:
    return number


# Made beforehand, because a child that is out of memory may not be able to make it.
OUT_OF_MEMORY = processes.FAILURE + json.dumps({"error": "MemoryError", "cause": "oom"}).encode()
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_ERROR_CHARACTERS = 2_000
_LINE_CHARACTERS = 500
_TRACEBACK_LINES = 200


class _Document(msgspec.Struct):
    input: dict[str, Any] = {}
    dependencyOutputs: dict[str, Any] = {}


def call(task: TaskDefinition, order: Order, *, max_output_bytes: int) -> bytes:
    """Run the task and return its reply: a result or a failure."""
    function, signature = task.function, task.signature
    assert function is not None
    assert signature is not None
    document = msgspec.json.decode(order.document, type=_Document)
    context = TaskContext(
        request_id=order.request_id,
        name=order.name,
        tenant_id=order.tenant_id,
        run=order.run,
        attempt=order.attempt,
        token=order.token,
        deadline=datetime.fromtimestamp(order.deadline, UTC),
        job_id=order.job_id,
        task_id=order.task_id,
        dependency_outputs=document.dependencyOutputs,
        send_activity=lambda activity: _report("lastActivity", activity),
        send_progress=lambda progress: _report("progress", progress),
    )
    try:
        try:
            args, kwargs = signature.arguments(document.input, context)
        except InvalidTask as error:
            return _failure(str(error), ErrorClass("validation", False))
        try:
            found = function(*args, **kwargs)
            output = _awaited(found) if inspect.isawaitable(found) else found
        except MemoryError:
            raise
        except Exception as error:
            return failed(error, task)
        return _result(output, signature, context.counts, max_output_bytes)
    except MemoryError:
        return OUT_OF_MEMORY


def failed(error: BaseException, task: TaskDefinition | None = None) -> bytes:
    """Return the reply of a child whose task failed or could not begin; the task itself may know its errors."""
    # The traceback shows the frames of the task itself, without those of this file, which called it.
    own = frame = error.__traceback__
    while frame is not None:
        own = frame.tb_next if frame.tb_frame.f_code.co_filename == __file__ else own
        frame = frame.tb_next
    lines = "".join(traceback.format_exception(type(error), error, own)).splitlines()
    text = (text_of(error) if isinstance(error, Retryable | NonRetryable) else "") or named(error)
    found = _class_of(error, task)
    wish = retry_wish(error)
    after = wish.after if found.retryable and isinstance(wish, Retryable) else None
    return _failure(text, found, located=describe(error), lines=lines[-_TRACEBACK_LINES:], after=after)


def _class_of(error: BaseException, task: TaskDefinition | None) -> ErrorClass:
    decided = None if task is None or isinstance(error, Retryable | NonRetryable) else task.retries(error)
    if decided is None and isinstance(error, BaseExceptionGroup):
        return class_of_group(error, partial(_class_of, task=task))
    found = classify_exception(error)
    return found if decided is None else ErrorClass(found.category, decided)


def _awaited(found: Awaitable[Any]) -> Any:
    # A zygote with an async task has imported it; the children of other zygotes do not need it.
    import asyncio

    async def result() -> Any:
        return await found

    return asyncio.run(result())


def _result(output: Any, signature: Signature, usage: dict[str, int], max_output_bytes: int) -> bytes:
    try:
        if not signature.takes_input:
            output = signature.write_result(output)
        data = _ENCODER.encode(output).encode()
        checked_bytes(b"[[[[" + data + b"]]]]", len(data) + 8)
        why = f"the result has {len(data):,} bytes, above the limit of {max_output_bytes:,}"
    except InvalidTask as error:
        data, why = b"", str(error)
    except (TypeError, ValueError, RecursionError) as error:
        data, why = b"", f"the result cannot be written as JSON: {error}"
    except Exception as error:
        data, why = b"", f"the result cannot be recorded: {error}"
    if not data or len(data) > max_output_bytes:
        return _failure(why, ErrorClass("validation", False))
    return processes.RESULT + json.dumps({"usage": usage}).encode()[:-1] + b',"output":' + data + b"}"


def _failure(
    text: str,
    found: ErrorClass,
    *,
    located: str | None = None,
    lines: Sequence[str] = (),
    after: float | None = None,
) -> bytes:
    failure = {
        "error": _clean(text, _ERROR_CHARACTERS),
        "category": found.category,
        "retryable": found.retryable,
        "located": None if located is None else _clean(located, _ERROR_CHARACTERS),
        "traceback": [_clean(line, _LINE_CHARACTERS) for line in lines],
        "after": after,
    }
    return processes.FAILURE + json.dumps(failure).encode()


def _clean(text: str, most: int) -> str:
    """Return the text as UTF-8 can hold it: a lone surrogate must not prevent the report of a failure."""
    return text[:most].encode(errors="replace").decode()


_MAIN = "__main__"
_CLASSES = ("retry_on", "never_retry")
_OPTIONS = [
    name for name in TaskEntry.__struct_fields__ if name not in ("name", "module", "qualname", "command", *_CLASSES)
]


def entry_of(definition: TaskDefinition) -> TaskEntry:
    options: dict[str, Any] = {name: getattr(definition, name) for name in _OPTIONS}
    options |= {name: tuple(_place(definition, each) for each in getattr(definition, name)) for name in _CLASSES}
    function = definition.function
    if function is None:
        return TaskEntry(name=definition.name, command=definition.command, **options)
    module, _, qualname = _place(definition, function).partition(":")
    return TaskEntry(name=definition.name, module=module, qualname=qualname, **options)


def _place(definition: TaskDefinition, found: Any) -> str:
    """Return where a function or class is: `module:qualname`."""
    if "<" in found.__qualname__:
        raise ConfigurationError(
            f"task {definition.name!r}: {found.__qualname__!r} cannot be found from another process",
            field="name",
            remedy="Define it at the top of a module, so that the children of a worker can import it.",
        )
    return f"{found.__module__}:{found.__qualname__}"


def _at(module: str, qualname: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def main_module(entries: Iterable[TaskEntry]) -> dict[str, str]:
    """Return how another process finds the main program, if a task is defined there."""
    if not any(entry.module == _MAIN for entry in entries):
        return {}
    main = sys.modules[_MAIN]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return {"init_main_from_name": spec.name}
    if (path := getattr(main, "__file__", None)) is not None:
        return {"init_main_from_path": os.path.abspath(path)}  # noqa: PTH100  # as it is, links not followed
    raise ConfigurationError("a task of an interactive session cannot be run by children", field="registry")


def import_path() -> tuple[str, ...]:
    """Return the `sys.path` of this process with absolute paths."""
    return tuple(os.path.abspath(place) for place in sys.path)  # noqa: PTH100  # as it is, links not followed


def find_tasks(plan: Plan) -> TaskRegistry:
    """Import what the plan names; the main program is imported without running its `__main__` block."""
    if plan.main:
        import multiprocessing.spawn

        multiprocessing.spawn.prepare(plan.main)
    for name in plan.imports:
        importlib.import_module(name)
    found = TaskRegistry()
    for entry in plan.tasks:
        _register(found, entry)
    if plan.imports:
        for definition in default_tasks.definitions():
            if definition.name not in found.names():
                _register(found, entry_of(definition), definition)
    return found


def _register(registry: TaskRegistry, entry: TaskEntry, known: TaskDefinition | None = None) -> None:
    options = {name: getattr(entry, name) for name in _OPTIONS}
    options |= {name: tuple(_at(*each.split(":")) for each in getattr(entry, name)) for name in _CLASSES}
    if entry.command is not None:
        registry.command(entry.name, entry.command, **options)
        return
    function: Any = None if known is None else known.function
    if function is None:
        function = _at(entry.module, entry.qualname)
    registry.register(function, entry.name, **options)
