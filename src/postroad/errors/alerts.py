"""What alerts refuse."""

from __future__ import annotations

from postroad.errors.refusals import ConfigurationError


class AlertRefused(ConfigurationError):
    """An address that no alert may be sent to."""

    slug = "alert-refused"
    remedy = "Give the https address of a webhook at one of the allowed hosts, by default hooks.slack.com."
