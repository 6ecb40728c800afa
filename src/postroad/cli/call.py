"""How a verb is declared, the options that all verbs share, and what a verb knows about its invocation."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from postroad import signals
from postroad.cli.help import help_page
from postroad.cli.output import ANSWER_IS_NO, progress_line, render, write, write_json
from postroad.cli.packages import wiring
from postroad.cli.parameters import flag, option
from postroad.errors import InvalidInput
from postroad.settings import Settings, load, nearest, no_color
from postroad.telemetry import configure_logs, legible

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One invocation of a verb."""

    url: str | None = None
    config: Path | None = None
    json: bool = False
    no_color: bool = False
    may_create: bool = True
    """Whether the verb may create the embedded file; a verb that only reads must not."""
    warned: set[str] = field(default_factory=set, compare=False)
    """The warnings that were printed; a verb may ask for its settings more than once."""

    @property
    def color(self) -> bool:
        """Whether a terminal may show colour."""
        return not (self.no_color or no_color())

    def settings(self, *, logs: bool = False, **flags: Any) -> Settings:
        """Return the settings under these flags, and print each warning once on stderr; `logs` configures the logs."""
        settings = load(flags={"url": self.url, **flags}, file=self.config)
        for warning in settings.warnings:
            if warning not in self.warned:
                self.warned.add(warning)
                write(f"warning: {legible(warning)}", sys.stderr)
        if logs:
            configure_logs(settings.log_level, settings.log_format, color=not no_color())
        return settings

    def check_exists(self, *others: Path) -> None:
        """Raise InvalidInput if neither the file of the backend nor one of the others exists."""
        path = wiring.parse_url(self.settings().url).file
        if path is not None and not any(each.exists() for each in (path, *others)):
            here = path.name if path.parent.resolve() == Path.cwd() else str(path)
            remedy = "A command that creates something, such as `postroad queue create NAME`, makes it."
            raise InvalidInput(f"there is no {here} here; name it with --url", field="url", remedy=remedy)

    @contextmanager
    def backend(self, *, or_empty: bool = False) -> Iterator[wiring.Backend]:
        """Open the backend that the settings name; with `or_empty`, an empty one if its file does not exist."""
        settings = self.settings()
        url = settings.url
        if or_empty and (path := wiring.parse_url(url).file) is not None and not path.exists():
            url = "memory://"
        elif not self.may_create:
            self.check_exists()
        with wiring.connect(url, trail_keep=settings.trail_keep) as backend:
            yield backend

    def working(
        self, text: str, describe: Callable[[Any], str] = str, *, step: int = 0
    ) -> AbstractContextManager[Callable[[Any], None]]:
        """Tell what long work does while the block runs; see `progress_line`."""
        return progress_line(describe, quiet=self.json, start=text, step=step, color=self.color)

    def show(self, document: Any, *parts: RenderableType, ok: bool = True) -> None:
        """Print the document, or its parts for people; exit with 1 if the answer is not `ok`."""
        if self.json:
            write_json(document)
        elif all(isinstance(part, str) for part in parts):
            write("\n".join(map(str, parts)))
        else:
            write(render(*parts, color=self.color))
        if not ok:
            raise typer.Exit(ANSWER_IS_NO)


def remember_shared_options(
    ctx: typer.Context,
    url: Annotated[str | None, option("URL", "Backend: sqlite:///path, memory:// or aws://region.")] = None,
    config: Annotated[Path | None, option("FILE", "Settings file (./postroad.toml).")] = None,
    json: Annotated[bool, flag("--json", "Print one JSON document on stdout.")] = False,
    no_color: Annotated[bool, flag("--no-color", "No colour, even on a terminal.")] = False,
) -> None:
    """Keep the shared options that stand before the verb; every verb takes them from this signature."""
    ctx.obj = Call(url=url, config=config, json=json, no_color=no_color)


def _options(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]


_group_options = functools.cache(_options)
_CONTEXT, *_SHARED = _options(remember_shared_options)
_CREATING = frozenset({"send", "publish", "submit", "create", "init", "run", "up", "worker"})
"""The verbs that may create the embedded file, besides the destructive ones; all others only read."""


@dataclass(frozen=True, slots=True)
class Verb:
    """How a function is called on the command line."""

    path: str
    example: str
    destructive: bool
    until_stopped: bool


Function = TypeVar("Function", bound=Callable[..., None])


def verb(
    path: str, example: str = "", *, destructive: bool = False, until_stopped: bool = False
) -> Callable[[Function], Function]:
    """Declare a function `(call, …)` as a command. A parameter whose type is a dataclass becomes one option per field.

    Args:
        path: The noun and the verb.
        example: The arguments of the example in its help.
        destructive: Whether it deletes something.
        until_stopped: Whether it handles SIGTERM and Ctrl-C itself, those included that came before it began.
    """

    def declare(function: Function) -> Function:
        vars(function)["verb"] = Verb(path, f"postroad {path} {example}".rstrip(), destructive, until_stopped)
        return function

    return declare


def noun(summary: str, *, example: str, default: str | None = None) -> typer.Typer:
    """Return a group of verbs; options without a verb go to the `default` verb, if it has one."""
    return typer.Typer(
        cls=_Noun if default is None else type("_Noun", (_Noun,), {"default": default}),
        help=summary,
        epilog=example,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def add_verb(place: typer.Typer, function: Callable[..., None]) -> None:
    """Add a declared function to its noun, with the shared options besides its own."""
    declared: Verb = vars(function)["verb"]
    name = declared.path.rpartition(" ")[2]
    own = _options(function)[1:]
    groups: dict[str, Any] = {each.name: each.annotation for each in own if is_dataclass(each.annotation)}
    fields = {group: _group_options(kind) for group, kind in groups.items()}

    def run(ctx: typer.Context, **given: Any) -> None:
        if not declared.until_stopped:
            signals.release()
        before = ctx.find_object(Call) or Call()
        # What stands after the verb beats what stands before it.
        shared = {option.name: given.pop(option.name) or getattr(before, option.name) for option in _SHARED}
        for group, kind in groups.items():
            given[group] = kind(**{field.name: given.pop(field.name) for field in fields[group]})
        function(Call(**shared, may_create=declared.destructive or name in _CREATING), **given)

    functools.update_wrapper(run, function)
    plain = [each for each in own if each.name not in groups]
    parameters = [_CONTEXT, *plain, *(field for each in fields.values() for field in each), *_SHARED]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it from there
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    place.command(name, cls=_Command, epilog=declared.example)(run)


def _help(ctx: Any, stream: TextIO) -> str:
    return help_page(ctx, color=ctx.color is not False and stream.isatty() and not no_color())


class _Command(TyperCommand):
    def get_help(self, ctx: Any) -> str:
        return _help(ctx, sys.stdout)


class _Noun(TyperGroup):
    """Shows its help if no verb is named, and suggests the nearest one for a misspelt verb."""

    default: str | None = None

    def get_help(self, ctx: Any) -> str:
        return _help(ctx, sys.stdout)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.default is not None and (not args or args[0].startswith("-")) and not set(args) & {"-h", "--help"}:
            args = [self.default, *args]
        if not args and not ctx.resilient_parsing:
            write(_help(ctx, sys.stderr), sys.stderr)
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
