"""Operations: what operators do to queues, with an audit record, and what they want to know."""

from typing import TYPE_CHECKING

from postroad.lazy import lazy_names
from postroad.operations.audit import AuditCheck, AuditLog, AuditRecord
from postroad.operations.purge import purge
from postroad.operations.redrive import FailureGroup, FailureGroups, failure_groups, redrive, redrive_tasks
from postroad.operations.stories import why as why
from postroad.operations.task_retries import RetryReport, TaskRetries
from postroad.queues import Match, RedriveReport, fingerprint

if TYPE_CHECKING:
    from postroad.operations.cost import CostEstimate, estimate_cost
    from postroad.operations.diagnosis import doctor, file_findings as file_findings
    from postroad.topology import Finding
else:  # a server starts faster without the description of deployments, which these need
    __getattr__ = lazy_names(
        __name__,
        {
            "postroad.operations.cost": "CostEstimate estimate_cost",
            "postroad.operations.diagnosis": "doctor file_findings",
            "postroad.topology": "Finding",
        },
    )

__all__ = [
    "AuditCheck",
    "AuditLog",
    "AuditRecord",
    "CostEstimate",
    "FailureGroup",
    "FailureGroups",
    "Finding",
    "Match",
    "RedriveReport",
    "RetryReport",
    "TaskRetries",
    "doctor",
    "estimate_cost",
    "failure_groups",
    "fingerprint",
    "purge",
    "redrive",
    "redrive_tasks",
]
