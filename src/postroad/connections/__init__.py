"""Connections: the embedded engine and AWS, where drivers are opened and their errors translated."""
