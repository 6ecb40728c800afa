"""The notification worker that the environment describes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import ConfigurationError, InvalidName
from postroad.queues import Queue
from postroad.settings import NotificationSettings, Settings, notification_settings
from postroad.wiring import Backend

if TYPE_CHECKING:
    from postroad.notifications import NotificationWorker, PushSender

_DATABASE: Final = "NOTIFICATIONS_DATABASE_URL"
_VARIABLES: Final = {
    "key": "APNS_KEY_FILE",
    "key_id": "APNS_KEY_ID",
    "team_id": "APNS_TEAM_ID",
    "topic": "APNS_TOPIC",
    "project_id": "FCM_PROJECT_ID",
    "credentials_file": "FCM_CREDENTIALS_FILE",
    "ca_file": "PUSH_CA_FILE",
    "dsn": _DATABASE,
    "path": _DATABASE,
    "push_queue": "SQS_PUSH_QUEUE_URL",
    "offline_queue": "SQS_OFFLINE_QUEUE_URL",
    "push_dlq": "SQS_PUSH_DLQ_URL",
    "offline_dlq": "SQS_OFFLINE_DLQ_URL",
}
_LARGEST_KEY: Final = 65_536


def send_notifications(backend: Backend, settings: Settings, stop: threading.Event) -> None:
    """Send notifications until `stop` is set; do nothing if the environment names no queue."""
    wanted = notification_settings()
    if wanted.idle:
        stop.wait()
        return
    with senders(wanted) as given, notification_worker(backend, wanted, given) as worker:
        worker.run(stop)


def checked_database(backend_url: str, settings: NotificationSettings) -> str:
    """Return the address of the database; raise `ConfigurationError` if there is none or it is the backend's file."""
    from postroad.notifications.worker import refuse_engine_file

    with _named():
        refuse_engine_file(backend_url, settings.required_database(), field=_DATABASE)
    return settings.required_database()


def named_queues(backend: Backend, settings: NotificationSettings) -> dict[str, Queue | None]:
    """Return the queues that the environment names, by what they hold; None for a queue that it does not name."""
    from postroad.notifications.worker import queue_name

    with _named():
        return {
            what: None if given is None else backend.queue(queue_name(given, field=f"{what}_queue"))
            for what, given in (("push", settings.push_queue), ("offline", settings.offline_queue))
        }


@contextmanager
def notification_worker(
    backend: Backend, settings: NotificationSettings, given: Mapping[str, PushSender]
) -> Iterator[NotificationWorker]:
    """Open a worker with a store of its own; close both afterwards."""
    from postroad.notifications import NotificationStore, NotificationWorker

    database = checked_database(backend.url, settings)
    with (
        _named(),
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
    """Open the configured senders, by platform; close them afterwards."""
    apns, fcm = settings.apns, settings.fcm
    opened: dict[str, PushSender] = {}
    with ExitStack() as stack:
        if apns is not None:
            from postroad.notifications import APNSSender

            with _named(base_url="APNS_URL"):
                apns_sender = APNSSender(
                    key=_read_key(apns.key_file),
                    key_id=apns.key_id,
                    team_id=apns.team_id,
                    topic=apns.topic,
                    ca_file=settings.ca_file,
                    **_address(apns.url),
                )
            opened["apns"] = stack.enter_context(apns_sender)
        if fcm is not None:
            from postroad.notifications import FCMSender

            with _named(base_url="FCM_URL"):
                fcm_sender = FCMSender(
                    project_id=fcm.project_id,
                    credentials_file=fcm.credentials_file,
                    ca_file=settings.ca_file,
                    **_address(fcm.url),
                )
            opened["fcm"] = stack.enter_context(fcm_sender)
        yield opened


def _address(url: str | None) -> dict[str, Any]:
    return {} if url is None else {"base_url": url}


def _read_key(path: str) -> str:
    """Return the text of the key; an error does not show it."""
    try:
        with Path(path).open(encoding="ascii") as file:
            return file.read(_LARGEST_KEY)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigurationError(f"key: {path} cannot be read: {why}", field="key") from None


@contextmanager
def _named(**others: str) -> Iterator[None]:
    """Make errors name the variable that was set instead of the argument that it became."""
    try:
        yield
    except (ConfigurationError, InvalidName) as error:
        variable = (_VARIABLES | others).get(error.field or "")
        if variable is None:
            raise
        text = error.message.removeprefix(f"{error.field}: ")
        raise ConfigurationError(f"variable {variable}: {text}", field=variable, remedy=error.remedy) from None
