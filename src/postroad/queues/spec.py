"""What a queue is made of: its name and settings, checked when they are written down."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from postroad.errors import ConfigurationError, InvalidInput, InvalidName, QueueExists, QueueNotFound

MAX_MESSAGE_BYTES = 1_048_576
MAX_VISIBILITY = 43_200.0
MAX_RETENTION = 1_209_600
MAX_DELAY = 900.0
MAX_WAIT = 20.0
MAX_LIFE = 315_360_000.0
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue to create. The defaults are those of SQS, but for long polling and `max_receives`."""

    name: str
    fifo: bool = False
    visibility: float = 30
    retention: float = 345_600
    delay: float = 0
    receive_wait: float = 20
    max_message_bytes: int = MAX_MESSAGE_BYTES
    dead_letter: str | None = None
    max_receives: int = 3
    content_dedup: bool = False
    dedup_scope: Literal["queue", "group"] = "queue"
    redrive_allow: Literal["all", "none"] | tuple[str, ...] = "all"
    auto_delete_after: float | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        for name in ("fifo", "content_dedup"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"{name}: {getattr(self, name)!r} is neither true nor false", field=name)
        if self.fifo is not self.name.endswith(".fifo"):
            raise InvalidName(
                f"queue name {self.name!r} and fifo={self.fifo} disagree",
                field="name",
                remedy="End the name of a FIFO queue, and of no other, with '.fifo'.",
            )
        _number(self, "visibility", 0, MAX_VISIBILITY)
        _number(self, "retention", 60, MAX_RETENTION)
        _number(self, "delay", 0, MAX_DELAY)
        _number(self, "receive_wait", 0, MAX_WAIT)
        _whole(self, "max_message_bytes", 1_024, MAX_MESSAGE_BYTES)
        _whole(self, "max_receives", 1, 1_000)
        if self.auto_delete_after is not None:
            _number(self, "auto_delete_after", 0.001, MAX_LIFE)
        self._check_dead_letter()
        self._check_deduplication()
        self._check_redrive_allow()

    def _check_dead_letter(self) -> None:
        if self.dead_letter is None:
            return
        check_name(self.dead_letter, field="dead_letter")
        if self.dead_letter == self.name:
            raise ConfigurationError("dead_letter: a queue cannot be its own dead-letter queue", field="dead_letter")
        if self.dead_letter.endswith(".fifo") is not self.fifo:
            raise ConfigurationError(
                f"dead_letter: {self.dead_letter!r} must be of the same kind as {self.name!r}: "
                "a FIFO queue has FIFO dead letters, a standard one standard",
                field="dead_letter",
            )

    def _check_deduplication(self) -> None:
        if self.dedup_scope not in ("queue", "group"):
            raise ConfigurationError(
                f"dedup_scope: {self.dedup_scope!r} is neither 'queue' nor 'group'", field="dedup_scope"
            )
        if not self.fifo and (self.content_dedup or self.dedup_scope != "queue"):
            field = "content_dedup" if self.content_dedup else "dedup_scope"
            raise ConfigurationError(f"{field}: only FIFO queues deduplicate", field=field)

    def _check_redrive_allow(self) -> None:
        allow = self.redrive_allow
        if allow in ("all", "none"):
            return
        if not isinstance(allow, tuple) or not 1 <= len(allow) <= 10:
            raise ConfigurationError(
                f"redrive_allow: {allow!r} is not 'all', 'none' or one to ten queue names",
                field="redrive_allow",
            )
        for name in allow:
            check_name(name, field="redrive_allow")

    def differences(self, other: QueueSpec) -> dict[str, tuple[Any, Any]]:
        """The settings in which `other` differs, as (this one's, the other's)."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return {name: (mine, theirs) for name, mine, theirs in pairs if mine != theirs}


def check_name(name: object, *, field: str = "name") -> str:
    """Refuse a queue name that SQS would refuse."""
    if not isinstance(name, str) or not 1 <= len(name) <= 80 or _NAME.fullmatch(name) is None:
        raise InvalidName(f"{field}: {name!r} is not a queue name", field=field)
    return name


def check_spec(spec: object) -> None:
    """Refuse what holds no settings of a queue, such as its name alone."""
    if not isinstance(spec, QueueSpec):
        raise InvalidInput(
            f"spec: {type(spec).__name__} is not a QueueSpec",
            field="spec",
            remedy="Give QueueSpec(name); nothing was changed.",
        )


def queue_missing(name: str) -> QueueNotFound:
    """The error for a queue that is not there."""
    return QueueNotFound(f'queue "{name}" does not exist', field="name")


def dead_letter_missing(name: str) -> ConfigurationError:
    """The error for dead letters that have no queue to go to."""
    command = f"postroad queue create {name}{' --fifo' if name.endswith('.fifo') else ''}"
    return ConfigurationError(
        f'dead_letter: queue "{name}" does not exist',
        field="dead_letter",
        remedy=f"Create the dead-letter queue first: `{command}`.",
    )


def settings_differ(name: str, differences: dict[str, tuple[Any, Any]]) -> QueueExists:
    """The error for a queue that is there with other settings."""
    told = ", ".join(f"{field} is {there!r}, not {wanted!r}" for field, (there, wanted) in differences.items())
    return QueueExists(f'queue "{name}" exists with other settings: {told}', differences=differences)


def check_source_allowed(dead_letter: QueueSpec, source: str) -> None:
    """Refuse a source that the dead-letter queue does not accept."""
    allow = dead_letter.redrive_allow
    if allow == "none" or (isinstance(allow, tuple) and source not in allow):
        raise ConfigurationError(
            f"dead_letter: {dead_letter.name!r} does not accept dead letters from {source!r}",
            field="dead_letter",
        )


def _number(spec: QueueSpec, name: str, low: float, high: float) -> None:
    value = getattr(spec, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigurationError(f"{name}: {value!r} is not a number of seconds from {low} to {high}", field=name)


def _whole(spec: QueueSpec, name: str, low: int, high: int) -> None:
    value = getattr(spec, name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigurationError(f"{name}: {value!r} is not a whole number from {low} to {high}", field=name)
