"""`outbox`: transactions that record an event beside their own row, dispatchers, and a group that handles each once."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from typing import Any

from postroad.errors import Unavailable
from postroad.inbox import Inbox
from postroad.outbox import DispatcherConfig, Outbox, OutboxDispatcher
from postroad.queues import OutgoingMessage, SendResult
from postroad.testing.verify import subscribers, workload
from postroad.testing.verify.scenario import Client, Facts, History, Place, Role, Scenario
from postroad.testing.verify.workload import Message
from postroad.topics import Topic

_TOPIC, _GROUPS = "verify-outbox", ("ledger",)
_FACTS = Facts(subscriptions={_TOPIC: _GROUPS}, ordered=True, max_receives=None)
_ROLLED_BACK = _REFUSED = 0.05
_PAUSE_SECONDS = 0.05
_INSERT = "INSERT INTO business (id) VALUES (?)"
_INSERT_POSTGRES = "INSERT INTO business (id) VALUES (%s)"
_CONFIG = DispatcherConfig(poll=0.05, lease=1.0, backoff=(0.05, 0.2), retry_max=200, target_pause=0.1)


class _RolledBack(Exception):
    """A transaction that is given up on purpose."""


def _prepare(place: Place) -> None:
    workload.prepare_ledger(place)
    subscribers.make_group(place, _TOPIC, _GROUPS[0])
    with Outbox.open(place.dsn) as outbox:
        outbox.init()
    with Inbox.open(place.dsn).transaction() as connection:
        connection.execute("CREATE TABLE business (id text PRIMARY KEY)")


def _produce(client: Client) -> None:
    place, database = client.place, Inbox.open(client.place.dsn)
    with Outbox.open(place.dsn) as outbox:
        client.at_work()
        for message in workload.messages(client):
            client.record("publish", "unknown", topic=_TOPIC, **message.fields)
            try:
                _commit(client, database, outbox, message)
            except _RolledBack:
                client.record("publish", "fail", topic=_TOPIC, **message.fields)
            except Exception as error:
                if not workload.is_away(error):
                    raise
                # Nobody knows whether the transaction was committed.
                time.sleep(_PAUSE_SECONDS)
            else:
                client.record("publish", "ok", topic=_TOPIC, **message.fields)


def _commit(client: Client, database: Inbox, outbox: Outbox, message: Message) -> None:
    """Record an event beside a row of the application, in one transaction; some are rolled back."""
    insert = _INSERT_POSTGRES if client.place.store == "postgres" else _INSERT
    with database.transaction() as connection:
        connection.execute(insert, (message.body.id,))
        outbox.add(connection, subscribers.event_of(message), key=message.body.key, event_id=message.body.id)
        if client.random.random() < _ROLLED_BACK:
            raise _RolledBack


def _dispatch(client: Client) -> None:
    stop = threading.Event()
    with client.place.backend() as backend, Outbox.open(client.place.dsn) as outbox:
        target = backend.topic(f"{_TOPIC}.fifo", fifo=True)
        dispatcher = OutboxDispatcher(outbox, _Flaky(client, target), _CONFIG, service="verify")
        _announce_claims(client, dispatcher)
        client.at_work()
        threading.Thread(target=_end, args=(client, stop), daemon=True).start()
        dispatcher.run(stop)


class _Flaky:
    """A topic that refuses some messages, each time by chance."""

    def __init__(self, client: Client, topic: Topic) -> None:
        self._client, self._topic = client, topic
        self.name = topic.name

    def publish(self, messages: Sequence[OutgoingMessage]) -> Any:
        """Publish the messages up to the first one that is refused; the others fail with it."""
        refused = next((n for n in range(len(messages)) if self._client.random.random() < _REFUSED), len(messages))
        results = list(self._topic.publish(messages[:refused])) if refused else []
        error = Unavailable("refused on purpose")
        return [*results, *(SendResult(False, error=error) for _ in messages[refused:])]


def _end(client: Client, stop: threading.Event) -> None:
    while not client.stopping:
        time.sleep(_PAUSE_SECONDS)
    stop.set()


def _announce_claims(client: Client, dispatcher: OutboxDispatcher) -> None:
    """Let a dispatcher announce that it holds something, from a claim that found rows until they are settled."""
    store: Any = type(dispatcher._store)
    claim, settle = store.claim, store.settle

    def claiming(*args: Any, **given: Any) -> Any:
        claimed = claim(*args, **given)
        client.announce(holding=bool(claimed))
        return claimed

    def settling(*args: Any, **given: Any) -> Any:
        settled = settle(*args, **given)
        client.announce(holding=False)
        return settled

    store.claim, store.settle = claiming, settling


def _unsettled(place: Place) -> int:
    with Outbox.open(place.dsn) as outbox:
        status = outbox.status()
    return status.pending + status.failed + subscribers.waiting(place, _TOPIC, _GROUPS)


def _read_back(place: Place, history: History) -> None:
    workload.read_ledger(place, history)
    subscribers.read_groups(place, history, _TOPIC, _GROUPS)
    with Inbox.open(place.dsn).transaction() as connection:
        business = {str(row[0]) for row in connection.execute("SELECT id FROM business").fetchall()}
        rows = connection.execute("SELECT event_id, state FROM outbox").fetchall()
    for event_id, state in rows:
        if state == "PENDING":
            history.write("left", sub=_GROUPS[0], id=str(event_id))
    recorded = {str(row[0]) for row in rows}
    workload.check(history, "I16", business == recorded, f"{len(business ^ recorded)} rows without their other half")


SCENARIO = Scenario(
    name="outbox",
    facts=_FACTS,
    roles={
        "producer": Role(work=_produce, processes=2, sends=True),
        "dispatcher": Role(work=_dispatch, processes=2, holds=True),
        "consumer": Role(
            work=functools.partial(subscribers.subscribe, topic=_TOPIC, group=_GROUPS[0]), processes=2, holds=True
        ),
    },
    prepare=_prepare,
    unsettled=_unsettled,
    read_back=_read_back,
    weight=20,
    stores=("sqlite", "postgres", "aws"),
)
