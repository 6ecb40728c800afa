"""The life of a child, from the fork to its end: it settles in, runs what it is ordered, and says what came of it."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from postroad.tasks.children import kernel
from postroad.tasks.children.functions import OUT_OF_MEMORY, call, decode_plan, failed, find_tasks
from postroad.tasks.children.wire import FAILURE, RESULT, SETTLED, Order, frame, read_frame, write_all
from postroad.tasks.registry import TaskDefinition, TaskRegistry

ORDERS, WORDS = 4, 3
_FIRST_TO_CLOSE = 5
_HEARD = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE)
BOOT = "import sys; sys.path[:] = sys.argv[1:]; from postroad.tasks.children.{0} import {1}; {1}()"
_decode = msgspec.msgpack.Decoder(Order).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeEnds:
    """The child's ends of its pipes."""

    orders: int
    words: int
    out: int
    err: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSetup:
    """What a child is born with."""

    tasks: TaskRegistry
    plan: bytes
    sys_path: tuple[str, ...]
    child_reuse: int
    max_output_bytes: int


def run_child(setup: ChildSetup, ends: PipeEnds, monitor: int) -> NoReturn:
    """Never returns to the monitor's code, whatever happens."""
    code = 1
    try:
        _settle_in(monitor, ends)
        code = _work(setup)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _leave(code)


def _settle_in(monitor: int, ends: PipeEnds) -> None:
    """Own session and group, own pipes and nothing else that is open, few privileges, no signal handlers of others."""
    os.setsid()
    kernel.die_with_parent(monitor)
    _take_places(ends)
    kernel.give_up_privileges()
    for number in _HEARD:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    atexit._clear()
    say(SETTLED)


def _take_places(ends: PipeEnds) -> None:
    # Above all places first, so that no end is overwritten before it is moved.
    moved = [os.dup(end) for end in (ends.out, ends.err, ends.words, ends.orders)]
    high = max(moved) + 1
    safe = [os.dup2(end, high + number, inheritable=False) for number, end in enumerate(moved)]
    nothing = os.open(os.devnull, os.O_RDONLY)
    for place, end in enumerate((nothing, *safe)):
        os.dup2(end, place, inheritable=place < WORDS)
    os.closerange(_FIRST_TO_CLOSE, _highest())


def _highest() -> int:
    return max(int(entry.name) for entry in os.scandir("/dev/fd")) + 1


def say(word: bytes) -> None:
    """Tell the monitor."""
    write_all(WORDS, frame(word))


def _work(setup: ChildSetup) -> int:
    clean = dict(os.environ)
    for number in range(1, setup.child_reuse + 1):
        if (head := read_frame(ORDERS)) is None or (data := read_frame(ORDERS)) is None:
            return 0
        order = _decode(data)
        task = setup.tasks.get(order.name)
        _prepare(task, order, clean, directory=head.decode())
        if task.command is not None or task.fresh:
            _become(task, setup)
        word = _run(task, order, setup.max_output_bytes)
        say(word)
        if word[:1] == FAILURE:
            return 1
        if number < setup.child_reuse:
            gc.collect(0)
    return 0


def _prepare(task: TaskDefinition, order: Order, clean: dict[str, str], *, directory: str) -> None:
    os.chdir(directory)
    environment = {**clean, **order.env, **_marks(order)}
    if "PWD" in environment:
        environment["PWD"] = directory
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    kernel.limit_memory(task.memory_limit)


def _marks(order: Order) -> dict[str, str]:
    marks = {"ID": order.request_id, "RUN": order.run, "ATTEMPT": order.attempt, "TOKEN": order.token}
    return {f"POSTROAD_TASK_{name}": str(value) for name, value in marks.items()}


def _run(task: TaskDefinition, order: Order, max_output_bytes: int) -> bytes:
    assert task.function is not None
    try:
        return call(task.function, order, say, max_output_bytes=max_output_bytes)
    except MemoryError:
        return OUT_OF_MEMORY


def _become(task: TaskDefinition, setup: ChildSetup) -> NoReturn:
    """Become the task's program, or a new interpreter; what follows on the pipe is its standard input."""
    os.dup2(ORDERS, 0)
    os.close(ORDERS)
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    command = task.command
    if command is None:
        os.set_inheritable(WORDS, True)
        command = (sys.executable, "-c", BOOT.format("child", "run_fresh"), *setup.sys_path)
    try:
        os.execvp(command[0], command)  # noqa: S606  # a fixed program with fixed arguments, never a shell
    except OSError as error:
        say(failed(error))
        os._exit(127)


def finish(word: bytes) -> int:
    """Say the last word of an interpreter of one's own; the exit code that goes with it."""
    say(word)
    return 0 if word[:1] == RESULT else 1


def _leave(code: int) -> NoReturn:
    """End like an interpreter does: threads, what was registered for the end, what is not yet printed."""
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
    """Run one order in a new interpreter and end; the plan and the order come by standard input."""
    plan_data, order_data = read_frame(0), read_frame(0)
    assert plan_data is not None
    assert order_data is not None
    os.set_inheritable(WORDS, False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    plan, order = decode_plan(plan_data), msgspec.msgpack.decode(order_data, type=Order)
    try:
        function = find_tasks(plan).get(order.name).function
    except Exception as error:
        sys.exit(finish(failed(error)))
    assert function is not None
    sys.exit(finish(call(function, order, say, max_output_bytes=plan.max_output_bytes)))
