"""The settings of the worker of chat notifications, under the variables that its deployments use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from postroad.errors import ConfigurationError

_APNS = ("APNS_KEY_FILE", "APNS_KEY_ID", "APNS_TEAM_ID", "APNS_TOPIC")
_FCM = ("FCM_PROJECT_ID", "FCM_CREDENTIALS_FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApnsSettings:
    """How to reach Apple's push service."""

    key_file: str
    """The file with the private key (.p8)."""
    key_id: str
    """The id of that key."""
    team_id: str
    """The id of the developer team that owns the key."""
    topic: str
    """The bundle id of the app."""
    url: str | None
    """Another address of the service, for tests; None for Apple's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FcmSettings:
    """How to reach Google's push service."""

    project_id: str
    """The Firebase project of the app."""
    credentials_file: str
    """The file with the credentials of a service account."""
    url: str | None
    """Another address of the service, for tests; None for Google's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationSettings:
    """The settings of one worker."""

    push_queue: str | None
    """The queue of pushes; None to handle none."""
    offline_queue: str | None
    """The queue of messages for users who are offline; None to handle none."""
    push_dlq: str | None
    """The dead letters of pushes."""
    offline_dlq: str | None
    """The dead letters of messages for offline users."""
    database_url: str | None = field(repr=False)
    """The database that holds messages and results."""
    batch: int
    """Messages of one receive, from 1 to 10."""
    poll_interval: float
    """Seconds of rest after an empty poll."""
    visibility: int | None
    """Seconds for which a received message is hidden; None for the setting of its queue."""
    health_host: str
    """The address of the health checks."""
    health_port: int
    """The port of the health checks; 0 picks a free one."""
    min_tasks: int
    """The least number of workers that `/scaling` asks for."""
    max_tasks: int
    """The greatest number of workers that `/scaling` asks for."""
    keep_delivered: float | None
    """Seconds for which delivered messages are kept; None for ever."""
    keep_results: float | None
    """Seconds for which the results of pushes are kept; None for ever."""
    keep_undelivered: float | None
    """Seconds for which undelivered messages are kept; None for ever."""
    region: str | None
    """The region of the queues; None to let boto3 find it."""
    ca_file: str | None
    """The certificates to trust when calling push services; None for the usual ones."""
    apns: ApnsSettings | None
    """Apple's push service; None if it is not used."""
    fcm: FcmSettings | None
    """Google's push service; None if it is not used."""

    @property
    def idle(self) -> bool:
        """Whether there is no queue to receive from."""
        return self.push_queue is None and self.offline_queue is None

    def required_database(self) -> str:
        """Return the address of the database, or raise `ConfigurationError` if it is not set."""
        if self.database_url is None:
            name = "NOTIFICATIONS_DATABASE_URL"
            raise ConfigurationError(
                f"variable {name}: is not set", field=name, remedy="Set it to sqlite:///chat.db or postgresql://…."
            )
        return self.database_url


def notification_settings(env: Mapping[str, str] | None = None) -> NotificationSettings:
    """Read the settings from the environment.

    Args:
        env: The variables; by default those of this process.

    Raises:
        ConfigurationError: A value is not accepted, or a push service is configured in part; it names the variable.
    """
    env = os.environ if env is None else env
    visibility = "WORKER_VISIBILITY_TIMEOUT"
    max_tasks = _whole(env, "WORKER_MAX_TASKS", 10, 1, 10_000)
    return NotificationSettings(
        push_queue=env.get("SQS_PUSH_QUEUE_URL") or None,
        offline_queue=env.get("SQS_OFFLINE_QUEUE_URL") or None,
        push_dlq=env.get("SQS_PUSH_DLQ_URL") or None,
        offline_dlq=env.get("SQS_OFFLINE_DLQ_URL") or None,
        database_url=env.get("NOTIFICATIONS_DATABASE_URL") or None,
        batch=_whole(env, "WORKER_BATCH_SIZE", 10, 1, 10),
        poll_interval=_whole(env, "WORKER_POLL_INTERVAL_MS", 1_000, 0, 3_600_000) / 1_000,
        visibility=_whole(env, visibility, 30, 1, 43_200) if env.get(visibility) else None,
        health_host=env.get("HEALTH_HOST") or "127.0.0.1",
        health_port=_whole(env, "HEALTH_PORT", 3_003, 0, 65_535),
        min_tasks=_whole(env, "WORKER_MIN_TASKS", 1, 0, max_tasks),
        max_tasks=max_tasks,
        keep_delivered=_days(env, "WORKER_KEEP_DELIVERED_DAYS", 1),
        keep_results=_days(env, "WORKER_KEEP_RESULTS_DAYS", 7),
        keep_undelivered=_days(env, "WORKER_KEEP_UNDELIVERED_DAYS", 30),
        region=env.get("AWS_REGION") or None,
        ca_file=env.get("PUSH_CA_FILE") or None,
        apns=_apns(env),
        fcm=_fcm(env),
    )


def _apns(env: Mapping[str, str]) -> ApnsSettings | None:
    if not _all_or_none(env, _APNS):
        return None
    key_file, key_id, team_id, topic = (env[name] for name in _APNS)
    url = env.get("APNS_URL") or None
    return ApnsSettings(key_file=key_file, key_id=key_id, team_id=team_id, topic=topic, url=url)


def _fcm(env: Mapping[str, str]) -> FcmSettings | None:
    if not _all_or_none(env, _FCM):
        return None
    project_id, credentials_file = (env[name] for name in _FCM)
    return FcmSettings(project_id=project_id, credentials_file=credentials_file, url=env.get("FCM_URL") or None)


def _all_or_none(env: Mapping[str, str], names: tuple[str, ...]) -> bool:
    missing = [name for name in names if not env.get(name)]
    if missing and len(missing) < len(names):
        raise ConfigurationError(
            f"variable {missing[0]}: is not set, though others of its provider are",
            field=missing[0],
            remedy=f"Set all of {', '.join(names)}, or none.",
        )
    return not missing


def _days(env: Mapping[str, str], name: str, default: int) -> float | None:
    """Return a number of days in seconds; None for `never`."""
    return None if env.get(name) == "never" else _whole(env, name, default, 0, 36_500) * 86_400.0


def _whole(env: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = env.get(name)
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 12 or not least <= int(text) <= most:
        wanted = f"a whole number from {least} to {most}"
        raise ConfigurationError(
            f"variable {name}: {text[:40]!r} is not {wanted}", field=name, remedy=f"Give {wanted}."
        )
    return int(text)
