"""What holds when nobody says otherwise: the numbers that callers rely on."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from postroad.agents import AgentEvent, Agents, Runner
from postroad.agents.aws import fanout
from postroad.agents.aws.release import ATTEMPTS, MAX_ENTRIES
from postroad.agents.runner import LEASE_SECONDS
from postroad.agents.tables import RETENTION_SECONDS
from postroad.errors import ConfigurationError
from postroad.settings.environment import agent_polls, agent_rate, dispatch_delay_text, events_stream
from postroad.wiring import Backend


def _defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}


@pytest.mark.parametrize(
    ("function", "defaults"),
    [
        (
            Backend.agents,
            {
                "dispatch_delay": None,
                "retention": 604_800,
                "max_receives": 5,
                "visibility": 30,
                "validate": True,
                "stream": "agent-events",
            },
        ),
        (Agents.register, {"agent_id": None, "order": "producer", "accept": "listed", "principal_arn": None}),
        (Agents.register_many, {"order": "producer", "accept": "listed", "principal_arn": None}),
        (Agents.list, {"limit": 20, "cursor": None}),
        (Agents.subscriptions, {"limit": 20, "cursor": None}),
        (Agents.subscribers, {"limit": 20, "cursor": None}),
        (Agents.rotate_token, {"overlap": 600}),
        (Agents.unsubscribe, {"discard": False}),
        (Agents.replay, {"since": "trim_horizon"}),
        (Agents.dead_letters, {"limit": 10, "after": None}),
        (Agents.redrive, {"limit": None}),
        (Agents.runner, {"worker": None, "batch": 500}),
        (Runner.run_once, {}),
        (AgentEvent, {"timestamp": None, "event_id": None}),
    ],
)
def test_what_is_left_out_has_its_documented_value(function: Any, defaults: dict[str, Any]) -> None:
    assert _defaults(function) == defaults


def test_an_environment_that_says_nothing_leaves_the_documented_limits() -> None:
    assert (agent_rate({}), agent_polls({}), dispatch_delay_text({}), events_stream({})) == (1_000, 8, None, None)


def test_the_limits_of_aws_are_kept() -> None:
    assert (fanout.BATCH, fanout.ATTEMPTS, fanout.GIVE_UP_SECONDS, fanout.EARLY_MS) == (25, 3, 5.0, 5_000)
    assert (MAX_ENTRIES, ATTEMPTS) == (10, 3)
    assert (RETENTION_SECONDS, LEASE_SECONDS) == (14 * 86_400, 5.0)


@pytest.mark.parametrize("text", ["-1", "1.5", "\u0663", "1000000001", "9" * 5_000])
def test_a_limit_that_is_no_whole_number_is_refused_with_its_variable(text: str) -> None:
    for variable, limit in (("POSTROAD_AGENT_RATE", agent_rate), ("POSTROAD_AGENT_POLLS", agent_polls)):
        with pytest.raises(ConfigurationError, match="is not a whole number") as caught:
            limit({variable: text})

        assert caught.value.field == variable
