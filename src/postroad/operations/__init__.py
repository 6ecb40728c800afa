"""Operations: what keeps queues healthy, and who did it."""

from postroad.operations.audit import AuditCheck, AuditLog, AuditRecord
from postroad.operations.cost import Consumption as Consumption, CostEstimate, estimate_cost
from postroad.operations.doctor import doctor
from postroad.operations.failure_groups import FailureGroup, FailureGroups, failure_groups
from postroad.operations.purge import purge
from postroad.operations.redrive import redrive, redrive_tasks
from postroad.operations.why import why as why
from postroad.queues import Match, RedriveReport, fingerprint
from postroad.topology import Finding

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
    "doctor",
    "estimate_cost",
    "failure_groups",
    "fingerprint",
    "purge",
    "redrive",
    "redrive_tasks",
]
