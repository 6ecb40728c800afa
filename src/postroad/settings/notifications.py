"""What the environment tells the worker of chat notifications, under the names that its deployments use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from postroad.errors import ConfigurationError

_APNS = ("APNS_KEY_FILE", "APNS_KEY_ID", "APNS_TEAM_ID", "APNS_TOPIC")
_FCM = ("FCM_PROJECT_ID", "FCM_CREDENTIALS_FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApnsSettings:
    """How to reach Apple."""

    key_file: str
    key_id: str
    team_id: str
    topic: str
    url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FcmSettings:
    """How to reach Google."""

    project_id: str
    credentials_file: str
    url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationSettings:
    """What a worker was told."""

    push_queue: str | None
    offline_queue: str | None
    push_dlq: str | None
    offline_dlq: str | None
    database_url: str | None = field(repr=False)
    batch: int
    poll_interval: float
    """Seconds of rest after an empty poll."""
    visibility: int | None
    health_host: str
    health_port: int
    min_tasks: int
    max_tasks: int
    keep_delivered: float | None
    keep_results: float | None
    keep_undelivered: float | None
    region: str | None
    ca_file: str | None
    apns: ApnsSettings | None
    fcm: FcmSettings | None

    @property
    def idle(self) -> bool:
        """Whether there is no queue to work on."""
        return self.push_queue is None and self.offline_queue is None

    def required_database(self) -> str:
        """The address of the database; ConfigurationError when it was not told."""
        if self.database_url is None:
            name = "NOTIFICATIONS_DATABASE_URL"
            raise ConfigurationError(
                f"variable {name}: is not set", field=name, remedy="Set it to sqlite:///chat.db or postgresql://…."
            )
        return self.database_url


def notification_settings(env: Mapping[str, str] | None = None) -> NotificationSettings:
    """What the environment says, checked; a refusal names the variable."""
    told = os.environ if env is None else env
    visibility = "WORKER_VISIBILITY_TIMEOUT"
    max_tasks = _whole(told, "WORKER_MAX_TASKS", 10, 1, 10_000)
    return NotificationSettings(
        push_queue=told.get("SQS_PUSH_QUEUE_URL") or None,
        offline_queue=told.get("SQS_OFFLINE_QUEUE_URL") or None,
        push_dlq=told.get("SQS_PUSH_DLQ_URL") or None,
        offline_dlq=told.get("SQS_OFFLINE_DLQ_URL") or None,
        database_url=told.get("NOTIFICATIONS_DATABASE_URL") or None,
        batch=_whole(told, "WORKER_BATCH_SIZE", 10, 1, 10),
        poll_interval=_whole(told, "WORKER_POLL_INTERVAL_MS", 1_000, 0, 3_600_000) / 1_000,
        visibility=_whole(told, visibility, 30, 1, 43_200) if told.get(visibility) else None,
        health_host=told.get("HEALTH_HOST") or "127.0.0.1",
        health_port=_whole(told, "HEALTH_PORT", 3_003, 0, 65_535),
        min_tasks=_whole(told, "WORKER_MIN_TASKS", 1, 0, max_tasks),
        max_tasks=max_tasks,
        keep_delivered=_days(told, "WORKER_KEEP_DELIVERED_DAYS", 1),
        keep_results=_days(told, "WORKER_KEEP_RESULTS_DAYS", 7),
        keep_undelivered=_days(told, "WORKER_KEEP_UNDELIVERED_DAYS", 30),
        region=told.get("AWS_REGION") or None,
        ca_file=told.get("PUSH_CA_FILE") or None,
        apns=_apns(told),
        fcm=_fcm(told),
    )


def _apns(told: Mapping[str, str]) -> ApnsSettings | None:
    if not _all_or_none(told, _APNS):
        return None
    key_file, key_id, team_id, topic = (told[name] for name in _APNS)
    return ApnsSettings(
        key_file=key_file, key_id=key_id, team_id=team_id, topic=topic, url=told.get("APNS_URL") or None
    )


def _fcm(told: Mapping[str, str]) -> FcmSettings | None:
    if not _all_or_none(told, _FCM):
        return None
    project_id, credentials_file = (told[name] for name in _FCM)
    return FcmSettings(project_id=project_id, credentials_file=credentials_file, url=told.get("FCM_URL") or None)


def _all_or_none(told: Mapping[str, str], names: tuple[str, ...]) -> bool:
    missing = [name for name in names if not told.get(name)]
    if missing and len(missing) < len(names):
        raise ConfigurationError(
            f"variable {missing[0]}: is not set, though others of its provider are",
            field=missing[0],
            remedy=f"Set all of {', '.join(names)}, or none.",
        )
    return not missing


def _days(told: Mapping[str, str], name: str, default: int) -> float | None:
    """Seconds of so many days; None for ever."""
    return None if told.get(name) == "never" else _whole(told, name, default, 0, 36_500) * 86_400.0


def _whole(told: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = told.get(name)
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 12 or not least <= int(text) <= most:
        wanted = f"a whole number from {least} to {most}"
        raise ConfigurationError(
            f"variable {name}: {text[:40]!r} is not {wanted}", field=name, remedy=f"Give {wanted}."
        )
    return int(text)
