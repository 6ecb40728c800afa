"""Everything a person may get wrong at the terminal or in the settings: the exit code, the words, nothing changed."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cli.terminal import Postroad

from postroad import OutgoingMessage, QueueSpec
from postroad.wiring import connect

URL = "sqlite:///postroad.db"


@pytest.fixture(autouse=True)
def _orders() -> None:
    with connect(URL) as backend:
        backend.create_queue(QueueSpec("orders")).send([OutgoingMessage("one")])
        backend.create_queue(QueueSpec("others"))
    Path("notes.txt").write_text("not a database, only notes\n" * 100)
    Path("folder").mkdir()


def contents() -> dict[str, bytes]:
    """Return every file here but the log of the data, which reading may change."""
    files = (each for each in Path().rglob("*") if each.is_file() and not each.name.startswith("postroad.db"))
    return {str(each): each.read_bytes() for each in files}


@dataclass(frozen=True)
class Row:
    """A command, its exit code, and what it says."""

    command: str
    code: int
    said: tuple[str, ...]
    file: str | None = None
    variable: tuple[str, str] | None = None


CONFIGURED = {
    'port = "abc"': Row("config check", 2, ("port", "'abc'", "a whole number from 0 to 65535"), file='port = "abc"'),
    "prot = 1": Row("config check", 2, ("prot", 'did you mean "port"?'), file="prot = 1"),
    "port 70000": Row(
        "config check", 2, ("port", "70000", "POSTROAD_PORT", "65535"), variable=("POSTROAD_PORT", "70000")
    ),
    "a misspelt variable": Row(
        "config check", 2, ("POSTROAD_PROT", 'did you mean "POSTROAD_PORT"?'), variable=("POSTROAD_PROT", "1")
    ),
    "tabs": Row("config check", 2, ("postroad.toml", "TOML"), file="port\t8787"),
    "broken TOML": Row("config check", 2, ("postroad.toml", "TOML"), file="[outbox\nport ="),
    "a token in the file": Row("config check", 2, ("token", "token_file"), file='token = "pr_secret-in-a-file"'),
}
ADDRESSED = {
    "a directory of the system": Row("queue list --url sqlite:////etc", 2, ("/etc",)),
    "a directory": Row("queue list --url sqlite:///folder", 2, ("folder",)),
    "a text file": Row("queue list --url sqlite:///notes.txt", 2, ("notes.txt",)),
    "an unknown scheme": Row("queue list --url foo://x", 2, ("foo", "sqlite:///path")),
}
DESTROYING = {
    "purge in a pipe": Row("queue purge orders --reason test", 2, ("--confirm orders",)),
    "delete in a pipe": Row("queue delete orders", 2, ("--confirm orders",)),
    "purge of another": Row("queue purge ordrs --confirm ordrs --reason test", 2, ('did you mean "orders"?',)),
    "delete of another": Row("queue delete ordrs --confirm ordrs", 2, ('did you mean "orders"?',)),
    "a wrong confirmation": Row("queue delete orders --confirm order", 2, ("Nothing was changed",)),
    "redrive in a pipe": Row("queue redrive orders --to others", 2, ("--yes",)),
    "revoke in a pipe": Row("token revoke nobody", 1, ("nobody",)),
    "why of nothing": Row("why not-an-id", 1, ("not-an-id",)),
}
ROWS = CONFIGURED | ADDRESSED | DESTROYING


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_what_is_wrong_is_said_in_three_lines_and_nothing_changes(
    row: Row, postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    if row.file is not None:
        Path("postroad.toml").write_text(row.file)
    if row.variable is not None:
        monkeypatch.setenv(*row.variable)
    before = contents()

    outcome = postroad(*row.command.split())

    assert outcome.code == row.code, outcome.err
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert 1 <= len(lines) <= 3
    assert lines[0].startswith("error: ")
    assert all(each in outcome.err for each in row.said), outcome.err
    assert "Traceback" not in outcome.err
    assert "pr_secret" not in outcome.err
    assert contents() == before
    with connect(URL) as backend:
        assert backend.queue("orders").stats().visible == 1


@pytest.mark.parametrize("name", ["POSTROAD_SERVICE_HOST", "POSTROAD_PORT"])
def test_what_a_platform_injects_is_no_obstacle(name: str, postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:8787")

    outcome = postroad("config", "check")

    assert outcome.code == 0
    assert len(outcome.err.splitlines()) <= 1


def test_a_missing_extra_names_the_command_that_installs_it(
    postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)

    outcome = postroad("queue", "list", "--url", "aws://eu-central-1")

    assert outcome.code == 2
    assert "pip install 'postroad[aws]'" in outcome.err
