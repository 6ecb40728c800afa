"""Which database a verb of `outbox` or `inbox` works on."""

from __future__ import annotations

from typing import Annotated

import typer

from postroad.errors import ConfigurationError
from postroad.settings import database_dsn

Dsn = Annotated[
    str | None, typer.Option(metavar="DSN", help="postgresql://… or sqlite:///path, not $POSTROAD_OUTBOX_DSN, $PG_DSN.")
]


def chosen_dsn(given: str | None) -> str:
    """The DSN of the flag, else of the environment; ConfigurationError when there is none."""
    dsn = given or database_dsn()
    if dsn is None:
        raise ConfigurationError(
            "dsn: no database is named", field="dsn", remedy="Give --dsn, or set POSTROAD_OUTBOX_DSN or PG_DSN."
        )
    return dsn
