"""What the environment tells the journal on AWS, under the names that its stacks give it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from postroad.errors import ConfigurationError
from postroad.settings.keys import PREFIX

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
            f"EVENTS_TTL_DAYS: {text!r} is not a whole number of days from 1 to 99999", field="EVENTS_TTL_DAYS",
            remedy="Give a number of days, or unset it to keep events for ever.",
        )  # fmt: skip
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
