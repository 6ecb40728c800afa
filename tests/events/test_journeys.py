"""Whatever is sent arrives equal, and whatever arrives is an envelope or refused in time."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from tests.events.damages import hostile_messages
from tests.events.journeys import Journey, hostile, journeys

from postroad.errors import PostroadError
from postroad.events import Envelope, codec

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 0.05
MESSAGES = int(os.environ.get("HOSTILE_MESSAGES", "20000"))
SEED = int(os.environ.get("HOSTILE_SEED", "7"))


@settings(max_examples=200, derandomize=True)
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
    """An outcome, no import, and in time; a slow decoding is measured again, since the machine may have been busy."""
    modules = len(sys.modules)

    outcome(message)

    assert len(sys.modules) == modules
    assert any(seconds_to_decode(message) < LIMIT_SECONDS for _ in range(3))


def seconds_to_decode(message: Any) -> float:
    started = time.thread_time()
    with suppress(PostroadError):
        codec.decode(message)
    return time.thread_time() - started


@settings(max_examples=300, derandomize=True)
@given(hostile)
def test_any_message_is_an_envelope_or_refused(message: bytes | str) -> None:
    check(message)


@pytest.mark.slow
def test_any_of_many_messages_is_an_envelope_or_refused() -> None:
    # Made without Hypothesis, which takes a hundred times longer to think of a message than the codec to read it.
    for message in hostile_messages(MESSAGES, seed=SEED):
        try:
            check(message)
        except BaseException as error:
            error.add_note(f"seed {SEED}, message {message!r}")
            raise
