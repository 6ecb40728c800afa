"""The checks and values that need no queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

import postroad.queues
from postroad.errors import ConfigurationError, InvalidInput, InvalidMessage, InvalidName, MessageTooLarge
from postroad.errors.root import describe
from postroad.queues import Match, OutgoingMessage, PeekedMessage, QueueSpec, fingerprint
from postroad.queues.markers import legible, mark_dead, mark_redriven, read_dead, redriven_by, redrives
from postroad.queues.rules import check_message, check_messages, check_receive, check_source_allowed, dedup_id

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SPEC = QueueSpec("jobs")
FIFO = QueueSpec("jobs.fifo", fifo=True)
TEN = {f"attribute{n}": "v" for n in range(10)}


def peeked(**fields: Any) -> PeekedMessage:
    defaults: dict[str, Any] = {
        "message_id": "m1",
        "body": b"x",
        "attributes": {},
        "group": None,
        "receive_count": 0,
        "sent_at": NOW,
        "sequence": 1,
        "state": "visible",
    }
    return PeekedMessage(**{**defaults, **fields})


def dead(error: str | None, **attributes: str) -> dict[str, str]:
    return mark_dead(attributes, source="jobs", receives=3, error=error, at=NOW)


def test_the_table_of_contents_is_complete_and_sorted() -> None:
    assert postroad.queues.__all__ == sorted(postroad.queues.__all__)
    assert all(hasattr(postroad.queues, name) for name in postroad.queues.__all__)


def legal(text: str) -> bool:
    return bool(text) and not any(
        (ord(c) < 32 and c not in "\t\n\r") or 0xD800 <= ord(c) < 0xE000 or c in "\ufffe\uffff" for c in text
    )


@given(st.text(max_size=50).filter(legal))
def test_every_text_of_legal_characters_is_taken_unchanged(text: str) -> None:
    assert check_message(SPEC, OutgoingMessage(body=text)).decode() == text
    assert check_message(SPEC, OutgoingMessage(body=text.encode())).decode() == text


@given(
    st.builds(
        "{}{}{}".format,
        st.text(max_size=9),
        st.sampled_from("\x00\x0b\x1f\ud800\udfff\ufffe\uffff"),
        st.text(max_size=9),
    )
)
def test_every_other_text_is_refused_by_the_fields_name(text: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        check_message(SPEC, OutgoingMessage(body=text))

    assert refused.value.field == "body"


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"ok\x00"])
def test_bytes_that_are_no_such_text_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessage) as refused:
        check_message(SPEC, OutgoingMessage(body=data))

    assert refused.value.field == "body"


def test_size_counts_bytes_names_types_and_values() -> None:
    spec = QueueSpec("jobs", max_message_bytes=1_024)
    room = 1_024 - len("name") - len("String") - len("é".encode())

    assert check_message(spec, OutgoingMessage(body="x" * room, attributes={"name": "é"}))
    with pytest.raises(MessageTooLarge):
        check_message(spec, OutgoingMessage(body="x" * (room + 1), attributes={"name": "é"}))


def test_a_batch_names_the_entry_at_fault() -> None:
    with pytest.raises(InvalidMessage) as refused:
        check_messages(FIFO, [OutgoingMessage(body="x", group="g", dedup_id="d"), OutgoingMessage(body="x", group="g")])

    assert refused.value.field == "messages[1].dedup_id"


def test_the_content_stands_in_for_a_missing_dedup_id() -> None:
    assert dedup_id(OutgoingMessage(body="x", dedup_id="given"), b"x") == "given"
    assert dedup_id(OutgoingMessage(body="abc"), b"abc") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


@pytest.mark.parametrize("arguments", [(0, 0, None), (1.5, 0, None), (1, -0.1, None), (1, 0, 43_200.1), (1, "1", None)])
def test_receive_arguments_out_of_range_are_refused(arguments: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InvalidInput):
        check_receive(*arguments)


@pytest.mark.parametrize("name", ["a", "A-b_9", "a" * 80, "a.fifo"])
def test_names_of_sqs_are_taken(name: str) -> None:
    assert QueueSpec(name, fifo=name.endswith(".fifo")).name == name


def test_a_queue_cannot_be_its_own_dead_letter_queue() -> None:
    with pytest.raises(ConfigurationError, match="its own"):
        QueueSpec("jobs", dead_letter="jobs")


def test_a_dead_letter_queue_is_of_the_same_kind() -> None:
    with pytest.raises(ConfigurationError, match="same kind"):
        QueueSpec("jobs.fifo", fifo=True, dead_letter="dead")


@pytest.mark.parametrize("name", ["a b", 7, ""])
def test_a_dead_letter_name_that_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidName) as refused:
        QueueSpec("jobs", dead_letter=name)

    assert refused.value.field == "dead_letter"


def test_sources_are_allowed_by_name() -> None:
    check_source_allowed(QueueSpec("dead", redrive_allow=("jobs",)), "jobs")

    with pytest.raises(ConfigurationError):
        check_source_allowed(QueueSpec("dead", redrive_allow=("jobs",)), "others")


def test_differences_name_both_values() -> None:
    assert SPEC.differences(QueueSpec("jobs", delay=5)) == {"delay": (0, 5)}


def test_a_dead_letter_tells_source_receives_error_type_and_time() -> None:
    attributes = mark_dead({"EventType": "Placed"}, source="jobs", receives=3, error="E: x", at=NOW, reason="bad")

    assert msgspec.json.decode(attributes["DeadLetter"]) == {
        "source": "jobs",
        "receives": 3,
        "error": "E: x",
        "type": "Placed",
        "at": NOW.isoformat(),
        "reason": "bad",
    }


def test_an_error_of_any_text_makes_a_legal_attribute() -> None:
    attributes = dead("\x00\ud800\uffff\n" + "é" * 600)

    marker = read_dead(attributes)

    assert marker is not None
    assert marker.error is not None
    assert len(marker.error) <= 500
    assert check_message(SPEC, OutgoingMessage(body="x", attributes=attributes))


def test_without_room_neither_marker_is_set_and_nothing_is_stripped() -> None:
    assert mark_dead(TEN, source="jobs", receives=1, error=None, at=NOW) == TEN
    assert mark_redriven(TEN, "run") == TEN


def test_redrives_are_counted_through_death_and_back() -> None:
    attributes = mark_redriven(dead("E: x", own="v"), "run-1")
    again = mark_redriven(mark_dead(attributes, source="jobs", receives=1, error=None, at=NOW), "run-2")

    assert again == {"own": "v", "Redrive": "2:run-2"}
    assert (redrives(again), redriven_by(again)) == (2, "run-2")


@pytest.mark.parametrize("text", ["", "x:y", "1:", ":run", "1:a b", "99999999999:run", "{}"])
def test_a_redrive_marker_that_is_not_ours_counts_as_absent(text: str) -> None:
    assert redrives({"Redrive": text}) == 0
    assert redriven_by({"Redrive": text}) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"source": 1}', "null", '{"source":"q"}'])
def test_a_dead_letter_marker_that_is_not_ours_counts_as_absent(text: str) -> None:
    assert read_dead({"DeadLetter": text}) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: bad 1", "ValueError: bad 22.5"),
        ("KeyError: 'alice'", "KeyError: 'bob said \"x\"'"),
        ('E: no user "a"', 'E: no user "b"'),
        ("E: id 0f8fad5b-d9cb-469f-a165-70867728950e", "E: id 7c9e6679-7425-40de-944b-e07fc1f90ae7"),
        ("E: at 0x7f3a", "E: at 0x1"),
        ("E: sha 9f86d081", "E: sha deadbeef"),
        ("E: took 1e-05 s", "E: took 2.5 s"),
        ("E: one [app/jobs.py:run]", "E: quite another [app/jobs.py:run]"),
        ("E: [12:30] late [a.py:<lambda>]", "E: [13:45] late [a.py:<lambda>]"),
    ],
)
def test_failures_that_differ_in_their_data_are_one_group(one: str, other: str) -> None:
    assert fingerprint(one, "Placed") == fingerprint(other, "Placed")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: bad", "KeyError: bad"),
        ("E: one thing", "E: another thing"),
        ("E: x [a.py:run]", "E: x [a.py:stop]"),
        ("E: x [a.py:run]", "E: x [b.py:run]"),
        ("E", None),
        ("can't open the door", "can't open the window"),
    ],
)
def test_failures_of_another_class_or_place_are_another_group(one: str, other: str | None) -> None:
    assert fingerprint(one, "Placed") != fingerprint(other, "Placed")


def test_the_event_type_is_part_of_a_fingerprint() -> None:
    assert fingerprint("E: x", "Placed") != fingerprint("E: x", "Paid")
    assert len(fingerprint(None)) == 12


@given(st.one_of(st.none(), st.text(max_size=200)), st.one_of(st.none(), st.text(max_size=20)))
def test_every_error_has_a_fingerprint(error: str | None, event_type: str | None) -> None:
    assert len(fingerprint(error, event_type)) == 12


@pytest.mark.parametrize(
    ("match", "message"),
    [
        (Match(), peeked()),
        (Match(key="g"), peeked(group="g")),
        (Match(event_type="Placed"), peeked(attributes={"EventType": "Placed"})),
        (Match(attributes={"a": "1"}), peeked(attributes={"a": "1", "b": "2"})),
        (Match(ids=["m0", "m1"]), peeked()),
        (Match(sent_before=NOW + timedelta(seconds=1)), peeked()),
        (Match(sent_after=NOW - timedelta(seconds=1)), peeked()),
        (Match(fingerprint=fingerprint("E: 1", "Placed")), peeked(attributes=dead("E: 2", EventType="Placed"))),
        (Match(fingerprint=fingerprint(None)), peeked()),
    ],
)
def test_a_match_holds_for_what_it_names(match: Match, message: PeekedMessage) -> None:
    assert match.holds(message)


@pytest.mark.parametrize(
    "match",
    [
        Match(key="other"),
        Match(event_type="Paid"),
        Match(attributes={"a": "2"}),
        Match(ids=["m0"]),
        Match(sent_before=NOW),
        Match(sent_after=NOW),
        Match(fingerprint="0" * 12),
        Match(key="g", ids=["m0"]),
    ],
)
def test_a_match_does_not_hold_unless_all_it_names_does(match: Match) -> None:
    assert not match.holds(peeked(group="g", attributes={"EventType": "Placed", "a": "1"}))


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("match.sent_before", {"sent_before": datetime(2030, 1, 1)}),
        ("match.sent_after", {"sent_after": "yesterday"}),
        ("match.ids", {"ids": "m1"}),
        ("match.key", {"key": 7}),
    ],
)
def test_a_match_that_makes_no_sense_is_refused(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        Match(**fields)

    assert refused.value.field == field


def test_a_long_error_keeps_the_place_where_it_was_raised_and_no_secret() -> None:
    error = f"ValueError: password=hunter2 {'x' * 10_000} [orders.py:place]"

    kept = legible(error)

    assert kept.startswith("ValueError: password=*** xxx")
    assert kept.endswith("x [orders.py:place]")
    assert len(kept) == 500
    assert fingerprint(kept) == fingerprint("ValueError: 1 [orders.py:place]")


def test_an_error_is_told_with_the_file_and_function_that_raised_it() -> None:
    def place() -> None:
        raise ValueError("no such order")

    with pytest.raises(ValueError, match="order") as raised:
        place()

    assert describe(raised.value) == "ValueError: no such order [test_rules.py:place]"
    assert describe(KeyError()) == "KeyError"
