"""Bytes that changed on the disk: a message of them is set aside, and no port ever raises an error of its driver."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.agents.conftest import n_of

import postroad
from postroad import Backend, OutgoingMessage, QueueSpec
from postroad.agents import AgentEvent
from postroad.errors import PostroadError, StorageDamaged
from postroad.journal import JournalEvent
from postroad.streams import TRIM_HORIZON, Record

_BAD = 0x9E
"""A byte that no UTF-8 text begins with."""


@contextmanager
def _opened(path: Path) -> Iterator[Backend]:
    with postroad.connect(f"sqlite:///{path}") as backend:
        yield backend


def _spoil(path: Path, text: bytes) -> None:
    """Change the first byte of the text wherever the file has it."""
    data = bytearray(path.read_bytes())
    assert text in data
    while (at := data.find(text)) >= 0:
        data[at] = _BAD
    path.write_bytes(data)


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "FIFO"])
@pytest.mark.parametrize("text", [b"zebra", b"zgroup"], ids=["attributes", "group"])
def test_a_message_with_a_bad_byte_goes_to_the_dead_letters_and_the_others_arrive(
    tmp_path: Path, fifo: bool, text: bytes
) -> None:
    path, suffix = tmp_path / "p.db", ".fifo" * fifo
    with _opened(path) as backend:
        backend.create_queue(QueueSpec(f"dead{suffix}", fifo=fifo))
        queue = backend.create_queue(QueueSpec(f"jobs{suffix}", fifo=fifo, dead_letter=f"dead{suffix}"))
        queue.send(
            [
                OutgoingMessage(
                    str(n),
                    {"kind": "zebra" if n == 3 else "horse"},
                    group="zgroup" if n == 3 else f"group{n}" if fifo else None,
                    dedup_id=str(n) if fifo else None,
                )
                for n in range(10)
            ]
        )
    _spoil(path, text)

    with _opened(path) as backend:
        queue, dead = backend.queue(f"jobs{suffix}"), backend.queue(f"dead{suffix}")
        peeked = queue.peek()
        received = queue.receive()
        (shown,) = dead.peek()

    assert sorted(int(message.body) for message in received) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert "Damaged" in shown.attributes
    assert ["Damaged" in message.attributes for message in peeked].count(True) == 1


def test_a_group_that_became_another_text_is_noticed_too(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    with _opened(path) as backend:
        backend.create_queue(QueueSpec("jobs")).send([OutgoingMessage("1", group="zgroup"), OutgoingMessage("2")])
    path.write_bytes(path.read_bytes().replace(b"zgroup", b"agroup"))

    with _opened(path) as backend:
        received = backend.queue("jobs").receive()

    assert [message.body for message in received] == [b"2"]


@pytest.mark.parametrize("part", [b"jobs", b"visibility", b"77", b"fifo", b"crc32"])
def test_damaged_settings_name_their_queue_and_can_be_given_again(tmp_path: Path, part: bytes) -> None:
    path = tmp_path / "p.db"
    with _opened(path) as backend:
        backend.create_queue(QueueSpec("jobs", visibility=77)).send([OutgoingMessage("1")])
        backend.create_queue(QueueSpec("others")).send([OutgoingMessage("2")])
    data = path.read_bytes()
    at = data.index(part, data.index(b'"jobs"'))
    path.write_bytes(data[:at] + bytes([_BAD]) + data[at + 1 :])

    with _opened(path) as backend:
        for use in (backend.queue, backend.queue_spec, lambda name: backend.create_queue(QueueSpec(name))):
            with pytest.raises(StorageDamaged, match="queue 'jobs'"):
                use("jobs")
        assert [message.body for message in backend.queue("others").receive()] == [b"2"]
        backend.update_queue(QueueSpec("jobs", visibility=77))
        assert [message.body for message in backend.queue("jobs").receive()] == [b"1"]


def test_a_damaged_event_goes_to_the_dead_letters_of_its_lane_and_the_others_arrive(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    with _opened(path) as backend:
        agents = backend.agents()
        for agent in ("ann", "bob"):
            agents.register(agent)
        agents.subscribe_many([("bob", "ann")])
        agents.publish([AgentEvent("ann", "zebra" if n == 1 else "horse", {"n": n}) for n in range(3)])
        agents.runner(worker="w").run_once()
    _spoil(path, b"zebra")

    with _opened(path) as backend:
        agents = backend.agents()
        received = agents.queue("bob").receive()
        (dead,) = agents.dead_letters("bob")

    assert [n_of(message) for message in received] == [0, 2]
    assert "Damaged" in dead.attributes


def test_a_damaged_key_or_filter_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    with _opened(path) as backend:
        queue = backend.create_queue(QueueSpec("jobs"))
        backend.topic("news").subscribe(queue, filter={"zfilter": ["a"]})
        backend.items().put("t/zitem", b"v")
        backend.stream("s", shards=1).put([Record("zkey", b"v")])
    for text in (b"zfilter", b"zitem", b"zkey"):
        _spoil(path, text)

    with _opened(path) as backend:
        with pytest.raises(StorageDamaged, match=r"topic 'news'.*'jobs'"):
            backend.topic("news").subscriptions()
        with pytest.raises(StorageDamaged, match=r"topic 'news'.*'jobs'"):
            backend.topic("news").publish([OutgoingMessage("1")])
        with pytest.raises(StorageDamaged, match="item 't/"):
            backend.items().scan("t/")
        stream = backend.stream("s", shards=1)
        with pytest.raises(StorageDamaged, match="record"):
            stream.read(stream.shards()[0], after=TRIM_HORIZON)


def _uses(backend: Backend) -> list[Callable[[], object]]:
    agents = backend.agents()
    return [
        backend.queues,
        backend.topics,
        lambda: backend.queue("jobs").peek(),
        lambda: backend.queue("jobs").receive(visibility=0),
        lambda: backend.queue("jobs").stats(),
        lambda: backend.queue("jobs").reject(backend.queue("jobs").receive(), reason="no"),
        lambda: backend.queue("dead").peek(),
        lambda: backend.topic("news").subscriptions(),
        lambda: backend.topic("news").publish([OutgoingMessage("9", {"kind": "a"})]),
        lambda: backend.items().scan("t/"),
        lambda: _read_stream(backend),
        lambda: backend.stream("s", shards=1).lease("c", "w"),
        lambda: backend.journal().query("PK", tenant="t"),
        lambda: agents.queue("bob").peek(),
        lambda: agents.queue("bob").receive(visibility=0),
        lambda: agents.dead_letters("bob"),
        lambda: agents.get("bob"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whatever_byte_changes_no_error_of_python_or_the_driver_leaves_a_port(tmp_path: Path, seed: int) -> None:
    path, dice = tmp_path / "p.db", random.Random(seed)
    with _opened(path) as backend:
        _fill(backend)
    whole = path.read_bytes()
    interesting = [at for at, byte in enumerate(whole) if byte]

    for at in dice.sample(interesting, 60):
        spoilt = bytearray(whole)
        spoilt[at] = dice.choice((_BAD, spoilt[at] ^ 1 << dice.randrange(8)))
        path.write_bytes(spoilt)
        for beside in tmp_path.glob("p.db-*"):
            beside.unlink()
        try:
            with _opened(path) as backend:
                for use in _uses(backend):
                    try:
                        use()
                    except PostroadError:
                        continue
        except PostroadError:
            continue


def _read_stream(backend: Backend) -> object:
    stream = backend.stream("s", shards=1)
    return stream.read(stream.shards()[0], after=TRIM_HORIZON)


def _fill(backend: Backend) -> None:
    backend.create_queue(QueueSpec("dead"))
    queue = backend.create_queue(QueueSpec("jobs", dead_letter="dead"))
    queue.send([OutgoingMessage(f"body {n}", {"kind": "a"}, group="g" if n % 2 else None) for n in range(20)])
    queue.release(queue.receive(max_messages=5), error="it failed")
    queue.reject(queue.receive(max_messages=2), reason="no", error="it failed again")
    backend.topic("news").subscribe(queue, filter={"kind": ["a"]})
    for n in range(10):
        backend.items().put(f"t/item-{n}", b"value")
    backend.stream("s", shards=1).put([Record(f"key-{n}", b"data") for n in range(10)])
    backend.stream("s", shards=1).lease("c", "worker")
    agents = backend.agents()
    for agent in ("ann", "bob"):
        agents.register(agent)
    agents.subscribe_many([("bob", "ann")])
    agents.publish([AgentEvent("ann", "counted", {"n": n}) for n in range(10)])
    agents.runner(worker="w").run_once()
    lane = agents.queue("bob")
    first, second = lane.receive(max_messages=2)
    lane.reject([first], reason="no", error="it failed")
    lane.release([second], error="it failed")
    backend.journal().append(
        [
            JournalEvent.create(
                "Order Placed", tenant_id="t", entity_type="ORDER", entity_id=f"e{n}", properties={"number": n}
            )
            for n in range(10)
        ]
    )
