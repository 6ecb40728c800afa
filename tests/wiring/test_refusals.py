"""What a backend is asked wrongly it refuses before it makes or changes anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.wiring.mistakes import refuse_arguments_of_another_type

import postroad
from postroad import Backend, QueueSpec
from postroad.errors import ConfigurationError


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with postroad.connect("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/p.db") as backend:
        yield backend


def test_an_overflow_that_is_none_makes_neither_queue_nor_topic(backend: Backend) -> None:
    mistake: Any = "elsewhere"

    with pytest.raises(ConfigurationError, match="neither 'blobs' nor 'fail'"):
        backend.create_queue(QueueSpec("jobs"), overflow=mistake)
    with pytest.raises(ConfigurationError, match="neither 'blobs' nor 'fail'"):
        backend.topic("news", overflow=mistake)

    assert (backend.queues(), backend.topics()) == ([], [])


def test_arguments_of_another_type_are_refused_by_their_field(backend: Backend) -> None:
    topic = backend.topic("news")

    refuse_arguments_of_another_type(backend, topic)

    assert (backend.queues(), topic.subscriptions()) == ([], [])
