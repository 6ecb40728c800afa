"""`bus`: publishers, and two groups whose handlers take effect once, in the transactions of their inbox rows."""

from __future__ import annotations

from collections import Counter
from functools import partial

from postroad.bus import Bus
from postroad.testing.verify import subscribers, workload
from postroad.testing.verify.history import History, Outcome
from postroad.testing.verify.scenario import Client, Facts, Place, Role, Scenario
from postroad.testing.verify.subscribers import Happened, event_of
from postroad.testing.verify.workload import Message

_TOPIC, _GROUPS = "verify", ("billing", "shipping")
_FACTS = Facts(subscriptions={_TOPIC: _GROUPS}, ordered=True, max_receives=None)
_OUTCOMES: dict[str, Outcome] = {"sent": "ok", "failed": "fail", "unknown": "unknown"}


def _prepare(place: Place) -> None:
    workload.prepare_ledger(place)
    for group in _GROUPS:
        subscribers.make_group(place, _TOPIC, group)


def _publish(client: Client) -> None:
    """Publish each event once: the bus itself repeats a call with an unknown outcome, under the same event id."""
    own: Counter[str] = Counter()
    with client.place.backend() as backend:
        bus = backend.bus(_TOPIC, fifo=True)
        bus.subscribe(Happened, lambda event: own.update([event.id]))
        client.at_work()
        for message in workload.messages(client):
            workload.publish_once(client, _TOPIC, message, partial(_sent, bus, message))
            runs = own.pop(message.body.id, 0)
            if runs != 1:
                client.record("check", invariant="I8", ok=False, detail=f"{message.body.id} was handled {runs} times")


def _sent(bus: Bus, message: Message) -> Outcome:
    return _OUTCOMES[bus.publish(event_of(message), key=message.body.key).remote]


def _read_back(place: Place, history: History) -> None:
    workload.read_ledger(place, history)
    subscribers.read_groups(place, history, _TOPIC, _GROUPS)


SCENARIO = Scenario(
    name="bus",
    facts=_FACTS,
    roles={
        "publisher": Role(work=_publish, processes=2, sends=True),
        **{
            group: Role(
                work=lambda client, group=group: subscribers.subscribe(client, _TOPIC, group),  # type: ignore[misc]
                processes=2,
                holds=True,
            )
            for group in _GROUPS
        },
    },
    prepare=_prepare,
    unsettled=lambda place: subscribers.waiting(place, _TOPIC, _GROUPS),
    read_back=_read_back,
    weight=25,
    stores=("sqlite", "aws"),
)
