"""How a remote bus publishes and receives, checked when it is written down."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any, Literal, Self

from postroad.errors import ConfigurationError
from postroad.events import Envelope
from postroad.settings import bus_variable

FIELDS = ("session_id", "key", "tenant_id", "event_type", "publisher_id", "request_id")
_LEGAL = re.compile(r"[!-~]{1,128}")


def check_template(text: object) -> None:
    """Refuse a `message_group_id` that names something no event has."""
    names = ", ".join(f"${{{name}}}" for name in FIELDS)
    template = Template(text) if isinstance(text, str) and text else None
    if template is None or not template.is_valid() or not set(template.get_identifiers()) <= set(FIELDS):
        raise ConfigurationError(
            f"message_group_id: {text!r} is not a template over {names}", field="message_group_id",
            remedy=f"Use some of {names}, or a fixed text.",
        )  # fmt: skip


def group_of(template: str | None, envelope: Envelope, event: object, *, fifo: bool) -> str | None:
    """The group id to send: from the template, on FIFO else by key; None where a standard queue needs none."""
    if template is None and not fifo:
        return None
    values = _values(envelope, event)
    instead = values["request_id"] or envelope.publisher_id
    filled = {name: value or instead for name, value in values.items()}
    return legal(Template("${key}" if template is None else template).substitute(filled))


def _values(envelope: Envelope, event: object) -> Mapping[str, str | None]:
    request_id = getattr(event, "request_id", None)
    return {
        "session_id": envelope.session_id,
        "key": envelope.key,
        "tenant_id": envelope.tenant_id,
        "event_type": envelope.event_type,
        "publisher_id": envelope.publisher_id,
        "request_id": None if request_id is None else str(request_id),
    }


def legal(group: str) -> str:
    """The group id, or its hash where SQS would refuse it."""
    if _LEGAL.fullmatch(group):
        return group
    return hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()


Echo = Literal["settle", "dispatch", "release"]
Unhandled = Literal["release", "ack", "dead_letter"]
_CHOICES = {
    "echo": ("settle", "dispatch", "release"),
    "unhandled": ("release", "ack", "dead_letter"),
    "overflow": ("blobs", "fail"),
}
_SECONDS = {
    "wait_time_seconds": 20.0,
    "visibility_timeout_seconds": 43_200.0,
    "poll_interval_seconds": math.inf,
    "publish_timeout_seconds": math.inf,
    "publish_retry_delay_seconds": math.inf,
    "deduplication_window_seconds": math.inf,
    "heartbeat_max_seconds": math.inf,
}
_COUNTS = {"max_messages_per_poll": (1, 10), "publish_retries": (0, 1_000), "concurrency": (1, 1_000),
           "max_receives": (1, 1_000), "max_message_bytes": (1, 104_857_600)}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SQSEventBusConfig:
    """The settings of one bus; every default suits a small service."""

    max_messages_per_poll: int = 10
    wait_time_seconds: float = 20
    visibility_timeout_seconds: float = 30
    poll_interval_seconds: float = 0.1
    publish_timeout_seconds: float = 5.0
    publish_retries: int = 3
    publish_retry_delay_seconds: float = 0.5
    message_group_id: str | None = None
    event_type_allowlist: frozenset[type[object]] | None = None
    event_type_blocklist: frozenset[type[object]] | None = None
    enable_deduplication: bool = True
    deduplication_window_seconds: float = 300
    publisher_id: str | None = None
    """None: the environment's, else a random one for each bus."""
    local_dispatch: bool = True
    echo: Echo = "settle"
    """What to do with an own event that comes back after this bus handled it on publish."""
    unhandled: Unhandled = "release"
    """What to do with an event that nobody here handles."""
    concurrency: int = 1
    retry_delays_seconds: tuple[float, ...] = (1, 5, 30, 120)
    heartbeat_max_seconds: float = 3600
    dead_letter_queue_url: str | None = None
    max_receives: int = 3
    max_message_bytes: int | None = None
    overflow: Literal["blobs", "fail"] = "blobs"

    def __post_init__(self) -> None:
        for name, most in _SECONDS.items():
            _check_seconds(name, getattr(self, name), most)
        for name, (low, high) in _COUNTS.items():
            _check_count(name, getattr(self, name), low, high)
        for name, words in _CHOICES.items():
            if getattr(self, name) not in words:
                raise _refused(name, getattr(self, name), f"one of {', '.join(words)}")
        for name in ("enable_deduplication", "local_dispatch"):
            if not isinstance(getattr(self, name), bool):
                raise _refused(name, getattr(self, name), "true or false")
        for name in ("event_type_allowlist", "event_type_blocklist"):
            _check_types(name, getattr(self, name))
        for name in ("publisher_id", "dead_letter_queue_url"):
            _check_text(name, getattr(self, name))
        _check_delays("retry_delays_seconds", self.retry_delays_seconds)
        if self.message_group_id is not None:
            check_template(self.message_group_id)

    @classmethod
    def from_env(cls, **overrides: Any) -> Self:
        """The settings that the environment tells; an override wins over it."""
        told = {
            "poll_interval_seconds": _number("POLL_INTERVAL", "poll_interval_seconds"),
            "visibility_timeout_seconds": _number("VISIBILITY_TIMEOUT", "visibility_timeout_seconds"),
            "publisher_id": (bus_variable("PUBLISHER_ID") or (None, None))[1],
        }
        return cls(**{**{name: value for name, value in told.items() if value is not None}, **overrides})

    def allows(self, event_type: type[object] | None) -> bool:
        """Whether events of exactly this type may be sent and received; the blocklist wins."""
        if self.event_type_blocklist is not None and event_type in self.event_type_blocklist:
            return False
        return self.event_type_allowlist is None or event_type in self.event_type_allowlist


