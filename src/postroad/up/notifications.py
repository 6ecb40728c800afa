"""Notifications: the worker that the environment describes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import ConfigurationError, InvalidName
from postroad.queues import Queue
from postroad.settings import NotificationSettings, notification_settings
from postroad.wiring import Backend

if TYPE_CHECKING:
    from postroad.notifications import NotificationWorker, PushSender

_DATABASE: Final = "NOTIFICATIONS_DATABASE_URL"
_OF_APNS: Final = {
    "key": "APNS_KEY_FILE",
    "key_id": "APNS_KEY_ID",
    "team_id": "APNS_TEAM_ID",
    "topic": "APNS_TOPIC",
    "base_url": "APNS_URL",
    "ca_file": "PUSH_CA_FILE",
}
_OF_FCM: Final = {
    "project_id": "FCM_PROJECT_ID",
    "credentials_file": "FCM_CREDENTIALS_FILE",
    "base_url": "FCM_URL",
    "ca_file": "PUSH_CA_FILE",
}
_OF_WORKER: Final = {
    "dsn": _DATABASE,
    "path": _DATABASE,
    "push_queue": "SQS_PUSH_QUEUE_URL",
    "offline_queue": "SQS_OFFLINE_QUEUE_URL",
    "push_dlq": "SQS_PUSH_DLQ_URL",
    "offline_dlq": "SQS_OFFLINE_DLQ_URL",
}
_LARGEST_KEY: Final = 65_536


def send_notifications(backend: Backend, stop: threading.Event) -> None:
    """Work until told to stop; where no queue is named there is nothing to do."""
    settings = notification_settings()
    if settings.idle:
        stop.wait()
        return
    with senders(settings) as given, notification_worker(backend, settings, given) as worker:
        worker.run(stop)


def checked_database(backend_url: str, settings: NotificationSettings) -> str:
    """The address of the database; ConfigurationError when it is none, or the backend's own file."""
    from postroad.notifications import refuse_engine_file

    with _named(_OF_WORKER):
        refuse_engine_file(backend_url, settings.required_database(), field=_DATABASE)
    return settings.required_database()


def named_queues(backend: Backend, settings: NotificationSettings) -> dict[str, Queue | None]:
    """The queues that the environment names, by what they hold; None for one that it does not name."""
    from postroad.notifications import queue_name

    with _named(_OF_WORKER):
        return {
            what: None if given is None else backend.queue(queue_name(given, field=f"{what}_queue"))
            for what, given in (("push", settings.push_queue), ("offline", settings.offline_queue))
        }


@contextmanager
def notification_worker(
    backend: Backend, settings: NotificationSettings, given: Mapping[str, PushSender]
) -> Iterator[NotificationWorker]:
    """A worker with a store of its own, both closed afterwards."""
    from postroad.notifications import NotificationStore, NotificationWorker

    database = checked_database(backend.url, settings)
    with (
        _named(_OF_WORKER),
        NotificationStore(database) as store,
        NotificationWorker(
            backend,
            store,
            push_queue=settings.push_queue,
            offline_queue=settings.offline_queue,
            push_dlq=settings.push_dlq,
            offline_dlq=settings.offline_dlq,
            batch=settings.batch,
            pause=settings.poll_interval,
            visibility=settings.visibility,
            apns=given.get("apns"),
            fcm=given.get("fcm"),
            keep_delivered=settings.keep_delivered,
            keep_results=settings.keep_results,
            keep_undelivered=settings.keep_undelivered,
        ) as worker,
    ):
        yield worker


@contextmanager
def senders(settings: NotificationSettings) -> Iterator[dict[str, PushSender]]:
    """The senders that are configured, by their platforms, closed afterwards."""
    given: dict[str, PushSender] = {}
    with ExitStack() as stack:
        if settings.apns is not None:
            given["apns"] = stack.enter_context(_apns(settings))
        if settings.fcm is not None:
            given["fcm"] = stack.enter_context(_fcm(settings))
        yield given


@contextmanager
def _apns(settings: NotificationSettings) -> Iterator[PushSender]:
    from postroad.notifications import APNSSender

    told = settings.apns
    assert told is not None
    address: dict[str, Any] = {} if told.url is None else {"base_url": told.url}
    with _named(_OF_APNS):
        sender = APNSSender(
            key=_read_key(told.key_file),
            key_id=told.key_id,
            team_id=told.team_id,
            topic=told.topic,
            ca_file=settings.ca_file,
            **address,
        )
    with sender:
        yield sender


@contextmanager
def _fcm(settings: NotificationSettings) -> Iterator[PushSender]:
    from postroad.notifications import FCMSender

    told = settings.fcm
    assert told is not None
    address: dict[str, Any] = {} if told.url is None else {"base_url": told.url}
    with _named(_OF_FCM):
        sender = FCMSender(
            project_id=told.project_id, credentials_file=told.credentials_file, ca_file=settings.ca_file, **address
        )
    with sender:
        yield sender


def _read_key(path: str) -> str:
    """The text of the key; what is wrong with it is said without showing it."""
    try:
        with Path(path).open(encoding="ascii") as file:
            return file.read(_LARGEST_KEY)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(f"key: {path} cannot be read: {why}", field="key") from None


@contextmanager
def _named(variables: Mapping[str, str]) -> Iterator[None]:
    """Let refusals name the variable that was set, not the argument that it became."""
    try:
        yield
    except (ConfigurationError, InvalidName) as error:
        variable = variables.get(error.field or "")
        if variable is None:
            raise
        text = error.message.removeprefix(f"{error.field}: ")
        raise ConfigurationError(f"variable {variable}: {text}", field=variable, remedy=error.remedy) from None
