"""An agent's queue in the embedded file: the queue that receivers see, and the statements that read it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import apsw
import msgspec

from postroad import failpoints, queues
from postroad.agents.model import LaneStats
from postroad.agents.sqlite.leases import Leases
from postroad.agents.sqlite.message_groups import is_total
from postroad.agents.sqlite.tables import Reader, channel
from postroad.agents.tables import nobody_sends, queue_name
from postroad.arguments import check, seconds_between, whole_number
from postroad.clock import SystemClock
from postroad.engine import Engine, Transaction, every, one, text_of
from postroad.errors import InvalidInput, QueueNotFound
from postroad.queues import AckResult, Delivery, OutgoingMessage, PeekedMessage, QueueStats, QueueTraits, SendResult

T = TypeVar("T")

EVERY_QUEUE: Final = "a*"
"""The channel on which a change of very many queues is announced."""
_LONGEST_PEEK: Final = 1_000
_LOOK_AGAIN: Final = 0.05
_LONGEST_PAUSE: Final = 3_600.0
_HEAD: Final = "coalesce((SELECT head FROM agent_lane WHERE agent_lane.lane = ?1), 0)"
_DUE: Final = f"""
SELECT EXISTS (SELECT 1 FROM agent_row WHERE lane = ?1 AND place >= {_HEAD}),
    (SELECT min(visible_us) FROM agent_group WHERE lane = ?1),
    EXISTS (SELECT 1 FROM agent_group WHERE lane = ?1 AND grp = 0)
FROM agent WHERE num = ?1 AND state = 'active'
"""  # noqa: S608 - a constant
_PEEK: Final = f"""
SELECT turn, place, producer, receives, visible_us, held, replay FROM (
    SELECT turn, place, producer, receives, visible_us, held, replay FROM agent_lease WHERE lane = ?1
    UNION ALL SELECT turn, place, producer, 0, 0, 0, replay FROM agent_aside WHERE lane = ?1
    UNION ALL SELECT place, place, producer, 0, 0, 0, 0 FROM agent_row WHERE lane = ?1 AND place >= {_HEAD}
) WHERE turn > ?2 ORDER BY turn LIMIT ?3
"""  # noqa: S608 - a constant
_TURN: Final = """
SELECT max(turn) FROM (
    SELECT turn FROM agent_lease WHERE lane = ?1 AND place = ?2
    UNION ALL SELECT turn FROM agent_aside WHERE lane = ?1 AND place = ?2)
"""
_DEAD: Final = """
SELECT n, place, producer, receives, at_us, CAST(error AS BLOB), CAST(reason AS BLOB) FROM agent_dead
WHERE lane = ? AND n > ? ORDER BY n LIMIT ?
"""
_FRESH: Final = f"""
SELECT count(*), coalesce(sum(coalesce(pair.paused, 0)), 0) FROM agent_row AS held
LEFT JOIN agent_pair AS pair ON pair.producer = held.producer AND pair.subscriber = held.lane
WHERE held.lane = ?1 AND held.place >= {_HEAD}
"""  # noqa: S608 - a constant
_ASIDE: Final = """
SELECT count(*), coalesce(sum(coalesce(pair.paused, 0)), 0) FROM agent_aside AS aside
LEFT JOIN agent_pair AS pair ON pair.producer = aside.producer AND pair.subscriber = aside.lane
WHERE aside.lane = ?1
"""
_LEASED: Final = """
SELECT count(*), coalesce(sum(visible_us > ?2 AND held = 1), 0), coalesce(sum(visible_us > ?2 AND held = 0), 0),
    coalesce(sum(visible_us <= ?2 AND coalesce(pair.paused, 0)), 0)
FROM agent_lease AS lease
LEFT JOIN agent_pair AS pair ON pair.producer = lease.producer AND pair.subscriber = lease.lane
WHERE lease.lane = ?1
"""
_UNRELEASED: Final = "SELECT count(*) FROM agent_held_row WHERE lane = ?1"
_COUNT_DEAD: Final = "SELECT count(*) FROM agent_dead WHERE lane = ?1"
_OLDEST: Final = f"""
SELECT min(arrived_us) FROM agent_event WHERE place IN (
    SELECT min(place) FROM agent_row WHERE lane = ?1 AND place >= {_HEAD}
    UNION ALL SELECT min(place) FROM agent_aside WHERE lane = ?1
    UNION ALL SELECT min(place) FROM agent_lease WHERE lane = ?1
    UNION ALL SELECT min(place) FROM agent_held_row WHERE lane = ?1)
