"""Tasks for tests: what children do, well and badly. Workers import this module by its name."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import mmap
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import postroad
from postroad.tasks import NonRetryable, Retryable, TaskContext, TaskProducer, task

Input = dict[str, Any]


@task
def echo(input: Input, ctx: TaskContext) -> Any:
    return input


@task("show-context")
def show_context(input: Input, ctx: TaskContext) -> Any:
    names = ("request_id", "name", "tenant_id", "run", "attempt", "token", "job_id", "task_id")
    return {name: getattr(ctx, name) for name in names} | {"deadline": ctx.deadline.timestamp()}


@task("show-surroundings")
def show_surroundings(input: Input, ctx: TaskContext) -> Any:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "environment": dict(os.environ),
        "directory": str(Path.cwd()),
        "descriptors": {name: str(Path(f"/proc/self/fd/{name}").readlink()) for name in ("0", "1", "2", "3", "4")},
        "open": len(list(Path("/proc/self/fd").iterdir())) - 1,
        "leads_session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "no_new_privs": status["NoNewPrivs"],
        "limits": {name: resource.getrlimit(getattr(resource, name))[0] for name in ("RLIMIT_CORE", "RLIMIT_NOFILE")},
        "arguments": Path("/proc/self/cmdline").read_bytes().decode(),
        "threads": threading.active_count(),
        "initial_environment": Path("/proc/self/environ").read_bytes().decode(),
    }


@task("limited", memory_limit=2_000_000_000)
def limited(input: Input, ctx: TaskContext) -> Any:
    return resource.getrlimit(resource.RLIMIT_AS)[0]


@task("see-variable", pass_env=("POSTROAD_TEST_SECRET",))
def see_variable(input: Input, ctx: TaskContext) -> Any:
    return os.environ.get("POSTROAD_TEST_SECRET")


@task("see-no-variable")
def see_no_variable(input: Input, ctx: TaskContext) -> Any:
    return os.environ.get("POSTROAD_TEST_SECRET")


@task("use-directory")
def use_directory(input: Input, ctx: TaskContext) -> Any:
    """Where this process works and what it finds there; it may leave something, or the place."""
    shown = {"directory": str(Path.cwd()), "found": [each.name for each in Path().iterdir()]}
    if input.get("write"):
        Path("left").touch()
    if input.get("leave"):
        os.chdir("/")
    return shown


@task("count-up")
def count_up(input: Input, ctx: TaskContext) -> Any:
    """How often this process has run the task."""
    count_up.__dict__["count"] = count_up.__dict__.get("count", 0) + 1
    return {"pid": os.getpid(), "count": count_up.__dict__["count"]}


@task("count-up-freshly", fresh=True)
def count_up_freshly(input: Input, ctx: TaskContext) -> Any:
    return {"pid": os.getpid(), "parent_modules": "pytest" in sys.modules, "variable": os.environ["POSTROAD_TASK_ID"]}


@task("use-tokens")
def use_tokens(input: Input, ctx: TaskContext) -> Any:
    ctx.usage(inputTokens=3, outputTokens=1)
    ctx.usage(inputTokens=4)
    return None


@task("wait-for-file")
def wait_for_file(input: Input, ctx: TaskContext) -> Any:
    """Note the beginning, and return when somebody makes the file."""
    note(input["notes"], f"{ctx.token} {os.getpid()}")
    while not Path(input["until"]).exists():
        time.sleep(0.01)
    return {"token": ctx.token}


@task("note")
def note_it(input: Input, ctx: TaskContext) -> Any:
    note(input["notes"], f"{ctx.token} {ctx.attempt}")
    return {"attempt": ctx.attempt}


@task("fail-with")
def fail_with(input: Input, ctx: TaskContext) -> Any:
    raise {"ValueError": ValueError, "ConnectionResetError": ConnectionResetError, "KeyError": KeyError}[input["type"]](
        input.get("message", "no")
    )


@task("fail-loudly")
def fail_loudly(input: Input, ctx: TaskContext) -> Any:
    print("looking for the order")
    print("api_key=abcdef123456", file=sys.stderr)
    if ctx.attempt != input.get("until"):
        place(input)


def place(input: Input) -> None:
    error = Retryable if input.get("again") else ValueError
    raise error("no such order, password=hunter22")


@task("fail-together")
def fail_together(input: Input, ctx: TaskContext) -> Any:
    more = ExceptionGroup("more", [KeyError("x"), ValueError("3\nlines"), ValueError("4")])
    raise ExceptionGroup("several", [ValueError("no such order, password=hunter22"), more])


@task("linger")
def linger(input: Input, ctx: TaskContext) -> Any:
    print("still here")
    time.sleep(60)


@task("sleep-a-little")
async def sleep_a_little(input: Input, ctx: TaskContext) -> Any:
    await asyncio.sleep(0.001)
    if "fail" in input:
        raise ValueError("no")
    return {"slept": ctx.request_id}


@task("sleep-anew", fresh=True)
async def sleep_anew(input: Input, ctx: TaskContext) -> Any:
    return await sleep_a_little(input, ctx)


@task("retry-until")
def retry_until(input: Input, ctx: TaskContext) -> Any:
    if ctx.attempt < input["attempt"]:
        raise Retryable("not yet", category="rate-limit")
    return {"attempt": ctx.attempt}


@task("give-up")
def give_up(input: Input, ctx: TaskContext) -> Any:
    raise NonRetryable("never\x1b[31m\n" + "x" * 600, category="auth")


@task("segfault")
def segfault(input: Input, ctx: TaskContext) -> Any:
    print("the last words", flush=True)
    ctx.activity("step_running", "colour-tags")
    ctypes.string_at(0)


@task("kill-oneself")
def kill_oneself(input: Input, ctx: TaskContext) -> Any:
    os.kill(os.getpid(), getattr(signal, input["signal"]))
    time.sleep(60)


@task("kill-ones-monitor")
def kill_ones_monitor(input: Input, ctx: TaskContext) -> Any:
    if ctx.attempt == 1:
        daemon(input["notes"])
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return "alive"


@task("stop-ones-monitor")
def stop_ones_monitor(input: Input, ctx: TaskContext) -> Any:
    note(input["notes"], str(os.getpid()))
    if ctx.attempt == 1:
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(60)
    return "alive"


@task("eat-memory", memory_limit=600_000_000)
def eat_memory(input: Input, ctx: TaskContext) -> Any:
    return len(bytearray(900_000_000))


@task("hold-memory")
def hold_memory(input: Input, ctx: TaskContext) -> Any:
    hold_memory.__dict__["held"] = mmap.mmap(-1, 700_000_000)
    return os.getpid()


@task("exit-silently")
def exit_silently(input: Input, ctx: TaskContext) -> Any:
    os._exit(input["code"])


@task("leave")
def leave(input: Input, ctx: TaskContext) -> Any:
    sys.exit(input["code"])


@task("spoil-the-end")
def spoil_the_end(input: Input, ctx: TaskContext) -> Any:
    atexit.register(os._exit, 1)
    return "a result"


@task("ignore-sigterm")
def ignore_sigterm(input: Input, ctx: TaskContext) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(input["notes"], str(os.getpid()))
    time.sleep(60)


@task("sleep")
def sleep(input: Input, ctx: TaskContext) -> Any:
    note(input["notes"], str(os.getpid()))
    time.sleep(input.get("seconds", 60))
    return "awake"


@task("leave-grandchildren")
def leave_grandchildren(input: Input, ctx: TaskContext) -> Any:
    """Children of the child: one in its group, one that left group and session, and one whose parent is gone."""
    notes = input["notes"]
    note(notes, str(subprocess.Popen(["sleep", "300"]).pid))
    note(notes, str(subprocess.Popen(["sleep", "300"], start_new_session=True).pid))
    daemon(notes)
    while len(Path(notes).read_text().splitlines()) < 3:
        time.sleep(0.01)
    if input.get("then") == "hang":
        time.sleep(60)
    if input.get("then") == "segfault":
        ctypes.string_at(0)
    return "left"


@task("flood")
def flood(input: Input, ctx: TaskContext) -> Any:
    """Thirty megabytes on both streams, binary and without line ends, then closed pipes."""
    for number in range(300):
        os.write(1, b"\xff\x00\x1b" * 20_000)
        os.write(2, b"x" * 40_000 + (b"\n" if number % 7 == 0 else b""))
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    return "flooded"


@task("return-what-json-cannot-hold")
def return_odd(input: Input, ctx: TaskContext) -> Any:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    odd = {"set": {1, 2}, "nan": float("nan"), "bytes": b"x", "surrogate": "\ud800", "deep": deep, "self": ...}
    return odd[input["kind"]]


@task("return-megabytes")
def return_megabytes(input: Input, ctx: TaskContext) -> Any:
    return "x" * input["size"]


@task("speak-out-of-turn")
def speak_out_of_turn(input: Input, ctx: TaskContext) -> Any:
    """Write into the pipe that is the worker's own."""
    os.write(3, b"\x00\x00\x00\x05Rnope")
    os._exit(0)


