"""Arguments of another type, which every backend refuses by their field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from postroad import Backend
from postroad.errors import InvalidInput
from postroad.topics import Topic


def refuse_arguments_of_another_type(backend: Backend, topic: Topic) -> None:
    """Try a number in the place of a spec, a name and a queue; fail unless each is refused by its field."""
    mistake = cast("Any", 5)
    attempts: list[tuple[str, Callable[[], object]]] = [
        ("spec", lambda: backend.create_queue(mistake)),
        ("spec", lambda: backend.update_queue(mistake)),
        ("name", lambda: backend.queue(mistake)),
        ("name", lambda: backend.topic(mistake)),
        ("queue", lambda: topic.subscribe(mistake)),
        ("queue", lambda: topic.unsubscribe(mistake)),
    ]

    for field, attempt in attempts:
        with pytest.raises(InvalidInput) as refused:
            attempt()
        assert refused.value.field == field
