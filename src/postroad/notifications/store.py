"""The store of chat notifications: messages, devices and results, beside the outbox of their pushes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, NamedTuple, Self

import msgspec
from msgspec import Meta

from postroad import failpoints
from postroad.arguments import Count, check
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections import Dialect, Row, Session, dialect_of
from postroad.errors import ConfigurationError, DuplicateEvent, InvalidInput
from postroad.events import DomainEvent
from postroad.notifications.devices import Platform, TokenResult, checked_platform, event_id_of, token_hash
from postroad.notifications.messages import OfflineMessage, PushNotification, check_id, checked_token
from postroad.notifications.statements import statements
from postroad.outbox import Outbox, moment

KEEP_DELIVERED = 86_400.0
KEEP_RESULTS = 604_800.0
KEEP_UNDELIVERED = 2_592_000.0
MAX_KEEP = 3_153_600_000
"""A hundred years in seconds."""
MAX_DEVICES = 500
_PRUNE_BATCH = 1_000
_MAX_PUSH_BYTES = 900_000
_MAX_REASON = 200
Kept = Literal["stored", "duplicate", "conflict"]
Compose = Callable[[OfflineMessage, Sequence[str]], PushNotification]

Keep = Annotated[
    float, Meta(ge=0, le=MAX_KEEP, description=f"a number of seconds from 0 to {MAX_KEEP}, or None for ever")
]


def check_keep(**seconds: float | None) -> None:
    """Raise ConfigurationError unless each is a number of seconds that the store can keep, or None."""
    for name, value in seconds.items():
        check(value, Keep | None, name, ConfigurationError)


class Device(NamedTuple):
    """A device that gets a user's pushes."""

    token: str
    user_id: str
    platform: Platform | None


class KnownDevice(NamedTuple):
    """What the store knows of a device token, live or dropped."""

    user_id: str
    platform: Platform | None
    dropped: bool


class Pruned(NamedTuple):
    """How much was deleted."""

    delivered: int
    undelivered: int
    results: int
    outbox: int


