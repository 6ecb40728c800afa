"""The audit of changes by HTTP and dashboard: one record for each, written before its answer is sent.

Changes that take time record their own start and end. Sending and leasing messages by the API is work, not a change by
an operator, and is not recorded; a form is always filled in by a person.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from litestar.types import HTTPScope

from postroad.errors import PostroadError
from postroad.http.context import Context
from postroad.http.requests import FORM, NOTE
from postroad.telemetry import get_logger

_OPERATORS: Final = ("operate", "admin")
_RECORDED_ELSEWHERE: Final = (
    *("queue.purge", "queue.redrive", "dead-letter.redrive", "outbox.redrive", "outbox.skip"),
    *("task.retry", "task.cancel", "demo.repair", "logout"),
)
_VERBS: Final = {"POST": "create", "PUT": "create", "DELETE": "delete"}
_NAMES: Final = {"token.delete": "token.revoke", "queue.messages": "queue.send"}
_log = get_logger("http")


Change = tuple[str, str, dict[str, Any]]
"""The action, the target and the detail that are recorded."""


def change_of(scope: HTTPScope, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Change | None:
    """Return what the request changed, was refused or saw, as far as it belongs into the audit."""
    noted: Change | None = scope["state"].get(NOTE)
    if noted is not None and status < 400:
        return noted
    handler: Any = scope.get("route_handler")
    if scope["method"] == "GET" or handler is None or scope.get("user") is None:
        return None
    is_change = handler.opt.get(FORM, False) or handler.opt["scope"] in _OPERATORS
    if status != 403 and (status >= 400 or not is_change):
        return None
    action = action_of(scope["method"], str(scope.get("path_template", "")))
    target = next(iter(scope.get("path_params", {}).values()), scope["path"])
    if status == 403:
        return f"{action}.refused", target, {"method": scope["method"], "path": scope["path"]}
    if action in _RECORDED_ELSEWHERE or any(name == b"idempotency-replayed" for name, _ in headers):
        return None
    return action, target, {}


def action_of(method: str, template: str) -> str:
    """Return the name of a change: `queue.create` for `PUT /queues/{queue:str}`, `job.cancel` for a job's `/cancel`."""
    words = [word for word in template.split("/") if word and not word.startswith("{") and word != "ui"]
    if not words:
        return method.lower()
    noun = words[0].removesuffix("s")
    if len(words) == 1 and words[0] == noun:
        return noun
    name = f"{noun}.{words[-1] if len(words) > 1 else _VERBS.get(method, method.lower())}"
    return _NAMES.get(name, name)


async def record(context: Context, scope: HTTPScope, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Write the record, if there is one. The change is made, so a file that cannot be written is only logged."""
    if (change := change_of(scope, status, headers)) is None:
        return
    action, target, detail = change
    user: Any = scope.get("user")
    actor = "nobody" if user is None else user.name

    def append() -> None:
        if (log := context.backend.audit_log()) is not None:
            log.append(action, target, {**detail, "request_id": scope["state"]["request_id"]}, actor=actor)

    try:
        await context.run(append)
    except PostroadError as error:
        _log.error("audit_failed", action=action, target=target, error=str(error))
