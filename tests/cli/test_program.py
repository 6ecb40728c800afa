"""What only the real program can show: streams, pipes, terminals, imports."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.terminal import PROGRAM, hear_ctrl_c, on_a_terminal, program

from postroad.operations import AuditLog
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.wiring import connect

pytestmark = pytest.mark.slow

URL = "sqlite:///postroad.db"


def _queue(name: str) -> None:
    with connect(URL) as backend:
        backend.create_queue(QueueSpec(name))


def test_the_program_answers_and_fails_with_its_exit_code() -> None:
    good = program("version")
    made = program("queue", "create", "orders")
    bad = program("queue", "show", "nothing-here")

    assert (good.returncode, good.stderr, made.returncode) == (0, "", 0)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith('error: queue "nothing-here" does not exist\n')
    assert "Traceback" not in bad.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['postroad', '--help']\n"
        "from postroad.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in ('boto3', 'litestar', 'psycopg', 'rich', 'apsw', 'structlog') if m in sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run([*PROGRAM, "commands"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)

    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_output_is_no_obstacle() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&-', "sh", *PROGRAM, "version"], capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full_is_told_once(unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PROGRAM, "version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environment
        )

    assert done.returncode == 1
    assert done.stderr.count("No space left on device") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_redrive_is_exit_130_and_loses_nothing(stop: signal.Signals) -> None:
    with connect(URL) as backend:
        backend.create_queue(QueueSpec("orders-dlq"))
        backend.create_queue(QueueSpec("orders", dead_letter="orders-dlq"))
        backend.queue("orders-dlq").send([OutgoingMessage(str(number)) for number in range(20)])
        redrive = subprocess.Popen(
            [*PROGRAM, "queue", "redrive", "orders-dlq", "--yes", "--rate", "5"], preexec_fn=hear_ctrl_c
        )
        while backend.queue("orders").stats().visible == 0:
            assert redrive.poll() is None
            time.sleep(0.02)

        redrive.send_signal(stop)

        assert redrive.wait(timeout=120) == 130
        assert sum(backend.queue(name).stats().visible for name in ("orders", "orders-dlq")) == 20
        start, end = AuditLog(Path("postroad-audit.jsonl")).read()
        assert (start.action, end.action) == ("queue.redrive.start", "queue.redrive.end")
        assert end.detail["moved"] <= backend.queue("orders").stats().visible


def test_characters_the_output_cannot_hold_are_replaced() -> None:
    _queue("orders")
    with connect(URL) as backend:
        backend.queue("orders").send([OutgoingMessage("snow \u2603")])

    text = program("queue", "peek", "orders", "--body", env={"PYTHONIOENCODING": "ascii"})
    document = program("queue", "peek", "orders", "--body", "--json", env={"PYTHONIOENCODING": "ascii"})

    assert text.returncode == document.returncode == 0
    assert "snow ?" in text.stdout
    assert r"snow \u2603" in document.stdout


def test_colour_is_for_terminals_that_want_it() -> None:
    _, coloured = on_a_terminal("commands")
    _, by_variable = on_a_terminal("commands", env={"NO_COLOR": "1"})
    _, by_flag = on_a_terminal("commands", "--no-color")
    piped = program("commands").stdout

    assert "\x1b[" in coloured
    assert not any("\x1b" in text for text in (by_variable, by_flag, piped))


def test_help_is_coloured_on_a_terminal_that_wants_it() -> None:
    for args in (("--help",), ("queue",), ("queue", "list", "--help")):
        _, coloured = on_a_terminal(*args)
        _, by_variable = on_a_terminal(*args, env={"NO_COLOR": "1"})
        _, by_terminal = on_a_terminal(*args, env={"TERM": "dumb"})
        _, by_flag = on_a_terminal("--no-color", *args)

        assert "\x1b[1mLook\x1b[0m" in coloured or "\x1b[1mExample\x1b[0m" in coloured
        assert not any("\x1b" in text for text in (by_variable, by_terminal, by_flag, program(*args).stdout))


def test_help_takes_less_than_four_tenths_of_a_second_of_the_processor() -> None:
    def seconds(*words: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert program(*words).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # A processor that is shared does less in a second: the first quick one of several counts.
    assert any(seconds("--help") < 0.4 for _ in range(20))


def test_a_table_fits_the_terminal() -> None:
    _queue("a-queue-with-a-name-that-is-long-" + "x" * 40)

    _, text = on_a_terminal("queue", "list", "--no-color")

    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(("answer", "code", "left"), [("orders\n", 0, 0), ("order\n", 2, 1), ("\x04", 130, 1)])
def test_a_person_at_the_terminal_is_asked_before_something_is_destroyed(answer: str, code: int, left: int) -> None:
    _queue("orders")

    ended, text = on_a_terminal("queue", "delete", "orders", answer=answer)

    assert ended == code
    assert 'This removes queue "orders" with 0 messages.' in text
    with connect(URL) as backend:
        assert len(backend.queues()) == left


SHELLS = ["bash", "zsh", "fish"]


def complete(shell: str, words: str) -> list[str]:
    """Return what a shell would offer for the last of these words."""
    typed = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_TYPER_COMPLETE_ARGS": words}
    done = program(env={"_POSTROAD_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args", **typed})
    return re.findall(r"[\w-]+", done.stdout.replace("_arguments", ""))


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "words",
    [
        "postroad --url sqlite:///shop.db queue show or",
        "postroad queue show --url sqlite:///shop.db or",
        "postroad bus tail --url sqlite:///shop.db or",
    ],
)
def test_queue_and_topic_names_complete_from_the_data(shell: str, words: str) -> None:
    with connect("sqlite:///shop.db") as backend:
        for name in ("orders", "payments"):
            backend.create_queue(QueueSpec(name))
            backend.topic(name)

    assert complete(shell, words) == ["orders"]


def test_completion_without_data_makes_no_file() -> None:
    done = program(
        env={"_POSTROAD_COMPLETE": "complete_bash", "COMP_WORDS": "postroad queue show or", "COMP_CWORD": "3"}
    )

    assert done.stdout.split() == []
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_is_shown_and_installed_for_each_shell(shell: str, tmp_path: Path) -> None:
    shown = program("--show-completion", shell)
    installed = program("--install-completion", shell, env={"HOME": str(tmp_path)})

    assert (shown.returncode, installed.returncode) == (0, 0)
    assert f"complete_{shell}" in shown.stdout
    written = [each for each in tmp_path.rglob("*") if each.is_file() and f"complete_{shell}" in each.read_text()]
    assert len(written) == 1
    assert str(written[0]) in installed.stdout


def test_completion_for_another_shell_is_refused_with_the_nearest() -> None:
    done = program("--show-completion", "bsh")

    assert done.returncode == 2
    assert done.stderr.splitlines()[1] == 'did you mean "bash"?'
