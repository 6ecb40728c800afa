"""Databases for the tests of the outbox."""

from tests.postgres import postgres, postgres_dsn

__all__ = ["postgres", "postgres_dsn"]
