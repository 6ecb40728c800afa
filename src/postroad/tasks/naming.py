"""Names, ids and inputs of tasks, checked before anything is stored or sent."""

from __future__ import annotations

import json
import re
from typing import Any

from postroad.errors import InvalidMessage, InvalidTask
from postroad.events.strict import is_strict, unsendable
from postroad.queues.spec import MAX_DELAY

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,256}")
# A task of a job is called {jobId}.{taskId}; no submitted id has a dot, so that none collide.
ANY_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_LEVELS_OF_INPUT = 60


def check_name(name: object) -> str:
    """Return the name of a task, or refuse it."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise InvalidTask(
            f"name: {str(name)[:100]!r} is not the name of a task", field="name",
            remedy="Use 1 to 64 letters, digits, '_' or '-'; nothing was submitted.",
        )  # fmt: skip
    return name


def check_request_id(request_id: object, *, of_a_job: bool = False) -> str:
    """Return the request id, or refuse it; only those of a job's tasks have a dot."""
    form = ANY_REQUEST_ID if of_a_job else REQUEST_ID
    if not isinstance(request_id, str) or form.fullmatch(request_id) is None:
        raise InvalidTask(
            f"requestId: {str(request_id)[:100]!r} is not a request id", field="requestId",
            remedy="Use 1 to 256 letters, digits, '_' or '-'; nothing was submitted.",
        )  # fmt: skip
    return request_id


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


def check_delay(delay: Any) -> float:
    """Return the seconds, or refuse what a queue cannot wait."""
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= MAX_DELAY:
        raise InvalidTask(f"delay: {delay!r} is not from 0 to {MAX_DELAY:.0f} seconds", field="delay")
    return float(delay)


def _unsendable(input: object, why: Exception | None) -> InvalidTask:
    reason = why or TypeError("a key is not text")
    found: InvalidMessage = unsendable(input, path="input", levels=_LEVELS_OF_INPUT + 1, why=reason)
    return InvalidTask(found.message, field=found.field, remedy="Pass JSON values only; nothing was submitted.")
