"""The settings of a bus, checked when they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from typing import Annotated, Any, Literal, Self

from msgspec import Meta

from postroad.arguments import Seconds, check, check_settings, refusal
from postroad.errors import ConfigurationError
from postroad.settings import bus_variable

FIELDS = ("session_id", "key", "tenant_id", "event_type", "publisher_id", "request_id")


def check_template(text: object) -> None:
    """Refuse a `message_group_id` that names a field no event has."""
    names = ", ".join(f"${{{name}}}" for name in FIELDS)
    template = Template(text) if isinstance(text, str) and text else None
    if template is None or not template.is_valid() or not set(template.get_identifiers()) <= set(FIELDS):
        why = f"message_group_id: {text!r} is not a template over {names}"
        raise ConfigurationError(why, field="message_group_id", remedy=f"Use some of {names}, or a fixed text.")


Echo = Literal["settle", "dispatch", "release"]
Unhandled = Literal["release", "ack", "dead_letter"]
Wait = Annotated[float, Meta(ge=0, le=20, description="a number of seconds from 0 to 20")]
Visibility = Annotated[float, Meta(ge=0, le=43_200, description="a number of seconds from 0 to 43200")]
Delays = Annotated[
    tuple[Visibility, ...], Meta(min_length=1, description="one or more numbers of seconds from 0 to 43200")
]
Timeout = Annotated[float, Meta(gt=0, le=43_200, description="a number of seconds above 0, up to 43200")]
Count = Annotated[int, Meta(ge=1, le=1_000)]
Text = Annotated[str, Meta(min_length=1, description="text of one or more printable characters")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusConfig:
    """The settings of one bus; every default suits a small service.

    Raises:
        ConfigurationError: A value is out of bounds; `field` names it.

    Example:
        backend.bus("orders", "billing", config=BusConfig(concurrency=8, max_receives=5))
    """

    max_messages_per_poll: Annotated[int, Meta(ge=1, le=10)] = 10
    """How many messages one poll asks for."""
    wait_time_seconds: Wait = 20
    """How long one poll waits for messages."""
    visibility_timeout_seconds: Visibility = 30
    """How long a received event is hidden from others. It is extended while handlers run, so it limits only the time
    after a crash until the event is delivered again."""
    poll_interval_seconds: Seconds = 0.1
    """The pause after a poll that found nothing."""
    publish_timeout_seconds: Seconds = 5.0
    """The longest time that `publish` spends on sending, retries included."""
    publish_retries: Annotated[int, Meta(ge=0, le=1_000)] = 3
    """How often a failed send is tried again within that time."""
    publish_retry_delay_seconds: Seconds = 0.5
    """The pause before the first retry; it doubles each time."""
    message_group_id: str | None = None
    """What orders events on FIFO: a template such as `${tenant_id}`; by default the key that `publish` is given."""
    event_type_allowlist: frozenset[type[object]] | None = None
    """The only classes that are sent and received; None means all."""
    event_type_blocklist: frozenset[type[object]] | None = None
    """Classes that are neither sent nor received, even if the allowlist has them."""
    enable_deduplication: bool = True
    """Whether events that come twice are handled once, as long as this process remembers them."""
    deduplication_window_seconds: Seconds = 300
    """How long it remembers them."""
    publisher_id: Text | None = None
    """The sender that messages name; by default that of the environment, else a random one for each bus."""
    local_dispatch: bool = True
    """Whether `publish` calls the handlers of this process at once."""
    echo: Echo = "settle"
    """How to treat an own event that comes back after `publish` handled it: ack it, handle it again, release it."""
    unhandled: Unhandled = "release"
    """What to do with an event that no handler takes: release it for other members of the group, ack or reject it."""
    concurrency: Count = 1
    """How many handlers run at the same time. Raise it if they wait for other services."""
    retry_delays_seconds: Delays = (1, 5, 30, 120)
    """The pause before each next attempt; the last one repeats."""
    heartbeat_max_seconds: Seconds = 3600
    """The longest time for which the lease of a running handler is extended; then others may get the event."""
    dead_letter_queue_url: Text | None = None
    """The SQS queue for dead letters of a bus that was given its queue by URL."""
    max_receives: Count = 3
    """After how many failed attempts an event becomes a dead letter."""
    max_message_bytes: Annotated[int, Meta(ge=1, le=104_857_600)] | None = None
    """The size above which an event overflows; by default the limit of the transport."""
    overflow: Literal["blobs", "fail"] = "blobs"
    """What to do with an event above that size: put it into a blob and send a reference, or refuse it."""

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("event_type_allowlist", "event_type_blocklist"):
            types = getattr(self, name)
            is_set = isinstance(types, frozenset | set)
            if types is not None and not (is_set and all(isinstance(each, type) for each in types)):
                raise _refused(name, types, "a frozenset of classes")
        for name in ("publisher_id", "dead_letter_queue_url"):
            if not (getattr(self, name) or "").isprintable():
                raise refusal(getattr(self, name), Text, name, ConfigurationError)
        if self.message_group_id is not None:
            check_template(self.message_group_id)

    @classmethod
    def from_env(cls, **overrides: Any) -> Self:
        """Return the settings of the environment; `overrides` win over it."""
        found = {
            "poll_interval_seconds": _number("POLL_INTERVAL", Seconds),
            "visibility_timeout_seconds": _number("VISIBILITY_TIMEOUT", Visibility),
            "publisher_id": (bus_variable("PUBLISHER_ID") or (None, None))[1],
        }
        return cls(**{**{name: value for name, value in found.items() if value is not None}, **overrides})

    def allows(self, event_type: type[object] | None) -> bool:
        """Return whether events of exactly `event_type` may be sent and received; the blocklist wins."""
        if self.event_type_blocklist is not None and event_type in self.event_type_blocklist:
            return False
        return self.event_type_allowlist is None or event_type in self.event_type_allowlist


SQSEventBusConfig = BusConfig


@dataclass(frozen=True, slots=True)
class HandlerLimits:
    """The attempts of one handler and the pauses between them; None means what the config says."""

    max_attempts: int | None = None
    retry_delays: Sequence[float] | None = None
    timeout: float | None = None
    """Seconds after which one attempt is cancelled; None: it may take its time."""

    def __post_init__(self) -> None:
        check(self.timeout, Timeout | None, "timeout", ConfigurationError)
        check(self.max_attempts, Count | None, "max_attempts", ConfigurationError)
        check(self.retry_delays, Delays | None, "retry_delays", ConfigurationError)

    def most(self, config: BusConfig) -> int:
        """Return the number of failed attempts after which the handler gives up."""
        return config.max_receives if self.max_attempts is None else self.max_attempts

    def delay(self, config: BusConfig, attempt: int) -> float:
        """Return the pause before the attempt that follows this one; the last delay repeats."""
        delays = config.retry_delays_seconds if self.retry_delays is None else self.retry_delays
        return delays[min(max(attempt, 1), len(delays)) - 1]


def checked_config(config: BusConfig | None) -> BusConfig:
    """Return the config that was passed; without one, that of the environment."""
    if config is None:
        return BusConfig.from_env()
    if not isinstance(config, BusConfig):
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
