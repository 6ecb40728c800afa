"""Every setting: its name, its variable, the form it takes and its default."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from postroad.errors import without_credentials

_GROUP = "postroad.adapters"


@cache
def adapter(scheme: str) -> EntryPoint | None:
    """The adapter whose addresses have this scheme; None when nobody installed one."""
    return next(iter(entry_points(group=_GROUP, name=scheme)), None)


def adapter_schemes() -> list[str]:
    """The schemes of all adapters that are installed, sorted."""
    return sorted(entry_points(group=_GROUP).names)


Reader = Callable[[Any], Any]
_OWN_URL = re.compile(r"sqlite:///.+|memory://.*|aws://.*")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Refused(Exception):
    """The value does not have the accepted form; the text says which one that is."""


def text(pattern: str, form: str) -> Reader:
    """Text that the whole pattern fits."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise Refused(form)
        return value

    return read


def whole(low: int, high: int) -> Reader:
    """A whole number within bounds, as such or in digits."""

    def read(value: Any) -> int:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value) else value
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise Refused(f"a whole number from {low} to {high}")
        return number

    return read


def address(value: Any) -> str:
    """The address of a backend: of our own, or of an adapter that is installed."""
    if isinstance(value, str):
        if _OWN_URL.fullmatch(value) is not None:
            return value
        scheme = _SCHEME.match(value)
        if scheme is not None and adapter(scheme[1]) is not None:
            return value
    raise Refused("sqlite:///path, memory:// or aws://region[?endpoint_url=…&stage=…]")


def choice(*words: str) -> Reader:
    """One of a few words."""

    def read(value: Any) -> str:
        if value not in words:
            raise Refused(f"one of {', '.join(words)}")
        return str(value)

    return read


def truth(value: Any) -> bool:
    """Yes or no, in the usual words."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in _WORDS:
        raise Refused("true or false")
    return _WORDS[value.lower()]


def names(pattern: str, form: str) -> Reader:
    """Several names: a list, or text with commas between them."""

    def read(value: Any) -> tuple[str, ...]:
        parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise Refused(form)
        found = tuple(part for part in parts if part != "")
        if not all(isinstance(part, str) and re.fullmatch(pattern, part) for part in found):
            raise Refused(form)
        return found

    return read


PREFIX = "POSTROAD_"


@dataclass(frozen=True, slots=True)
class Key:
    """One setting."""

    name: str
    read: Reader
    secret: bool = False
    table: str | None = None
    """The table of the file in which it stands, without which its name begins there."""

    @property
    def env(self) -> str:
        """The variable that sets it."""
        return PREFIX + self.name.upper()

    @property
    def in_file(self) -> str:
        """What the file calls it: `port`, or `agents.functions` for `functions` in the table `agents`."""
        return self.name if self.table is None else f"{self.table}.{self.name.removeprefix(f'{self.table}_')}"


_LABEL = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_LABEL_FORM = "1 to 64 letters, digits, '-' or '_'"
_ID = r"[A-Za-z0-9_.:-]{1,256}"
_ID_FORM = "1 to 256 letters, digits, '_', '.', ':' or '-'"
_HOST = r"[A-Za-z0-9._:\[\]-]{1,253}"
_MODULE = r"[^\W\d]\w*(\.[^\W\d]\w*)*"

KEYS = (
    Key("url", address),
    Key("host", text(_HOST, "an address or a host name")),
    Key("port", whole(0, 65_535)),
    Key("token", text(r"[!-~]+", "printable ASCII characters without space"), secret=True),
    Key("token_file", text(r"[^\0]+", "the path of a file")),
    Key("allowed_hosts", names(_HOST, "a list of host names")),
    Key("read_only", truth),
    Key("load", names(_MODULE, "a list of module names")),
    Key("concurrency", whole(1, 256)),
    Key("stage", text(_LABEL, _LABEL_FORM)),
    Key("log_level", choice("debug", "info", "warning", "error")),
    Key("log_format", choice("auto", "console", "json")),
    Key("max_body_bytes", whole(1_024, 1_073_741_824)),
    Key("rate_limit", whole(0, 1_000_000)),
    Key("trail_keep", whole(0, 100_000_000)),
    Key("tenant", text(_ID, _ID_FORM)),
    Key("app", text(_ID, _ID_FORM)),
    Key("task_events", truth),
    Key("agents_functions", truth, table="agents"),
)
BY_NAME = {key.name: key for key in KEYS}
BY_ENV = {key.env: key for key in KEYS}
IN_FILE = {key.in_file: key for key in KEYS}
TABLES = frozenset(key.table for key in KEYS if key.table is not None)

KNOWN_BESIDES = frozenset(
    PREFIX + name
    for name in (
        *("DEBUG", "ACTOR", "AUDIT_LOG", "OUTBOX_DSN", "ALERTS_ALLOW_LOOPBACK", "AGENT_RATE", "AGENT_POLLS"),
        *("FAILPOINTS", "SIGNING_KEYS", "REQUIRE_SIGNED", "TASK_ID", "TASK_RUN", "TASK_ATTEMPT", "TASK_TOKEN"),
    )
)
KNOWN_PREFIXES = (PREFIX + "SQS_",)


Source = Literal["flag", "env", "file", "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What this process was told, and by whom; the defaults are those of a first start on one machine."""

    url: str = "sqlite:///postroad.db"
    host: str = "127.0.0.1"
    port: int = 8787
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    read_only: bool = False
    load: tuple[str, ...] = ()
    concurrency: int = 3
    stage: str = "dev"
    log_level: str = "info"
    log_format: str = "auto"
    max_body_bytes: int = 2_097_152
    rate_limit: int = 600
    trail_keep: int = 100_000
    tenant: str = "default"
    app: str = "postroad"
    task_events: bool = False
    """Whether the ends of tasks and jobs are published on the bus `tasks`."""
    agents_functions: bool = False
    """Whether functions of AWS move the events of agents, so that `postroad up` does not."""

    failpoints: str | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """Variables that look like settings and are none."""

    def items(self) -> list[dict[str, Any]]:
        """Every key with its value, where it came from and the variable that sets it; secrets are starred."""
        return [
            {
                "key": key.name,
                "value": self._shown(key.name, key.secret),
                "source": self.source(key.name),
                "env": key.env,
            }
            for key in KEYS
        ]

    def source(self, name: str) -> Source:
        """Who set this key."""
        return self.sources.get(name, "default")

    def _shown(self, name: str, secret: bool) -> Any:
        value = getattr(self, name)
        if secret:
            return None if value is None else "***"
        if isinstance(value, str):
            return without_credentials(value)
        return list(value) if isinstance(value, tuple) else value
