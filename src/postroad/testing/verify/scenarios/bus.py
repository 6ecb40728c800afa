"""`bus`: publishers, and two groups whose handlers take effect once, in the transactions of their inbox rows."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial

from postroad.errors import PostroadError
from postroad.testing.verify import subscribers, workload
from postroad.testing.verify.scenario import Client, Facts, Outcome, Place, Role, Scenario
from postroad.testing.verify.subscribers import Happened, event_of
from postroad.wiring import Backend

_TOPIC, _GROUPS = "verify", ("billing", "shipping")
_FACTS = Facts(subscriptions={_TOPIC: _GROUPS}, ordered=True, max_receives=None)
_OUTCOMES: dict[str, Outcome] = {"sent": "ok", "failed": "fail", "unknown": "unknown"}


def _prepare(place: Place, backend: Backend) -> None:
    for group in _GROUPS:
        subscribers.make_group(place, backend, _TOPIC, group)


def _publish(client: Client, backend: Backend) -> None:
    """Publish each event once: the bus itself repeats a call with an unknown outcome, under the same event id."""
    own: Counter[str] = Counter()
    bus = backend.bus(_TOPIC, fifo=True)
    bus.subscribe(Happened, lambda event: own.update([event.id]))
    client.at_work()
    for message in workload.messages(client):
        client.record("publish", "unknown", topic=_TOPIC, **message.fields)
        with suppress(PostroadError):
            outcome = _OUTCOMES[bus.publish(event_of(message), key=message.body.key).remote]
            if outcome != "unknown":
                client.record("publish", outcome, topic=_TOPIC, **message.fields)
        runs = own.pop(message.body.id, 0)
        if runs != 1:
            client.record("check", invariant="I8", ok=False, detail=f"{message.body.id} was handled {runs} times")


SCENARIO = Scenario(
    name="bus",
    facts=_FACTS,
    roles={
        "publisher": Role(work=_publish, processes=2, sends=True),
        **{
            group: Role(work=partial(subscribers.subscribe, topic=_TOPIC, group=group), processes=2, holds=True)
            for group in _GROUPS
        },
    },
    prepare=_prepare,
    unsettled=lambda place, backend: subscribers.waiting(backend, _TOPIC, _GROUPS),
    read_back=lambda place, backend, history: subscribers.read_groups(backend, history, _TOPIC, _GROUPS),
    weight=25,
    stores=("sqlite", "aws"),
)
