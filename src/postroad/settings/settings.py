"""The settings of one process, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from postroad.errors.root import without_credentials
from postroad.settings.keys import KEYS

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
            {"key": key.name, "value": self._shown(key.name, key.secret), "source": self.source(key.name),
             "env": key.env}
            for key in KEYS
        ]  # fmt: skip

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
