"""Rows on PostgreSQL share the server of the other tests of their process."""

from __future__ import annotations

from tests.postgres import postgres

__all__ = ["postgres"]
