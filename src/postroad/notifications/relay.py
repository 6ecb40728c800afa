"""The relay: the outbox's dispatcher, whose target here is the queue of pushes; and where queues are."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from postroad.connections import dialect_of, path_of
from postroad.errors import ConfigurationError, InvalidNotification, RowRejected
from postroad.events import DomainEvent
from postroad.notifications.devices import PUSH_ID, push_id_of_event
from postroad.notifications.messages import PUSH, PushNotification
from postroad.notifications.store import NotificationStore
from postroad.outbox import DispatcherConfig, OutboxDispatcher
from postroad.queues import OutgoingMessage, Queue, check_name
from postroad.settings import data_path

# A push that cannot be relayed holds back no other one; a relay that died is replaced soon, since a push that is
# sent to the queue twice is recognised there.
_CONFIG = DispatcherConfig(policy="skip", lease=5.0)


def relay(store: NotificationStore, push_queue: Queue) -> OutboxDispatcher:
    """What sends the recorded pushes to the queue."""
    return OutboxDispatcher(store.outbox, push_queue, _CONFIG, service="notifications", render=push_message)


def push_message(event: DomainEvent) -> OutgoingMessage:
    """The message of a recorded push, under the same id however often it is sent."""
    if event.type != PUSH:
        raise RowRejected(f"{event.type!r} is no push; the outbox of notifications is for pushes alone")
    try:
        # A database may have changed the order of the keys.
        push = PushNotification.from_json(msgspec.json.encode(event.payload))
    except InvalidNotification as error:
        raise RowRejected(str(error)) from error
    return OutgoingMessage(push.to_json(), {PUSH_ID: push_id_of_event(event.event_id)})


def queue_name(text: str, *, field: str) -> str:
    """The name of a queue that is given by its name or its URL."""
    name = urlsplit(text).path.rpartition("/")[2] if "://" in text else text
    return check_name(name, field=field)


def refuse_engine_file(backend_url: str, database_url: str, *, field: str = "url") -> None:
    """Refuse a database in the engine's own file: two SQLite libraries on one file would damage it."""
    dialect, engine = dialect_of(database_url), data_path(backend_url)
    if engine is None or dialect != "sqlite":
        return
    own = Path(path_of(database_url))
    if _is_same(engine, own):
        raise ConfigurationError(
            f"{field}: {own} is the backend's own file {engine}",
            field=field,
            remedy="Name another file; the backend's is its own.",
        )


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.absolute().resolve() == other.absolute().resolve()
