"""What `--help` prints: commands in the panels Run, Look, Repair and Set up, each sentence whole at any width."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from postroad.cli.parameters import short_duration

PANELS: Final = {
    "Run": (
        *("up", "demo", "worker", "run", "publish", "send", "submit", "add", "agent tail"),
        *("bus", "task", "job", "schedule", "agent", "notifications", "outbox"),
    ),
    "Look": (
        *("why", "doctor", "health", "list", "show", "status", "history", "wait", "graph", "peek", "groups", "watch"),
        *("tail", "failed", "keys", "unknown", "dead", "query", "verify", "check", "plan", "drift", "render", "alarms"),
        *("powerloss", "journal", "audit", "cost", "agents", "scaling", "commands", "version", "failpoints", "mutants"),
    ),
    "Repair": (
        *("queue", "redrive", "replay", "retry", "resume", "pause", "cancel", "skip", "inbox", "resolve"),
        *("purge", "prune", "sweep", "compact"),
    ),
    "Set up": (
        *("config", "topology", "apply", "init", "provision", "create", "set", "delete", "group"),
        *("token", "revoke", "subscribe", "unsubscribe", "grant", "iam", "grants", "outbox alarms"),
    ),
}
"""The commands of each panel, by their last word; by all words where another command with that word is elsewhere."""
_PANEL_OF: Final = {words: panel for panel, all_words in PANELS.items() for words in all_words}
_SHARED_OPTIONS: Final = {"url", "config", "json", "no_color", "help"}
_NARROWEST, _WIDEST = 40, 120
_LONGEST_NAME = 26
_BOLD, _CYAN = "1", "36"
_WORDS = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
Row = tuple[str, str]


def panel_of(path: str) -> str:
    """Return the panel of a command; `path` is its words without the program's name."""
    return _PANEL_OF.get(path) or _PANEL_OF.get(_last(path), "Run")


