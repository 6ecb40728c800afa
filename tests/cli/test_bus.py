"""`postroad bus publish|tail|replay|sweep`."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cli.terminal import PROGRAM, Postroad, hear_ctrl_c, program
from tests.waiting import eventually

from postroad import Backend, QueueSpec, Record, codec
from postroad.wiring import connect

URL = "sqlite:///postroad.db"


@pytest.fixture
def listener() -> None:
    """A queue that keeps what is published to `orders`."""
    with connect(URL) as backend:
        backend.topic("orders").subscribe(backend.create_queue(QueueSpec("kept")))


def kept(name: str = "kept") -> list[Any]:
    with connect(URL) as backend:
        return backend.queue(name).peek(limit=100)


@pytest.mark.usefixtures("listener")
def test_publish_prints_the_id_of_an_event_without_a_class(postroad: Postroad) -> None:
    outcome = postroad("bus", "publish", "orders", "orders.placed", '{"id": 7}', "--key", "k")

    [message] = kept()
    envelope = codec.decode(message.body)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.document == {"event_id": str(envelope.event_id)}
    assert (envelope.event_type, envelope.payload, envelope.key) == ("orders.placed", {"id": 7}, "k")
    assert message.attributes == {
        "EventType": "orders.placed",
        "PublisherId": "postroad",
        "CreatedAt": envelope.created_at.isoformat(),
    }


@pytest.mark.usefixtures("listener")
def test_publish_reads_stdin_and_names_the_session(postroad: Postroad) -> None:
    postroad("bus", "publish", "orders", "orders.placed", "-", "--json", stdin='{"session_id": "s"}')

    [message] = kept()
    assert message.attributes["SessionId"] == "s"


def test_publish_to_a_fifo_topic_keeps_the_order_of_a_key(postroad: Postroad) -> None:
    with connect(URL) as backend:
        queue = backend.create_queue(QueueSpec("kept.fifo", fifo=True))
        backend.topic("orders.fifo", fifo=True).subscribe(queue)

    postroad("bus", "publish", "orders", "orders.placed", "{}", "--key", "k", "--fifo")
    postroad("bus", "publish", "orders.fifo", "orders.placed", '{"request_id": "r"}')

    assert [message.group for message in kept("kept.fifo")] == ["k", "r"]


@pytest.mark.usefixtures("listener")
@pytest.mark.parametrize(
    "payload", ["[1]", "{", "5", '"x"', "", '{"a": NaN}', "[" * 100_000, '{"a":' * 70 + "1" + "}" * 70]
)
def test_a_payload_that_is_no_object_is_exit_2_in_one_line_and_sends_nothing(payload: str, postroad: Postroad) -> None:
    outcome = postroad("bus", "publish", "orders", "orders.placed", payload)

    assert outcome.code == 2
    assert outcome.out == ""
    assert len(outcome.err.splitlines()) <= 2
    assert "Traceback" not in outcome.err
    assert kept() == []


@pytest.mark.parametrize("payload", ["[1]", "{"])
def test_broken_input_is_told_in_one_line(payload: str, postroad: Postroad) -> None:
    outcome = postroad("bus", "publish", "orders", "orders.placed", payload)

    assert len(outcome.err.splitlines()) == 1
    assert outcome.err.startswith("error: payload: ")


@pytest.mark.parametrize(("topic", "kind"), [("a b", "x"), ("orders", ""), ("", "x")])
def test_a_bad_topic_or_type_is_exit_2(topic: str, kind: str, postroad: Postroad) -> None:
    assert postroad("bus", "publish", topic, kind, "{}").code == 2


def test_publish_says_when_nobody_listens(postroad: Postroad) -> None:
    outcome = postroad("bus", "publish", "ordrs", "orders.placed", "{}")

    assert outcome.code == 0
    assert 'nobody is subscribed to topic "ordrs"' in outcome.err


def test_an_unreachable_backend_is_exit_3(postroad: Postroad, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")

    outcome = postroad(
        "bus", "publish", "orders", "t", "{}", "--url", "aws://us-east-1?endpoint_url=http://127.0.0.1:1"
    )

    assert outcome.code == 3


@contextmanager
def tailing(*args: str) -> Iterator[subprocess.Popen[str]]:
    """`postroad bus tail orders` as a program, once it is subscribed."""
    command = [*PROGRAM, "bus", "tail", "orders", *args]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c
    ) as process:
        try:
            with connect(URL) as backend:
                eventually(lambda: process.poll() is not None or backend.topic("orders").subscriptions())
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.kill()


def test_tail_prints_one_envelope_a_line_and_removes_its_queue(postroad: Postroad) -> None:
    with tailing("--limit", "2", "--timeout", "30s") as process:
        sent = [
            postroad("bus", "publish", "orders", "orders.placed", json.dumps({"id": n})).document["event_id"]
            for n in range(2)
        ]
        out, err = process.communicate(timeout=120)

    lines = [json.loads(line) for line in out.splitlines()]
    assert (process.returncode, err) == (0, "")
    assert [(line["event_id"], line["payload"]["id"]) for line in lines] == [(sent[0], 0), (sent[1], 1)]
    assert own_queues() == []


def test_tail_shows_only_the_types_it_is_asked_for(postroad: Postroad) -> None:
    with tailing("--limit", "2", "--timeout", "30s", "--type", "b", "--type", "c") as process:
        for kind in "abc":
            postroad("bus", "publish", "orders", kind, "{}")
        out, _ = process.communicate(timeout=120)

    assert [json.loads(line)["event_type"] for line in out.splitlines()] == ["b", "c"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_an_interrupted_tail_removes_its_queue(number: signal.Signals, code: int) -> None:
    with tailing() as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=120)

    assert process.returncode == code
    assert "Traceback" not in err
    assert own_queues() == []


def test_tail_ends_after_its_time(postroad: Postroad) -> None:
    postroad("queue", "create", "jobs")

    outcome = postroad("bus", "tail", "orders", "--timeout", "0.1s")

    assert (outcome.code, outcome.out) == (0, "")
    assert own_queues() == []


def test_tail_passes_over_what_is_no_event(postroad: Postroad) -> None:
    from postroad import OutgoingMessage

    with tailing("--limit", "2", "--timeout", "30s") as process:
        with connect(URL) as backend:
            backend.topic("orders").publish([OutgoingMessage("[1]")])
        postroad("bus", "publish", "orders", "orders.placed", "{}")
        out, err = process.communicate(timeout=120)

    assert len(out.splitlines()) == 1
    assert "no event" in err


def test_tail_takes_events_from_a_group_that_stays(postroad: Postroad) -> None:
    with connect(URL) as backend:
        backend.bus("orders", "billing").close()
    for number in range(3):
        postroad("bus", "publish", "orders", "orders.placed", json.dumps({"id": number}))

    outcome = postroad("bus", "tail", "orders", "--group", "billing", "--limit", "2")

    assert [json.loads(line)["payload"]["id"] for line in outcome.out.splitlines()] == [0, 1]
    assert len(kept("orders--billing")) == 1


def test_tail_does_not_change_what_an_existing_group_gets(postroad: Postroad) -> None:
    with connect(URL) as backend:
        backend.bus("orders", "billing").close()

    outcome = postroad("bus", "tail", "orders", "--group", "billing", "--type", "x", "--timeout", "1")

    assert outcome.code == 2
    with connect(URL) as backend:
        assert [each.filter for each in backend.topic("orders").subscriptions()] == [None]


def test_tail_removes_a_group_that_it_made(postroad: Postroad) -> None:
    connect(URL).close()

    outcome = postroad("bus", "tail", "orders", "--group", "mine", "--timeout", "0.1s")

    assert outcome.code == 0
    with connect(URL) as backend:
        assert backend.queues() == []


@pytest.mark.parametrize("group", ["", "a/b", "archive", "dead", "p-1"])
def test_a_reserved_or_impossible_group_is_exit_2(group: str, postroad: Postroad) -> None:
    assert postroad("bus", "tail", "orders", "--group", group, "--timeout", "0.1").code == 2


@pytest.fixture
def archived(postroad: Postroad) -> Callable[[], list[str]]:
    """Five archived events, the second of them twice, and a topic `again` to replay to."""
    with connect(URL) as backend:
        archive = backend.archive("orders")
        backend.topic("again").subscribe(backend.create_queue(QueueSpec("kept")))
        ids = [
            postroad("bus", "publish", "orders", f"t{n % 2}", json.dumps({"n": n}), "--json").document["event_id"]
            for n in range(5)
        ]
        archive.run_once()
        _archive_again(backend)
    return lambda: ids


def _archive_again(backend: Backend) -> None:
    stream = backend.stream("orders-archive", retention=2_592_000)
    shard = next(shard for shard in stream.shards() if stream.read(shard, after="trim_horizon"))
    record = stream.read(shard, after="trim_horizon")[1]
    stream.put([Record(record.key, record.data)])


def test_replay_publishes_each_archived_event_once_under_its_id(
    postroad: Postroad, archived: Callable[[], list[str]]
) -> None:
    outcome = postroad("bus", "replay", "orders", "--to", "again", "--json")

    messages = [codec.decode(message.body) for message in kept()]
    assert outcome.document == {"read": 6, "replayed": 5, "duplicates": 1, "failed": 0}
    assert [str(envelope.event_id) for envelope in messages] == archived()
    assert [message.attributes["EventType"] for message in kept()] == ["t0", "t1", "t0", "t1", "t0"]


@pytest.mark.usefixtures("archived")
def test_replay_chooses_by_type_and_time(postroad: Postroad) -> None:
    later = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
    earlier = (datetime.now(UTC) - timedelta(minutes=10)).isoformat()

    none = postroad("bus", "replay", "orders", "--to", "again", "--since", later, "--json")
    nothing = postroad("bus", "replay", "orders", "--to", "again", "--until", earlier, "--json")
    some = postroad("bus", "replay", "orders", "--to", "again", "--type", "t0", "--until", later, "--json")

    assert none.document["read"] == nothing.document["read"] == 0
    assert some.document["replayed"] == 3


@pytest.mark.usefixtures("archived")
def test_a_replay_that_could_not_give_all_on_is_exit_1(postroad: Postroad) -> None:
    with connect(URL) as backend:
        backend.stream("orders-archive", retention=2_592_000).put([Record("k", b"no envelope")])

    outcome = postroad("bus", "replay", "orders", "--to", "again", "--json")

    assert (outcome.code, outcome.document["replayed"], outcome.document["failed"]) == (1, 5, 1)
    assert len(kept()) == 5


@pytest.mark.usefixtures("archived")
def test_a_replay_keeps_to_its_rate(postroad: Postroad) -> None:
    started = time.monotonic()

    postroad("bus", "replay", "orders", "--to", "again", "--rate", "4")

    # The fifth event waits until the first is a second old.
    assert time.monotonic() - started >= 1.0


@pytest.mark.usefixtures("archived")
def test_a_dry_run_publishes_nothing(postroad: Postroad) -> None:
    outcome = postroad("bus", "replay", "orders", "--to", "again", "--dry-run")

    assert (outcome.code, outcome.out) == (0, "would replay 5 to again\n")
    assert kept() == []


@pytest.mark.usefixtures("archived")
@pytest.mark.parametrize(
    "wrong",
    [("--since", "yesterday"), ("--since", "2026-01-01T00:00:00"), ("--rate", "0"), ("--rate", "nan")],
)
def test_wrong_options_of_a_replay_are_exit_2(wrong: tuple[str, str], postroad: Postroad) -> None:
    assert postroad("bus", "replay", "orders", "--to", "again", *wrong).code == 2
    assert kept() == []


@pytest.mark.usefixtures("archived")
def test_replaying_from_or_to_a_topic_that_is_not_there_is_exit_2(postroad: Postroad) -> None:
    assert 'did you mean "again"?' in postroad("bus", "replay", "orders", "--to", "agian").err
    assert postroad("bus", "replay", "order", "--to", "again").code == 2


def test_replaying_a_topic_without_an_archive_is_exit_2(postroad: Postroad) -> None:
    with connect(URL) as backend:
        backend.topic("orders")
        backend.topic("again")

    outcome = postroad("bus", "replay", "orders", "--to", "again")

    assert outcome.code == 2
    assert "has no archive" in outcome.err


def test_sweep_removes_the_queues_of_dead_processes_and_no_others(postroad: Postroad) -> None:
    with connect(URL) as backend:
        with backend.bus("orders", "billing"):
            pass
        dead = backend.create_queue(QueueSpec("orders--p-0123456789ab", auto_delete_after=1))
        backend.topic("orders").subscribe(dead)
        other = backend.create_queue(QueueSpec("others--p-0123456789ab", auto_delete_after=600))
        backend.topic("others").subscribe(other)
        living = backend.bus("orders")
        living.start_receiver()
        time.sleep(1.1)

        swept = postroad("bus", "sweep", "orders", "--json")
        again = postroad("bus", "sweep", "orders")

        assert swept.document == {"swept": ["orders--p-0123456789ab"]}
        assert again.out == "0 removed\n"
        assert len(own_queues()) == 1
        assert {"orders--billing", "others--p-0123456789ab"} <= set(backend.queues())


def test_sweeping_a_topic_that_is_not_there_is_exit_2(postroad: Postroad) -> None:
    assert postroad("bus", "sweep", "orders").code == 2


def test_the_verbs_are_listed(postroad: Postroad) -> None:
    commands = [item["command"] for item in postroad("commands", "--json").document["items"]]

    assert [command for command in commands if command.startswith("bus ")] == [
        *("bus publish", "bus tail", "bus run", "bus replay", "bus sweep"),
        *("bus group list", "bus group show", "bus group create", "bus group set"),
    ]


def test_the_program_publishes() -> None:
    done = program("bus", "publish", "orders", "orders.placed", "{}")

    assert done.returncode == 0
    assert json.loads(done.stdout).keys() == {"event_id"}


def own_queues() -> list[str]:
    with connect(URL) as backend:
        return [name for name in backend.queues() if name.startswith("orders--p-")]
