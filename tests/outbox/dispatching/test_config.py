from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from postroad.errors import ConfigurationError
from postroad.outbox import DispatcherConfig, bus_name, group_id


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch", 0),
        ("batch", True),
        ("batch", 2.5),
        ("concurrency", 0),
        ("publish_batch", 0),
        ("retry_max", 0),
        ("backoff", ()),
        ("backoff", (-1,)),
        ("backoff", (math.nan,)),
        ("backoff", "1,5"),
        ("jitter", -0.1),
        ("lease", 0),
        ("lease", -1),
        ("lease", math.nan),
        ("lease", math.inf),
        ("poll", 0),
        ("poll", "1"),
        ("target_pause", -1),
        ("listen", "yes"),
        ("policy", "drop"),
        ("keep_sent", 7),
        ("keep_sent", timedelta(seconds=-1)),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field) as refused:
        DispatcherConfig(**{field: value})

    assert refused.value.field == field


def test_the_horizon_is_the_longest_time_from_the_first_to_the_last_attempt() -> None:
    assert DispatcherConfig().horizon == pytest.approx(16_671.6)
    assert DispatcherConfig(backoff=(1, 5), retry_max=4, jitter=0).horizon == 1 + 5 + 5
    assert DispatcherConfig(retry_max=1).horizon == 0


def test_a_pause_grows_with_the_attempts_and_the_last_one_repeats() -> None:
    config = DispatcherConfig(backoff=(1, 5, 30), jitter=0.5)

    assert [config.pause(attempts, chance=0) for attempts in (1, 2, 3, 4, 10)] == [1, 5, 30, 30, 30]
    assert config.pause(2, chance=1) == 7.5


@pytest.mark.parametrize(
    ("tenant", "lane", "group"),
    [
        ("tnt_1", "tr_1", "tnt_1:tr_1"),
        (None, "tr_1", "tr_1"),
        ("", "tr_1", "tr_1"),
        (None, "a" * 128, "a" * 128),
        (None, "a" * 129, None),
        (None, "with space", None),
        (None, "Zürich", None),
        ("t", "tab\t", None),
    ],
)
def test_a_key_that_no_group_can_be_called_goes_by_its_hash(tenant: str | None, lane: str, group: str | None) -> None:
    found = group_id(tenant, lane)

    assert len(found) <= 128
    if group is None:
        assert found.startswith("h:")
        assert len(found) == 66
    else:
        assert found == group


def test_a_dotted_name_becomes_one_that_aws_takes() -> None:
    assert bus_name("events.transfers") == "events-transfers.fifo"
    assert bus_name("gateway.usdc.fifo") == "gateway-usdc.fifo"
