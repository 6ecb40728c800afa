"""Fields that several events share, with the values they take."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from postroad.journal.checks import ID_PATTERN, MAX_TIMESTAMP, MIN_TIMESTAMP

Id = str
"""An id under one of `ID_NAMES`: looked at by `check_properties`, where ids seen before cost a look-up."""
ID_NAMES: Final = ("requestId", "jobId", "taskId", "workerId", "failedTaskId")
NestedId = Annotated[str, msgspec.Meta(pattern=rf"^{ID_PATTERN}\Z")]
MAX_INTEGER: Final = 2**63 - 1
"""What every store holds as a whole number."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]
TimeoutMs = Annotated[int, msgspec.Meta(ge=1, le=43_200_000)]
"""How long a task may run; twelve hours at the most."""
Milliseconds = Annotated[int, msgspec.Meta(ge=MIN_TIMESTAMP, le=MAX_TIMESTAMP)]
Seconds = Annotated[int, msgspec.Meta(ge=0, lt=MIN_TIMESTAMP // 10)]
"""Seconds since 1970; milliseconds are too large to be taken for them."""


class Properties(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The properties of one event; `None` where an optional one is absent."""
