"""Every setting: its name, its variable and the form it takes."""

from __future__ import annotations

from dataclasses import dataclass

from postroad.settings.reading import Reader, address, choice, names, text, truth, whole

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
