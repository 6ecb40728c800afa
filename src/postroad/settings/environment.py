"""Variables that are not settings of a deployment: those of functions, buses, databases, the journal and agents."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from postroad.errors import ConfigurationError
from postroad.settings.settings import PREFIX


def slack_webhook_url(env: Mapping[str, str] | None = None) -> str | None:
    """Where alerts go, where that is set."""
    return (os.environ if env is None else env).get("SLACK_WEBHOOK_URL") or None


def alerts_allow_loopback(env: Mapping[str, str] | None = None) -> bool:
    """Whether alerts may go to this machine, for tests."""
    return (os.environ if env is None else env).get("POSTROAD_ALERTS_ALLOW_LOOPBACK") == "1"


def archive_queue_url(env: Mapping[str, str] | None = None) -> str | None:
    """Where events are kept that could not be delivered, where that is set."""
    return (os.environ if env is None else env).get("ARCHIVE_QUEUE_URL") or None


_PREFIXES = ("POSTROAD_SQS_", "WINK_SQS_")


def bus_variable(name: str, env: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """The variable that is set and its value, `POSTROAD_SQS_…` before `WINK_SQS_…`; an empty one counts as unset."""
    environment = os.environ if env is None else env
    found = ((prefix + name, environment.get(prefix + name, "")) for prefix in _PREFIXES)
    return next(((variable, value) for variable, value in found if value), None)


VARIABLES = ("POSTROAD_OUTBOX_DSN", "PG_DSN")


def database_dsn(env: Mapping[str, str] | None = None) -> str | None:
    """The DSN that the environment names, where it does."""
    told = os.environ if env is None else env
    return next((told[name] for name in VARIABLES if told.get(name)), None)


def sns_arn(env: Mapping[str, str] | None = None) -> str | None:
    """The topic that the environment names, where it does."""
    return (os.environ if env is None else env).get("SNS_ARN") or None


_FUNCTION_VARIABLES = (
    *("AWS_ENDPOINT_URL", "EVENTS_TABLE", "EVENTS_BUCKET", "EVENT_BUS_NAME", "EVENTS_TTL_DAYS"),
    *(PREFIX + name for name in ("STAGE", "TENANT", "APP")),
)


def events_table(env: Mapping[str, str] | None = None) -> str | None:
    """The name of the events table, where one is set."""
    return _variable("EVENTS_TABLE", env)


def events_bucket(env: Mapping[str, str] | None = None) -> str | None:
    """The bucket for what is too large for the events table, where one is set."""
    return _variable("EVENTS_BUCKET", env)


def event_bus_name(env: Mapping[str, str] | None = None) -> str | None:
    """The event bus that events are sent through on their way to the table, where one is set."""
    return _variable("EVENT_BUS_NAME", env)


def events_ttl_days(env: Mapping[str, str] | None = None) -> int | None:
    """After how many days the table may forget an event; None: never."""
    text = _variable("EVENTS_TTL_DAYS", env)
    if text is None:
        return None
    if re.fullmatch(r"[1-9][0-9]{0,4}", text) is None:
        raise ConfigurationError(
            f"EVENTS_TTL_DAYS: {text!r} is not a whole number of days from 1 to 99999",
            field="EVENTS_TTL_DAYS",
            remedy="Give a number of days, or unset it to keep events for ever.",
        )
    return int(text)


def allowed_tenants(env: Mapping[str, str] | None = None) -> frozenset[str] | None:
    """The tenants whose events are saved; None: all."""
    text = _variable("ALLOWED_TENANTS", env)
    return None if text is None else frozenset(name.strip() for name in text.split(",") if name.strip())


def aws_place(env: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Where AWS is for this process: the region and the endpoint, empty where boto3 finds them elsewhere."""
    region = _variable("AWS_REGION", env) or _variable("AWS_DEFAULT_REGION", env)
    endpoint = _variable("AWS_ENDPOINT_URL_DYNAMODB", env) or _variable("AWS_ENDPOINT_URL", env)
    return region or "", endpoint or ""


def function_of_tasks(env: Mapping[str, str] | None = None) -> tuple[str, tuple[str, ...]]:
    """The backend that a function behind tasks opens, and all else that its environment says of it."""
    found = os.environ if env is None else env
    url = found.get(PREFIX + "URL") or f"aws://{aws_place(found)[0]}"
    return url, tuple(found.get(name, "") for name in _FUNCTION_VARIABLES)


def _variable(name: str, env: Mapping[str, str] | None) -> str | None:
    return (os.environ if env is None else env).get(name) or None


_MOST = 1_000_000_000
_AGENT_FUNCTION_VARIABLES = (
    *("EVENTS_STREAM", "AGENTS_TABLE", "SUBSCRIBERS_TABLE", "SUBSCRIBER_EVENTS_TABLE", "DISPATCH_DELAY_SECONDS"),
)


def dispatch_delay_text(env: Mapping[str, str] | None = None) -> str | None:
    """The hold-back window as it was told."""
    return _environment(env).get("DISPATCH_DELAY_SECONDS") or None


def events_stream(env: Mapping[str, str] | None = None) -> str | None:
    """The stream that agents publish to, when it was told."""
    return _environment(env).get("EVENTS_STREAM") or None


def table_name(variable: str | None, default: str, env: Mapping[str, str] | None = None) -> str:
    """A table's name: what the variable says, else its own."""
    return default if variable is None else _environment(env).get(variable) or default


def function_environment(env: Mapping[str, str] | None = None) -> tuple[str, tuple[str, ...]]:
    """The backend that a function on AWS opens, and all else that its environment says about agents."""
    found = _environment(env)
    url = found.get(PREFIX + "URL") or f"aws://{found.get('AWS_REGION', '')}"
    return url, tuple(found.get(name, "") for name in _AGENT_FUNCTION_VARIABLES)


def agent_rate(env: Mapping[str, str] | None = None) -> int:
    """Events a second that one agent may publish by HTTP; 0 for any number."""
    return _whole("AGENT_RATE", 1_000, env)


def agent_polls(env: Mapping[str, str] | None = None) -> int:
    """Polls and streams that may wait for one agent."""
    return _whole("AGENT_POLLS", 8, env)


def _whole(name: str, default: int, env: Mapping[str, str] | None) -> int:
    variable = PREFIX + name
    text = _environment(env).get(variable)
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or int(text) > _MOST:
        raise ConfigurationError(f"variable {variable}: {text!r} is not a whole number from 0 on", field=variable)
    return int(text)


def _environment(env: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if env is None else env
