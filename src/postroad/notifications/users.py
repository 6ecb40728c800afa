"""What the store knows of one user: devices, messages that wait, and what became of the last pushes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

import msgspec

from postroad.connections import Row, dialect_of, path_of
from postroad.errors import NotFound
from postroad.notifications.devices import Outcome, Platform, offline_push_id, token_hash
from postroad.notifications.store import NotificationStore
from postroad.notifications.worker import refuse_engine_file
from postroad.outbox import moment
from postroad.settings import notification_settings

_MOST: int = 100
_DATABASE = "NOTIFICATIONS_DATABASE_URL"


class DeviceShown(msgspec.Struct, frozen=True):
    """A device of the user; its token is shown as a hash only."""

    token_hash: str
    platform: Platform | None
    registered_at: datetime
    dropped_at: datetime | None
    """Since when it gets no more pushes."""
    drop_reason: str | None


class PendingShown(msgspec.Struct, frozen=True):
    """A message that waits for its user, without its content."""

    message_id: str
    conversation_id: str
    sender_id: str
    sent_at: datetime
    push_id: str


class PushShown(msgspec.Struct, frozen=True):
    """What became of one push to one device."""

    push_id: str
    token_hash: str
    outcome: Outcome
    attempts: int
    status: int | None
    reason: str
    provider_id: str | None
    updated_at: datetime


class UserShown(msgspec.Struct, frozen=True, kw_only=True):
    """A user's devices, the newest hundred; the first hundred waiting messages; and the last hundred pushes."""

    user_id: str
    devices: list[DeviceShown]
    pending: list[PendingShown]
    pending_total: int
    results: list[PushShown]


def show_user(store: NotificationStore, user_id: str) -> UserShown:
    """Return what is known of the user, without contents and tokens.

    Raises:
        NotFound: The store knows neither a device nor a message of the user.
    """
    with store.outbox.database.reading() as session:
        devices = session.rows(store.sql.every_device, (user_id, _MOST))
        owned_since = {token_hash(token): moment(since) for token, *_, since in devices}
        pending = session.rows(store.sql.pending, (user_id, _MOST))
        [(pending_total,)] = session.rows(store.sql.count_pending, (user_id,))
        is_known = devices or session.rows(store.sql.any_message, (user_id,))
        results = session.rows(store.sql.device_results, (msgspec.json.encode(list(owned_since)).decode(), _MOST))
    if not is_known:
        why = f'nothing is known of user "{user_id[:300]}"'
        raise NotFound(why, remedy="A user is known from the first device or message on, until the message is pruned.")
    return UserShown(
        user_id=user_id,
        devices=[_device(row) for row in devices],
        pending=[_pending(row) for row in pending],
        pending_total=pending_total,
        # What a device got before it belonged to this user is not the user's.
        results=[_push(row) for row in results if moment(row[7]) >= owned_since[row[1]]],
    )


def _pending(row: Row) -> PendingShown:
    user_id, message_id, conversation_id, sender_id, _, sent_at = row
    push_id = offline_push_id(user_id, message_id)
    return PendingShown(message_id, conversation_id, sender_id, moment(sent_at), push_id)


def _device(row: Row) -> DeviceShown:
    token, platform, registered_at, dropped_at, reason, _ = row
    dropped = None if dropped_at is None else moment(dropped_at)
    return DeviceShown(token_hash(token), platform, moment(registered_at), dropped, reason)


def _push(row: Row) -> PushShown:
    push_id, hashed, outcome, attempts, status, reason, provider_id, updated_at = row
    return PushShown(push_id, hashed, outcome, attempts, status, reason, provider_id, moment(updated_at))


def push_results(store: NotificationStore, push_id: str) -> Sequence[PushShown]:
    """Return what became of a push on each device, oldest first."""
    with store.outbox.database.reading() as session:
        return [_push(row) for row in session.rows(store.sql.push_results, (push_id,))]


def configured_store(backend_url: str) -> NotificationStore:
    """Open the store that the environment names, to look at it; the caller closes it.

    Raises:
        NotFound: None is named, or its file does not exist.
        ConfigurationError: It is the backend's own file.
    """
    url = notification_settings().database_url
    if url is None:
        raise NotFound("no notifications are set up here", remedy=f"Set {_DATABASE} to their database.")
    if dialect_of(url) == "sqlite" and not Path(path_of(url)).exists():
        raise NotFound(f"{path_of(url)} does not exist", remedy=f"Set {_DATABASE} to the database of the worker.")
    refuse_engine_file(backend_url, url, field=_DATABASE)
    return NotificationStore(url)


def configured_user(backend_url: str, user_id: str) -> UserShown:
    """Return what the store that the environment names knows of the user; it raises what both functions above raise."""
    with closing(configured_store(backend_url)) as store:
        return show_user(store, user_id)
