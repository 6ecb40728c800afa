"""Whatever is sent arrives equal, and whatever arrives is an envelope or refused in time."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.events.journeys import Journey, hostile, journeys

from postroad.errors import PostroadError
from postroad.events import Envelope, codec

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
LIMIT_SECONDS = 0.05


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(journeys)
def test_an_event_arrives_equal_to_what_was_sent(sent: Journey) -> None:
    wrapped = codec.wrap(sent, publisher_id="p", key="k")

    arrived = codec.decode(codec.encode(wrapped))

    assert arrived == wrapped
    assert codec.encode(arrived) == codec.encode(wrapped)
    assert codec.unwrap(arrived) == sent


def outcome(message: Any) -> object:
    """What the codec makes of the message, unwrapped where it can be."""
    try:
        arrived = codec.decode(message)
    except PostroadError as error:
        return error
    assert isinstance(arrived, Envelope)
    assert codec.decode(codec.encode(arrived)) == arrived
    try:
        return codec.unwrap(arrived)
    except PostroadError as error:
        return error


def check(message: Any) -> None:
    """Decode once for the outcome; a slow one is measured again, since the machine may have been busy."""
    modules = set(sys.modules)

    outcome(message)

    assert set(sys.modules) == modules
    assert any(seconds_to_decode(message) < LIMIT_SECONDS for _ in range(3))


def seconds_to_decode(message: Any) -> float:
    started = time.thread_time()
    with suppress(PostroadError):
        codec.decode(message)
    return time.thread_time() - started


@settings(max_examples=1_000, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(hostile)
def test_any_message_is_an_envelope_or_refused(message: bytes | str) -> None:
    check(message)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=20_000, deadline=None, suppress_health_check=QUIET, database=None)
@given(hostile)
def test_any_of_many_messages_is_an_envelope_or_refused(message: bytes | str) -> None:
    check(message)
