"""Which database a verb of `outbox` or `inbox` works on, and how the rows of an outbox look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from postroad.errors import ConfigurationError, InvalidInput
from postroad.settings import database_dsn
from postroad.telemetry import legible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from postroad.outbox import Outbox


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


Table = Annotated[str, typer.Option(metavar="NAME", help="The table of the outbox.")]
Schema = Annotated[str, typer.Option(metavar="NAME", help="Its schema on PostgreSQL.")]
Limit = Annotated[int, typer.Option(min=1, max=1_000, metavar="N", help="At most so many.")]
By = Annotated[str, typer.Option(metavar="WHO", help="Who does it; required.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; required.")]


@contextmanager
def opened(
    dsn: str | None, table: str, schema: str, *, keyfile: Path | None = None, ready: bool = True
) -> Iterator[Outbox]:
    """The outbox at the DSN, closed afterwards; `ready` refuses one whose tables are not there."""
    from postroad.outbox import AesGcmCipher, Outbox

    address = chosen_dsn(dsn)
    cipher = None if keyfile is None else AesGcmCipher.from_file(keyfile)
    outbox = Outbox.open(address, table=table, schema=schema, cipher=cipher)
    try:
        if ready:
            outbox.require_schema()
        yield outbox
    finally:
        outbox.close()


def signed(by: str, reason: str) -> None:
    """Refuse a change by hand that does not say who makes it and why."""
    for name, text in (("by", by), ("reason", reason)):
        if not text.strip():
            raise InvalidInput(f"{name}: is missing", field=name, remedy=f"Give --{name}; nothing was changed.")


def listed(rows: Iterable[Any], next_cursor: str | None = None) -> dict[str, Any]:
    """Records as the document of a list."""
    return {"items": [document(row) for row in rows], "next_cursor": next_cursor}


def document(record: Any) -> dict[str, Any]:
    """A record as JSON: ids and times as text."""
    return {name: str(value) if isinstance(value, UUID) else _told(value) for name, value in asdict(record).items()}


def _told(value: Any) -> Any:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def lines(headings: list[str], rows: Iterable[Iterable[Any]], nothing: str) -> list[RenderableType]:
    """The rows as a table, or a word when there are none."""
    from rich.text import Text

    from postroad.cli.tables import table

    cells = [[Text(legible("-" if cell is None else cell)) for cell in row] for row in rows]
    return [table(headings, cells)] if cells else [Text(nothing)]
