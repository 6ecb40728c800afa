"""Agents on the embedded engine: their tables, and queues that share them."""
