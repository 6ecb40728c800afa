"""`bus`: publishers, and two groups whose handlers take effect once, in the transactions of their inbox rows."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial

from postroad.errors import PostroadError
from postroad.testing.verify import subscribers, workload
from postroad.testing.verify.scenario import Client, Facts, Outcome, Role, Scenario
from postroad.testing.verify.subscribers import Happened, event_of
from postroad.wiring import Backend

_TOPIC, _GROUPS = "verify", ("billing", "shipping")
_OUTCOMES: dict[str, Outcome] = {"sent": "ok", "failed": "fail", "unknown": "unknown"}


def _publish(client: Client, backend: Backend) -> None:
    """Publish each event once: the bus itself repeats a call with an unknown outcome, under the same event id.

    Its bus receives too: what others publish is handled here, and what comes back of its own is not handled again.
    """
    runs: Counter[str] = Counter()
    own: list[str] = []
    bus = backend.bus(_TOPIC, fifo=True, config=subscribers.config(client.place))
    bus.subscribe(Happened, lambda event: runs.update([event.id]))
    bus.start_receiver()
    client.at_work()
    for message in workload.messages(client):
        own.append(message.body.id)
        client.record("publish", "unknown", topic=_TOPIC, **message.fields)
        with suppress(PostroadError):
            outcome = _OUTCOMES[bus.publish(event_of(message), key=message.body.key).remote]
            if outcome != "unknown":
                client.record("publish", outcome, topic=_TOPIC, **message.fields)
    bus.close()
    wrong = [(each, runs[each]) for each in own if runs[each] != 1]
    others = f"{len(runs) - len(own)} came from others"
    client.check("I8", not wrong, f"{len(wrong)} of {len(own)} own events did not run once {wrong[:3]}, {others}")


SCENARIO = Scenario(
    facts=Facts(subscriptions={_TOPIC: _GROUPS}, ordered=True, max_receives=None),
    roles={
        "publisher": Role(work=_publish, processes=2, sends=True),
        **{
            group: Role(work=partial(subscribers.subscribe, topic=_TOPIC, group=group), processes=2, holds=True)
            for group in _GROUPS
        },
    },
    prepare=lambda place, backend: subscribers.make_groups(place, backend, _TOPIC, _GROUPS),
    unsettled=lambda place, backend: subscribers.waiting(backend, _TOPIC, _GROUPS),
    read_back=lambda place, backend, history: subscribers.read_groups(backend, history, _TOPIC, _GROUPS),
    weight=25,
)
