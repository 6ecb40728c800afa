"""Rendering pages: one template each, with what every page shows around it."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined

from postroad.dashboard.charts import spark
from postroad.dashboard.stories import later, moment, said, visible
from postroad.dashboard.texts import ago, as_code, error_parts, number, seconds, size, with_code
from postroad.telemetry import counted
from postroad.views import Scope


@dataclass(frozen=True, slots=True)
class Link:
    """One entry of the navigation: its page, its address, its text and the count beside it."""

    page: str
    href: str
    text: str
    count: str
    """The path of its count in the overview."""
    most: int | None = None
    """The count at which counting stops."""
    alarms: bool = False
    """Whether a count above 0 means that something is wrong."""


NAVIGATION: Final = (
    (
        Link("overview", "/ui/", "Overview", "attention.length", alarms=True),
        Link("queues", "/ui/queues", "Queues", "backlog.visible"),
        Link("dead-letters", "/ui/dead-letters", "Dead letters", "backlog.dead", alarms=True),
        Link("events", "/ui/events", "Events", "work.events", most=100),
        Link("outbox", "/ui/outbox", "Outbox", "backlog.outbox_pending"),
    ),
    (
        Link("tasks", "/ui/tasks", "Tasks", "work.failed_tasks", most=100, alarms=True),
        Link("jobs", "/ui/jobs", "Jobs", "work.jobs", most=100),
        Link("schedules", "/ui/schedules", "Schedules", "work.schedules", most=100),
        Link("workers", "/ui/workers", "Workers", "work.workers", most=100),
    ),
    (
        Link("agents", "/ui/agents", "Agents", "work.agents", most=100),
        Link("notifications", "/ui/notifications", "Notifications", "work.notifications"),
    ),
    (
        Link("map", "/ui/map", "Map", "work.queues"),
        Link("health", "/ui/health", "Health", "work.unhealthy", alarms=True),
        Link("audit", "/ui/audit", "Audit", "work.audits"),
    ),
)
"""The list pages, in groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chrome:
    """What every page shows around its own content."""

    version: str
    user: str = ""
    scope: str = "read"
    csrf: str = ""
    read_only: bool = False
    counts: Mapping[str, Any] = field(default_factory=dict)
    """The counts of the navigation, by their path in the overview."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def may(self, scope: str) -> bool:
        """Return whether a form that needs this scope is shown."""
        scopes = get_args(Scope)
        return not self.read_only and scopes.index(self.scope) >= scopes.index(scope)


def render(page: str, chrome: Chrome, **document: Any) -> str:
    """Return the page of this name, which is also that of its template."""
    template = _environment().get_template(f"{page}.html")
    return template.render(page=page, chrome=chrome, navigation=NAVIGATION, **document)


@cache
def asset(name: str) -> tuple[bytes, str] | None:
    """Return a static file and its media type; None if there is no such file."""
    found = files("postroad.dashboard").joinpath("static", name)
    if "/" in name or not found.is_file():
        return None
    return found.read_bytes(), mimetypes.guess_type(name)[0] or "application/octet-stream"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("postroad.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(ago=ago, counted=counted, number=number, seconds=seconds, size=size)
    made.filters.update(spark=spark, error_parts=error_parts, as_code=as_code, with_code=with_code)
    made.filters.update(moment=moment, later=later, said=said)
    made.finalize = visible
    return made
