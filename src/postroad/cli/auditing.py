"""What an operator changes, in the chained audit file: before and after."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from postroad.cli.call import Call
from postroad.telemetry import recorded

if TYPE_CHECKING:
    from postroad.operations import AuditLog


def audit_log(call: Call) -> AuditLog:
    """The file of this deployment."""
    from postroad.operations import AuditLog
    from postroad.settings import audit_path

    return AuditLog(audit_path(call.settings().url))


def audited(
    call: Call, action: str, target: str, by: str, reason: str, detail: dict[str, Any]
) -> AbstractContextManager[dict[str, Any]]:
    """A record before the change and one with its outcome after it; without the first nothing is changed."""
    return recorded(audit_log(call), action, target, {"reason": reason, **detail}, actor=by)
