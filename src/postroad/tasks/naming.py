"""Names, ids and inputs of tasks, checked before anything is stored or sent."""

from __future__ import annotations

import json
import re
from typing import Any

from postroad.arguments import text
from postroad.errors import InvalidMessage, InvalidTask
from postroad.events.strict import is_strict, unsendable

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# A task of a job is called {jobId}.{taskId}; no submitted id has a dot, so that none collide.
ANY_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_LEVELS_OF_INPUT = 60
_REMEDY = "Use 1 to {} letters, digits, '_' or '-'; nothing was submitted."
TaskName = text(NAME.pattern, "the name of a task", remedy=_REMEDY.format(64))
RequestId = text(r"[A-Za-z0-9_-]{1,256}", "a request id", remedy=_REMEDY.format(256))
AnyRequestId = text(ANY_REQUEST_ID.pattern, "a request id", remedy=_REMEDY.format(256))


def check_input(input: object) -> dict[str, Any]:
    """Return the input, a JSON object; None is an empty one."""
    if input is None:
        return {}
    if not isinstance(input, dict):
        raise InvalidTask(
            f"input: {type(input).__name__} is not a JSON object", field="input", remedy="Pass a dict of JSON values."
        )
    try:
        json.dumps(input, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _unsendable(input, error) from error
    if not all(isinstance(key, str) for key in input) or not is_strict(input.values(), _LEVELS_OF_INPUT):
        raise _unsendable(input, None)
    return input


def _unsendable(input: object, why: Exception | None) -> InvalidTask:
    reason = why or TypeError("a key is not text")
    found: InvalidMessage = unsendable(input, path="input", levels=_LEVELS_OF_INPUT + 1, why=reason)
    return InvalidTask(found.message, field=found.field, remedy="Pass JSON values only; nothing was submitted.")
