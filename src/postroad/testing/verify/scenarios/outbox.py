"""`outbox`: transactions that record an event beside their own row, dispatchers, and a group that handles each once."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from postroad.errors import PostroadError
from postroad.inbox import Inbox
from postroad.outbox import DispatcherConfig, Outbox, OutboxDispatcher
from postroad.queues import OutgoingMessage, SendResult
from postroad.testing.mutants.mutant import wrap
from postroad.testing.verify import workload
from postroad.testing.verify.scenario import Client, Facts, History, Place, Role, Scenario
from postroad.testing.verify.scenarios import bus
from postroad.topics import Topic
from postroad.wiring import Backend

_TOPIC, _GROUPS = "verify-outbox", ("ledger",)
_ROLLED_BACK = _REFUSED = 0.05
_PAUSE_SECONDS = 0.05
LIMIT = 3
"""The attempts of a row that is refused each time."""
_INSERT = "INSERT INTO business (id) VALUES (?)"
_INSERT_POSTGRES = "INSERT INTO business (id) VALUES (%s)"
_CONFIG = DispatcherConfig(poll=0.05, lease=1.0, backoff=(0.05, 0.2), retry_max=200, target_pause=0.1)
_CALM_LEASE_SECONDS = 60.0


class _RolledBack(Exception):
    """A transaction that is given up on purpose."""


def _prepare(place: Place, backend: Backend) -> None:
    bus.make_groups(place, backend, _TOPIC, _GROUPS)
    _calls_of(place).mkdir(mode=0o700)
    with Outbox.open(place.dsn) as outbox:
        outbox.init()
    with Inbox.open(place.dsn).transaction() as connection:
        connection.execute("CREATE TABLE business (id text PRIMARY KEY)")


def _produce(client: Client, backend: Backend) -> None:
    place, database = client.place, Inbox.open(client.place.dsn)
    insert = _INSERT_POSTGRES if place.store == "postgres" else _INSERT
    with Outbox.open(place.dsn) as outbox:
        client.at_work()
        for message in workload.messages(client):
            client.record("publish", "unknown", topic=_TOPIC, **message.fields)
            try:
                # An event is recorded beside a row of the application, in one transaction; some are rolled back.
                with database.transaction() as connection:
                    connection.execute(insert, (message.body.id,))
                    outbox.add(connection, bus.event_of(message), key=message.body.key, event_id=message.body.id)
                    if client.random.random() < _ROLLED_BACK:
                        raise _RolledBack
            except _RolledBack:
                client.record("publish", "fail", topic=_TOPIC, **message.fields)
            except Exception as error:
                if not workload.is_away(error):
                    raise
                # Nobody knows whether the transaction was committed.
                time.sleep(_PAUSE_SECONDS)
            else:
                client.record("publish", "ok", topic=_TOPIC, **message.fields)


def _dispatch(client: Client, backend: Backend) -> None:
    with Outbox.open(client.place.dsn) as outbox:
        target = backend.topic(f"{_TOPIC}.fifo", fifo=True)
        config = _CONFIG if client.place.faults else replace(_CONFIG, lease=_CALM_LEASE_SECONDS)
        dispatcher = OutboxDispatcher(outbox, _Target(client, target), config, service="verify")
        _announce_claims(client)
        client.at_work()
        dispatcher.run(client.stop_event())


class _Target:
    """The topic as dispatchers see it: it refuses some messages by chance, and a file has every call that it gets."""

    def __init__(self, client: Client, topic: Topic) -> None:
        self._client, self._topic = client, topic
        self.name = topic.name
        self._calls = os.open(_calls_of(client.place) / client.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def publish(self, messages: Sequence[OutgoingMessage]) -> Any:
        """Publish the messages up to the first one that is refused; the others fail with it."""
        # With the kernel before the call, as the lines of a history are.
        os.write(self._calls, "".join(f"{message.dedup_id}\n" for message in messages).encode())
        refused = next((n for n in range(len(messages)) if self._client.random.random() < _REFUSED), len(messages))
        results = list(self._topic.publish(messages[:refused])) if refused else []
        return [*results, *(SendResult(False, error=_refusal()) for _ in messages[refused:])]


def _refusal() -> PostroadError:
    return PostroadError("refused on purpose")


def _calls_of(place: Place) -> Path:
    return Path(place.directory) / "calls"


def _announce_claims(client: Client) -> None:
    """Let a dispatcher announce that it holds something, from a claim that found rows until they are settled."""

    def claim(original: Callable[..., Any], *args: Any, **given: Any) -> Any:
        claimed = original(*args, **given)
        client.announce(holding=bool(claimed))
        return claimed

    def settle(original: Callable[..., Any], *args: Any, **given: Any) -> Any:
        settled = original(*args, **given)
        client.announce(holding=False)
        return settled

    store = "postgres:PostgresDispatchStore" if client.place.store == "postgres" else "sqlite:SQLiteDispatchStore"
    wrap(f"postroad.outbox.dispatching.{store}.claim", claim)
    wrap(f"postroad.outbox.dispatching.{store}.settle", settle)


def _unsettled(place: Place, backend: Backend) -> int:
    with Outbox.open(place.dsn) as outbox:
        status = outbox.status()
    return status.pending + status.failed + bus.waiting(backend, _TOPIC, _GROUPS)


def _read_back(place: Place, backend: Backend, history: History) -> None:
    bus.read_groups(backend, history, _TOPIC, _GROUPS)
    with Inbox.open(place.dsn).transaction() as connection:
        business = {str(row[0]) for row in connection.execute("SELECT id FROM business").fetchall()}
        rows = connection.execute("SELECT event_id, state, attempts FROM outbox").fetchall()
    for event_id, state, _ in rows:
        if state == "PENDING":
            history.write("left", sub=_GROUPS[0], id=str(event_id))
    recorded = {str(row[0]) for row in rows}
    history.check("I16", business == recorded, f"{len(business ^ recorded)} rows without their other half")
    audit_attempts(place, history, {str(event_id): attempts for event_id, state, attempts in rows if state == "SENT"})
    audit_limit(place, history)


def audit_attempts(place: Place, history: History, attempts: Mapping[str, int]) -> None:
    """Compare the attempts of each row that was sent with the calls that the target got (I18).

    A dispatcher that is killed or loses its lease behind a call does not count it, so faults leave only bounds.
    """
    calls: Counter[str] = Counter()
    for path in _calls_of(place).iterdir():
        calls.update(path.read_text().split())
    least = {each: 1 if place.faults else calls[each] for each in attempts}
    wrong = [each for each, number in attempts.items() if not least[each] <= number <= calls[each]]
    shown = [f"{each}: {attempts[each]} attempts, {calls[each]} calls" for each in wrong[:3]]
    history.check("I18", not wrong, f"attempts differ from calls in {len(wrong)} rows {shown}")


def audit_limit(place: Place, history: History) -> None:
    """Publish one more row to a target that refuses it: it must be FAILED after as many calls as allowed (I18)."""
    calls: list[str | None] = []

    def refuse(messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        calls.extend(message.dedup_id for message in messages)
        return [SendResult(False, error=_refusal()) for _ in messages]

    config = DispatcherConfig(retry_max=LIMIT, backoff=(0,), jitter=0)
    with Outbox.open(place.dsn) as outbox:
        with Inbox.open(place.dsn).transaction() as connection:
            event_id = outbox.add(connection, bus.Happened("limit", "limit", 0, 0, ""), key="limit")
        target: Any = SimpleNamespace(publish=refuse)
        dispatcher = OutboxDispatcher(outbox, target, config)
        log = logging.getLogger("postroad.outbox")
        level = log.level
        # It is refused on purpose, so nobody needs to read of it.
        log.setLevel(logging.ERROR)
        for _ in range(2 * LIMIT):
            dispatcher.run_once()
        log.setLevel(level)
        row = outbox.get(event_id)
    tried = calls.count(str(event_id))
    ok = row is not None and (row.state, row.attempts, tried) == ("FAILED", LIMIT, LIMIT)
    history.check("I18", ok, f"{row} after {tried} calls, where {LIMIT} are allowed")


SCENARIO = Scenario(
    facts=Facts(subscriptions={_TOPIC: _GROUPS}, ordered=True, max_receives=None),
    roles={
        "producer": Role(work=_produce, processes=2, sends=True),
        "dispatcher": Role(work=_dispatch, processes=2, holds=True),
        "consumer": Role(
            work=functools.partial(bus.subscribe, topic=_TOPIC, group=_GROUPS[0]), processes=2, holds=True
        ),
    },
    prepare=_prepare,
    unsettled=_unsettled,
    read_back=_read_back,
    weight=20,
    stores=("sqlite", "postgres", "aws"),
)
