"""What a verb knows about its invocation: the shared options and what follows from them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postroad.cli.output import render, write, write_json
from postroad.errors import InvalidInput
from postroad.settings import Settings, load, no_color
from postroad.telemetry import legible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from postroad.wiring import Backend


def _missing_file(url: str) -> Path | None:
    """Return the embedded file that the address names, if it is not there."""
    from postroad.wiring.url import parse

    path = parse(url).file
    return None if path is None or path.exists() else path


def _refuse_missing_file(url: str) -> None:
    if (path := _missing_file(url)) is not None:
        here = path.name if path.parent.resolve() == Path.cwd() else str(path)
        remedy = "A command that creates something, such as `postroad queue create NAME`, makes it."
        raise InvalidInput(f"there is no {here} here; name it with --url", field="url", remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One invocation of a verb."""

    url: str | None = None
    config: Path | None = None
    json: bool = False
    no_color: bool = False
    may_create: bool = True
    """Whether the verb may make the embedded file; one that only looks must not."""

    def settings(self, **flags: Any) -> Settings:
        """The settings under these flags; doubtful variables are named on stderr."""
        settings = load(flags={"url": self.url, **flags}, file=self.config)
        for warning in settings.warnings:
            write(f"warning: {legible(warning)}", sys.stderr)
        return settings

    @contextmanager
    def backend(self) -> Iterator[Backend]:
        """The backend that the settings name, closed afterwards."""
        settings = self.settings()
        from postroad.wiring import connect

        if not self.may_create:
            _refuse_missing_file(settings.url)
        with connect(settings.url, trail_keep=settings.trail_keep) as backend:
            yield backend

    @contextmanager
    def backend_or_empty(self) -> Iterator[Backend]:
        """The backend that the settings name; an empty one in memory where its file is missing."""
        settings = self.settings()
        from postroad.wiring import connect

        url = "memory://" if _missing_file(settings.url) else settings.url
        with connect(url, trail_keep=settings.trail_keep) as backend:
            yield backend

    def show(self, document: Any, *parts: RenderableType) -> None:
        """Print the document, or its parts for people."""
        if self.json:
            write_json(document)
        elif all(isinstance(part, str) for part in parts):
            write("\n".join(map(str, parts)))
        else:
            write(render(*parts, color=self.color))

    @property
    def color(self) -> bool:
        """Whether colour is welcome on a terminal."""
        return not (self.no_color or no_color())
