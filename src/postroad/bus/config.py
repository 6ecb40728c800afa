"""How a remote bus publishes and receives, checked when it is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from typing import Annotated, Any, Literal, Self

from msgspec import Meta

from postroad.arguments import FINITE, check, check_settings, refusal
from postroad.errors import ConfigurationError
from postroad.settings import bus_variable

FIELDS = ("session_id", "key", "tenant_id", "event_type", "publisher_id", "request_id")


def check_template(text: object) -> None:
    """Refuse a `message_group_id` that names something no event has."""
    names = ", ".join(f"${{{name}}}" for name in FIELDS)
    template = Template(text) if isinstance(text, str) and text else None
    if template is None or not template.is_valid() or not set(template.get_identifiers()) <= set(FIELDS):
        raise ConfigurationError(
            f"message_group_id: {text!r} is not a template over {names}",
            field="message_group_id",
            remedy=f"Use some of {names}, or a fixed text.",
        )


Echo = Literal["settle", "dispatch", "release"]
Unhandled = Literal["release", "ack", "dead_letter"]
Seconds = Annotated[float, Meta(ge=0, le=FINITE, description="a number of seconds of 0 or more")]
Wait = Annotated[float, Meta(ge=0, le=20, description="a number of seconds from 0 to 20")]
Visibility = Annotated[float, Meta(ge=0, le=43_200, description="a number of seconds from 0 to 43200")]
Delays = Annotated[
    tuple[Visibility, ...], Meta(min_length=1, description="one or more numbers of seconds from 0 to 43200")
]
Count = Annotated[int, Meta(ge=1, le=1_000)]
Text = Annotated[str, Meta(min_length=1, description="text of one or more printable characters")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SQSEventBusConfig:
    """The settings of one bus; every default suits a small service."""

    max_messages_per_poll: Annotated[int, Meta(ge=1, le=10)] = 10
    wait_time_seconds: Wait = 20
    visibility_timeout_seconds: Visibility = 30
    poll_interval_seconds: Seconds = 0.1
    publish_timeout_seconds: Seconds = 5.0
    publish_retries: Annotated[int, Meta(ge=0, le=1_000)] = 3
    publish_retry_delay_seconds: Seconds = 0.5
    message_group_id: str | None = None
    event_type_allowlist: frozenset[type[object]] | None = None
    event_type_blocklist: frozenset[type[object]] | None = None
    enable_deduplication: bool = True
    deduplication_window_seconds: Seconds = 300
    publisher_id: Text | None = None
    """None: the environment's, else a random one for each bus."""
    local_dispatch: bool = True
    echo: Echo = "settle"
    """What to do with an own event that comes back after this bus handled it on publish."""
    unhandled: Unhandled = "release"
    """What to do with an event that nobody here handles."""
    concurrency: Count = 1
    retry_delays_seconds: Delays = (1, 5, 30, 120)
    heartbeat_max_seconds: Seconds = 3600
    dead_letter_queue_url: Text | None = None
    max_receives: Count = 3
    max_message_bytes: Annotated[int, Meta(ge=1, le=104_857_600)] | None = None
    overflow: Literal["blobs", "fail"] = "blobs"

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("event_type_allowlist", "event_type_blocklist"):
            types = getattr(self, name)
            if types is not None and not (
                isinstance(types, frozenset | set) and all(isinstance(each, type) for each in types)
            ):
                raise _refused(name, types, "a frozenset of classes")
        for name in ("publisher_id", "dead_letter_queue_url"):
            if not (getattr(self, name) or "").isprintable():
                raise refusal(getattr(self, name), Text, name, ConfigurationError)
        if self.message_group_id is not None:
            check_template(self.message_group_id)

    @classmethod
    def from_env(cls, **overrides: Any) -> Self:
        """The settings that the environment tells; an override wins over it."""
        told = {
            "poll_interval_seconds": _number("POLL_INTERVAL", Seconds),
            "visibility_timeout_seconds": _number("VISIBILITY_TIMEOUT", Visibility),
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
        check(self.max_attempts, Count | None, "max_attempts", ConfigurationError)
        check(self.retry_delays, Delays | None, "retry_delays", ConfigurationError)

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


def _number(name: str, kind: Any) -> float | None:
    found = bus_variable(name)
    if found is None:
        return None
    variable, text = found
    remedy = "Give a plain number of seconds, such as 0.5."
    try:
        number = float(text)
        check(number, kind, variable, ConfigurationError)
    except (ValueError, ConfigurationError):
        error = refusal(text, kind, variable, ConfigurationError)
        raise ConfigurationError(f"variable {error.message}", field=variable, remedy=remedy) from None
    return number


def _refused(name: str, value: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{name}: {value!r} is not {wanted}", field=name, remedy=f"Give {wanted}.")
