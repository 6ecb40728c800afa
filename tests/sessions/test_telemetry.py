"""What adapters tell about their work, and how it travels."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.sessions.plans import Note

from postroad import codec
from postroad.sessions import (
    Budget,
    MainLoopCompleted,
    MainLoopFailed,
    MainLoopRequest,
    PromptExecuted,
    PromptRendered,
    PromptResponse,
    TokenUsage,
    ToolInvoked,
    ToolResult,
)

SESSION = uuid4()


def test_the_fields_come_in_the_promised_order() -> None:
    fields = {cls.__name__: " ".join(inspect.signature(cls).parameters) for cls in TELEMETRY}

    assert fields == {
        "ToolInvoked": "prompt_name adapter name params result session_id created_at usage rendered_output call_id "
        "event_id",
        "PromptExecuted": "prompt_name adapter result session_id created_at usage event_id",
        "PromptRendered": "prompt_ns prompt_key prompt_name adapter session_id render_inputs rendered_prompt "
        "created_at descriptor event_id",
        "TokenUsage": "input_tokens output_tokens cached_tokens",
        "PromptResponse": "prompt_name text output",
        "ToolResult": "message value success exclude_value_from_context",
    }


TELEMETRY: tuple[Any, ...] = (ToolInvoked, PromptExecuted, PromptRendered, TokenUsage, PromptResponse, ToolResult)
CONTROL: tuple[Any, ...] = (MainLoopRequest, MainLoopCompleted, MainLoopFailed, Budget)


@pytest.mark.parametrize("cls", [*TELEMETRY, *CONTROL], ids=lambda cls: cls.__name__)
def test_a_type_is_named_after_the_folder(cls: type) -> None:
    assert codec.registry.name_of(cls) == f"postroad.sessions:{cls.__name__}"


def test_what_is_left_out_is_filled_in() -> None:
    tool = ToolInvoked("review", "openai", "search", {"pattern": "*.py"}, ToolResult("found"))
    other = ToolInvoked("review", "openai", "search", {"pattern": "*.py"}, ToolResult("found"))

    assert tool.created_at.utcoffset() is not None
    assert isinstance(tool.event_id, UUID)
    assert tool.event_id != other.event_id
    assert (tool.session_id, tool.usage, tool.rendered_output, tool.call_id) == (None, None, "", None)
    assert tool.result == ToolResult("found", None, True, False)
    assert PromptResponse("review") == PromptResponse("review", None, None)


@pytest.mark.parametrize(
    ("usage", "total"),
    [(TokenUsage(), None), (TokenUsage(3, 4, 2), 7), (TokenUsage(3), 3), (TokenUsage(output_tokens=4), 4)],
)
def test_total_tokens_are_what_is_known_of_input_and_output(usage: TokenUsage, total: int | None) -> None:
    assert usage.total_tokens == total


@pytest.mark.parametrize(
    "event",
    [
        ToolInvoked(
            "review", "openai", "search", Note("p"), ToolResult("found", Note("v")), SESSION, usage=TokenUsage(1)
        ),
        PromptExecuted("review", "openai", PromptResponse("review", "text", [Note("a"), Note("b")]), SESSION),
        PromptRendered("ns", "key", None, "openai", SESSION, (Note("in"),), "Say", datetime.now(UTC), Note("d")),
        MainLoopRequest(Note("please"), Budget(100), datetime(2030, 1, 1, tzinfo=UTC)),
        MainLoopCompleted(uuid4(), PromptResponse("review", output=Note("done")), SESSION),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_arrives_as_it_was_sent_with_the_values_in_it(event: object) -> None:
    arrived = codec.unwrap(codec.decode(codec.encode(codec.wrap(event, publisher_id="p"))))

    assert arrived == event


def test_the_error_of_a_failed_request_arrives_as_its_class() -> None:
    event = MainLoopFailed(uuid4(), ValueError("no such file"))

    arrived = codec.unwrap(codec.decode(codec.encode(codec.wrap(event, publisher_id="p"))))

    assert type(arrived.error) is ValueError
    assert arrived.error.args == ("no such file",)


@pytest.mark.parametrize("limits", [{"max_total_tokens": 0}, {"max_input_tokens": -1}, {"max_output_tokens": True}])
def test_a_budget_of_nothing_is_refused_with_its_field(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        Budget(**limits)
