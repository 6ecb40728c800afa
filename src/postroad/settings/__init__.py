"""Settings: flags, environment and file; nothing else reads the environment."""

from postroad.settings.environment import (
    METRICS as METRICS,
    actor as actor,
    agent_polls as agent_polls,
    agent_rate as agent_rate,
    alerts_allow_loopback as alerts_allow_loopback,
    allowed_tenants as allowed_tenants,
    archive_queue_url as archive_queue_url,
    audit_is_named as audit_is_named,
    audit_path as audit_path,
    aws_place as aws_place,
    beside as beside,
    bus_variable as bus_variable,
    data_path as data_path,
    database_dsn as database_dsn,
    dispatch_delay_text as dispatch_delay_text,
    event_bus_name as event_bus_name,
    events_bucket as events_bucket,
    events_stream as events_stream,
    events_table as events_table,
    events_ttl_days as events_ttl_days,
    function_environment as function_environment,
    function_of_tasks as function_of_tasks,
    measuring_in as measuring_in,
    slack_webhook_url as slack_webhook_url,
    sns_arn as sns_arn,
    table_name as table_name,
)
from postroad.settings.notifications import NotificationSettings, notification_settings
from postroad.settings.settings import Settings, Source, adapter as adapter
from postroad.settings.sources import (
    debugging as debugging,
    default_stage as default_stage,
    default_url as default_url,
    failpoints as failpoints,
    load,
    nearest as nearest,
    no_color as no_color,
)

__all__ = ["NotificationSettings", "Settings", "Source", "load", "notification_settings"]
