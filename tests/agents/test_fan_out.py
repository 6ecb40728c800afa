from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.agents.conftest import Post, body_of, n_of

from postroad.agents import AgentEvent, RunStats
from postroad.agents.aws.release import dedup_id
from postroad.agents.stream import event_id_of
from postroad.agents.tables import REJECTED_QUEUE, TABLES
from postroad.errors import ConfigurationError, NotSupported, Unavailable
from postroad.streams import Record
from postroad.testing.conformance import PLAIN


def test_an_event_reaches_each_subscriber_as_it_was_published(post: Post) -> None:
    post.register("ann", "bob", "cat")
    post.agents.subscribe_many([("bob", "ann"), ("cat", "ann")])

    [result] = post.agents.publish(
        [AgentEvent("ann", "placed", {"é": [1, 2.5, None]}, "2025-07-01T14:00:00.1239+02:00", "e-1")]
    )
    post.move()
    [delivery] = post.take("bob")

    assert body_of(delivery) == {
        "agentId": "ann",
        "timestamp": "2025-07-01T12:00:00.123Z",
        "eventType": "placed",
        "data": {"é": [1, 2.5, None]},
        "eventId": "e-1",
        "subscriberId": "bob",
        "sequenceNumber": result.sequence,
    }
    assert delivery.group == "ann"
    assert body_of(post.take("cat")[0])["subscriberId"] == "cat"
    assert post.take("ann") == []


def test_only_what_came_after_the_subscription_is_delivered_even_if_the_runner_was_down(post: Post) -> None:
    post.register("ann", "bob")
    post.agents.publish([AgentEvent("ann", "counted", {"n": 1})])
    post.clock.advance(1)
    post.agents.subscribe("bob", "ann")
    post.agents.publish([AgentEvent("ann", "counted", {"n": 2})])

    post.move()

    assert post.drain("bob") == [2]


def test_a_wall_clock_that_steps_back_after_the_subscription_costs_no_event(post: Post) -> None:
    post.register("ann", "bob")
    post.agents.subscribe("bob", "ann")

    post.clock.step(-86_400)
    post.publish("ann", 1)

    assert post.drain("bob") == [1]


def test_unsubscribing_stops_what_comes_and_leaves_what_waits(post: Post) -> None:
    post.register("ann", "bob")
    post.agents.subscribe("bob", "ann")
    post.publish("ann", 1)

    ended = post.agents.unsubscribe("bob", "ann")
    post.publish("ann", 2)

    assert ended is True
    assert post.agents.unsubscribe("bob", "ann") is False
    assert post.drain("bob") == [1]


def test_unsubscribing_may_discard_what_waits(post: Post) -> None:
    post.register("ann", "bob", "cat")
    post.agents.subscribe_many([("bob", "ann"), ("bob", "cat")])
    post.publish("ann", 1, 2)
    post.publish("cat", 3)
    held = post.take("bob", 1)

    post.agents.unsubscribe("bob", "ann", discard=True)

    assert not post.agents.queue("bob").ack(held)[0].ok
    assert post.drain("bob") == [3]


def test_an_event_published_again_is_delivered_once_and_the_first_payload_wins(post: Post) -> None:
    post.register("ann", "bob", "cat", "dan")
    post.agents.subscribe_many([("bob", "ann"), ("bob", "cat")])
    post.publish("ann", 1, event_id="same")
    first = post.drain("bob")

    post.agents.subscribe("dan", "ann")
    post.publish("ann", 2, 3, event_id="same")
    post.publish("cat", 4, event_id="same")

    assert first == [1]
    assert post.drain("bob") == [4]
    assert post.drain("dan") == [1]


def test_an_event_id_is_free_again_after_the_retention(post: Post) -> None:
    brief = post.configured(retention=60)
    post.register("ann", "bob")
    post.agents.subscribe("bob", "ann")
    brief.publish("ann", 1, event_id="same")
    post.drain("bob")

    post.clock.advance(61)
    brief.publish("ann", 2, event_id="same")

    assert post.drain("bob") == [2]


