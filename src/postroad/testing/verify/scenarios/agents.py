"""`agents`: events of twelve producers fan out to two listeners, each in the order of its producer."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from postroad.agents import AGGREGATOR, DEAD_QUEUE, EVENTS_STREAM, AgentEvent, Agents
from postroad.testing.verify import workload
from postroad.testing.verify.scenario import Client, Facts, History, Place, Role, Scenario
from postroad.testing.verify.workload import Message
from postroad.wiring import Backend

_STREAM, _LISTENERS = EVENTS_STREAM, ("dan", "eve")
_PRODUCERS = tuple(f"k{number}" for number in range(workload.KEYS))
_read = workload.reader("data")


def _agents(place: Place, backend: Backend) -> Agents:
    return backend.agents(max_receives=workload.MAX_RECEIVES, visibility=place.visibility)


def _prepare(place: Place, backend: Backend) -> None:
    if place.store == "aws":
        # The table in which runners on AWS lease their shards.
        backend.journal().init()
    agents = _agents(place, backend)
    agents.provision()
    for agent_id in (*_PRODUCERS, *_LISTENERS):
        agents.register(agent_id)
    agents.subscribe_many([(listener, producer) for listener in _LISTENERS for producer in _PRODUCERS])


def _publish(client: Client, backend: Backend) -> None:
    agents = _agents(client.place, backend)

    def publish(message: Message) -> bool:
        data = msgspec.to_builtins(message.body)
        event = AgentEvent(message.body.key, "happened", data, event_id=message.body.id)
        return agents.publish([event])[0].ok

    workload.publish_all(client, _STREAM, publish)


def _fan_out(client: Client, backend: Backend) -> None:
    runner = _agents(client.place, backend).runner(worker=client.name)
    client.at_work()
    runner.run(client.stop_event())


def _listen(client: Client, backend: Backend) -> None:
    listener = _LISTENERS[client.config.index % len(_LISTENERS)]
    workload.consume(client, _agents(client.place, backend).queue(listener), listener, read=_read)


def _unsettled(place: Place, backend: Backend) -> int:
    """Count what is on the stream before what it became, so that nothing passes between two looks."""
    agents, stream = _agents(place, backend), backend.stream(_STREAM)
    unread = workload.unread(stream, AGGREGATOR)
    stats = [agents.stats(listener) for listener in _LISTENERS]
    waiting = unread + sum(each.visible + each.in_flight + each.delayed + (each.held or 0) for each in stats)
    if waiting or place.store != "aws":
        return waiting
    # Rows that are not in a queue yet are not counted on AWS: they are what is neither handled nor dead.
    events = {_read(record.data).id for shard in stream.shards() for record in workload.whole(stream, shard)}
    handled = sum(len(workload.effects_of(place, listener)) for listener in _LISTENERS)
    return max(0, len(events) * len(_LISTENERS) - handled - workload.held(backend.queue(DEAD_QUEUE)))


def _read_back(place: Place, backend: Backend, history: History) -> None:
    agents = _agents(place, backend)
    for listener, body in _dead(place, backend, agents):
        history.write("dead", sub=listener, id=_read(body).id)
    for listener in _LISTENERS:
        workload.read_rest(history, "left", listener, agents.queue(listener), _read)


def _dead(place: Place, backend: Backend, agents: Agents) -> Iterator[tuple[str, bytes]]:
    """Yield listener and body of each dead letter; on AWS all agents share one queue for them."""
    if place.store == "aws":
        letters = workload.resting(backend.queue(DEAD_QUEUE))
        yield from ((msgspec.json.decode(each.body)["subscriberId"], each.body) for each in letters)
        return
    for listener in _LISTENERS:
        after = None
        while page := agents.dead_letters(listener, limit=100, after=after):
            yield from ((listener, message.body) for message in page)
            after = page[-1].sequence


SCENARIO = Scenario(
    facts=Facts(subscriptions={_STREAM: _LISTENERS}, ordered=True),
    roles={
        "publisher": Role(work=_publish, processes=2, sends=True),
        "runner": Role(work=_fan_out, processes=2),
        "listener": Role(work=_listen, processes=4, holds=True),
    },
    prepare=_prepare,
    unsettled=_unsettled,
    read_back=_read_back,
    weight=15,
    # On AWS what could not be sent waits for the next sweep, a minute later.
    stuck_seconds=150.0,
)
