"""The parameters that several routes share."""

from __future__ import annotations

from typing import Annotated

from litestar.params import PathParameter, QueryParameter

from postroad.queues.spec import check_name

Limit = Annotated[int, QueryParameter(ge=1, le=100, description="How many, 1 to 100.")]
Cursor = Annotated[str | None, QueryParameter(description="`next_cursor` of the page before.")]
QueueName = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9_-]{1,80}(\.fifo)?$", description="The queue's name.")]
AgentId = Annotated[str, PathParameter(description="The agent's id.")]
Discard = Annotated[bool, QueryParameter(description="Whether what waits goes too.")]
Visibility = Annotated[float, QueryParameter(ge=1, le=43_200, description="Seconds of a lease.")]
Name = Annotated[str, PathParameter(description="Its name.")]
Confirm = Annotated[str, QueryParameter(description="The queue's name once more.")]
Payload = Annotated[int, QueryParameter(ge=0, le=1, description="1 shows the bodies too.")]


def checked(queue: str) -> str:
    """The queue's name, refused when no queue could have it."""
    return check_name(queue, field="queue")
