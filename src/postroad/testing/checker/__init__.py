"""The checker: reads the history of a run and finds what was lost, doubled, reordered or changed."""

from postroad.testing.checker.check import check
from postroad.testing.checker.report import INVARIANTS, Counts, Finding, Recovery, Report, write_report

__all__ = ["INVARIANTS", "Counts", "Finding", "Recovery", "Report", "check", "write_report"]