def test_a_record_put_directly_is_equal(post: Post) -> None:
    post.register("ann", "bob")
    post.agents.subscribe("bob", "ann")
    stream = post.backend.stream("agent-events")

    stream.put(
        [
            Record(
                "ann",
                json.dumps(
                    {"agentId": "ann", "eventType": "raw", "data": {"n": 1}, "timestamp": "2025-07-01T12:00:00Z"}
                ).encode(),
            )
        ]
    )
    post.move()
    [delivery] = post.take("bob")

    assert body_of(delivery)["timestamp"] == "2025-07-01T12:00:00.000Z"
    assert body_of(delivery)["eventId"][14] == "5"


@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b"[1]",
        b'{"agentId":"ann"}',
        b'{"agentId":"ann","eventType":"x"}',
        b'{"agentId":"bob","eventType":"x","data":{}}',
        b'{"agentId":"ann","eventType":"","data":{}}',
        b'{"agentId":"ann","eventType":"x","data":[]}',
        b'{"agentId":"ann","eventType":"x","data":{"a":"\\ud800"}}',
        b'{"agentId":"ann","eventType":"x","data":{"a":"\\u0000"}}',
        b'{"agentId":"ann","eventType":"x","data":{},"timestamp":"yesterday"}',
        b'{"agentId":"ann","eventType":"x","data":{},"timestamp":5}',
        b'{"agentId":"ann","eventType":"x","data":{},"eventId":""}',
        b'{"agentId":"ann","eventType":"x","data":' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"}",
        b'{"agentId":"ann","eventType":"x","data":{"a":"' + b"x" * 262_144 + b'"}}',
        b"\xff\xfe",
    ],
)
def test_a_record_that_can_never_be_handled_blocks_nothing_and_is_seen(post: Post, data: bytes) -> None:
    post.register("ann", "bob")
    post.agents.subscribe("bob", "ann")

    post.backend.stream("agent-events").put([Record("ann", data)])
    post.publish("ann", 1)

    assert post.drain("bob") == [1]
    [rejected] = post.backend.queue(REJECTED_QUEUE).receive()
    message = json.loads(rejected.body)
    assert message["partitionKey"] == "ann"
    assert message["reason"]
    assert sorted(message) == ["data", "partitionKey", "reason", "sequenceNumber", "shardId"]


@pytest.mark.parametrize(
    ("key", "data"),
    [
        ("ann", b"x" * 1_000_000),
        ("\uffff", b"not json"),
        ("ann", b'{"agentId":"' + "\x80".encode() * 130_000 + b'"}'),
    ],
    ids=["a record that is larger than a message", "a key that no message carries", "an endless reason"],
)
def test_a_reject_that_no_queue_would_take_as_it_is_blocks_nothing_either(post: Post, key: str, data: bytes) -> None:
    post.register("ann", "bob")
    post.agents.subscribe("bob", "ann")

    post.backend.stream("agent-events").put([Record(key, data)])
    post.publish("ann", 1)

    assert post.drain("bob") == [1]
    [rejected] = post.backend.queue(REJECTED_QUEUE).receive()
    assert json.loads(rejected.body)["partitionKey"] == key


@pytest.mark.parametrize("text", PLAIN)
def test_any_data_that_is_accepted_arrives_unchanged(post: Post, text: str) -> None:
    post.register("ann", "bob")
    post.agents.subscribe("bob", "ann")
    sent = json.dumps({"value": json.loads(text)})

    [result] = post.agents.publish([AgentEvent("ann", "told", json.loads(sent))])
    post.move()
    found = [json.dumps(body_of(delivery)["data"]) for delivery in post.take("bob")]

    # NUL alone is refused, and named.
    assert result.ok is (r"\u0000" not in text)
    assert found == ([sent] if result.ok else [])