@task("speak-nonsense")
def speak_nonsense(input: Input, ctx: TaskContext) -> Any:
    """Say what is no activity, announce four gigabytes, and end."""
    os.write(3, b"\x00\x00\x00\x05Anope" + b'\x00\x00\x00\x0eA{"type": true}')
    os.write(3, b"\xff\xff\xff\xf0" + b"x" * 1_000 if input["then"] == "announce" else b"")
    if input["then"] == "segfault":
        ctypes.string_at(0)
    return "said"


@task("chatter")
def chatter(input: Input, ctx: TaskContext) -> Any:
    """Never stop talking until somebody makes the file."""
    note(input["notes"], str(os.getpid()))
    while not Path(input["until"]).exists():
        for _ in range(100):
            ctx.activity("step_running", "x" * 1_000)
    return "said"


@task("report-activity")
def tell_activity(input: Input, ctx: TaskContext) -> Any:
    ctx.activity("sdk_query", "fonts")
    return wait_for_file(input, ctx)


@task("submit-another", pass_env=("POSTROAD_URL",))
def submit_another(input: Input, ctx: TaskContext) -> Any:
    with postroad.connect() as backend:
        return TaskProducer(backend, tenant_id=ctx.tenant_id).submit("echo", input).request_id


@task("make-a-store")
def make_a_store(input: Input, ctx: TaskContext) -> Any:
    with postroad.connect("sqlite:///shop.db") as backend:
        return backend.url


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@task("fail-without-words")
def fail_without_words(input: Input, ctx: TaskContext) -> Any:
    raise Unspeakable


@task("fork")
def fork(input: Input, ctx: TaskContext) -> str:
    if os.fork() == 0:
        return "the copy"
    os.wait()
    return "the child"


@task("use-processes")
def use_processes(input: Input, ctx: TaskContext) -> Any:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return sorted(pool.map(abs, [-2, -1]))


def note(path: str, text: str) -> None:
    """Write a line that several processes may write at once."""
    with Path(path).open("a") as notes:
        notes.write(f"{text}\n")


def daemon(notes: str) -> None:
    """A process that leaves its group, its session and its parent behind, as daemons do."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note(notes, str(os.getpid()))
            time.sleep(300)
        os._exit(0)
    os.wait()


@task("read-pages")
def read_pages(input: Input, ctx: TaskContext) -> Any:
    """Report progress, then wait until the file `wait` is gone, and fail if that is wanted."""
    ctx.progress(0.3, "page 3 of 10")
    ctx.progress(0.4, "page 4 of 10")
    while "wait" in input and Path(input["wait"]).exists():
        time.sleep(0.01)
    if "fraction" in input:
        ctx.progress(input["fraction"])
    if input.get("fail"):
        raise ValueError("page 5 is missing")
    return "read"
