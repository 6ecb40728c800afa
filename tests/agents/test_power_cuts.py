"""An event that was promised reaches every subscriber after a power cut at any moment, in its producer's order.

Fan-out does not wait for the disk: a cut may undo it, together with the position on the stream, which has the event.
"""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path

import pytest

from postroad.agents import AgentEvent, Agents
from postroad.engine import disk
from postroad.testing.powerloss import Image, Promise, Recording, images, recorded
from postroad.wiring import connect

IMAGES = int(os.environ.get("POSTROAD_TEST_POWER_CUTS", "30"))
_PRODUCERS = ("ann", "bob")
_LISTENERS = ("cat", "dan", "eve")
_EVENTS = 15


def _publish(agents: Agents, record: Recording, producer: str) -> None:
    for number in range(_EVENTS):
        [result] = agents.publish([AgentEvent(producer, "counted", {"n": number})])
        assert result.ok, result
        record.add(Promise(f"{producer} {number}"))


def _consume(agents: Agents, record: Recording, stop: threading.Event) -> None:
    """Let one of the listeners receive and ack; what it has taken need not be there after the cut."""
    queue = agents.queue("cat")
    while not stop.is_set():
        taken = queue.receive(max_messages=3, wait=0.05)
        for delivery in taken:
            body = json.loads(delivery.body)
            record.add(Promise(f"taken cat {body['agentId']} {body['data']['n']}"))
        queue.ack(taken)


@pytest.fixture(params=[0.0, 0.02], ids=["at-once", "held-back"])
def record(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Two agents publish, a runner moves, a listener receives and acks, and the log is copied into the file."""
    monkeypatch.setattr(disk, "CHECKPOINT_PAGES", 60)
    with (
        recorded(tmp_path) as record,
        connect(f"sqlite:///{tmp_path}/p.db") as backend,
    ):
        agents = backend.agents(dispatch_delay=request.param)
        for agent_id in (*_PRODUCERS, *_LISTENERS):
            agents.register(agent_id)
        agents.subscribe_many([(listener, producer) for listener in _LISTENERS for producer in _PRODUCERS])
        stop = threading.Event()
        busy = [
            threading.Thread(target=agents.runner(worker="test").run, args=(stop,)),
            threading.Thread(target=_consume, args=(agents, record, stop)),
        ]
        publishing = [threading.Thread(target=_publish, args=(agents, record, producer)) for producer in _PRODUCERS]
        for thread in (*busy, *publishing):
            thread.start()
        for thread in publishing:
            thread.join()
        stop.set()
        for thread in busy:
            thread.join()
    return record


def _waiting(directory: Path, image: Image) -> dict[tuple[str, str], list[int]]:
    """Return what waits for each agent of each producer after a new runner has moved everything."""
    found: dict[tuple[str, str], list[int]] = {}
    with connect(f"sqlite:///{image.write(directory)}/p.db") as backend:
        agents = backend.agents()
        runner = agents.runner(worker="test")
        while runner.run_once().read:
            pass
        for listener in _LISTENERS:
            for message in agents.queue(listener).peek(limit=1_000):
                body = json.loads(message.body)
                found.setdefault((listener, body["agentId"]), []).append(body["data"]["n"])
    return found


@pytest.mark.slow
def test_no_subscriber_misses_a_promised_event_after_a_power_cut(record: Recording, tmp_path: Path) -> None:
    first = next(place for place, step in enumerate(record.steps) if isinstance(step, Promise))

    for cut in images(record.steps, IMAGES, random.Random(11), first=first):
        found = _waiting(tmp_path / "after", cut)

        for listener in _LISTENERS:
            for producer in _PRODUCERS:
                waiting = found.get((listener, producer), [])
                missing = {
                    number
                    for number in range(_EVENTS)
                    if f"{producer} {number}" in cut.promised
                    and f"taken {listener} {producer} {number}" not in cut.promised
                } - set(waiting)
                assert not missing, (cut.end, listener, producer)
                assert waiting == sorted(set(waiting)), (cut.end, listener, producer)
