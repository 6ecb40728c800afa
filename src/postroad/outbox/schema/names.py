"""What the tables of one outbox are called, and the version that this Postroad reads and writes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from postroad.connections import check_identifier

CHANNEL = "postroad_outbox"
SLOTS = 2_048
_MOST = 40
_PARTS = ("audit", "meta", "gaps", "parked", "seq", "token", "wake", "read", "fill", "tell", "times", "release")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one outbox, checked, so that they may be written into a statement."""

    table: str = "outbox"
    schema: str | None = "public"
    """None on SQLite, which has no schemas."""

    def __post_init__(self) -> None:
        check_identifier(self.table, "table", most=_MOST)
        if self.schema is not None:
            check_identifier(self.schema, "schema", most=_MOST)

    def fill(self, statement: str) -> str:
        """The statement with {outbox}, {audit}, {meta}, … replaced by this outbox's own names."""
        for word, name in self._words().items():
            statement = statement.replace(f"{{{word}}}", name)
        return statement

    def qualified(self, name: str) -> str:
        """The name as SQL has it: quoted, with its schema."""
        return f'"{name}"' if self.schema is None else f'"{self.schema}"."{name}"'

    @property
    def space(self) -> int:
        """The first half of this outbox's advisory locks; the second is the slot of a key, or SLOTS for `init`."""
        return zlib.crc32(f"postroad {self.schema}.{self.table}".encode()) - (1 << 31)

    def _words(self) -> dict[str, str]:
        parts = {part: self.qualified(f"{self.table}_{part}") for part in _PARTS}
        schema = f'"{self.schema}"'
        return {"outbox": self.qualified(self.table), "table": self.table, "schema": schema} | {
            "space": str(self.space),
            **parts,
        }


SCHEMA_VERSION = 2
