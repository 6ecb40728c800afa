"""Statements that share their parts."""

from __future__ import annotations

from collections.abc import Mapping


def spelled_out(statement: str, words: Mapping[str, str]) -> str:
    """The statement with each {word} replaced by what it stands for."""
    for word, meaning in words.items():
        statement = statement.replace(f"{{{word}}}", meaning)
    return statement
