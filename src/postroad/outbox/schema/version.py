"""The version of the tables that this Postroad reads and writes."""

from __future__ import annotations

SCHEMA_VERSION = 2
