"""What lint says of a topology or of live queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from postroad.errors import TopologyError

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with, or doubtful about, the resource `target`."""

    code: str
    severity: Severity
    target: str
    message: str
    remedy: str


def refuse(findings: Sequence[Finding]) -> TopologyError:
    """The error that lists all findings, the errors first."""
    ordered = sorted(findings, key=lambda finding: finding.severity != "error")
    told = "; ".join(f"{finding.code}: {finding.message}" for finding in ordered)
    errors = [finding for finding in ordered if finding.severity == "error"]
    return TopologyError(
        told,
        findings=ordered,
        codes=[finding.code for finding in errors],
        field=errors[0].target,
        remedy=f"{errors[0].remedy} Nothing was changed.",
    )
