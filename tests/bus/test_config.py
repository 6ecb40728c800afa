"""The settings of a bus: checked when they are made, read from the environment when nothing is given."""

from __future__ import annotations

import math
from typing import Any

import pytest

from postroad.bus import BusConfig, SQSEventBus, SQSEventBusConfig
from postroad.errors import ConfigurationError

WRONG: list[tuple[str, Any]] = [
    ("max_messages_per_poll", 0),
    ("max_messages_per_poll", 11),
    ("wait_time_seconds", -1),
    ("wait_time_seconds", 21),
    ("visibility_timeout_seconds", -1),
    ("visibility_timeout_seconds", 43_201),
    ("publish_retries", -1),
    ("publish_retry_delay_seconds", -0.1),
    ("publish_timeout_seconds", -1),
    ("publish_timeout_seconds", math.nan),
    ("poll_interval_seconds", math.inf),
    ("deduplication_window_seconds", -1),
    ("concurrency", 0),
    ("concurrency", True),
    ("retry_delays_seconds", ()),
    ("retry_delays_seconds", (1, -1)),
    ("retry_delays_seconds", (math.nan,)),
    ("heartbeat_max_seconds", -1),
    ("max_receives", 0),
    ("max_message_bytes", 0),
    ("echo", "maybe"),
    ("unhandled", "drop"),
    ("overflow", "truncate"),
    ("publisher_id", ""),
    ("message_group_id", "${nope}"),
    ("message_group_id", "${session_id"),
    ("message_group_id", ""),
    ("event_type_allowlist", frozenset({"Placed"})),
    ("enable_deduplication", "yes"),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_setting_that_cannot_work_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field) as refused:
        BusConfig(**{field: value})

    assert refused.value.field == field


def test_the_defaults_are_those_of_the_documentation() -> None:
    config = SQSEventBusConfig()

    assert (config.max_messages_per_poll, config.wait_time_seconds, config.visibility_timeout_seconds) == (10, 20, 30)
    assert (config.poll_interval_seconds, config.publish_timeout_seconds, config.publish_retries) == (0.1, 5.0, 3)
    assert (config.publish_retry_delay_seconds, config.deduplication_window_seconds) == (0.5, 300)
    assert (config.echo, config.unhandled, config.concurrency, config.max_receives) == ("settle", "release", 1, 3)
    assert (config.retry_delays_seconds, config.heartbeat_max_seconds) == ((1, 5, 30, 120), 3600)
    assert (config.enable_deduplication, config.local_dispatch, config.overflow) == (True, True, "blobs")
    unset = {name for name in config.__slots__ if getattr(config, name) is None}
    assert unset == {
        *("message_group_id", "event_type_allowlist", "event_type_blocklist"),
        *("publisher_id", "dead_letter_queue_url", "max_message_bytes"),
    }
    assert BusConfig is SQSEventBusConfig
    assert BusConfig.__name__ == "BusConfig"


def test_the_environment_is_read_and_our_names_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINK_SQS_POLL_INTERVAL", "0.5")
    monkeypatch.setenv("WINK_SQS_VISIBILITY_TIMEOUT", "60")
    monkeypatch.setenv("POSTROAD_SQS_VISIBILITY_TIMEOUT", "90")

    found, overridden = BusConfig.from_env(), BusConfig.from_env(poll_interval_seconds=1)

    assert (found.poll_interval_seconds, found.visibility_timeout_seconds) == (0.5, 90)
    assert overridden.poll_interval_seconds == 1
    assert BusConfig().poll_interval_seconds == 0.1


@pytest.mark.parametrize("text", ["abc", "30s", "-1", "nan", "inf"])
def test_a_variable_that_is_no_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("WINK_SQS_POLL_INTERVAL", text)

    with pytest.raises(ConfigurationError, match="WINK_SQS_POLL_INTERVAL"):
        BusConfig.from_env()


def test_a_variable_out_of_bounds_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_SQS_VISIBILITY_TIMEOUT", "43201")

    with pytest.raises(ConfigurationError, match=r"POSTROAD_SQS_VISIBILITY_TIMEOUT.*from 0 to 43200"):
        BusConfig.from_env()


def test_a_config_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="config"):
        SQSEventBus(queue_url="http://fake/1/orders", client=object(), config={})  # type: ignore[arg-type]  # the test is about it


@pytest.mark.parametrize("url", [None, "", "orders"])
def test_a_bus_on_sqs_needs_the_url_of_a_queue(url: str | None) -> None:
    with pytest.raises(ConfigurationError) as refused:
        SQSEventBus(queue_url=url, client=object())

    assert "queue_url" in str(refused.value)
    assert "WINK_SQS_QUEUE_URL" in str(refused.value)
