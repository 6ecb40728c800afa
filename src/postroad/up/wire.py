"""What the supervisor and its children tell each other, one JSON object a line."""

from __future__ import annotations

from typing import Literal

import msgspec

from postroad.settings import Settings
from postroad.views import Part, PartState


class Job(msgspec.Struct, frozen=True):
    """The first line to a child: all it needs to know. Secrets travel here and never in its arguments."""

    settings: Settings
    admin: str
    parent: int
    report_to: int
    listener: int | None = None


class Notice(msgspec.Struct, frozen=True):
    """A later line to a child: how everything is, and what is to be done.

    `stopping`: finish what runs and begin nothing new; `closing`: end now.
    """

    parts: tuple[Part, ...]
    phase: Literal["running", "stopping", "closing"] = "running"


class PartReport(msgspec.Struct, frozen=True):
    """How one part of a child is."""

    name: str
    state: PartState
    restarts: int = 0
    missing: str | msgspec.UnsetType = msgspec.UNSET


class Report(msgspec.Struct, frozen=True):
    """A line from a child: how its parts are, or why it cannot start at all."""

    parts: tuple[PartReport, ...] = ()
    refused: str | None = None
    remedy: str | None = None
    kind: Literal["configuration", "unavailable"] | None = None


def line(message: msgspec.Struct) -> bytes:
    """One message as a line."""
    return msgspec.json.encode(message) + b"\n"
