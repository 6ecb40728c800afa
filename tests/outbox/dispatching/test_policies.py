"""What becomes of a key when one of its rows can not be published."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.outbox.dispatching.conftest import QUICK, MakeDispatcher
from tests.outbox.dispatching.publishers import Recorder, failing
from tests.outbox.fixtures import OutboxFixture, an_event

from postroad.errors import RowRejected
from postroad.outbox import AesGcmCipher, DispatcherConfig, Outbox
from postroad.outbox.dispatching.config import Policy

POISON = RowRejected("never")


def states(fixture: OutboxFixture) -> list[str]:
    return [state for (state,) in fixture.run("SELECT state FROM outbox ORDER BY seq")]


def with_policy(policy: Policy) -> DispatcherConfig:
    return replace(QUICK, policy=policy)


def test_block_lets_the_rows_behind_a_failed_one_wait(fixture: OutboxFixture, dispatcher_of: MakeDispatcher) -> None:
    recorder = Recorder(fail=failing(1, error=POISON))
    for n in (1, 2, 3):
        fixture.add(payload={"n": n})
    fixture.add(key={"transferId": "tr_2"}, payload={"n": 4})

    dispatcher_of(fixture.outbox, recorder, with_policy("block")).drain()

    assert states(fixture) == ["FAILED", "PENDING", "PENDING", "SENT"]
    assert recorder.numbers() == []


def test_a_redriven_row_goes_first_and_its_key_follows(fixture: OutboxFixture, dispatcher_of: MakeDispatcher) -> None:
    first = fixture.add(payload={"n": 1})
    fixture.add(payload={"n": 2})
    dispatcher_of(fixture.outbox, Recorder(fail=failing(1, error=POISON))).drain()
    fixture.outbox.redrive([first.event_id], by="ops", reason="repaired")
    recorder = Recorder()

    dispatcher_of(fixture.outbox, recorder).drain()

    assert recorder.numbers() == [1, 2]
    assert [message.attributes.get("Redriven") for message in recorder.published] == ["1", None]


def test_a_skipped_row_opens_its_key_and_the_next_message_names_the_gap(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    first = fixture.add(payload={"n": 1})
    for n in (2, 3):
        fixture.add(payload={"n": n})
    dispatcher_of(fixture.outbox, Recorder(fail=failing(1, error=POISON))).drain()
    fixture.outbox.skip(first.event_id, by="ops", reason="not needed")
    recorder = Recorder()

    dispatcher_of(fixture.outbox, recorder).drain()

    assert recorder.numbers() == [2, 3]
    assert [message.attributes.get("Gap") for message in recorder.published] == [str(first.event_id), None]


def test_skip_goes_on_and_names_what_was_left_out_once(fixture: OutboxFixture, dispatcher_of: MakeDispatcher) -> None:
    recorder = Recorder(fail=failing(1, 2, error=POISON))
    events = [fixture.add(payload={"n": n}) for n in (1, 2, 3, 4)]

    report = dispatcher_of(fixture.outbox, recorder, with_policy("skip")).drain()

    gaps = [message.attributes.get("Gap") for message in recorder.published]
    assert (report.sent, report.failed) == (2, 2)
    assert states(fixture) == ["FAILED", "FAILED", "SENT", "SENT"]
    assert gaps == [f"{events[0].event_id},{events[1].event_id}", None]


def test_a_gap_names_ten_events_at_the_most(fixture: OutboxFixture, dispatcher_of: MakeDispatcher) -> None:
    recorder = Recorder(fail=failing(*range(12), error=POISON))
    events = [fixture.add(payload={"n": n}) for n in range(13)]

    dispatcher_of(fixture.outbox, recorder, with_policy("skip")).drain()

    assert recorder.published[0].attributes["Gap"] == ",".join(str(event.event_id) for event in events[:10])


def test_park_sets_the_key_aside_with_what_is_added_later(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    recorder = Recorder(fail=failing(1, error=POISON))
    for n in (1, 2):
        fixture.add(payload={"n": n})
    dispatcher = dispatcher_of(fixture.outbox, recorder, with_policy("park"))
    dispatcher.run_once()
    at_once = states(fixture)
    fixture.add(payload={"n": 3})
    fixture.add(key={"transferId": "tr_2"}, payload={"n": 4})

    dispatcher.drain()

    assert at_once == ["FAILED", "PARKED"]
    assert states(fixture) == ["FAILED", "PARKED", "PARKED", "SENT"]
    assert fixture.outbox.status().pending == 0


def test_a_parked_key_that_is_redriven_is_published_in_order(
    fixture: OutboxFixture, dispatcher_of: MakeDispatcher
) -> None:
    events = [fixture.add(payload={"n": n}) for n in (1, 2, 3)]
    dispatcher_of(fixture.outbox, Recorder(fail=failing(1, error=POISON)), with_policy("park")).drain()
    fixture.outbox.redrive([events[0].event_id], by="ops", reason="repaired")
    recorder = Recorder()

    dispatcher_of(fixture.outbox, recorder, with_policy("park")).drain()

    assert recorder.numbers() == [1, 2, 3]
    assert states(fixture) == ["SENT", "SENT", "SENT"]


@pytest.mark.parametrize(
    "payload",
    [
        "{}",
        '{"envelope": {"eventId": "not-a-uuid", "type": "t"}, "key": {"transferId": "x"}, "payload": {}}',
        '{"envelope": {"eventId": "0190f3a8-7b1c-7cc3-98c4-dc0c0c07398f", "type": "t"}, "payload": {}}',
        '{"envelope": {"eventId": "0190f3a8-7b1c-7cc3-98c4-dc0c0c07398f", "type": "t", "occurredAt": "soon"}, '
        '"key": {"transferId": "x"}, "payload": {}}',
        '{"envelope": {"eventId": "0190f3a8-7b1c-7cc3-98c4-dc0c0c07398f", "type": "t", '
        '"occurredAt": "0001-01-01T00:00:00+05:00"}, "key": {"transferId": "x"}, "payload": {}}',
        "[]",
    ],
)
def test_a_row_that_holds_no_event_is_failed_at_once_and_others_flow(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher, payload: str
) -> None:
    row_id = "0190f3a8-7b1c-7cc3-98c4-dc0c0c073990"
    fixture.run("INSERT INTO outbox (id, eventtype, payload) VALUES (?, 't', ?)", row_id, payload)
    fixture.add(key={"transferId": "tr_2"}, payload={"n": 2})

    report = dispatcher_of(fixture.outbox, recorder).drain()

    assert (report.sent, report.failed) == (1, 1)
    [(state, attempts, error)] = fixture.run("SELECT state, attempts, lasterror FROM outbox WHERE id = ?", row_id)
    assert (state, attempts) == ("FAILED", 1)
    assert error.startswith("malformed: ")


def test_a_row_whose_text_is_not_utf8_is_failed_at_once_and_others_flow(
    on_sqlite: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    latin = json.dumps(json.loads(an_event(payload={"name": "café"}).to_json()), ensure_ascii=False).encode("latin-1")
    on_sqlite.run("INSERT INTO outbox (id, eventtype, payload) VALUES ('r1', 't', CAST(? AS TEXT))", latin)
    on_sqlite.add(key={"transferId": "tr_2"}, payload={"n": 2})

    report = dispatcher_of(on_sqlite.outbox, recorder).drain()

    assert (report.sent, report.failed) == (1, 1)
    [(state, error)] = on_sqlite.run("SELECT state, lasterror FROM outbox WHERE id = 'r1'")
    assert (state, error.split(":")[0]) == ("FAILED", "malformed")


@pytest.mark.parametrize("policy", ["block", "skip", "park"])
@pytest.mark.parametrize("value", ["CAST(x'ff' AS TEXT)", "CAST('tr_1' || x'c3' AS TEXT)", "x'747231'"])
@pytest.mark.parametrize("column", ["lane", "tenant"])
def test_a_row_whose_key_is_no_text_is_failed_and_all_other_keys_flow(
    on_sqlite: OutboxFixture,
    recorder: Recorder,
    dispatcher_of: MakeDispatcher,
    column: str,
    value: str,
    policy: Policy,
) -> None:
    bad = on_sqlite.add(key={"transferId": "tr_1"})
    # Before the first key, between the keys and behind the last one.
    others = [on_sqlite.add(key={"transferId": each}) for each in ("a", "tr_2", "zz", "\U0010ffff")]
    on_sqlite.run(f"UPDATE outbox SET {column} = {value} WHERE event_id = ?", str(bad.event_id))

    dispatcher_of(on_sqlite.outbox, recorder, replace(QUICK, policy=policy)).drain()

    assert {message.dedup_id for message in recorder.published} == {str(each.event_id) for each in others}
    [row] = on_sqlite.outbox.failed()
    assert (row.event_id, row.state, row.attempts) == (bad.event_id, "FAILED", 1)
    assert row.last_error == "malformed: the tenant or lane of the row is not UTF-8 text"
    assert on_sqlite.outbox.why(bad.event_id) == f"failed: {row.last_error}"
    assert (on_sqlite.outbox.status().sent, on_sqlite.outbox.status().failed) == (4, 1)


@pytest.mark.parametrize("policy", ["block", "skip", "park"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_row_whose_place_is_no_number_is_failed_and_all_other_keys_flow(
    on_sqlite: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher, place: int, policy: Policy
) -> None:
    same = [on_sqlite.add(key={"transferId": "tr_1"}) for _ in range(2)]
    other = on_sqlite.add(key={"transferId": "tr_2"})
    on_sqlite.run("UPDATE outbox SET seq = CAST(x'ff' AS TEXT) WHERE event_id = ?", str(same[place].event_id))

    dispatcher_of(on_sqlite.outbox, recorder, replace(QUICK, policy=policy)).drain()

    assert str(other.event_id) in {message.dedup_id for message in recorder.published}
    [(state, error)] = on_sqlite.run("SELECT state, lasterror FROM outbox WHERE typeof(seq) = 'text'")
    assert (state, error) == ("FAILED", "malformed: the seq of the row is not a number")


def test_rows_whose_key_is_no_text_do_not_stop_each_other_once_an_operator_redrives_them(
    on_sqlite: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    bad = [on_sqlite.add(key={"transferId": "tr_1"}) for _ in range(3)]
    on_sqlite.run("UPDATE outbox SET lane = CAST(x'ff' AS TEXT)")
    dispatcher = dispatcher_of(on_sqlite.outbox, recorder)
    dispatcher.drain()
    on_sqlite.run("UPDATE outbox SET lane = 'tr_1' WHERE event_id <> ?", str(bad[0].event_id))

    on_sqlite.outbox.redrive([each.event_id for each in bad], by="op", reason="mended")
    dispatcher.drain()

    assert [message.dedup_id for message in recorder.published] == [str(each.event_id) for each in bad[1:]]
    assert [row.event_id for row in on_sqlite.outbox.failed()] == [bad[0].event_id]


@pytest.mark.parametrize(("policy", "sent", "gaps"), [("block", 1, 0), ("park", 1, 0), ("skip", 2, 1)])
def test_a_row_whose_id_is_not_utf8_is_failed_as_the_policy_says(
    on_sqlite: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher, policy: Policy, sent: int, gaps: int
) -> None:
    bad = on_sqlite.add(key={"transferId": "tr_1"})
    on_sqlite.add(key={"transferId": "tr_1"})
    on_sqlite.add(key={"transferId": "tr_2"})
    on_sqlite.run("UPDATE outbox SET id = CAST(x'ff' AS TEXT) WHERE event_id = ?", str(bad.event_id))

    dispatcher_of(on_sqlite.outbox, recorder, replace(QUICK, policy=policy)).drain()

    assert len(recorder.published) == sent
    assert sum(message.attributes.get("Gap") == str(bad.event_id) for message in recorder.published) == gaps
    row = on_sqlite.outbox.get(bad.event_id)
    assert row is not None
    assert (row.state, row.last_error) == ("FAILED", "malformed: the id of the row is not UTF-8 text")


@pytest.mark.parametrize(
    "column", ["state", "event_id", "lasterror", "eventtype", "attempts", "redrives", "lease_owner"]
)
@pytest.mark.parametrize("policy", ["block", "skip", "park"])
def test_no_other_column_that_is_not_utf8_stops_the_rows_of_all_keys(
    on_sqlite: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher, column: str, policy: Policy
) -> None:
    bad = on_sqlite.add(key={"transferId": "tr_1"})
    on_sqlite.add(key={"transferId": "tr_1"})
    other = on_sqlite.add(key={"transferId": "tr_2"})
    on_sqlite.run(f"UPDATE outbox SET {column} = CAST(x'ff' AS TEXT) WHERE event_id = ?", str(bad.event_id))

    dispatcher_of(on_sqlite.outbox, recorder, replace(QUICK, policy=policy)).drain()

    assert str(other.event_id) in {message.dedup_id for message in recorder.published}
    assert on_sqlite.outbox.status().pending == (1 if column == "state" and policy != "skip" else 0)


def test_a_row_above_the_limit_is_failed_as_too_large(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    fixture.add(payload={"text": "x" * 1_000})
    small = Outbox.open(fixture.dsn, max_bytes=1_000)

    dispatcher_of(small, recorder).run_once()
    small.close()

    [(state, error)] = fixture.run("SELECT state, lasterror FROM outbox")
    assert (state, error.split(":")[0]) == ("FAILED", "too-large")


def test_an_encrypted_payload_is_published_readable(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    sealed = Outbox.open(fixture.dsn, cipher=AesGcmCipher({"k1": b"k" * 32}, "k1"))
    secret = OutboxFixture(outbox=sealed, dsn=fixture.dsn).add(payload={"n": 7})

    dispatcher_of(sealed, recorder).run_once()
    sealed.close()

    assert recorder.published[0].body == secret.to_json()


@pytest.mark.parametrize("cipher", [None, AesGcmCipher({"k2": b"z" * 32}, "k2")])
def test_a_payload_that_nobody_here_can_read_is_failed_and_never_published(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher, cipher: AesGcmCipher | None
) -> None:
    sealed = Outbox.open(fixture.dsn, cipher=AesGcmCipher({"k1": b"k" * 32}, "k1"))
    OutboxFixture(outbox=sealed, dsn=fixture.dsn).add()
    sealed.close()
    other = Outbox.open(fixture.dsn, cipher=cipher)

    dispatcher_of(other, recorder).run_once()
    other.close()

    [(state, error)] = fixture.run("SELECT state, lasterror FROM outbox")
    assert (state, error.split(":")[0]) == ("FAILED", "crypto")
    assert recorder.calls == []


def test_an_unknown_state_is_never_published_and_holds_its_key(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    odd = fixture.add(payload={"n": 1})
    fixture.add(payload={"n": 2})
    fixture.set(odd, state="DONE")

    report = dispatcher_of(fixture.outbox, recorder).drain()

    assert report.claimed == 0
    assert states(fixture) == ["DONE", "PENDING"]


def test_a_row_that_is_never_due_holds_its_key_and_is_not_looped_on(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    late = fixture.add(payload={"n": 1})
    fixture.add(payload={"n": 2})
    fixture.set(late, next_attempt="infinity")

    report = dispatcher_of(fixture.outbox, recorder).drain()

    assert report.claimed == 0
    assert [key.head for key in fixture.outbox.keys(blocked=True)] == [late.event_id]


def test_a_row_behind_the_head_waits_until_it_is_due_itself(
    fixture: OutboxFixture, recorder: Recorder, dispatcher_of: MakeDispatcher
) -> None:
    for n in (1, 2, 3):
        event = fixture.add(payload={"n": n})
        if n == 2:
            fixture.set(event, next_attempt="9999-01-01T00:00:00Z")

    dispatcher_of(fixture.outbox, recorder).drain()

    assert recorder.numbers() == [1]