def test_nobody_sends_to_a_lane_and_no_list_of_queues_shows_it(post: Post) -> None:
    post.register("ann")

    with pytest.raises(NotSupported):
        post.agents.queue("ann").send([])

    assert post.agents.queue("ann").name == "agents-ann.fifo"
    assert post.backend.queues() == []


def test_events_are_merged_by_time_and_keep_each_producers_sequence(post: Post) -> None:
    post.register("ann", "bob", "cat")
    post.agents.subscribe_many([("cat", "ann"), ("cat", "bob")])
    times = [("ann", 10, 1), ("ann", 3, 2), ("bob", 5, 3), ("bob", 12, 4)]

    post.agents.publish([AgentEvent(who, "counted", {"n": n}, f"2025-01-01T00:00:{at:02d}Z") for who, at, n in times])
    post.move()

    assert post.drain("cat") == [3, 1, 2, 4]


def test_without_failures_a_reader_sees_the_order_of_release(post: Post) -> None:
    post.register("ann", "bob", "cat")
    post.agents.subscribe_many([("cat", "ann"), ("cat", "bob")])
    for n in range(12):
        post.publish("ann" if n % 3 else "bob", n)
        post.clock.advance(1)

    seen = []
    while taken := post.take("cat", 1):
        seen += [n_of(delivery) for delivery in taken]
        post.agents.queue("cat").ack(taken)

    assert seen == list(range(12))


def test_held_back_events_of_several_producers_are_merged(post: Post) -> None:
    held = post.configured(dispatch_delay=5)
    post.register("ann", "bob", "cat")
    post.agents.subscribe_many([("cat", "ann"), ("cat", "bob")])

    held.publish("ann", 1, timestamp="2025-01-01T00:00:09Z")
    early = held.take("cat")
    stats = post.agents.stats("cat")
    post.clock.advance(2)
    held.publish("bob", 2, timestamp="2025-01-01T00:00:01Z")
    post.clock.advance(5)
    released = held.runner.run_once().released

    assert early == []
    assert (stats.held, stats.visible) == (1, 0)
    assert released == 2
    assert post.drain("cat") == [2, 1]


def test_an_event_older_than_what_was_released_is_marked_late(post: Post) -> None:
    held = post.configured(dispatch_delay=1)
    post.register("ann", "bob", "cat")
    post.agents.subscribe_many([("cat", "ann"), ("cat", "bob")])
    held.publish("ann", 1, timestamp="2025-01-01T00:00:09Z")
    post.clock.advance(2)
    held.move()

    held.publish("bob", 2, timestamp="2025-01-01T00:00:01Z")
    post.clock.advance(2)
    held.move()

    assert [body_of(delivery).get("late") for delivery in post.take("cat")] == [None, True]


@pytest.mark.parametrize("delay", [-1, 301, float("nan"), True, "1"])
def test_a_hold_back_window_out_of_range_is_refused_by_name(post: Post, delay: float) -> None:
    with pytest.raises(ConfigurationError, match="DISPATCH_DELAY_SECONDS"):
        post.backend.agents(dispatch_delay=delay)