BusConfig = SQSEventBusConfig


@dataclass(frozen=True, slots=True)
class HandlerLimits:
    """How often one handler is tried, and how long it is spared in between; None leaves it to the config."""

    max_attempts: int | None = None
    retry_delays: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            _check_count("max_attempts", self.max_attempts, *_COUNTS["max_receives"])
        if self.retry_delays is not None:
            _check_delays("retry_delays", self.retry_delays)

    def most(self, config: SQSEventBusConfig) -> int:
        """Return after how many failed attempts the handler gives up."""
        return config.max_receives if self.max_attempts is None else self.max_attempts

    def delay(self, config: SQSEventBusConfig, attempt: int) -> float:
        """Return the pause before the attempt that follows this one; the last delay repeats."""
        delays = config.retry_delays_seconds if self.retry_delays is None else self.retry_delays
        return delays[min(max(attempt, 1), len(delays)) - 1]


def checked_config(config: SQSEventBusConfig | None) -> SQSEventBusConfig:
    """The config that was passed, as it is; without one, what the environment tells."""
    if config is None:
        return SQSEventBusConfig.from_env()
    if not isinstance(config, SQSEventBusConfig):
        raise _refused("config", config, "a BusConfig")
    return config


def _number(name: str, field: str) -> float | None:
    found = bus_variable(name)
    if found is None:
        return None
    variable, text = found
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    most = _SECONDS[field]
    if not 0 <= number <= most or number == math.inf:
        raise ConfigurationError(
            f"variable {variable}: {text!r} is not {_wanted(most)}", field=variable,
            remedy="Give a plain number of seconds, such as 0.5.",
        )  # fmt: skip
    return number


def _check_seconds(name: str, value: object, most: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= most or value == math.inf:  # type: ignore[operator]  # a number by now
        raise _refused(name, value, _wanted(most))


def _wanted(most: float) -> str:
    return "a number of seconds " + ("of 0 or more" if most == math.inf else f"from 0 to {most:.0f}")


def _check_count(name: str, value: object, low: int, high: int) -> None:
    if value is None and name == "max_message_bytes":
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _refused(name, value, f"a whole number from {low} to {high}")


def _check_types(name: str, types: object) -> None:
    if types is None:
        return
    if not isinstance(types, frozenset | set) or not all(isinstance(each, type) for each in types):
        raise _refused(name, types, "a frozenset of classes")


def _check_text(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value or not value.isprintable()):
        raise _refused(name, value, "text of one or more printable characters")


def _check_delays(name: str, delays: object) -> None:
    if not isinstance(delays, tuple | list) or not delays:
        raise _refused(name, delays, "one or more numbers of seconds")
    for delay in delays:
        _check_seconds(name, delay, _SECONDS["visibility_timeout_seconds"])


def _refused(name: str, value: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{name}: {value!r} is not {wanted}", field=name, remedy=f"Give {wanted}.")
