"""Rendering pages: one template each, with what every page shows around it."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from postroad.dashboard.stories import later, moment, said, visible


@dataclass(frozen=True, slots=True)
class Link:
    """One entry of the navigation: its page, its address, its text and the count beside it."""

    page: str
    href: str
    text: str
    count: str | None = None
    """The path of its count in the overview."""


NAVIGATION: Final = (
    Link("overview", "/ui/", "Overview"),
    Link("queues", "/ui/queues", "Queues", "backlog.visible"),
    Link("dead-letters", "/ui/dead-letters", "Dead letters", "backlog.dead"),
    Link("events", "/ui/events", "Events"),
    Link("tasks", "/ui/tasks", "Tasks"),
    Link("jobs", "/ui/jobs", "Jobs"),
    Link("schedules", "/ui/schedules", "Schedules"),
    Link("workers", "/ui/workers", "Workers"),
    Link("outbox", "/ui/outbox", "Outbox", "backlog.outbox_pending"),
    Link("agents", "/ui/agents", "Agents"),
    Link("notifications", "/ui/notifications", "Notifications"),
    Link("map", "/ui/map", "Map"),
    Link("health", "/ui/health", "Health"),
    Link("audit", "/ui/audit", "Audit"),
)


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
        scopes = ("read", "publish", "operate", "admin")
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
    made.filters.update(ago=ago, number=number, seconds=seconds)
    made.filters.update(moment=moment, later=later, said=said)
    made.finalize = visible
    return made


NOTHING: Final = "\N{EN DASH}"
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def seconds(length: float | None) -> str:
    """Return a length of time as people say it, such as `3 min`; a dash for None."""
    if length is None:
        return NOTHING
    for name, size in _UNITS:
        if length >= size:
            return f"{int(length // size)} {name}"
    return "0 s"


def ago(at: datetime | None, now: datetime) -> Markup | str:
    """Return a time relative to now, with the exact time in its title."""
    if at is None:
        return NOTHING
    length = (now - at).total_seconds()
    text = f"{seconds(length)} ago" if length >= 1 else "now" if length > -1 else f"in {seconds(-length)}"
    exact = at.astimezone(UTC).isoformat(timespec="seconds")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, text)


def number(value: float | None) -> str:
    """Return a number with separators; a dash for None."""
    return NOTHING if value is None else f"{value:,}"
