"""Variables that are not settings of a deployment, where a backend's files lie, and who acts."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from postroad.errors import ConfigurationError
from postroad.settings.settings import PREFIX, Reader, Refused, truth, whole

Environment = Mapping[str, str] | None
"""The variables to read; None for those of this process."""
_TABLES = ("AGENTS_TABLE", "SUBSCRIBERS_TABLE", "SUBSCRIBER_EVENTS_TABLE")
_AGENT_FUNCTION_VARIABLES = ("EVENTS_STREAM", *_TABLES, "DISPATCH_DELAY_SECONDS")
_TASK_FUNCTION_VARIABLES = (
    *("AWS_ENDPOINT_URL", "EVENTS_TABLE", "EVENTS_BUCKET", "EVENT_BUS_NAME", "EVENTS_TTL_DAYS"),
    *(PREFIX + name for name in ("STAGE", "TENANT", "APP")),
)
_MOST = 1_000_000_000
_SQLITE = "sqlite:///"
_AUDIT_FILE = "postroad-audit.jsonl"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable; call it for its value, which is None if the variable is unset or empty."""

    name: str

    def __call__(self, env: Environment = None) -> str | None:
        return (os.environ if env is None else env).get(self.name) or None


slack_webhook_url = Variable("SLACK_WEBHOOK_URL")
"""The webhook that alerts are sent to."""
archive_queue_url = Variable("ARCHIVE_QUEUE_URL")
"""The queue for events that could not be delivered."""
sns_arn = Variable("SNS_ARN")
"""The topic that the outbox publishes to."""
events_table = Variable("EVENTS_TABLE")
"""The name of the events table."""
events_bucket = Variable("EVENTS_BUCKET")
"""The bucket for what is too large for the events table."""
event_bus_name = Variable("EVENT_BUS_NAME")
"""The event bus through which events are sent to the table."""
dispatch_delay_text = Variable("DISPATCH_DELAY_SECONDS")
"""The seconds for which events of agents are held back."""
events_stream = Variable("EVENTS_STREAM")
"""The stream that agents publish to."""


def alerts_allow_loopback(env: Environment = None) -> bool:
    """Return whether alerts may be sent to this machine, for tests."""
    return bool(checked(PREFIX + "ALERTS_ALLOW_LOOPBACK", truth, False, env))


def bus_variable(name: str) -> tuple[str, str] | None:
    """Return the variable that is set and its value, `POSTROAD_SQS_…` before `WINK_SQS_…`."""
    found = ((prefix + name, Variable(prefix + name)()) for prefix in ("POSTROAD_SQS_", "WINK_SQS_"))
    return next(((variable, value) for variable, value in found if value), None)


def database_dsn() -> str | None:
    """Return the DSN of the database of outbox and inbox, if one is set."""
    return Variable("POSTROAD_OUTBOX_DSN")() or Variable("PG_DSN")()


def events_ttl_days() -> int | None:
    """Return after how many days the table may forget an event; None for never."""
    days: int | None = checked("EVENTS_TTL_DAYS", whole(1, 99_999))
    return days


def allowed_tenants() -> frozenset[str] | None:
    """Return the tenants whose events are saved; None for all."""
    text = Variable("ALLOWED_TENANTS")()
    return None if text is None else frozenset(name.strip() for name in text.split(",") if name.strip())


def aws_place() -> tuple[str, str]:
    """Return the region and the endpoint of AWS; each is empty if boto3 has to find it elsewhere."""
    region = Variable("AWS_REGION")() or Variable("AWS_DEFAULT_REGION")()
    endpoint = Variable("AWS_ENDPOINT_URL_DYNAMODB")() or Variable("AWS_ENDPOINT_URL")()
    return region or "", endpoint or ""


def function_of_tasks() -> tuple[str, tuple[str, ...]]:
    """Return the backend that a function of tasks opens, and every variable that changes what it does there."""
    return _function(_TASK_FUNCTION_VARIABLES, aws_place()[0])


def function_environment() -> tuple[str, tuple[str, ...]]:
    """Return the backend that a function of agents opens, and every variable that changes what it does there."""
    return _function(_AGENT_FUNCTION_VARIABLES, Variable("AWS_REGION")() or "")


def _function(variables: tuple[str, ...], region: str) -> tuple[str, tuple[str, ...]]:
    url = Variable(PREFIX + "URL")() or f"aws://{region}"
    return url, tuple(Variable(name)() or "" for name in variables)


def table_name(variable: str | None, default: str) -> str:
    """Return the name of a table: the value of the variable if it is set, otherwise the default."""
    return default if variable is None else Variable(variable)() or default


def agent_rate(env: Environment = None) -> int:
    """Return how many events a second one agent may publish by HTTP; 0 for any number."""
    return int(checked(PREFIX + "AGENT_RATE", whole(0, _MOST), 1_000, env))


def agent_polls(env: Environment = None) -> int:
    """Return how many polls and streams may wait for one agent."""
    return int(checked(PREFIX + "AGENT_POLLS", whole(0, _MOST), 8, env))


def checked(variable: str, read: Reader, default: object = None, env: Environment = None) -> Any:
    """Return the value of a variable as `read` accepts it; raise `ConfigurationError` with its name if it does not."""
    text = Variable(variable)(env)
    try:
        return default if text is None else read(text)
    except Refused as refused:
        raise ConfigurationError(
            f"variable {variable}: {text!r:.200} is not {refused}", field=variable, remedy=f"Give {refused}."
        ) from None


def data_path(url: str) -> Path | None:
    """Return the file of an embedded backend, with links resolved; None for other backends."""
    if not url.startswith(_SQLITE):
        return None
    # Not urlsplit, which would cut a name at its '#'.
    path = Path(unquote(url.removeprefix(_SQLITE).partition("?")[0]))
    try:
        return Path(os.path.realpath(path))
    except OSError:
        # The working directory is gone: `connect` refuses the path.
        return path


METRICS: Final = "metrics"
"""The folder beside the data in which the runners of `postroad up` measure."""


def measuring_in(directory: Path) -> dict[str, str]:
    """Return the environment of a child that writes its metrics to files of the folder, which others read."""
    return {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory.absolute())}


def beside(url: str, suffix: str) -> Path:
    """Return the companion file `X.db.<suffix>`, or `postroad.<suffix>` if the backend is not a file."""
    data = data_path(url)
    return Path(f"postroad.{suffix}") if data is None else data.with_name(f"{data.name}.{suffix}")


_audit_file = Variable(PREFIX + "AUDIT_LOG")


def audit_is_named() -> bool:
    """Return whether `$POSTROAD_AUDIT_LOG` names the audit file."""
    return _audit_file() is not None


def audit_path(url: str) -> Path:
    """Return `$POSTROAD_AUDIT_LOG`, or a file beside the backend's data, or one in the working directory."""
    if (named := _audit_file()) is not None:
        return Path(named)
    data = data_path(url)
    return Path(_AUDIT_FILE) if data is None else data.with_name(_AUDIT_FILE)


def actor() -> str:
    """Return who is recorded as the author of changes: `$POSTROAD_ACTOR`, or the user of this process."""
    if (named := Variable(PREFIX + "ACTOR")()) is not None:
        return named
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a number that has no name.
        return f"uid-{os.getuid()}"
