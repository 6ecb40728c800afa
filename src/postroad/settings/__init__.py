"""Settings: what this process was told by flags, environment and file; the only reader of the environment."""

from postroad.settings.adapters import adapter, adapter_schemes
from postroad.settings.alerting import alerts_allow_loopback, archive_queue_url, slack_webhook_url
from postroad.settings.auditing import actor, audit_is_named, audit_path
from postroad.settings.buses import bus_variable
from postroad.settings.databases import database_dsn, sns_arn
from postroad.settings.journals import (
    allowed_tenants,
    aws_place,
    event_bus_name,
    events_bucket,
    events_table,
    events_ttl_days,
    function_of_tasks,
)
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
from postroad.settings.paths import beside, data_path
from postroad.settings.settings import Settings, Source

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
