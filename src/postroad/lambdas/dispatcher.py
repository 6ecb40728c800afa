"""The function behind EventBridge that starts the next tasks of a job when one of its tasks has ended."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from postroad.errors import PostroadError
from postroad.jobs import JobDispatcher
from postroad.journal import event_of_detail
from postroad.lambdas import failures, opened_backend
from postroad.tasks import log_event


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Handle one EventBridge event, or those in the records of a queue; return the records that failed."""
    dispatcher = _dispatcher(opened_backend())
    if "Records" not in event:
        return {"dispatched": dispatcher.handle(event_of_detail(event.get("detail"))).dispatched}
    return failures(event["Records"], lambda record: _is_handled(dispatcher, record))


def _is_handled(dispatcher: JobDispatcher, record: Mapping[str, Any]) -> bool:
    try:
        dispatcher.handle(event_of_detail(json.loads(record["body"])["detail"]))
    except (PostroadError, ValueError, KeyError, TypeError, RecursionError) as error:
        log_event("job_dispatch_failed", job_id=None, error=error)
        return False
    return True


_dispatcher = functools.lru_cache(maxsize=8)(JobDispatcher)
"""Returns the dispatcher of a backend, made once while the function stays warm."""
