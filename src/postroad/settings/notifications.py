"""The settings of the worker of chat notifications, under the variables that its deployments use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from postroad.errors import ConfigurationError
from postroad.settings.environment import checked
from postroad.settings.settings import Reader, Refused, whole

Provider = TypeVar("Provider", "ApnsSettings", "FcmSettings")


def _days(value: Any) -> float | None:
    """Accept a number of days, which is returned in seconds; None for `never`."""
    try:
        return None if value == "never" else float(whole(0, 36_500)(value) * 86_400)
    except Refused as refused:
        raise Refused(f"{refused} or never") from None


def _milliseconds(value: Any) -> float:
    """Accept a number of milliseconds, which is returned in seconds."""
    return float(whole(0, 3_600_000)(value) / 1_000)


def _variable(name: str, read: Reader = str, default: Any = MISSING, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"variable": name, "read": read})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApnsSettings:
    """How to reach Apple's push service."""

    key_file: str = _variable("APNS_KEY_FILE")
    """The file with the private key (.p8)."""
    key_id: str = _variable("APNS_KEY_ID")
    """The id of that key."""
    team_id: str = _variable("APNS_TEAM_ID")
    """The id of the developer team that owns the key."""
    topic: str = _variable("APNS_TOPIC")
    """The bundle id of the app."""
    url: str | None = _variable("APNS_URL", default=None)
    """Another address of the service, for tests; None for Apple's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FcmSettings:
    """How to reach Google's push service."""

    project_id: str = _variable("FCM_PROJECT_ID")
    """The Firebase project of the app."""
    credentials_file: str = _variable("FCM_CREDENTIALS_FILE")
    """The file with the credentials of a service account."""
    url: str | None = _variable("FCM_URL", default=None)
    """Another address of the service, for tests; None for Google's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationSettings:
    """The settings of one worker."""

    push_queue: str | None = _variable("SQS_PUSH_QUEUE_URL", default=None)
    """The queue of pushes; None to handle none."""
    offline_queue: str | None = _variable("SQS_OFFLINE_QUEUE_URL", default=None)
    """The queue of messages for users who are offline; None to handle none."""
    push_dlq: str | None = _variable("SQS_PUSH_DLQ_URL", default=None)
    """The dead letters of pushes."""
    offline_dlq: str | None = _variable("SQS_OFFLINE_DLQ_URL", default=None)
    """The dead letters of messages for offline users."""
    database_url: str | None = _variable("NOTIFICATIONS_DATABASE_URL", default=None, secret=True)
    """The database that holds messages and results."""
    batch: int = _variable("WORKER_BATCH_SIZE", whole(1, 10), 10)
    """Messages of one receive, from 1 to 10."""
    poll_interval: float = _variable("WORKER_POLL_INTERVAL_MS", _milliseconds, 1.0)
    """Seconds of rest after an empty poll."""
    visibility: int | None = _variable("WORKER_VISIBILITY_TIMEOUT", whole(1, 43_200), None)
    """Seconds for which a received message is hidden; None for the setting of its queue."""
    health_host: str = _variable("HEALTH_HOST", default="127.0.0.1")
    """The address of the health checks."""
    health_port: int = _variable("HEALTH_PORT", whole(0, 65_535), 3_003)
    """The port of the health checks; 0 picks a free one."""
    min_tasks: int = _variable("WORKER_MIN_TASKS", whole(0, 10_000), 1)
    """The least number of workers that `/scaling` asks for."""
    max_tasks: int = _variable("WORKER_MAX_TASKS", whole(1, 10_000), 10)
    """The greatest number of workers that `/scaling` asks for."""
    keep_delivered: float | None = _variable("WORKER_KEEP_DELIVERED_DAYS", _days, 86_400.0)
    """Seconds for which delivered messages are kept; None for ever."""
    keep_results: float | None = _variable("WORKER_KEEP_RESULTS_DAYS", _days, 7 * 86_400.0)
    """Seconds for which the results of pushes are kept; None for ever."""
    keep_undelivered: float | None = _variable("WORKER_KEEP_UNDELIVERED_DAYS", _days, 30 * 86_400.0)
    """Seconds for which undelivered messages are kept; None for ever."""
    region: str | None = _variable("AWS_REGION", default=None)
    """The region of the queues; None to let boto3 find it."""
    ca_file: str | None = _variable("PUSH_CA_FILE", default=None)
    """The certificates to trust when calling push services; None for the usual ones."""
    apns: ApnsSettings | None = None
    """Apple's push service; None if it is not used."""
    fcm: FcmSettings | None = None
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
    settings = NotificationSettings(
        **_given(NotificationSettings, env), apns=_provider(ApnsSettings, env), fcm=_provider(FcmSettings, env)
    )
    checked("WORKER_MIN_TASKS", whole(0, settings.max_tasks), None, env)
    return settings


def _given(cls: type, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the fields whose variables are set."""
    variables = {each.name: each.metadata for each in fields(cls) if each.metadata}
    given = {name: how for name, how in variables.items() if env.get(how["variable"])}
    return {name: checked(how["variable"], how["read"], None, env) for name, how in given.items()}


def _provider(cls: type[Provider], env: Mapping[str, str]) -> Provider | None:
    """Return the settings of a push service; None if the environment has none of those that it needs."""
    needed = {each.name: each.metadata["variable"] for each in fields(cls) if each.default is MISSING}
    given = _given(cls, env)
    missing = [variable for name, variable in needed.items() if name not in given]
    if len(missing) == len(needed):
        return None
    if missing:
        why = f"variable {missing[0]}: is not set, though others of its provider are"
        raise ConfigurationError(why, field=missing[0], remedy=f"Set all of {', '.join(needed.values())}, or none.")
    return cls(**given)
