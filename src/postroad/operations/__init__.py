"""Operations: what keeps queues healthy, and who did it."""

from postroad.operations.audit import AuditCheck, AuditLog, AuditRecord

__all__ = ["AuditCheck", "AuditLog", "AuditRecord"]
