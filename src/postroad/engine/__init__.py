"""The embedded engine: one SQLite file that many threads and processes write, and its wake-ups."""
