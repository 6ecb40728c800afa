"""What the functions of agents share: the store that this environment names, opened once."""

from __future__ import annotations

import functools

from postroad.agents.aws.store import AwsAgentStore
from postroad.errors import ConfigurationError
from postroad.settings.environment import function_environment
from postroad.wiring import connect


def opened() -> AwsAgentStore:
    """The store of the environment as it is now; two environments in one process never mix."""
    return _open(*function_environment())


@functools.lru_cache(maxsize=8)
def _open(url: str, environment: tuple[str, ...]) -> AwsAgentStore:
    del environment
    backend = connect(url)
    store = backend.agents().store
    if not isinstance(store, AwsAgentStore):
        backend.close()
        raise ConfigurationError(f"url: {url} is not AWS; its runner needs no functions", field="url")
    return store
