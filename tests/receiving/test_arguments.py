"""What a receiver cannot use is refused when it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import postroad
from postroad import Backend, OutgoingMessage, Queue, QueueSpec
from postroad.errors import ConfigurationError, InvalidInput
from postroad.queues.markers import read_dead
from postroad.receiving import Ack, Defer, Receiver, Retry


@pytest.fixture
def backend() -> Iterator[Backend]:
    with postroad.connect("memory://") as backend:
        yield backend


@pytest.fixture
def dead(backend: Backend) -> Queue:
    return backend.create_queue(QueueSpec("dead"))


@pytest.fixture
def queue(backend: Backend, dead: Queue) -> Queue:
    return backend.create_queue(QueueSpec("jobs", dead_letter="dead", max_receives=50))


@pytest.mark.parametrize("outcome", [Retry, Defer])
@pytest.mark.parametrize("after", [-1, 43_201, float("nan"), float("inf"), "60"])
def test_a_delay_that_no_queue_can_keep_is_a_failure_of_decide(
    queue: Queue, dead: Queue, outcome: Any, after: Any
) -> None:
    queue.send([OutgoingMessage("one")])

    counted = Receiver(queue, lambda delivery: outcome(after), max_receives=1).run_once()

    assert counted["rejected"] == 1
    [letter] = dead.peek()
    marker = read_dead(letter.attributes)
    assert marker is not None
    assert f"after: {after!r} is not a number of seconds from 0 to 43200" in str(marker.error)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("queue", "jobs"),
        ("queue", None),
        ("decide", None),
        ("decide", Ack()),
        ("dead_letters", "dead"),
        ("breaker", 5),
        ("on_lost", 5),
        ("on_extended", "x"),
    ],
)
def test_what_is_no_queue_no_function_or_no_breaker_is_refused_by_name(queue: Queue, field: str, wrong: Any) -> None:
    arguments: dict[str, Any] = {"queue": queue, "decide": lambda delivery: Ack(), field: wrong}

    with pytest.raises(ConfigurationError) as caught:
        Receiver(**arguments)

    assert (caught.value.field, str(caught.value).startswith(f"{field}: {wrong!r} is not a ")) == (field, True)


@pytest.mark.parametrize("wrong", [-1, float("nan"), "x", None])
def test_what_is_no_time_to_wait_is_refused(queue: Queue, wrong: Any) -> None:
    receiver = Receiver(queue, lambda delivery: Ack())

    with pytest.raises(InvalidInput, match=r"^wait: "):
        receiver.run_once(wait=wrong)
    with pytest.raises(InvalidInput, match=r"^timeout: "):
        receiver.stop(wrong)
