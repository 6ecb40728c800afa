"""Postroad."""