def _last(path: str) -> str:
    return path.rpartition(" ")[2]


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a docstring on one line."""
    flat = " ".join((text or "").split())
    match = re.match(r".*?\.(?=\s|$)", flat)
    return flat if match is None else match[0]


def help_page(ctx: Any, *, color: bool) -> str:
    """Return the help of the command of a context, in the width of the terminal."""
    width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)
    page = _Page(width, color)
    command, params = ctx.command, [each for each in ctx.command.get_params(ctx) if not each.hidden]
    page.text(f"Usage: {ctx.command_path} {_usage(command, params, ctx)}", hanging=7)
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")):
        page.blank()
        page.text(" ".join(paragraph.split()))
    page.tables(_panels(command, ctx.command_path.partition(" ")[2]))
    page.tables(_parameters(params, ctx))
    page.example(command.epilog or "")
    if hasattr(command, "commands"):
        page.blank()
        page.text(f"`{ctx.command_path} COMMAND --help` explains a command.")
    return "\n".join(page.lines)


def _usage(command: Any, params: Sequence[Any], ctx: Any) -> str:
    pieces = ["[OPTIONS]"]
    for param in params:
        if param.param_type_name == "argument":
            name = _metavar(param, ctx)
            pieces.append(name if param.required else f"[{name}]")
    return " ".join([*pieces, "COMMAND"] if hasattr(command, "commands") else pieces)


def _panels(command: Any, path: str) -> Iterator[tuple[str, list[Row]]]:
    """Yield the commands below this one, in panels, each with its first sentence."""
    found = {f"{path} {name}".strip(): each for name, each in getattr(command, "commands", {}).items()}
    for panel, words in PANELS.items():
        here = [each for each in found if panel_of(each) == panel]
        order = {each: position for position, each in enumerate(words)}
        here.sort(key=lambda each: order.get(each, order.get(_last(each), len(order))))
        yield panel, [(_last(each), first_sentence(found[each].help)) for each in here]


def _parameters(params: Sequence[Any], ctx: Any) -> Iterator[tuple[str, list[Row]]]:
    rows = {param.name: _row(param, ctx) for param in params}
    arguments = {param.name for param in params if param.param_type_name == "argument"}
    own = [row for name, row in rows.items() if name not in arguments | _SHARED_OPTIONS]
    shared = [row for name, row in rows.items() if name in _SHARED_OPTIONS]
    has_defaults = any(text.endswith(").") for _, text in own)
    yield "Arguments", [rows[param.name] for param in params if param.name in arguments]
    yield "Options (defaults in parentheses)" if has_defaults else "Options", own
    yield "Options of every command" if len(shared) > 1 else "Options", shared


def _row(param: Any, ctx: Any) -> Row:
    metavar = _metavar(param, ctx)
    if param.param_type_name == "argument":
        return metavar, meaning(param)
    names = " / ".join(", ".join(sorted(each, key=len)) for each in (param.opts, param.secondary_opts) if each)
    return names if param.is_flag else f"{names} {metavar}", meaning(param)


def meaning(param: Any) -> str:
    """Return what a parameter means; of an option, with its default and its bounds in parentheses."""
    if param.param_type_name == "argument":
        return param.help or ""
    text, choices = (param.help or "").rstrip("."), getattr(param.type, "choices", ())
    if choices and not any(choice in text for choice in choices):
        text += f": {', '.join(choices[:-1])} or {choices[-1]}"
    default = "" if param.is_flag or not param.show_default else _default_text(param)
    least, most = getattr(param.type, "min", None), getattr(param.type, "max", None)
    bounds = "" if least is None or most is None else f"{least:,} to {most:,}"
    notes = "required" if param.required else ", ".join(filter(None, (default, bounds)))
    return f"{text} ({notes})." if notes else f"{text}."


def _metavar(param: Any, ctx: Any) -> str:
    """Return what stands for the value, without the brackets that mark an optional one."""
    text = str(param.make_metavar(ctx=ctx))
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _default_text(param: Any) -> str:
    value = param.default
    if value is None or value == "" or isinstance(value, bool):
        return ""
    if not isinstance(value, int | float):
        return str(value)
    return short_duration(value) if param.metavar == "DURATION" else f"{value:,}".removesuffix(".0")


class _Page:
    """Lines of at most a width; colour is put around words that stand in a column of their own."""

    def __init__(self, width: int, color: bool) -> None:
        self.lines: list[str] = []
        self._width = width
        self._color = color

    def blank(self) -> None:
        self.lines.append("")

    def text(self, text: str, *, hanging: int = 0) -> None:
        self.lines += self._wrapped(text, "", " " * hanging)

    def heading(self, text: str) -> None:
        self.blank()
        self.lines.append(self._painted(text, _BOLD))

    def tables(self, given: Iterable[tuple[str, Sequence[Row]]]) -> None:
        """Add headings with rows below them; in all, the texts begin in the same column."""
        tables = [(heading, rows) for heading, rows in given if rows]
        most = min(_LONGEST_NAME, self._width // 3)
        column = max((len(name) for _, rows in tables for name, _ in rows if len(name) <= most), default=most)
        for heading, rows in tables:
            self.heading(heading)
            for name, text in rows:
                self._row(name, text, column)

    def _row(self, name: str, text: str, column: int) -> None:
        """Add a name with its text beside it, or below it if the name is long."""
        gap = " " * (2 + column + 2)
        painted = "  " + self._painted(name, _CYAN)
        texts = self._wrapped(text, gap, gap)
        if len(name) > column:
            self.lines += [painted, *texts]
        else:
            self.lines += [painted + " " * (column - len(name) + 2) + texts[0][len(gap) :], *texts[1:]]

    def example(self, command: str) -> None:
        """Add a command that can be copied: where it is too long it continues on the next line."""
        self.heading("Example")
        arguments, *options = re.split(r" (?=--[a-z])", command)
        lines = [""]
        for part in (*_WORDS.findall(arguments), *options):
            if lines[-1] and len(lines[-1]) + len(part) + 7 > self._width:
                lines.append("")
            lines[-1] += f" {part}" if lines[-1] else part
        ends = [" \\"] * (len(lines) - 1) + [""]
        indents = ["  "] + ["    "] * (len(lines) - 1)
        self.lines += [indent + line + end for indent, line, end in zip(indents, lines, ends, strict=True)]

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color else text

    def _wrapped(self, text: str, first: str, others: str) -> list[str]:
        wrapper = textwrap.TextWrapper(self._width, first, others, break_long_words=False, break_on_hyphens=False)
        return wrapper.wrap(text)
