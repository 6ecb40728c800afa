"""Rows to dispatch, and a publisher that takes its time and remembers what it was given."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from prometheus_client import CollectorRegistry

from benchmarks import postgres
from benchmarks.frame import WrongResult
from postroad import OutgoingMessage, SendResult
from postroad.outbox import DispatcherConfig, Outbox, OutboxDispatcher
from postroad.outbox.dispatching.publisher import Publisher

KEYS = 2_000
# Ids in the order of time, as `add` makes them.
UUID7 = """
(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' ||
 substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid
"""
FILL = """
INSERT INTO outbox (id, eventtype, payload)
SELECT id, 'events.transfers.submitted.usdc', jsonb_build_object(
         'envelope', jsonb_build_object('v', 1, 'eventId', id::text, 'occurredAt', now(), 'tenantId', 'tnt_1',
                                        'type', 'events.transfers.submitted.usdc'),
         'key', jsonb_build_object('transferId', %(lane)s || n %% %(keys)s),
         'payload', jsonb_build_object('n', n, 'amount', jsonb_build_object('value', '10.00', 'currency', 'USD')))
  FROM (SELECT {uuid7} AS id, n FROM generate_series(1, %(rows)s) AS n) AS made
""".replace("{uuid7}", UUID7)
# As many rows as anybody keeps after they were sent; the trigger would only repeat what is given here.
FILL_SENT = """
INSERT INTO outbox (id, eventtype, payload, state, attempts, seq, event_id, tenant, lane)
SELECT id, 'events.transfers.settled', '{"envelope": {}, "key": {}, "payload": {}}', 'SENT', 1, -n, id::text,
       'tnt_1', 'tr_' || n %% 2000
  FROM (SELECT {uuid7} AS id, n FROM generate_series(1, %(rows)s) AS n) AS made
""".replace("{uuid7}", UUID7)


def fill(dsn: str, rows: int, *, keys: int = KEYS, lane: str = "tr_") -> None:
    """Add rows that are due, spread over so many keys."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(FILL, {"rows": rows, "keys": keys, "lane": lane})


def fill_sent(dsn: str, rows: int) -> None:
    """Add rows that were sent long ago."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE outbox DISABLE TRIGGER USER")
        connection.execute(FILL_SENT, {"rows": rows})
        connection.execute("ALTER TABLE outbox ENABLE TRIGGER USER")
        connection.execute("VACUUM (ANALYZE) outbox")


def empty(dsn: str) -> None:
    """Remove all rows and what they left behind."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE outbox")


@dataclass(slots=True)
class Taker:
    """Publishes nowhere, in `seconds` for each call."""

    seconds: float = 0.0
    enough: int = 1 << 60
    taken: list[OutgoingMessage] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    full: threading.Event = field(default_factory=threading.Event)

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        now = time.time()
        if self.seconds:
            time.sleep(self.seconds)
        with self.lock:
            self.taken.extend(messages)
            self.times.extend([now] * len(messages))
            if len(self.taken) >= self.enough:
                self.full.set()
        return [SendResult(ok=True) for _ in messages]

    def check(self, *, rows: int | None, ordered: bool) -> None:
        """Refuse a round that lost or doubled an event, or broke the order of a key."""
        ids = [message.dedup_id for message in self.taken]
        if len(set(ids)) != len(ids) or (rows is not None and len(ids) != rows):
            raise WrongResult(f"{rows} wanted, {len(ids)} published, {len(set(ids))} different")
        last: dict[Any, int] = {}
        for message in self.taken if ordered else ():
            seq = int(message.attributes["Seq"])
            if last.get(message.group, 0) >= seq:
                raise WrongResult(f"key {message.group} came out of order")
            last[message.group] = seq


@contextmanager
def an_outbox(directory: Path) -> Iterator[tuple[str, Outbox]]:
    """An outbox of one's own on the server that both sides share, with its DSN."""
    with ExitStack() as stack:
        dsn = stack.enter_context(postgres.database(stack.enter_context(postgres.shared(directory))))
        outbox = Outbox.postgres(dsn)
        stack.callback(outbox.close)
        outbox.init()
        yield dsn, outbox


def a_dispatcher(outbox: Outbox, taker: Publisher, config: DispatcherConfig | None = None) -> OutboxDispatcher:
    """A dispatcher that publishes to the taker."""
    return OutboxDispatcher(outbox, taker, config or DispatcherConfig(), metrics=CollectorRegistry())