@pytest.mark.parametrize("text", ["-1", "301", "nan", "soon"])
def test_a_window_told_by_the_environment_is_checked_too(
    post: Post, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("DISPATCH_DELAY_SECONDS", text)

    with pytest.raises(ConfigurationError, match="DISPATCH_DELAY_SECONDS"):
        post.backend.agents()


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (AgentEvent("ann", "", {}), "eventType"),
        (AgentEvent("ann", "x" * 257, {}), "eventType"),
        (AgentEvent("ann", "a\nb", {}), "eventType"),
        (AgentEvent("ann", None, {}), "eventType"),  # type: ignore[arg-type]  # wrong on purpose
        (AgentEvent("ann", "x", None), "data"),  # type: ignore[arg-type]  # wrong on purpose
        (AgentEvent("ann", "x", []), "data"),  # type: ignore[arg-type]  # wrong on purpose
        (AgentEvent("ann", "x", {"a": float("nan")}), "data"),
        (AgentEvent("ann", "x", {"a": "\ud800"}), "data"),
        (AgentEvent("ann", "x", {"a": "\0"}), "data"),
        (AgentEvent("ann", "x", {"a": object()}), "data"),
        (AgentEvent("ann", "x", {}, "2025-07-01T12:00:00"), "timestamp"),
        (AgentEvent("ann", "x", {}, "yesterday"), "timestamp"),
        (AgentEvent("ann", "x", {}, 5), "timestamp"),  # type: ignore[arg-type]  # wrong on purpose
        (AgentEvent("ann", "x", {}, "1969-12-31T23:59:59Z"), "timestamp"),
        (AgentEvent("ann", "x", {}, "0001-01-01T00:00:00+14:00"), "timestamp"),
        (AgentEvent("ann", "x", {}, event_id=""), "eventId"),
        (AgentEvent("ann", "x", {}, event_id="x" * 129), "eventId"),
        (AgentEvent("ann", "x", {"a": "x" * 262_144}), "262144"),
        (AgentEvent("a#b", "x", {}), "agentId"),
    ],
)
def test_a_bad_event_is_named_and_holds_back_only_its_own_agent(post: Post, event: AgentEvent, field: str) -> None:
    post.register("ann", "bob", "cat")
    post.agents.subscribe_many([("cat", "ann"), ("cat", "bob")])

    results = post.agents.publish(
        [
            AgentEvent("ann", "counted", {"n": 1}),
            event,
            AgentEvent(event.agent_id, "counted", {"n": 2}),
            AgentEvent("bob", "counted", {"n": 3}),
        ]
    )
    post.move()

    assert [result.ok for result in results] == [True, False, False, True]
    assert field in (results[1].error or "")
    assert results[2].error == "held_back"
    assert sorted(post.drain("cat")) == [1, 3]


def test_the_tables_can_be_read_by_another_program(file_post: Post, tmp_path: Path) -> None:
    file_post.register("ann", "bob")
    file_post.agents.grant("ann", "bob")
    file_post.agents.subscribe("bob", "ann")
    file_post.publish("ann", 1, timestamp="2025-07-01T12:00:00.5Z", event_id="e")
    file_post.backend.close()

    other = sqlite3.connect(tmp_path / "postroad.db")
    other.row_factory = sqlite3.Row
    try:
        rows: dict[str, list[dict[str, Any]]] = {
            table.name: [dict(row) for row in other.execute(f"SELECT * FROM {table.name}")] for table in TABLES
        }
    finally:
        other.close()

    [event] = rows["SubscriberEvents"]
    assert event["timestamp"] == f"2025-07-01T12:00:00.500Z#ann#{event['sequenceNumber']:0>56}"
    assert (event["occurredAt"], event["subscriberId"], event["producerId"]) == (
        "2025-07-01T12:00:00.500Z",
        "bob",
        "ann",
    )
    assert json.loads(event["data"]) == {"n": 1}
    assert event["expiresAt"] == 1_893_456_000 + 604_800
    assert rows["Subscribers"] == [
        {
            "producerId": "ann",
            "subscriberId": "bob",
            "createdAt": "2030-01-01T00:00:00.000Z",
            "state": "active",
            "heldFrom": None,
            "eventTypes": None,
        }
    ]
    assert {row["agentId"]: row["state"] for row in rows["Agents"]} == {"ann": "active", "bob": "active"}
    assert [row["producerId"] for row in rows["AgentGrants"]] == ["ann"]


