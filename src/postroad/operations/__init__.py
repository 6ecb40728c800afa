"""Operations: what keeps queues healthy, and who did it."""

from postroad.operations.audit import AuditCheck, AuditLog, AuditRecord
from postroad.operations.cost import CostEstimate, estimate_cost
from postroad.operations.doctor import doctor
from postroad.topology.findings import Finding

__all__ = ["AuditCheck", "AuditLog", "AuditRecord", "CostEstimate", "Finding", "doctor", "estimate_cost"]
