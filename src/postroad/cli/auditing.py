"""What an operator changes, in the chained audit file: before and after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from postroad.cli.call import Call
from postroad.errors import PostroadError

if TYPE_CHECKING:
    from postroad.operations import AuditLog


def audit_log(call: Call) -> AuditLog:
    """The file of this deployment."""
    from postroad.operations import AuditLog
    from postroad.settings import audit_path

    return AuditLog(audit_path(call.settings().url))


@contextmanager
def audited(
    call: Call, action: str, target: str, by: str, reason: str, detail: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """A record before the change and one with its outcome after it; without the first nothing is changed."""
    log = audit_log(call)
    log.append(action, target, {"reason": reason, **detail}, actor=by)
    done: dict[str, Any] = {}
    try:
        yield done
    except PostroadError as error:
        log.append(f"{action} ended", target, {"refused": str(error), **done}, actor=by)
        raise
    except KeyboardInterrupt:
        log.append(f"{action} ended", target, {"interrupted": True, **done}, actor=by)
        raise
    log.append(f"{action} ended", target, done, actor=by)