class NotificationStore:
    """Stores messages for offline users, devices and results, and records pushes with their messages.

    It creates its tables, and those of an outbox, in the database.

    Args:
        url: The database: `postgresql://…` or `sqlite:///path`, not the file of the backend.
        clock: The time; for tests.

    Raises:
        ConfigurationError: The URL cannot be used.
        Unavailable: The database does not answer.

    Example:
        with NotificationStore("postgresql://app@db/chat") as store:
            store.register_device("user-1", token, "apns")
    """

    def __init__(self, url: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.url = url
        self.clock = clock
        self.dialect: Dialect = dialect_of(url)
        self.outbox = Outbox.open(url, max_bytes=_MAX_PUSH_BYTES, clock=clock)
        self.sql = statements(self.outbox.tables)
        self.outbox.init()
        with self.outbox.database.transaction() as session:
            session.rows(self.sql.lock)
            session.script(self.sql.tables)

    def register_device(self, user_id: str, token: str, platform: Platform | None = None) -> None:
        """Send pushes of `user_id`, and of no other user, to the device `token` of this `platform` from now on."""
        check_id(user_id, "user_id")
        owner = (checked_token(token), user_id)
        kind, now = checked_platform(platform), self._now()
        with self.outbox.database.transaction() as session:
            session.change(self.sql.register, (*owner, kind, now))
            session.change(self.sql.own, (*owner, now))

    def devices(self, user_id: str) -> list[Device]:
        """Return the live devices of `user_id`, the newest first."""
        with self.outbox.database.reading() as session:
            return [Device(*row) for row in session.rows(self.sql.devices, (user_id, 2**31 - 1))]

    def drop_device(self, token: str, reason: str, *, as_of: datetime | None = None) -> bool:
        """Stop sending to `token`, for `reason`, unless it registered after `as_of`; return whether it was live."""
        now = self._now()
        with self.outbox.database.transaction() as session:
            values = (now, reason[:_MAX_REASON], token, now if as_of is None else _text(as_of))
            return session.change(self.sql.drop, values) == 1

    def pending(self, user_id: str, *, limit: int = 100, after: str | None = None) -> list[OfflineMessage]:
        """Return up to `limit` undelivered messages of `user_id`, in stored order, behind the message `after`."""
        check(limit, Count, "limit")
        with self.outbox.database.reading() as session:
            if after is None:
                return [_message(row) for row in session.rows(self.sql.pending, (user_id, limit))]
            if not session.rows(self.sql.kept, (user_id, after)):
                raise InvalidInput("after: is not a message of this user", field="after")
            return [_message(row) for row in session.rows(self.sql.pending_after, (user_id, user_id, after, limit))]

    def mark_delivered(self, user_id: str, message_ids: Iterable[str]) -> int:
        """Mark `message_ids` of `user_id` as delivered, and return how many of them were pending."""
        with self.outbox.database.transaction() as session:
            return session.change(self.sql.deliver, (self._now(), user_id, _json(message_ids)))

    def results(self, push_id: str) -> list[TokenResult]:
        """Return the results of `push_id` so far, one for each device; `token` is the hash of the token."""
        with self.outbox.database.reading() as session:
            rows = session.rows(self.sql.push_results, (push_id,))
        return [TokenResult(hashed, outcome, *answer) for _, hashed, outcome, _, *answer, _ in rows]

    def keep(self, messages: Sequence[OfflineMessage], compose: Compose) -> list[Kept]:
        """Store `messages` and the pushes that `compose` makes of them, all or none; "conflict" if other content is
        stored.
        """
        with self.outbox.database.transaction() as session:
            kept: list[Kept] = [self._kept(session, message) for message in messages]
            failpoints.hit("notifications.offline.mid")
            new = [message for message, outcome in zip(messages, kept, strict=True) if outcome == "stored"]
            self._record_pushes(session, [event for each in new for event in self._events(session, each, compose)])
        return kept

    def known(self, tokens: Iterable[str]) -> dict[str, KnownDevice]:
        """Return those of `tokens` that were ever registered."""
        with self.outbox.database.reading() as session:
            rows = session.rows(self.sql.among_devices, (_json(tokens),))
        return {
            token: KnownDevice(user_id, platform, dropped is not None) for token, user_id, platform, dropped in rows
        }

    def record(self, push_id: str, results: Sequence[TokenResult], *, asked_at: datetime) -> int:
        """Write `results` of `push_id`, drop devices dead at `asked_at`, and return how many of these were live."""
        with self.outbox.database.transaction() as session:
            for result in results:
                known = push_id, token_hash(result.token), result.outcome, result.status, _reason(result)
                session.change(self.sql.record, (*known, result.provider_id, self._now()))
            # Devices that seemed dead are not: the sender's own configuration is wrong.
            for reason in {_reason(result) for result in results if result.outcome == "auth" and result.reason}:
                session.change(self.sql.restore, (reason,))
            return sum(self._drop(session, result, asked_at) for result in results if result.outcome == "dead_token")

    def prune(
        self,
        *,
        keep_delivered: float | None = KEEP_DELIVERED,
        keep_results: float | None = KEEP_RESULTS,
        keep_undelivered: float | None = KEEP_UNDELIVERED,
    ) -> Pruned:
        """Delete what is old, 1,000 rows in a transaction, and return how many.

        Args:
            keep_delivered: Seconds for which a delivered message is kept, and a push in the outbox after it was queued
                (a day). A copy of a message that arrives after this time is stored again.
            keep_results: Seconds for which the results of pushes are kept (7 days). It must be longer than the queue of
                pushes keeps a message, or a late copy is sent a second time.
            keep_undelivered: Seconds for which a message waits for its user (30 days).

        None keeps them for ever.
        """
        check_keep(keep_delivered=keep_delivered, keep_results=keep_results, keep_undelivered=keep_undelivered)
        sent = 0
        if keep_delivered is not None:
            sent = self.outbox.prune(older_than=timedelta(seconds=keep_delivered))
        return Pruned(
            delivered=self._prune(self.sql.prune_delivered, keep_delivered),
            undelivered=self._prune(self.sql.prune_undelivered, keep_undelivered),
            results=self._prune(self.sql.prune_results, keep_results),
            outbox=sent,
        )

    def check(self) -> None:
        """Raise if the database cannot be read."""
        with self.outbox.database.reading() as session:
            session.rows(self.sql.check)

    def close(self) -> None:
        """Close the connections; the store opens them again when it is used."""
        self.outbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prune(self, statement: str, keep: float | None) -> int:
        if keep is None:
            return 0
        before, pruned = _text(self.clock.now() - timedelta(seconds=keep)), 0
        while True:
            with self.outbox.database.transaction() as session:
                deleted = session.change(statement, (before, _PRUNE_BATCH))
            pruned += deleted
            if deleted < _PRUNE_BATCH:
                return pruned

    def _kept(self, session: Session, message: OfflineMessage) -> Kept:
        written = message.userId, message.messageId, message.conversationId, message.senderId, message.content
        if session.rows(self.sql.keep, (*written, _text(message.timestamp), self._now())):
            return "stored"
        (row,) = session.rows(self.sql.kept, (message.userId, message.messageId))
        same = (message.conversationId, message.senderId, message.content) == row[:3]
        return "duplicate" if same and moment(row[3]) == message.timestamp else "conflict"

    def _events(self, session: Session, message: OfflineMessage, compose: Compose) -> list[DomainEvent]:
        """Return the push for the user's devices as an event; none if there is no device."""
        rows = session.rows(self.sql.devices, (message.userId, MAX_DEVICES))
        if not rows:
            return []
        push = compose(message, [row[0] for row in rows])
        return [
            DomainEvent(
                type=push.type,
                key={"userId": push.userId},
                payload=msgspec.json.decode(push.to_json()),
                event_id=event_id_of(message.userId, message.messageId),
                occurred_at=push.timestamp,
            )
        ]

    def _record_pushes(self, session: Session, events: Sequence[DomainEvent]) -> None:
        with suppress(DuplicateEvent):
            # All in one call, so that concurrent stores lock their keys in the same order.
            self.outbox.add_many(session.connection, events)
            return
        for event in events:
            # A message that was deleted since had its push before, which is sent once only.
            with suppress(DuplicateEvent):
                self.outbox.add(session.connection, event)

    def _drop(self, session: Session, result: TokenResult, asked_at: datetime) -> int:
        # A device that registered again after its token died, or while we asked, is alive.
        as_of = min(result.dead_since or asked_at, asked_at)
        return session.change(self.sql.drop, (self._now(), _reason(result), result.token, _text(as_of)))

    def _now(self) -> str:
        return _text(self.clock.now())


def _message(row: Row) -> OfflineMessage:
    user_id, message_id, conversation_id, sender_id, content, sent_at = row
    return OfflineMessage(user_id, message_id, conversation_id, sender_id, content, moment(sent_at))


def _reason(result: TokenResult) -> str:
    return result.reason[:_MAX_REASON]


def _text(value: datetime) -> str:
    # All of one length, so that the texts sort as the moments do.
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _json(values: Iterable[str]) -> str:
    return msgspec.json.encode(list(values)).decode()
