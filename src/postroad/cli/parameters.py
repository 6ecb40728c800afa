"""Parameters that several verbs share: durations, times, rates, JSON, databases, and names that the shell completes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from postroad.arguments import duration_of
from postroad.cli.packages import outbox, wiring
from postroad.errors import ConfigurationError, InvalidInput, PostroadError
from postroad.settings import data_path, database_dsn, load
from postroad.telemetry import legible

if TYPE_CHECKING:
    from postroad.cli.call import Call


def duration(text: str) -> float:
    """Return the seconds of a number with or without a unit."""
    seconds = duration_of(text)
    if seconds is None:
        raise typer.BadParameter(f'"{text}" is not a duration such as 30, 30s, 5m, 2h or 7d')
    return int(seconds) if seconds.is_integer() else seconds


def moment(text: str) -> datetime:
    """Return a time, which must have its zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise typer.BadParameter(f'"{text}" is not a time with its zone, such as 2026-01-31T08:00:00Z')
    return found


def argument(metavar: str, help: str, **settings: Any) -> Any:
    """Return an argument; the settings are those of typer, here and below."""
    return typer.Argument(metavar=metavar, help=help, **settings)


def option(metavar: str, help: str, *names: str, **settings: Any) -> Any:
    """Return an option with a value, which has the name of its parameter unless it is given others."""
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def flag(name: str, help: str) -> Any:
    return typer.Option(name, help=help)


def duration_option(help: str) -> Any:
    return option("DURATION", help, parser=duration)


def time_option(help: str) -> Any:
    return option("TIME", help, parser=moment)


def per_second(text: str) -> float:
    """Return a rate above zero."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise typer.BadParameter(f'"{text}" is not a number of messages per second above 0')
    return rate


def short_duration(seconds: float | None) -> str:
    """Return seconds in the unit that a person would use, rounded down."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds / size)}{unit}"
    return f"{round(seconds, 1):g}s" if seconds < 10 else f"{int(seconds)}s"


def pairs(texts: Iterable[str], field: str, form: str) -> dict[str, str]:
    """Return texts such as `K=V` as a dictionary; an error names the field and its form."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(f'{field}: "{text}" is not {form}', field=field)
        found[name] = value
    return found


def json_value(text: str | bytes, field: str, error: type[PostroadError] = InvalidInput) -> Any:
    """Decode JSON, or raise the error with the field."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as broken:
        raise error(f"{field}: is broken JSON ({broken})", field=field) from broken


def json_object(
    text: str | bytes, field: str, error: type[PostroadError] = InvalidInput, *, example: str | None = None
) -> dict[str, Any]:
    """Decode a JSON object, or raise the error with the field and an example."""
    try:
        found = json_value(text, field, error)
        if not isinstance(found, dict):
            raise error(f"{field}: is a JSON {type(found).__name__}, not an object", field=field)
        return found
    except error as wrong:
        if example is None:
            raise
        raise error(f"{wrong.message}; give an object such as {example}", field=field, remedy="") from wrong


def read_file(name: str, field: str, error: type[PostroadError] = InvalidInput) -> bytes:
    """Read the file, or stdin for '-'; raise the error with the field if it cannot be read."""
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as failed:
        raise error(f"{field}: {legible(name)} cannot be read: {failed.strerror}", field=field) from failed


By = Annotated[str, option("WHO", "Who does it; required.")]
Dsn = Annotated[
    str | None, option("DSN", "The database: postgresql://host/name or sqlite:///path ($POSTROAD_OUTBOX_DSN, $PG_DSN).")
]
Confirm = Annotated[str | None, option("ID", "The id again, to skip the question.")]
Cursor = Annotated[str | None, option("CURSOR", "Continue after this cursor.")]
Limit = Annotated[int, option("N", "At most this many.", min=1, max=1_000)]
PageSize = Annotated[int, option("N", "At most this many.", min=1, max=100)]
Reason = Annotated[str, option("TEXT", "Why; required.")]
TaskQueue = Annotated[str, option("Q", "The queue of tasks.", "--queue")]
Yes = Annotated[bool, flag("--yes", "Do not ask for confirmation.")]
Schema = Annotated[str, option("NAME", "Its schema on PostgreSQL.")]


def chosen_dsn(call: Call, given: str | None) -> str:
    """Return the DSN of the flag, of the environment or of the file; raise `ConfigurationError` if there is none."""
    dsn = given or database_dsn() or call.settings().outbox_dsn
    if dsn is None:
        raise ConfigurationError(
            "dsn: no database is named",
            field="dsn",
            remedy="Give --dsn, or set POSTROAD_OUTBOX_DSN, PG_DSN, or dsn in the table [outbox] of postroad.toml.",
        )
    return dsn


@dataclass(frozen=True, slots=True)
class OutboxOptions:
    """The options that name an outbox."""

    dsn: Dsn = None
    table: Annotated[str, option("NAME", "The table of the outbox.")] = "outbox"
    schema: Schema = "public"

    @contextmanager
    def open(self, call: Call, *, keyfile: Path | None = None, ready: bool = True) -> Iterator[outbox.Outbox]:
        """Open the outbox and close it afterwards; `ready` refuses one whose tables do not exist."""
        cipher = None if keyfile is None else outbox.AesGcmCipher.from_file(keyfile)
        dsn = chosen_dsn(call, self.dsn)
        with outbox.Outbox.open(dsn, table=self.table, schema=self.schema, cipher=cipher) as opened:
            if ready:
                opened.require_schema()
            yield opened


def require(**given: object) -> None:
    """Refuse a change by hand that leaves out one of these options."""
    for name, value in given.items():
        if value is None or (isinstance(value, str) and not value.strip()):
            option = "--done or --not-done" if name == "done" else f"--{name}"
            raise InvalidInput(f"{name}: is missing", field=name, remedy=f"Give {option}; nothing was changed.")


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda backend: backend.queues())


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return _names(ctx, incomplete, lambda backend: backend.topics())


def _names(ctx: typer.Context, incomplete: str, every: Callable[[wiring.Backend], list[str]]) -> list[str]:
    """Return the names that begin with `incomplete`; none if the data cannot be read, as a shell must not fail."""
    try:
        given = {name: ctx.params.get(name) or ctx.find_root().params.get(name) for name in ("url", "config")}
        url = load(flags={"url": given["url"]}, file=given["config"]).url
        path = data_path(url)
        if path is not None and not path.exists():
            return []
        with wiring.connect(url) as backend:
            return [name for name in every(backend) if name.startswith(incomplete)]
    except PostroadError:
        return []
