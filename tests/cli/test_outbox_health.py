"""`postroad outbox run --metrics-port`: how a dispatcher is, on the address it was given."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.cli.terminal import Postroad
from tests.cli.test_outbox import DSN, TOPIC, free_port, outbox, record
from tests.waiting import eventually

from postroad.outbox import Outbox

__all__ = ["free_port", "outbox", "record"]


def test_a_running_dispatcher_tells_how_it_is_on_the_address_it_was_given(
    outbox: Outbox, record: Callable[..., str], free_port: int
) -> None:
    arguments = ["outbox", "run", "--topic", TOPIC, "--create-topic", "--url", "sqlite:///events.db", "--dsn", DSN]
    arguments += ["--poll", "0.1"]
    place = ["--metrics-host", "0.0.0.0", "--metrics-port", str(free_port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "postroad", *arguments, *place],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    # Every address of 127.0.0.0/8 is this machine's, and only one that listens everywhere answers on another one.
    address = f"http://127.0.0.2:{free_port}"
    try:
        eventually(lambda: _answer(f"{address}/ready") == (200, {"status": "ok"}))
        assert _answer(f"{address}/health") == (200, {"status": "ok"})
        with urlopen(f"{address}/metrics", timeout=10) as answer:
            assert b"event_outbox_backlog" in answer.read()
        with sqlite3.connect(DSN.removeprefix("sqlite:///")) as file:
            file.execute("ALTER TABLE outbox RENAME TO gone")
        file.close()
        eventually(lambda: _answer(f"{address}/ready") == (503, {"status": "not ready"}))
        assert _answer(f"{address}/health") == (200, {"status": "ok"})
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0


def _answer(url: str) -> tuple[int, object]:
    """The status and the document; 0 where nobody answers yet."""
    try:
        with urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)
    except OSError:
        return 0, None


def test_an_address_that_is_not_of_this_machine_is_refused(postroad: Postroad, outbox: Outbox, free_port: int) -> None:
    place = ["--metrics-host", "192.0.2.1", "--metrics-port", str(free_port)]

    topic = ["--topic", TOPIC, "--create-topic", "--url", "sqlite:///events.db"]
    done = postroad("outbox", "run", *topic, "--dsn", DSN, *place, "--once")

    assert done.code == 2
    assert "metrics_port" in done.err
