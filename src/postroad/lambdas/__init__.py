"""Lambdas: the functions that AWS calls, each a thin layer on code that runs everywhere, and what they share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from postroad.errors import ConfigurationError
from postroad.settings import function_environment, function_of_tasks

if TYPE_CHECKING:
    from postroad.agents import AwsAgentStore
    from postroad.wiring import Backend


def opened_backend() -> Backend:
    """Return the backend that the environment names now, opened once; two environments in one process never mix."""
    return _open_backend(*function_of_tasks())


def opened_agents() -> AwsAgentStore:
    """Return the agent store that the environment names now, opened once."""
    return _open_agents(*function_environment())


def failures(records: list[Mapping[str, Any]], is_handled: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    """Handle the records of a queue and return the answer to SQS, which names those that must come again."""
    failed = [record["messageId"] for record in records if not is_handled(record)]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def lowest_failure(failed: list[str]) -> dict[str, Any]:
    """Return the answer to a stream: it delivers again from the lowest of these sequences on."""
    return {"batchItemFailures": [{"itemIdentifier": min(failed, key=int)}] if failed else []}


def attributes_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes of a queue's record, as a queue would have delivered them."""
    return {
        name: value["stringValue"]
        for name, value in record.get("messageAttributes", {}).items()
        if value.get("stringValue") is not None
    }


@functools.lru_cache(maxsize=8)
def _open_backend(url: str, environment: tuple[str, ...]) -> Backend:
    from postroad.wiring import connect

    del environment
    return connect(url)


@functools.lru_cache(maxsize=8)
def _open_agents(url: str, environment: tuple[str, ...]) -> AwsAgentStore:
    from postroad.agents import AwsAgentStore

    store = _open_backend(url, environment).agents().store
    if not isinstance(store, AwsAgentStore):
        raise ConfigurationError(f"url: {url} is not AWS; its runner needs no functions", field="url")
    return store
