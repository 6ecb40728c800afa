"""What the functions behind tasks share: the backend that their environment names, and the records of queues."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from postroad.settings import function_of_tasks
from postroad.wiring import connect
from postroad.wiring.backend import Backend


def opened() -> Backend:
    """The backend of the environment as it is now; two environments in one process never mix."""
    return _open(*function_of_tasks())


def attributes_of(record: Mapping[str, Any]) -> dict[str, str]:
    """The attributes of a queue's record, as a queue would have delivered them."""
    return {
        name: value["stringValue"]
        for name, value in record.get("messageAttributes", {}).items()
        if value.get("stringValue") is not None
    }


@functools.lru_cache(maxsize=8)
def _open(url: str, environment: tuple[str, ...]) -> Backend:
    del environment
    return connect(url)
