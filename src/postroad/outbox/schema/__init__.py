"""The tables of an outbox, on PostgreSQL and on SQLite: their names, their triggers and how they are migrated."""

from postroad.outbox.schema.names import Names
from postroad.outbox.schema.version import SCHEMA_VERSION

__all__ = ["SCHEMA_VERSION", "Names"]
