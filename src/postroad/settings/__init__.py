"""Settings: what this process was told by flags, environment and file; the only reader of the environment."""

from postroad.settings.environment import (
    alerts_allow_loopback,
    allowed_tenants,
    archive_queue_url,
    aws_place,
    bus_variable,
    database_dsn,
    event_bus_name,
    events_bucket,
    events_table,
    events_ttl_days,
    function_of_tasks,
    slack_webhook_url,
    sns_arn,
)
from postroad.settings.files import actor, audit_is_named, audit_path, beside, data_path
from postroad.settings.loading import (
    FILE_NAME,
    debugging,
    default_stage,
    default_url,
    failpoints,
    load,
    no_color,
)
from postroad.settings.names import nearest
from postroad.settings.notifications import NotificationSettings, notification_settings
from postroad.settings.settings import Settings, Source, adapter, adapter_schemes

__all__ = [
    "FILE_NAME",
    "NotificationSettings",
    "Settings",
    "Source",
    "actor",
    "adapter",
    "adapter_schemes",
    "alerts_allow_loopback",
    "allowed_tenants",
    "archive_queue_url",
    "audit_is_named",
    "audit_path",
    "aws_place",
    "beside",
    "bus_variable",
    "data_path",
    "database_dsn",
    "debugging",
    "default_stage",
    "default_url",
    "event_bus_name",
    "events_bucket",
    "events_table",
    "events_ttl_days",
    "failpoints",
    "function_of_tasks",
    "load",
    "nearest",
    "no_color",
    "notification_settings",
    "slack_webhook_url",
    "sns_arn",
]
