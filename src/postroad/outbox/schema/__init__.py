"""The tables of an outbox, on PostgreSQL and on SQLite: their names, their triggers and how they are migrated."""

from postroad.outbox.schema.names import SCHEMA_VERSION, Names

__all__ = ["SCHEMA_VERSION", "Names"]
