"""Verbs: how a command is declared, and the options that all of them share."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from postroad.cli.output import legible, render, write, write_json
from postroad.errors import InvalidInput
from postroad.settings import Settings, load, nearest, no_color

if TYPE_CHECKING:
    from rich.console import RenderableType

    from postroad.wiring.backend import Backend

_SHARED: dict[str, Any] = {
    "url": Annotated[
        str | None, typer.Option(help="Backend: sqlite:///path, memory:// or aws://region.", metavar="URL")
    ],
    "config": Annotated[Path | None, typer.Option(help="Settings file instead of ./postroad.toml.", metavar="FILE")],
    "json": Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")],
    "no_color": Annotated[bool, typer.Option("--no-color", help="No colour, even on a terminal.")],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What every verb knows about its invocation."""

    url: str | None = None
    config: Path | None = None
    json: bool = False
    no_color: bool = False

    def settings(self, **flags: Any) -> Settings:
        """The settings under these flags; doubtful variables are named on stderr."""
        from postroad import failpoints

        settings = load(flags={"url": self.url, **flags}, file=self.config)
        for warning in settings.warnings:
            write(f"warning: {legible(warning)}", sys.stderr)
        failpoints.load(settings.failpoints)
        return settings

    @contextmanager
    def backend(self) -> Iterator[Backend]:
        """The backend that the settings name, closed afterwards."""
        from postroad.wiring import connect

        with connect(self.settings().url) as backend:
            yield backend

    def show(self, document: Any, *parts: RenderableType) -> None:
        """Print the document, or its parts for people."""
        if self.json:
            write_json(document)
        else:
            write(render(*parts, color=self.color))

    @property
    def color(self) -> bool:
        """Whether colour is welcome on a terminal."""
        return not (self.no_color or no_color())


class Noun(TyperGroup):
    """A group of verbs that shows its help when none is named and suggests the nearest one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            write(ctx.get_help(), sys.stderr)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if (
            args
            and not args[0].startswith("-")
            and self.get_command(ctx, args[0]) is None
            and not ctx.resilient_parsing
        ):
            raise InvalidInput(
                f'"{ctx.command_path} {args[0]}" is not a command', nearest=nearest(args[0], self.list_commands(ctx)),
                remedy=f"`{ctx.command_path} --help` lists the commands.",
            )  # fmt: skip
        return super().resolve_command(ctx, args)


def remember(ctx: typer.Context, **shared: Any) -> None:
    """Keep the shared options that stand before the verb."""
    ctx.obj = Call(**shared)


def verb(
    app: typer.Typer, name: str, *, example: str, destructive: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function `(call, …) -> None` a command that also takes the shared options."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(ctx: typer.Context, **given: Any) -> None:
            shared = {option: given.pop(option) for option in _SHARED}
            function(_merged(ctx.find_object(Call) or Call(), shared), **given)

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        take_shared_options(run, own)
        vars(run)["destructive"] = destructive
        app.command(name, epilog=f"\b\nExample:\n  {example}")(run)
        return function

    return register


def take_shared_options(function: Callable[..., None], own: list[inspect.Parameter]) -> None:
    """Give a function the signature of a command: the context, its own parameters and the shared options."""
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("ctx", kind, annotation=typer.Context),
        *(parameter.replace(kind=kind) for parameter in own),
        *(
            inspect.Parameter(name, kind, annotation=annotation, default=False if "bool" in str(annotation) else None)
            for name, annotation in _SHARED.items()
        ),
    ]
    vars(function).pop("__wrapped__", None)
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it from there
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _merged(before: Call, given: dict[str, Any]) -> Call:
    """What stands after the verb beats what stands before it."""
    return Call(**{name: value or getattr(before, name) for name, value in given.items()})
