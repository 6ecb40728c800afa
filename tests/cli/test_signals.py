"""A command that runs until it is stopped ends in order, however early SIGTERM comes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminal import PROGRAM, Postroad
from tests.cli.test_conventions import LEAVES
from tests.cli.test_notifications import WORKING

from postroad.cli.app import program
from postroad.outbox import Outbox
from postroad.queues import QueueSpec
from postroad.wiring import connect

pytestmark = pytest.mark.slow

COMMANDS = {
    "agent run": "",
    "agent tail": "ann",
    "bus run": "buses",
    "bus tail": "orders",
    "demo": "--port 0 --url sqlite:///demo-{number}.db",
    "notifications worker": "",
    "outbox run": "--topic orders --dsn sqlite:///app.db",
    "queue watch": "chat-push",
    "up": "--port 0 --url sqlite:///up-{number}.db",
    "worker": "--import chores",
}
DISPATCHER = ("worker", "--roles", "dispatcher,dlq,reconciler")
EARLY = """
import os, signal, sys
left = None

def hook(event, arguments):
    global left
    if left is None and event == "import" and arguments[0] == "postroad.cli.app":
        left = int(os.environ["EVENTS_BEFORE_SIGTERM"])
    if left is not None:
        left -= 1
        if left == -1:
            os.kill(os.getpid(), signal.SIGTERM)

sys.addaudithook(hook)
from postroad.cli import main
main()
"""
"""The program with a SIGTERM after so many imports and openings, counted from the first of its own modules."""


AT_THE_WORST_MOMENT = """
import os, signal, threading
from postroad.signals import heard_by, stopped_by_signals, stopped_by_sigterm

stop = threading.Event()
with {handling}:
    with stop._cond:
        os.kill(os.getpid(), signal.SIGTERM)
    print(stop.wait(100))
"""
"""A program that gets SIGTERM while its main thread holds the lock of the event, as each `wait` does for a moment."""


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**WORKING, "SQS_OFFLINE_QUEUE_URL": "chat-offline"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BROWSER", "true")
    (tmp_path / "chores.py").write_text("")
    handling = "import postroad\norders = postroad.Bus('orders', group='billing')\norders.on_any(print)\n"
    (tmp_path / "buses.py").write_text(handling)
    Outbox.sqlite("app.db").init()
    with connect("sqlite:///bus.db") as backend:
        for name in ("chat-push", "chat-offline"):
            backend.create_queue(QueueSpec(name))
        backend.topic("orders")
        agents = backend.agents()
        agents.provision()
        agents.register("ann")


def _command(path: str) -> Any:
    found = program()
    for name in path.split():
        found = found.commands[name]
    return found.callback


def test_every_command_that_runs_until_it_is_stopped_is_tried_here() -> None:
    declared = {path for path in LEAVES if _command(path).verb.until_stopped}
    described = {
        path for path in LEAVES if "until Ctrl-C" in (text := str(_command(path).__doc__)) or "SIGTERM" in text
    }

    assert declared == set(COMMANDS)
    assert described <= declared


@pytest.mark.parametrize(
    "arguments", [*((*path.split(), *rest.split()) for path, rest in COMMANDS.items()), DISPATCHER]
)
def test_sigterm_at_any_early_moment_is_exit_0(prepared: None, arguments: tuple[str, ...]) -> None:
    rng = random.Random()
    moments = [0, rng.randrange(1_000)]
    delays = [0.0, rng.random()]

    own = [
        _start(sys.executable, "-c", EARLY, *_numbered(arguments, number), EVENTS_BEFORE_SIGTERM=str(moment))
        for number, moment in enumerate(moments)
    ]
    outside = [_start(*PROGRAM, *_numbered(arguments, number)) for number, _ in enumerate(delays, len(moments))]
    for process, delay in zip(outside, delays, strict=True):
        _wait_until_it_handles_sigterm(process)
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
    ends = [(process.communicate(timeout=120)[1], process.returncode) for process in (*own, *outside)]

    assert [code for _, code in ends] == [0] * len(ends), (moments, delays, ends)
    assert not any("Traceback" in err for err, _ in ends)


@pytest.mark.parametrize("handling", ["stopped_by_signals() as stop", "stopped_by_sigterm(stop)", "heard_by(stop.set)"])
def test_a_signal_that_comes_while_the_main_thread_holds_a_lock_stops_it_all_the_same(handling: str) -> None:
    process = _start(sys.executable, "-c", AT_THE_WORST_MOMENT.format(handling=handling))

    try:
        assert process.communicate(timeout=60) == ("True\n", "")
    finally:
        process.kill()


def test_ctrl_c_before_the_verb_is_loaded_stops_it_too(prepared: None) -> None:
    early = EARLY.replace("signal.SIGTERM", "signal.SIGINT")

    process = _start(sys.executable, "-c", early, "queue", "watch", "chat-push", EVENTS_BEFORE_SIGTERM="10")

    assert process.communicate(timeout=120) == ("", "")
    assert process.returncode == 0


def test_a_command_that_ends_by_itself_is_still_ended_by_sigterm(postroad: Postroad) -> None:
    process = _start(sys.executable, "-c", EARLY, "version", EVENTS_BEFORE_SIGTERM="10")

    assert process.communicate(timeout=120) == ("", "")
    assert process.returncode == -signal.SIGTERM


def test_a_second_sigterm_ends_a_command_that_hangs_while_it_opens(prepared: None) -> None:
    os.mkfifo("chores.toml")
    process = _start(*PROGRAM, "worker", "--import", "chores", "--config", "chores.toml")
    _wait_until_it_handles_sigterm(process)

    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)

    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM


def test_nothing_is_loaded_before_the_signals_are_held() -> None:
    code = "import sys, postroad.cli; print(*sorted(name for name in sys.modules if name.startswith('postroad')))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["postroad", "postroad.cli", "postroad.lazy", "postroad.signals"]


def _numbered(arguments: tuple[str, ...], number: int) -> list[str]:
    """The arguments of one of several at a time; only one `up` may have a file."""
    return [argument.format(number=number) for argument in arguments]


def _start(*command: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
    )


def _wait_until_it_handles_sigterm(process: subprocess.Popen[str]) -> None:
    """Until its interpreter has run our first lines; before that, no program can do anything about signals."""
    deadline = time.monotonic() + 60
    while not _handled(process) >> (signal.SIGTERM - 1) & 1:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _handled(process: subprocess.Popen[str]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
