"""Every setting: its name, the values it accepts and its default."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from postroad.arguments import duration_of
from postroad.errors import without_credentials

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def adapter(scheme: str) -> EntryPoint | None:
    """Return the installed adapter for addresses with this scheme, or None."""
    # Few processes need it, and it takes two megabytes.
    from importlib.metadata import entry_points

    return next(iter(entry_points(group="postroad.adapters", name=scheme)), None)


Reader = Callable[[Any], Any]
_OWN_URL = re.compile(r"sqlite:///.+|memory://.*|aws://.*")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Refused(Exception):
    """The value is not accepted; the text says which values are."""


def text(pattern: str, form: str) -> Reader:
    """Accept text that matches the whole pattern."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise Refused(form)
        return value

    return read


def whole(low: int, high: int) -> Reader:
    """Accept a whole number within bounds, also written in digits."""

    def read(value: Any) -> int:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value) else value
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise Refused(f"a whole number from {low} to {high}")
        return number

    return read


def duration(low: float, high: float) -> Reader:
    """Accept a number of seconds within bounds, or text with a unit such as 30s, 5m, 2h or 7d."""

    def read(value: Any) -> float:
        number = duration_of(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
            raise Refused(f"a duration such as 30s or 5m, from {low:g} to {high:.0f} seconds")
        return float(number)

    return read


def address(value: Any) -> str:
    """Accept the address of one of our backends or of an installed adapter."""
    if isinstance(value, str):
        if _OWN_URL.fullmatch(value) is not None:
            return value
        scheme = _SCHEME.match(value)
        if scheme is not None and adapter(scheme[1]) is not None:
            return value
    raise Refused("sqlite:///path, memory:// or aws://region[?endpoint_url=…&stage=…]")


def choice(*values: str) -> Reader:
    """Accept one of these values."""
    return text("|".join(values), f"one of {', '.join(values)}")


def truth(value: Any) -> bool:
    """Accept true or false, also as yes or no, on or off, 1 or 0."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in _TRUTHS:
        raise Refused("true or false")
    return _TRUTHS[value.lower()]


def names(pattern: str, form: str, *, least: int = 0) -> Reader:
    """Accept a list of names, or text with commas between them."""

    def read(value: Any) -> tuple[str, ...]:
        parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise Refused(form)
        found = tuple(part for part in parts if part != "")
        if len(found) < least or not all(isinstance(part, str) and re.fullmatch(pattern, part) for part in found):
            raise Refused(form)
        return found

    return read


PREFIX = "POSTROAD_"
TABLES = {"task": "tasks", "outbox": "outbox", "agents": "agents"}
"""The tables of the file, by the word with which the names of their settings begin."""


@dataclass(frozen=True, slots=True)
class Key:
    """One setting."""

    name: str
    read: Reader
    secret: bool = False

    @property
    def env(self) -> str:
        """The variable that sets it."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The flag that sets it; one that can be repeated is in the singular."""
        return self.in_file.rpartition(".")[2].replace("_", "-").replace("queues", "queue")

    @property
    def in_file(self) -> str:
        """Its name in the file: `port`, or `agents.functions` for `functions` in the table `agents`."""
        first, _, rest = self.name.partition("_")
        if first not in TABLES:
            return self.name
        return f"{TABLES[first]}.{self.name if self.name == 'task_output' else rest}"


_LABEL = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_LABEL_FORM = "1 to 64 letters, digits, '-' or '_'"
_ID = r"[A-Za-z0-9_.:-]{1,256}"
_ID_FORM = "1 to 256 letters, digits, '_', '.', ':' or '-'"
_HOST = r"[A-Za-z0-9._:\[\]-]{1,253}"
_MODULE = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*\*?"
_LONGEST = 43_200.0

Source = Literal["flag", "env", "file", "default"]


def _setting(default: Any, read: Reader, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"read": read, "secret": secret})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of this process, and where each came from; the defaults suit a first start on one machine.

    `POSTROAD_PORT` sets `port`, as `port = …` in `postroad.toml` and the flag `--port` do.
    """

    url: str = _setting("sqlite:///postroad.db", address)
    """The backend. Change it for another file or for AWS."""
    host: str = _setting("127.0.0.1", text(_HOST, "an address or a host name"))
    """The address on which `postroad up` listens. Change it to serve other machines."""
    port: int = _setting(8787, whole(0, 65_535))
    """The port on which `postroad up` listens; 0 picks a free one."""
    token: str | None = _setting(None, text(r"[!-~]+", "printable ASCII characters without space"), secret=True)
    """The admin token of the HTTP API; without one `postroad up` makes one and stores it beside the data."""
    token_file: str | None = _setting(None, text(r"[^\0]+", "the path of a file"))
    """The file that holds the admin token, with mode 0600."""
    allowed_hosts: tuple[str, ...] = _setting((), names(_HOST, "a list of host names"))
    """Names that a Host header may have, apart from loopback names. Set it behind a proxy."""
    read_only: bool = _setting(False, truth)
    """Whether the HTTP API refuses every change."""
    load: tuple[str, ...] = _setting((), names(_MODULE, "a list of module names"))
    """Modules that `postroad up` imports for their events, tasks and buses."""
    concurrency: int = _setting(3, whole(1, 256))
    """How many tasks `postroad up` runs at once."""
    stage: str = _setting("dev", text(_LABEL, _LABEL_FORM))
    """The deployment that this process belongs to; names of shared resources on AWS begin with it."""
    log_level: str = _setting("info", choice("debug", "info", "warning", "error"))
    """The lowest level of log lines that are written."""
    log_format: str = _setting("auto", choice("auto", "console", "json"))
    """The form of log lines; `auto` is `console` on a terminal and `json` elsewhere."""
    max_body_bytes: int = _setting(2_097_152, whole(1_024, 1_073_741_824))
    """The largest body of a request to the HTTP API, in bytes."""
    rate_limit: int = _setting(600, whole(0, 1_000_000))
    """Requests a second that one caller may send to the HTTP API; 0 for any number."""
    trail_keep: int = _setting(100_000, whole(0, 100_000_000))
    """How many settled messages the embedded engine remembers; 0 for none."""
    tenant: str = _setting("default", text(_ID, _ID_FORM))
    """The tenant under which tasks, jobs and events are recorded unless a command names one."""
    app: str = _setting("postroad", text(_ID, _ID_FORM))
    """The application under which tasks, jobs and events are recorded."""
    task_queues: tuple[str, ...] = _setting(
        ("tasks",), names(r"[A-Za-z0-9_-]{1,60}", "a list of one or more queue names", least=1)
    )
    """The queues whose tasks `postroad worker` and `postroad up` run."""
    task_pass_env: tuple[str, ...] = _setting((), names(_VARIABLE, "a list of variables such as AWS_REGION or SHOP_*"))
    """Variables that tasks see besides the usual ones; `SHOP_*` is every variable that begins so."""
    task_child_reuse: int = _setting(1, whole(1, 1_000))
    """How many tasks one child process runs. More is faster, for code that you trust."""
    task_kill_grace: float | None = _setting(None, duration(0, _LONGEST))
    """Seconds between SIGTERM and SIGKILL for a task that took too long; by default 5, and 1 in `postroad up`."""
    task_output: str = _setting("log", choice("log", "inherit", "drop"))
    """What becomes of the output of tasks: lines with their request ids, unchanged output, or none."""
    task_unknown_grace: float = _setting(600.0, duration(0, _LONGEST))
    """Seconds for which a task whose name is unknown is left to workers of another version."""
    task_events: bool = _setting(False, truth)
    """Whether the ends of tasks and jobs are published on the bus `tasks`."""
    outbox_dsn: str | None = _setting(
        None,
        text(r"(postgres(ql)?://|sqlite:///[^\0])[^\0]*", "postgresql://user@host/database or sqlite:///path"),
        secret=True,
    )
    """The database of outbox and inbox."""
    outbox_topic: str | None = _setting(None, text(r"[^\s\0]{1,512}", "the name or ARN of a topic"))
    """The topic that the outbox publishes to."""
    outbox_service: str = _setting("default", text(_LABEL, _LABEL_FORM))
    """The name of the service in metrics, and the publisher of what its outbox publishes."""
    agents_functions: bool = _setting(False, truth)
    """Whether functions on AWS move the events of agents, so that `postroad up` does not."""
    agents_max_receives: int = _setting(5, whole(1, 1_000))
    """An agent's event becomes a dead letter after this many receives without an ack."""
    agents_retention: float = _setting(604_800.0, duration(1, 31_536_000))
    """Seconds for which events are kept for agents that listen later, and for replays."""
    agents_visibility: float = _setting(30.0, duration(0, _LONGEST))
    """Seconds for which an event that an agent received stays leased, unless the agent asks for another time."""

    failpoints: str | None = None
    """The failpoints of tests, as `POSTROAD_FAILPOINTS` names them."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Where each setting that is not a default came from."""
    warnings: tuple[str, ...] = ()
    """Variables that look like settings and are not."""

    def items(self) -> list[dict[str, Any]]:
        """Return every key with its value, its source and the variable that sets it; secrets are hidden."""
        return [
            {
                "key": key.name,
                "value": self._shown(key.name, key.secret),
                "source": self.source(key.name),
                "env": key.env,
            }
            for key in KEYS
        ]

    @property
    def identity(self) -> dict[str, Any]:
        """The arguments that say for whom tasks and jobs are recorded."""
        return {"tenant_id": self.tenant, "app": self.app}

    @property
    def task_worker(self) -> dict[str, Any]:
        """The arguments of `TaskWorker` that the table [tasks] sets."""
        grace = {} if self.task_kill_grace is None else {"kill_grace": self.task_kill_grace}
        return grace | {
            "queue": self.task_queues,
            "pass_env": self.task_pass_env,
            "child_reuse": self.task_child_reuse,
            "task_output": self.task_output,
            "unknown_grace": self.task_unknown_grace,
        }

    @property
    def agents(self) -> dict[str, Any]:
        """The arguments of `backend.agents()`."""
        return {
            "max_receives": self.agents_max_receives,
            "retention": self.agents_retention,
            "visibility": self.agents_visibility,
        }

    def source(self, name: str) -> Source:
        """Return where the value of the key `name` came from."""
        return self.sources.get(name, "default")

    def _shown(self, name: str, secret: bool) -> Any:
        value = getattr(self, name)
        if secret:
            return None if value is None else "***"
        if isinstance(value, str):
            return without_credentials(value)
        return list(value) if isinstance(value, tuple) else value


KEYS = tuple(Key(each.name, **each.metadata) for each in fields(Settings) if each.metadata)
BY_NAME = {key.name: key for key in KEYS}
BY_ENV = {key.env: key for key in KEYS}
IN_FILE = {key.in_file: key for key in KEYS}

KNOWN = frozenset(
    PREFIX + name
    for name in (
        *("DEBUG", "ACTOR", "AUDIT_LOG", "ALERTS_ALLOW_LOOPBACK", "AGENT_RATE", "AGENT_POLLS"),
        *("FAILPOINTS", "TASK_ID", "TASK_RUN", "TASK_ATTEMPT", "TASK_TOKEN"),
        *("SQS_POLL_INTERVAL", "SQS_VISIBILITY_TIMEOUT", "SQS_PUBLISHER_ID", "SQS_QUEUE_URL"),
    )
)
