"""Where the application's own database is, in which its outbox and inbox lie."""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLES = ("POSTROAD_OUTBOX_DSN", "PG_DSN")


def database_dsn(env: Mapping[str, str] | None = None) -> str | None:
    """The DSN that the environment names, where it does."""
    told = os.environ if env is None else env
    return next((told[name] for name in VARIABLES if told.get(name)), None)