def test_data_is_stored_once_however_many_listen(file_post: Post, tmp_path: Path) -> None:
    listeners = [made.agent_id for made in file_post.agents.register_many(1_000)]
    file_post.register("ann")
    file_post.agents.subscribe_many([(listener, "ann") for listener in listeners])
    before = _size(tmp_path)

    file_post.agents.publish([AgentEvent("ann", "large", {"a": "x" * 100_000})])
    file_post.move()

    assert _size(tmp_path) - before < 2_000_000


def test_a_runner_that_runs_wakes_a_waiting_receiver(file_post: Post) -> None:
    file_post.register("ann", "bob")
    file_post.agents.subscribe("bob", "ann")
    stop = threading.Event()
    running = threading.Thread(target=file_post.agents.runner(worker="thread").run, args=(stop,))
    running.start()
    try:
        publishing = threading.Timer(0.2, file_post.agents.publish, [[AgentEvent("ann", "counted", {"n": 1})]])
        publishing.start()
        received = file_post.agents.queue("bob").receive(wait=15)
        publishing.join()
    finally:
        stop.set()
        running.join()

    assert [n_of(delivery) for delivery in received] == [1]


@pytest.mark.parametrize("error", [KeyError("fields"), Unavailable("the file is busy")])
def test_a_runner_logs_an_error_and_goes_on(
    file_post: Post, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file_post.register("ann", "bob")
    file_post.agents.subscribe("bob", "ann")
    file_post.agents.publish([AgentEvent("ann", "counted", {"n": 1})])
    runner, stop, errors = file_post.agents.runner(worker="thread"), threading.Event(), [error, error]
    run_once = runner.run_once

    def fails_twice() -> RunStats:
        if errors:
            raise errors.pop()
        return run_once()

    monkeypatch.setattr(runner, "run_once", fails_twice)
    running = threading.Thread(target=runner.run, args=(stop,))
    running.start()
    try:
        received = file_post.agents.queue("bob").receive(wait=15)
    finally:
        stop.set()
        running.join()

    assert [n_of(delivery) for delivery in received] == [1]
    (line,) = [record.getMessage() for record in caplog.records if "agents_runner_failed" in record.getMessage()]
    assert f"{type(error).__name__}: {error}" in line


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir() if path.name.endswith((".db", "-wal")))


def test_an_event_without_an_id_gets_one_of_its_stream_shard_and_sequence() -> None:
    made = {event_id_of(*place) for place in (("s", "a", "1"), ("t", "a", "1"), ("s", "b", "1"), ("s", "a", "2"))}

    assert len(made) == 4
    assert {uuid.UUID(event_id).version for event_id in made} == {5}
    assert event_id_of("s", "a", "1") in made


def test_the_dedup_id_of_a_message_is_a_hash_of_whom_it_is_for_from_whom_and_which() -> None:
    first = hashlib.sha256(b"bob|ann|e1").hexdigest()
    again = hashlib.sha256(b"bob|ann|e1|r1").hexdigest()

    assert dedup_id("bob", "ann", "e1") == first
    assert dedup_id("bob", "ann", "e1", "r1") == again


def test_an_id_that_is_no_text_is_refused_like_any_other_bad_id(post: Post) -> None:
    post.register("ann")

    bad, good = post.agents.publish([AgentEvent(["ann"], "x", {}), AgentEvent("ann", "x", {})])  # type: ignore[arg-type]  # that is the point

    assert (bad.ok, good.ok) == (False, True)
    assert bad.error is not None
    assert "agentId" in bad.error


def test_what_waits_can_be_discarded_after_the_subscription_ended(post: Post) -> None:
    post.register("ann", "bob", "cat")
    post.agents.subscribe_many([("bob", "ann"), ("bob", "cat")])
    post.publish("ann", 1)
    post.publish("cat", 2)

    ended = [post.agents.unsubscribe("bob", "ann"), post.agents.unsubscribe("bob", "ann", discard=True)]

    assert ended == [True, False]
    assert post.drain("bob") == [2]
