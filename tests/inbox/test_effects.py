"""Effects outside the database: begun, finished, forgotten, or left unknown by a crash."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.inbox.fixtures import InboxFixture

from postroad import connect
from postroad.errors import ConfigurationError, InvalidInput, SchemaMismatch
from postroad.events import uuid7
from postroad.inbox import Inbox

EVENT = UUID("0190b5b8-0000-7000-8000-000000000001")


def crashed(fixture: InboxFixture) -> None:
    """Let every lease end, as if its worker had died and the time had passed."""
    fixture.rows("UPDATE inbox SET leaseuntil = startedat WHERE status = 'started'")


def test_an_effect_is_new_then_busy_then_done(inbox: Inbox) -> None:
    effect = inbox.begin("gateway", EVENT)
    meanwhile = inbox.begin("gateway", EVENT)
    finished = inbox.finish(effect)
    afterwards = inbox.begin("gateway", EVENT)

    assert (effect.status, effect.attempt, effect.idempotency_key) == ("new", 1, f"gateway:{EVENT}")
    assert (meanwhile.status, afterwards.status, finished) == ("busy", "done", True)
    assert 0 < meanwhile.retry_after <= 60


def test_an_effect_whose_worker_died_is_unknown_and_has_a_higher_token(fixture: InboxFixture) -> None:
    first = fixture.inbox.begin("gateway", EVENT)
    crashed(fixture)

    second = fixture.inbox.begin("gateway", EVENT)

    assert (second.status, second.attempt, second.idempotency_key) == ("unknown", 2, first.idempotency_key)
    assert second.token > first.token


def test_a_late_worker_can_neither_finish_nor_forget_nor_renew(fixture: InboxFixture) -> None:
    late = fixture.inbox.begin("gateway", EVENT)
    crashed(fixture)
    current = fixture.inbox.begin("gateway", EVENT)

    assert not fixture.inbox.finish(late)
    assert not fixture.inbox.forget(late)
    assert not fixture.inbox.renew(late)
    assert fixture.inbox.finish(current)
    assert not fixture.inbox.finish(current)


def test_a_forgotten_effect_is_new_again_and_refuses_tokens_from_before(fixture: InboxFixture) -> None:
    first = fixture.inbox.begin("gateway", EVENT)
    crashed(fixture)
    second = fixture.inbox.begin("gateway", EVENT)

    forgotten = fixture.inbox.forget(second)
    third = fixture.inbox.begin("gateway", EVENT)

    assert forgotten
    assert (third.status, third.attempt) == ("new", 1)
    assert first.token < second.token < third.token
    assert not fixture.inbox.finish(first)


def test_a_renewed_effect_stays_with_its_worker(fixture: InboxFixture) -> None:
    effect = fixture.inbox.begin("gateway", EVENT)
    crashed(fixture)

    renewed = fixture.inbox.renew(effect, lease=30)

    assert renewed
    assert fixture.inbox.begin("gateway", EVENT).status == "busy"
    assert fixture.inbox.unknown() == []


def test_unknown_effects_are_listed_by_age_and_consumer(fixture: InboxFixture) -> None:
    events = [uuid7() for _ in range(3)]
    for event_id in events:
        fixture.inbox.begin("gateway", event_id)
    fixture.inbox.begin("mailer", events[0])
    crashed(fixture)
    fixture.inbox.begin("gateway", uuid7())

    listed = fixture.inbox.unknown(consumer="gateway")

    assert [effect.event_id for effect in listed] == events
    assert {effect.status for effect in listed} == {"unknown"}
    assert len(fixture.inbox.unknown()) == 4
    assert len(fixture.inbox.unknown(limit=2)) == 2


@pytest.mark.parametrize(("done", "status"), [(True, "done"), (False, "new")])
def test_an_operator_settles_an_unknown_effect(fixture: InboxFixture, done: bool, status: str) -> None:
    fixture.inbox.begin("gateway", EVENT)
    crashed(fixture)

    settled = fixture.inbox.resolve("gateway", EVENT, done=done, by="kim", reason="seen at the rail")

    assert settled
    assert fixture.inbox.begin("gateway", EVENT).status == status
    audited = fixture.rows("SELECT actor, action, consumer, eventid, reason FROM inbox_audit")
    assert audited == [("kim", "done" if done else "not done", "gateway", str(EVENT), "seen at the rail")]


def test_what_is_not_unknown_cannot_be_settled_by_hand(fixture: InboxFixture) -> None:
    fixture.inbox.begin("gateway", EVENT)

    assert not fixture.inbox.resolve("gateway", EVENT, done=True, by="kim", reason="impatient")
    assert not fixture.inbox.resolve("gateway", uuid7(), done=True, by="kim", reason="mistyped")
    assert fixture.rows("SELECT * FROM inbox_audit") == []


@pytest.mark.parametrize(("by", "reason"), [("", "why"), ("kim", "  ")])
def test_settling_by_hand_needs_a_name_and_a_reason(fixture: InboxFixture, by: str, reason: str) -> None:
    fixture.inbox.begin("gateway", EVENT)
    crashed(fixture)

    with pytest.raises(ValueError, match="is empty"):
        fixture.inbox.resolve("gateway", EVENT, done=True, by=by, reason=reason)
    assert len(fixture.inbox.unknown()) == 1


def test_of_many_at_once_one_makes_the_effect(inbox: Inbox, threads: Callable[..., Any]) -> None:
    asked = [threads(lambda: inbox.begin("gateway", EVENT).status) for _ in range(8)]

    assert sorted(each.result() for each in asked) == ["busy"] * 7 + ["new"]


def test_processed_tells_what_is_done_and_nothing_else(fixture: InboxFixture) -> None:
    inbox, done, finished, started = fixture.inbox, uuid7(), uuid7(), uuid7()
    with inbox.transaction() as connection:
        inbox.first_time(connection, "ledger", done)
    inbox.finish(inbox.begin("ledger", finished))
    inbox.begin("ledger", started)

    assert inbox.processed("ledger", [done, str(finished), started, uuid7()]) == {done, finished}
    assert inbox.processed("other", [done]) == set()
    assert inbox.processed("ledger", []) == set()


def test_prune_removes_what_is_done_and_older_than_the_retention(fixture: InboxFixture) -> None:
    inbox, old = fixture.inbox, [uuid7() for _ in range(5)]
    with inbox.transaction() as connection:
        for event_id in old:
            inbox.first_time(connection, "ledger", event_id)
    fixture.rows("UPDATE inbox SET processedat = '2020-01-01T00:00:00.000Z'")
    inbox.begin("ledger", EVENT)
    fixture.rows("UPDATE inbox SET startedat = '2020-01-01T00:00:00.000Z' WHERE status = 'started'")
    recent = uuid7()
    with inbox.transaction() as connection:
        inbox.first_time(connection, "ledger", recent)

    removed = inbox.prune(batch=2)

    assert removed == 5
    assert {row[0] for row in fixture.rows("SELECT eventid FROM inbox")} == {str(EVENT), str(recent)}


def test_init_twice_and_at_once_is_safe(fixture: InboxFixture, threads: Callable[..., Any]) -> None:
    versions = [threads(fixture.inbox.init) for _ in range(4)]

    assert {each.result() for each in versions} == {1}
    assert fixture.rows("SELECT version FROM inbox_meta") == [(1,)]
    fixture.inbox.check()


def test_tables_of_a_newer_version_are_left_alone(fixture: InboxFixture) -> None:
    fixture.rows("UPDATE inbox_meta SET version = 9")

    with pytest.raises(SchemaMismatch, match="version 9"):
        fixture.inbox.check()
    with pytest.raises(SchemaMismatch, match="version 9"):
        fixture.inbox.init()


def test_two_inboxes_with_other_tables_live_beside_each_other(fixture: InboxFixture) -> None:
    with Inbox.open(fixture.dsn, table="second") as second:
        second.init()
        with second.transaction() as connection:
            assert second.first_time(connection, "ledger", EVENT)
            assert fixture.inbox.first_time(connection, "ledger", EVENT)


@pytest.mark.parametrize("name", ["inbox; drop", "Inbox", "1inbox", "", "a" * 41])
def test_a_table_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="table"):
        Inbox.sqlite("app.db", table=name)


@pytest.mark.parametrize("dsn", ["mysql://host/db", "", "sqlite://", None])
def test_a_dsn_of_another_kind_is_refused_without_showing_it(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="dsn") as refused:
        Inbox.open(dsn)
    assert "host" not in str(refused.value)


def test_a_retention_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"retention: .* is not a timedelta above zero, or None"):
        Inbox.sqlite("app.db", retention=timedelta(0))


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to look at" * 40)

    with Inbox.sqlite(tmp_path / "notes.txt") as inbox, pytest.raises(ConfigurationError, match="not a SQLite file"):
        inbox.init()


def test_an_inbox_without_connections_of_its_own_says_so() -> None:
    with pytest.raises(ConfigurationError, match="no connections of its own"):
        Inbox.postgres().begin("gateway", EVENT)


@pytest.mark.parametrize("lease", [0, -1, float("inf"), float("nan"), "60", True])
def test_a_lease_that_is_no_time_is_refused(inbox: Inbox, lease: float) -> None:
    with pytest.raises(InvalidInput, match="lease"):
        inbox.begin("gateway", EVENT, lease=lease)


def test_the_file_of_the_embedded_engine_is_no_place_for_an_inbox(tmp_path: Path) -> None:
    path = tmp_path / "postroad.db"

    with (
        connect(f"sqlite:///{path}"),
        Inbox.sqlite(path) as inbox,
        pytest.raises(ConfigurationError, match="embedded engine"),
    ):
        inbox.init()
