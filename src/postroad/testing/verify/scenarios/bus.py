"""`bus`: publishers, and two groups whose handlers take effect once, in the transactions of their inbox rows.

The scenario `outbox` has such a group too.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from prometheus_client import generate_latest

import postroad
from postroad.bus import BusConfig
from postroad.errors import PostroadError
from postroad.inbox import Inbox
from postroad.testing.verify import workload
from postroad.testing.verify.scenario import Client, Facts, History, Outcome, Place, Role, Scenario
from postroad.testing.verify.workload import HandlerFailed, Message
from postroad.wiring import Backend

_TOPIC, _GROUPS = "verify", ("billing", "shipping")
_OUTCOMES: dict[str, Outcome] = {"sent": "ok", "failed": "fail", "unknown": "unknown"}
_HANDLER_SECONDS = 0.002


@postroad.event(name="verify.happened")
class Happened:
    """The event of all scenarios; its fields are those of a message."""

    id: str
    key: str
    n: int
    fails: int
    padding: str


def event_of(message: Message) -> Happened:
    return Happened(**msgspec.structs.asdict(message.body))


def _queue_of(topic: str, group: str) -> str:
    return f"{topic}--{group}.fifo"


def config(place: Place) -> BusConfig:
    """Return the settings of a subscriber: short waits, and the visibility and receives of the scenario."""
    return BusConfig(
        wait_time_seconds=0.2,
        poll_interval_seconds=0.01,
        visibility_timeout_seconds=place.visibility,
        max_receives=workload.MAX_RECEIVES,
        retry_delays_seconds=(0.05,),
    )


def subscribe(client: Client, backend: Backend, topic: str, group: str) -> None:
    """Handle the events of a topic as one member of a group until the run ends."""
    inbox = Inbox.open(client.place.dsn)
    watch = workload.QueueWatch(client, _queue_of(topic, group), group, workload.reader("payload"))
    transaction = functools.partial(_transaction, client, inbox, group, watch.receipts)
    bus = backend.bus(topic, group, fifo=True, inbox=inbox, transaction=transaction, config=config(client.place))

    @bus.on(Happened, name=group)
    def handle(event: Happened, connection: Any) -> None:
        context = postroad.current_context()
        assert context is not None
        time.sleep(client.random.expovariate(1 / _HANDLER_SECONDS))
        if context.receive_count <= event.fails:
            raise HandlerFailed
        workload.take_effect(connection, group, event.id)

    queue = backend.queue(_queue_of(topic, group))
    watch.begin(getattr(queue, "inner", queue))
    bus.start_receiver()
    client.at_work()
    client.stop_event().wait()
    bus.close()


@contextmanager
def _transaction(client: Client, inbox: Inbox, group: str, receipts: Mapping[tuple[str, int], str]) -> Iterator[Any]:
    """Open the transaction of a handler; once it is committed, the event is handled, now or at an earlier delivery."""
    context, began = postroad.current_context(), time.monotonic()
    with inbox.transaction() as connection:
        yield connection
    if context is not None and isinstance(event := context.event, Happened):
        receipt = receipts[event.id, context.receive_count]
        client.record("handled", sub=group, id=event.id, key=event.key, n=event.n, t0=began, receipt=receipt)


def make_groups(place: Place, backend: Backend, topic: str, groups: tuple[str, ...]) -> None:
    """Create the queues of groups before any process starts, so that nothing is published without them."""
    for group in groups:
        backend.bus(topic, group, fifo=True, inbox=Inbox.open(place.dsn), config=config(place)).close()


def waiting(backend: Backend, topic: str, groups: tuple[str, ...]) -> int:
    return sum(workload.held(backend.queue(_queue_of(topic, group))) for group in groups)


def read_groups(backend: Backend, history: History, topic: str, groups: tuple[str, ...]) -> None:
    """Write down the dead letters of the groups, and what was left in their queues."""
    for group in groups:
        for op, name in (("dead", _queue_of(topic, f"{group}--dead")), ("left", _queue_of(topic, group))):
            workload.read_rest(history, op, group, backend.queue(name), workload.reader("payload"))


def _publish(client: Client, backend: Backend) -> None:
    """Publish each event once: the bus itself repeats a call with an unknown outcome, under the same event id.

    Its bus receives too: what others publish is handled here, and what comes back of its own is not handled again.
    """
    runs: Counter[str] = Counter()
    own: list[str] = []
    sent = 0
    bus = backend.bus(_TOPIC, fifo=True, config=config(client.place))
    bus.subscribe(Happened, lambda event: runs.update([event.id]))
    bus.start_receiver()
    client.at_work()
    for message in workload.messages(client):
        own.append(message.body.id)
        client.record("publish", "unknown", topic=_TOPIC, **message.fields)
        with suppress(PostroadError):
            outcome = _OUTCOMES[bus.publish(event_of(message), key=message.body.key).remote]
            sent += outcome == "ok"
            if outcome != "unknown":
                client.record("publish", outcome, topic=_TOPIC, **message.fields)
    bus.close()
    wrong = [(each, runs[each]) for each in own if runs[each] != 1]
    others = f"{len(runs) - len(own)} came from others"
    begin = f'postroad_bus_events_total{{bus="{_TOPIC}.fifo",outcome="published"}} '
    lines = generate_latest().decode().splitlines()
    told = sum(float(line.removeprefix(begin)) for line in lines if line.startswith(begin))
    client.check("I28", told == sent, f"{begin}is {told:g} in the metrics, {sent} in the history")
    client.check("I8", not wrong, f"{len(wrong)} of {len(own)} own events did not run once {wrong[:3]}, {others}")


SCENARIO = Scenario(
    facts=Facts(subscriptions={_TOPIC: _GROUPS}, ordered=True, max_receives=None),
    roles={
        "publisher": Role(work=_publish, processes=2, sends=True),
        **{
            group: Role(work=functools.partial(subscribe, topic=_TOPIC, group=group), processes=2, holds=True)
            for group in _GROUPS
        },
    },
    prepare=lambda place, backend: make_groups(place, backend, _TOPIC, _GROUPS),
    unsettled=lambda place, backend: waiting(backend, _TOPIC, _GROUPS),
    read_back=lambda place, backend, history: read_groups(backend, history, _TOPIC, _GROUPS),
    weight=25,
)
