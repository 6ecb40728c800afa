"""The command line and the settings: one directory for all cases, and each command run in this process."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.faults.bad_input.cases import Answer, State, stored

from postroad import OutgoingMessage, QueueSpec
from postroad.cli.app import run
from postroad.jobs import Jobs
from postroad.operations import AuditLog
from postroad.outbox import DomainEvent, Outbox
from postroad.tasks import TaskProducer
from postroad.tasks.registry import default_tasks
from postroad.wiring import connect

SENT = "018f0000-0000-7000-8000-000000000001"
FAILED = "018f0000-0000-7000-8000-000000000002"


class Cli:
    """Commands in a directory with data, an outbox and some files that are not what they seem.

    The input is the command line, or `{run, stdin, env, file}`; `file` is the text of `postroad.toml`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._at = f"sqlite:///{folder}/postroad.db"
        with self._alone():
            _furnish()

    def give(self, input: Any) -> Answer:
        """Run the command."""
        asked: dict[str, Any] = {"run": input} if isinstance(input, str) else input
        settings = self.folder / "postroad.toml"
        if "file" in asked:
            settings.write_text(asked["file"])
        try:
            code, out, err = self._run(asked["run"], asked.get("stdin", ""), asked.get("env", {}))
        finally:
            settings.unlink(missing_ok=True)
        if code in (1, 2, 3) and not out:
            assert len(err.splitlines()) <= 3 or "╭" in err, err
        return Answer("exit", code, out + err)

    def state(self) -> State:
        """Return the store, the outbox and every other file; the audit file grows with each attempt."""
        with connect(self._at) as backend:
            held = stored(backend)
        with contextlib.closing(sqlite3.connect(self.folder / "app.db")) as database:
            held |= {
                f"app.{name}": database.execute(f"SELECT * FROM {name}").fetchall() for name in ("outbox", "inbox")
            }
        skipped = ("postroad.db", "app.db", "postroad-audit")
        files = (each for each in self.folder.rglob("*") if each.is_file() and not each.name.startswith(skipped))
        return held | {str(each): each.read_bytes() for each in files}

    def letters(self) -> tuple[State, dict[str, list[Any]]]:
        """No command puts anything into the dead letters."""
        return self.state(), {}

    def works(self) -> None:
        """Send a message by a command."""
        code, out, err = self._run("queue send others --body good --json", "", {})
        assert (code, "message_id" in out) == (0, True), err

    def close(self) -> None:
        """Nothing stays open between commands."""

    def _run(self, line: str, stdin: str, env: dict[str, str]) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        given = io.TextIOWrapper(io.BytesIO(stdin.encode("utf-8", "surrogatepass")))
        with self._alone(), mock.patch.dict(os.environ, env), mock.patch("sys.stdin", given):
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run(shlex.split(line))
        return code, out.getvalue(), err.getvalue()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """A command is a program of its own, in its directory and with a clean environment."""
        foreign = ("POSTROAD_", "AWS_", "WINK_", "SQS_", "NO_COLOR", "PG_DSN")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        with (
            contextlib.chdir(self.folder),
            mock.patch.dict(os.environ, clean, clear=True),
            mock.patch.object(default_tasks, "_tasks", {}),
        ):
            yield


class Config(Cli):
    """Settings from file and environment, looked at by `config check`: the input is `{file, env}`."""

    def give(self, input: Any) -> Answer:
        """Check the settings."""
        return super().give({"run": "config check", **input})

    def works(self) -> None:
        """Check settings that are right."""
        assert super().give({"run": "config check", "file": "port = 8788"}).value == 0


def _furnish() -> None:
    Path("notes.txt").write_text("not a database, only notes\n" * 100)
    Path("folder").mkdir()
    Path("empty").mkdir()
    Path("key.json").write_text("{}")
    Path("key.json").chmod(0o644)
    Path("deep.json").write_text("[" * 10_000)
    Path("quue.json").write_text('{"name": "t", "resources": [{"kind": "quue"}]}')
    os.mkfifo("pipe")
    with connect("sqlite:///postroad.db") as backend:
        backend.create_queue(QueueSpec("orders-dead"))
        backend.create_queue(QueueSpec("orders", dead_letter="orders-dead")).send([OutgoingMessage("one")])
        backend.create_queue(QueueSpec("others"))
        backend.create_queue(QueueSpec("ordered.fifo", fifo=True))
        backend.queue("orders-dead").send([OutgoingMessage("dead")])
        backend.agents().register("ann")
        backend.journal().init()
        TaskProducer(backend).submit("catalogue-chore", request_id="req-1")
        Jobs(backend).submit_job([{"taskId": "a", "name": "catalogue-chore"}], job_id="job-1")
        assert not backend.topics()
    AuditLog(Path("postroad-audit.jsonl")).append("test", "nothing", {})
    _record_events()


def _record_events() -> None:
    with contextlib.closing(sqlite3.connect("app.db")) as database:
        outbox = Outbox.sqlite("app.db")
        outbox.init()
        for event_id, state in ((SENT, "SENT"), (FAILED, "FAILED")):
            outbox.add(database, DomainEvent(type="t", key={"k": state}, payload={}), event_id=event_id)
            database.execute("UPDATE outbox SET state = ? WHERE event_id = ?", (state, event_id))
        database.commit()
        outbox.close()
    with contextlib.closing(sqlite3.connect("blank.db")) as database:
        database.execute("CREATE TABLE other (a)")
        database.commit()
    assert run(["inbox", "init", "--dsn", "sqlite:///app.db"]) == 0