"""  # noqa: S608 - a constant
_EXPIRED: Final = "SELECT expired FROM agent_lane WHERE lane = ?1"


class SQLiteAgentQueue:
    """One agent's messages. It has no table, file, thread or timer of its own."""

    def __init__(self, engine: Engine, reader: Reader, traits: QueueTraits, agent_id: str, agent: int) -> None:
        self._engine = engine
        self._reader = reader
        self.traits = traits
        self._agent = agent
        self._channels = (channel(agent), EVERY_QUEUE)
        self.name = queue_name(agent_id)
        # A clock that only moves when a test moves it wakes nobody.
        self._look_every = _LONGEST_PAUSE if isinstance(self._engine.clock, SystemClock) else _LOOK_AGAIN

    def send(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        raise nobody_sends(self.name)

    def receive(self, *, max_messages: int = 10, wait: float = 0.0, visibility: float | None = None) -> list[Delivery]:
        queues.check_receive(max_messages, wait, visibility)
        visibility_us = int((self.traits.visibility if visibility is None else visibility) * 1_000_000)
        if wait and not self._engine.in_transaction:
            deliveries = self._receive_waiting(max_messages, wait, visibility_us)
        else:
            deliveries = self._claim(max_messages, visibility_us)
        failpoints.hit("queue.receive.after_commit")
        return deliveries

    def ack(self, deliveries: Sequence[Delivery]) -> list[AckResult]:
        results = self._write(Leases.ack, deliveries, removes=True)
        failpoints.hit("queue.ack.after_commit")
        return results

    def extend(self, deliveries: Sequence[Delivery], *, seconds: float) -> list[AckResult]:
        check(seconds, seconds_between(0, queues.MAX_VISIBILITY), "seconds")
        return self._write(Leases.extend, deliveries, seconds)

    def release(
        self, deliveries: Sequence[Delivery], *, after: float = 0.0, error: str | None = None
    ) -> list[AckResult]:
        check(after, seconds_between(0, queues.MAX_VISIBILITY), "after")
        check(error, queues.Note | None, "error")
        return self._write(Leases.release, deliveries, after, error and queues.legible(error))

    def undo(self, deliveries: Sequence[Delivery], *, after: float = 0.0) -> list[AckResult]:
        check(after, seconds_between(0, queues.MAX_VISIBILITY), "after")
        return self._write(Leases.undo, deliveries, after)

    def watch(self, changed: Callable[[bool], None]) -> AbstractContextManager[object]:
        """Call `changed` with True when the queue changed and with False when it may have changed."""
        return self._engine.watch(changed, *self._channels)

    def due_seconds(self) -> float | None:
        """Return how long until a receive may find something; None for not before the queue changes."""
        due_us = self._due_us()
        if due_us is None:
            return None if self._look_every == _LONGEST_PAUSE else self._look_every
        return min(self._look_every, max(0.0, (due_us - self._engine.monotonic_us()) / 1_000_000))

    def reject(self, deliveries: Sequence[Delivery], *, reason: str, error: str | None = None) -> list[AckResult]:
        check(reason, queues.Note | None, "reason")
        check(error, queues.Note | None, "error")
        error = error and queues.legible(error)
        return self._write(Leases.reject, deliveries, reason, error, durable=True, relieves=True)

    def peek(self, *, limit: int = 10, after: str | None = None, force: bool = False) -> list[PeekedMessage]:
        check(limit, whole_number(1, _LONGEST_PEEK), "limit")
        return self._engine.read(lambda connection: self._peek(connection, limit, after))

    def _peek(self, connection: apsw.Connection, limit: int, after: str | None) -> list[PeekedMessage]:
        reader, agent = self._reader, self._agent
        monotonic_us, now_us = self._engine.monotonic_us(), self._engine.now_us()
        total = is_total(connection, agent)
        rows: list[Any] = every(connection, _PEEK, (agent, _turn(connection, reader, agent, after), limit))
        peeked = []
        for turn, place, producer, receives, visible_us, held, replay in rows:
            event = reader.event(connection, agent, place)
            if event is None or event.expires_us <= now_us:
                continue
            state: queues.MessageState = "visible" if visible_us <= monotonic_us else "in_flight" if held else "delayed"
            group = reader.group(connection, agent, 0 if total else producer)
            more = {"group": group, "receive_count": receives, "sequence": turn, "state": state}
            peeked.append(reader.peeked(connection, agent, place, event, replay=bool(replay), **more))
        return peeked

    def stats(self) -> QueueStats:
        def look(connection: apsw.Connection) -> QueueStats:
            held = count(connection, self._agent, self._engine)
            row = one(connection, _EXPIRED, (self._agent,))
            delayed = held.delayed + (held.held or 0)
            return QueueStats(held.visible, held.in_flight, delayed, held.oldest_age_seconds, row[0] if row else 0)

        return self._engine.read(look)

    def _claim(self, limit: int, visibility_us: int) -> list[Delivery]:
        while True:
            deliveries, more = self._write(Leases.claim, limit, visibility_us)
            if deliveries or not more:
                return deliveries

    def _receive_waiting(self, limit: int, wait: float, visibility_us: int) -> list[Delivery]:
        """Claim, and wait for a wake-up before claiming again; a wake-up that came earlier counts."""
        deadline = time.monotonic() + wait
        with self._engine.listen(*self._channels) as listener:
            while True:
                due_us = self._due_us()
                now_us = self._engine.monotonic_us()
                if due_us is not None and due_us <= now_us and (found := self._claim(limit, visibility_us)):
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    return []
                until_due = _LONGEST_PAUSE if due_us is None else (due_us - now_us) / 1_000_000
                listener.wait(min(left, self._look_every, max(0.001, until_due)))

    def _due_us(self) -> int | None:
        """Return when, on the monotonic clock, a receive may find something: 0 for now, None for no known time."""
        row = self._engine.read(lambda connection: one(connection, _DUE, (self._agent,)))
        if row is None:
            raise self._deleted()
        fresh, returned, total_group = row
        # A total order waits for its group, however much is behind it.
        return 0 if fresh and not total_group else returned

    def _write(self, verb: Callable[..., T], *arguments: Any, durable: bool = False, **options: bool) -> T:
        """Run `verb(leases, *arguments)` in the engine's next transaction, with the options of `Engine.write`."""

        def work(tx: Transaction) -> T:
            leases = Leases(tx, self._engine, self._reader, self._agent, self.traits.max_receives)
            return verb(leases, *arguments)

        try:
            return self._engine.write(work, durable=durable, **options)
        except QueueNotFound as error:
            raise self._deleted() from error

    def _deleted(self) -> QueueNotFound:
        return QueueNotFound(f'the agent of "{self.name}" was deleted')


def dead_letters(
    connection: apsw.Connection, reader: Reader, agent: int, *, limit: int, after: int = 0
) -> list[PeekedMessage]:
    """Return the dead letters behind the number `after`, oldest first, each with its `DeadLetter` marker."""
    source = queue_name(reader.group(connection, agent, 0))
    dead = []
    for n, place, producer, receives, at_us, error, reason in every(connection, _DEAD, (agent, after, limit)):
        event = reader.event(connection, agent, place)
        if event is None:
            continue
        group = reader.group(connection, agent, producer)
        more = {"group": group, "receive_count": receives, "sequence": n, "state": "visible"}
        peeked = reader.peeked(connection, agent, place, event, replay=False, **more)
        marked = queues.mark_dead(
            {"EventType": str(text_of(event.type)), **peeked.attributes},
            source=source,
            receives=receives,
            error=text_of(error),
            at=queues.moment(at_us),
            reason=text_of(reason),
        )
        dead.append(msgspec.structs.replace(peeked, attributes=marked))
    return dead


def _turn(connection: apsw.Connection, reader: Reader, agent: int, after: str | None) -> int:
    if after is None:
        return 0
    place = reader.place(agent, after)
    if place is None:
        raise InvalidInput(f"after: {after!r} is not a message id of this queue", field="after")
    return int(one(connection, _TURN, (agent, place))[0] or place)


def waiting(connection: apsw.Connection, agent: int) -> int:
    """Return how many messages are not settled yet."""
    unseen = sum(int(one(connection, statement, (agent,))[0]) for statement in (_FRESH, _ASIDE, _UNRELEASED))
    return unseen + int(one(connection, _LEASED, (agent, 0))[0])


def count(connection: apsw.Connection, agent: int, engine: Engine) -> LaneStats:
    fresh, fresh_paused = one(connection, _FRESH, (agent,))
    aside, aside_paused = one(connection, _ASIDE, (agent,))
    leased, in_flight, delayed, back_paused = one(connection, _LEASED, (agent, engine.monotonic_us()))
    unreleased = one(connection, _UNRELEASED, (agent,))[0]
    paused = fresh_paused + aside_paused + back_paused
    oldest_us = one(connection, _OLDEST, (agent,))[0]
    return LaneStats(
        visible=fresh + aside + leased - in_flight - delayed - paused,
        in_flight=in_flight,
        delayed=delayed,
        held=paused + unreleased,
        dead=one(connection, _COUNT_DEAD, (agent,))[0],
        oldest_age_seconds=None if oldest_us is None else max(0.0, (engine.now_us() - oldest_us) / 1_000_000),
    )
