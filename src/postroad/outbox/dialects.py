"""How the two databases say the same thing differently."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from postroad.connections import Dialect
from postroad.outbox.schema import Names

_SHARED: Final = {
    "columns": "id, event_id, eventtype, tenant, lane, state, attempts, lasterror, {next}, createdat, updatedat, seq,"
    " redrives",
    "place": "o.event_id, o.state, o.lasterror, o.next_attempt <= {now}, {next},"
    " CASE WHEN o.lease_until > {now} THEN o.lease_owner END, {until}",
    # A key goes on past its failed rows where the dispatchers' policy is to skip them.
    "holds": "(state = 'PENDING' OR NOT (SELECT policy = 'skip' FROM {meta}))",
}
# What lies outside the calendar (PostgreSQL's 'infinity', which drivers cannot read) is shown as its last day.
_PHRASES: Final[dict[Dialect, dict[str, str]]] = {
    "postgresql": {
        "now": "now()",
        "next": "greatest(least(next_attempt, '9999-12-31 00:00+00'), '0001-01-02 00:00+00')",
        "until": "least(o.lease_until, '9999-12-31 00:00+00')",
        "ago": "now() - make_interval(secs => CAST(? AS double precision))",
        "among": "(SELECT jsonb_array_elements_text(CAST(? AS jsonb)))",
        "keys": "(SELECT k ->> 0, k ->> 1 FROM jsonb_array_elements(CAST(? AS jsonb)) AS given (k))",
        "moment": "CAST(? AS timestamptz)",
        "row_id": "CAST(? AS uuid)",
        "age": "coalesce(extract(epoch FROM now() - min(createdat)), 0)",
        "for_update": "FOR UPDATE",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
    },
    "sqlite": {
        "now": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
        "next": "min(next_attempt, '9999-12-31T00:00:00.000Z')",
        "until": "min(o.lease_until, '9999-12-31T00:00:00.000Z')",
        "ago": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-' || ? || ' seconds')",
        "among": "(SELECT value FROM json_each(?))",
        "keys": "(SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))",
        "moment": "?",
        "row_id": "?",
        "age": "coalesce((julianday('now') - julianday(min(createdat))) * 86400, 0)",
        "for_update": "",
        "skip_locked": "",
    },
}


@dataclass(frozen=True, slots=True)
class Phrases:
    """Writes statements in one database's own words, about one outbox."""

    names: Names
    dialect: Dialect

    def __call__(self, statement: str) -> str:
        """The statement with its words replaced: {outbox} and the like, {columns}, {now}, {ago}, …"""
        for word, text in (_SHARED | _PHRASES[self.dialect]).items():
            statement = statement.replace(f"{{{word}}}", text)
        return self.names.fill(statement)


def moment(value: Any) -> datetime:
    """A time of the database, aware and in UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    try:
        read = datetime.fromisoformat(str(value))
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
