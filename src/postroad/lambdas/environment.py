"""What the functions share: the backend and the agents that their environment names, opened once."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from postroad.errors import ConfigurationError
from postroad.settings import function_environment, function_of_tasks
from postroad.wiring import Backend, connect

if TYPE_CHECKING:
    from postroad.agents import AwsAgentStore


def opened_backend() -> Backend:
    """The backend of the environment as it is now; two environments in one process never mix."""
    return _open_backend(*function_of_tasks())


def attributes_of(record: Mapping[str, Any]) -> dict[str, str]:
    """The attributes of a queue's record, as a queue would have delivered them."""
    return {
        name: value["stringValue"]
        for name, value in record.get("messageAttributes", {}).items()
        if value.get("stringValue") is not None
    }


@functools.lru_cache(maxsize=8)
def _open_backend(url: str, environment: tuple[str, ...]) -> Backend:
    del environment
    return connect(url)


def opened_agents() -> AwsAgentStore:
    """The store of the environment as it is now; two environments in one process never mix."""
    return _open_agents(*function_environment())


@functools.lru_cache(maxsize=8)
def _open_agents(url: str, environment: tuple[str, ...]) -> AwsAgentStore:
    from postroad.agents.aws.store import AwsAgentStore

    del environment
    backend = connect(url)
    store = backend.agents().store
    if not isinstance(store, AwsAgentStore):
        backend.close()
        raise ConfigurationError(f"url: {url} is not AWS; its runner needs no functions", field="url")
    return store
