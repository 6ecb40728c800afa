"""How a verb is declared, the options that all verbs share, and what a verb knows about its invocation."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from postroad import signals
from postroad.cli.output import render, write, write_json
from postroad.errors import InvalidInput
from postroad.settings import Settings, load, nearest, no_color
from postroad.telemetry import legible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from postroad.wiring import Backend


def _missing_file(url: str) -> Path | None:
    """Return the embedded file that the address names, if it is not there."""
    from postroad.wiring import parse_url

    path = parse_url(url).file
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


def remember_shared_options(
    ctx: typer.Context,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Backend: sqlite:///path, memory:// or aws://region.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings file, not ./postroad.toml.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour, even on a terminal.")] = False,
) -> None:
    """Keep the shared options that stand before the verb; every verb borrows them from this signature."""
    ctx.obj = Call(url=url, config=config, json=json, no_color=no_color)


_CONTEXT, *_SHARED = (
    parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for parameter in inspect.signature(remember_shared_options, eval_str=True).parameters.values()
)


_CREATING = frozenset({"send", "publish", "submit", "create", "init", "run", "up", "worker"})
"""The verbs that may make the embedded file; so may those that are destructive, all others only look."""


def noun(summary: str, *, example: str) -> typer.Typer:
    """A group of verbs."""
    return typer.Typer(
        cls=_Noun,
        help=summary,
        epilog=_epilog(example),
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def add_verb(
    place: typer.Typer,
    name: str,
    function: Callable[..., None],
    *,
    example: str,
    destructive: bool = False,
    until_stopped: bool = False,
) -> None:
    """Make a function `(call, …)` a command that takes the shared options besides its own.

    One that runs `until_stopped` handles SIGTERM and Ctrl-C itself, those included that came before it began.
    """

    def run(ctx: typer.Context, **given: Any) -> None:
        if not until_stopped:
            signals.release()
        shared = {option.name: given.pop(option.name) for option in _SHARED}
        call = _merged(ctx.find_object(Call) or Call(), shared)
        function(replace(call, may_create=destructive or name in _CREATING), **given)

    functools.update_wrapper(run, function)
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    _sign(run, [_CONTEXT, *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own), *_SHARED])
    vars(run).update(destructive=destructive, until_stopped=until_stopped)
    place.command(name, epilog=_epilog(example))(run)


def _sign(function: Callable[..., None], parameters: list[inspect.Parameter]) -> None:
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it from there
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _merged(before: Call, given: dict[str, Any]) -> Call:
    """What stands after the verb beats what stands before it."""
    return Call(**{name: value or getattr(before, name) for name, value in given.items()})


def _epilog(example: str) -> str:
    # \b keeps the lines of a paragraph as they are.
    return f"\b\nExample:\n  {example}"


class _Noun(TyperGroup):
    """Shows its help when no verb is named, and suggests the nearest one to a misspelt verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            write(ctx.get_help(), sys.stderr)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name.startswith("-") or name in self.commands or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise InvalidInput(
            f'"{ctx.command_path} {name}" is not a command',
            nearest=nearest(name, self.commands),
            remedy=f"`{ctx.command_path} --help` lists the commands.",
        )
