"""Tables of one part of the file, made and migrated step by step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one part. Step n brings a file from version n to n + 1; steps are only ever added."""

    part: str
    steps: tuple[str, ...]
