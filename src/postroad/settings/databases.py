"""Where the application's own database is, in which its outbox and inbox lie, and where its events go."""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLES = ("POSTROAD_OUTBOX_DSN", "PG_DSN")


def database_dsn(env: Mapping[str, str] | None = None) -> str | None:
    """The DSN that the environment names, where it does."""
    told = os.environ if env is None else env
    return next((told[name] for name in VARIABLES if told.get(name)), None)


def sns_arn(env: Mapping[str, str] | None = None) -> str | None:
    """The topic that the environment names, where it does."""
    return (os.environ if env is None else env).get("SNS_ARN") or None
