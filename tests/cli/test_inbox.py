"""`postroad inbox`: tables, pruning, and effects whose outcome nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from tests.cli.terminal import Postroad

from postroad.inbox import Inbox

EVENT = UUID("0190b5b8-0000-7000-8000-000000000001")
DSN = "sqlite:///app.db"


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with Inbox.open(DSN) as inbox:
        inbox.init()
        yield inbox


@pytest.fixture
def unknown(inbox: Inbox) -> None:
    """One effect that a worker began before it died."""
    inbox.abandon(inbox.begin("gateway", EVENT))


def test_init_makes_the_tables_and_says_their_version(postroad: Postroad) -> None:
    assert postroad("inbox", "init", "--dsn", DSN, "--json").document == {"version": 1}
    assert postroad("inbox", "init", "--dsn", DSN).out == "the inbox has version 1\n"


@pytest.mark.parametrize("variable", ["POSTROAD_OUTBOX_DSN", "PG_DSN"])
def test_the_database_may_be_named_by_the_environment(
    variable: str, postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PG_DSN", raising=False)
    monkeypatch.setenv(variable, DSN)

    assert postroad("inbox", "init").code == 0


def test_prune_says_how_many_it_removed(postroad: Postroad, inbox: Inbox) -> None:
    with inbox.transaction() as connection:
        inbox.first_time(connection, "ledger", EVENT)
        connection.execute("UPDATE inbox SET processedat = '2020-01-01T00:00:00.000Z'")

    assert postroad("inbox", "prune", "--dsn", DSN, "--older-than", "3650d", "--json").document == {"pruned": 0}
    assert postroad("inbox", "prune", "--dsn", DSN, "--json").document == {"pruned": 1}


def test_unknown_effects_are_listed(postroad: Postroad, unknown: None) -> None:
    listed = postroad("inbox", "unknown", "--dsn", DSN, "--json").document

    (item,) = listed["items"]
    assert listed["next_cursor"] is None
    assert (item["consumer"], item["event_id"], item["attempt"]) == ("gateway", str(EVENT), 1)
    assert str(EVENT) in postroad("inbox", "unknown", "--dsn", DSN).out
    assert postroad("inbox", "unknown", "--dsn", DSN, "--consumer", "mailer").out == "no unknown effects\n"


@pytest.mark.parametrize(("flag", "status"), [("--done", "done"), ("--not-done", "new")])
def test_an_unknown_effect_is_settled(flag: str, status: str, postroad: Postroad, unknown: None, inbox: Inbox) -> None:
    said = ("--by", "kim", "--reason", "seen at the rail", "--dsn", DSN)

    settled = postroad("inbox", "resolve", "gateway", str(EVENT), flag, *said)
    again = postroad("inbox", "resolve", "gateway", str(EVENT), flag, *said)

    assert (settled.code, again.code) == (0, 1)
    assert inbox.begin("gateway", EVENT).status == status


@pytest.mark.parametrize(
    "given",
    [
        ("--by", "kim", "--reason", "why"),
        ("--done", "--reason", "why"),
        ("--done", "--by", " ", "--reason", "why"),
        ("--done", "--by", "kim"),
    ],
)
def test_settling_needs_an_answer_a_name_and_a_reason(
    given: tuple[str, ...], postroad: Postroad, unknown: None, inbox: Inbox
) -> None:
    assert postroad("inbox", "resolve", "gateway", str(EVENT), "--dsn", DSN, *given).code == 2
    assert len(inbox.unknown()) == 1


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("init",), 2, "POSTROAD_OUTBOX_DSN"),
        (("init", "--dsn", "mysql://db/app"), 2, "postgresql://"),
        (("unknown", "--dsn", "sqlite:///missing.db"), 2, "missing.db"),
        (("unknown", "--dsn", "sqlite:///empty.db"), 2, "postroad inbox init"),
        (("init", "--dsn", DSN, "--table", "inbox; drop"), 2, "table"),
        (("init", "--dsn", "postgresql://nobody@127.0.0.1:1/none"), 3, "cannot be reached"),
    ],
)
def test_what_cannot_work_is_told_with_its_exit_code(
    args: tuple[str, ...], code: int, said: str, postroad: Postroad, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PG_DSN", raising=False)
    Path("empty.db").touch()

    outcome = postroad("inbox", *args)

    assert outcome.code == code
    assert said in outcome.err
