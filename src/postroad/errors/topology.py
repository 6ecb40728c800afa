"""What a topology refuses."""

from __future__ import annotations

from collections.abc import Sequence

from postroad.errors.refusals import ConfigurationError
from postroad.errors.root import PostroadError


class TopologyError(ConfigurationError):
    """A topology that cannot work."""

    slug = "topology"
    remedy = "Correct what the message names; nothing was changed."

    def __init__(
        self,
        message: str,
        *,
        findings: Sequence[object] = (),
        codes: Sequence[str] = (),
        field: str | None = None,
        remedy: str | None = None,
        nearest: str | None = None,
    ) -> None:
        super().__init__(message, field=field, remedy=remedy, nearest=nearest)
        self.findings = tuple(findings)
        """Everything that `lint` found, warnings included."""
        self.codes = tuple(codes)
        """The codes of what is wrong, such as 'dlq-cycle'."""


class TopologyConflict(PostroadError):
    """What exists cannot become what is declared without losing it."""

    slug = "topology-conflict"
    status = 409
    remedy = "Choose another name, or move the data away and allow the replacement with allow_replace."


class PlanChanged(PostroadError):
    """The plan that was agreed to is no longer the one that would be carried out."""

    slug = "plan-changed"
    status = 409
    remedy = "Make the plan again and apply it with its digest; nothing was changed."
