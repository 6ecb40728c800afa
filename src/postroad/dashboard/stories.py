"""How a story is shown: its last failure as a person reads it, and the form, link or command of the next step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from markupsafe import Markup

from postroad.journal import Step, Story

_FRAME: Final = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>[0-9]+), in (?P<function>\S+)')
_PLACE: Final = re.compile(r" \[(?P<file>[^\[\]:]+):(?P<function>[^\[\]]+)\]$")
_TYPED: Final = re.compile(r"(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|[A-Z]\w*)): (?P<message>.*)", re.DOTALL)
_COMMAND: Final = re.compile(r"postroad [a-z].*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong, where, and how often."""

    type: str
    message: str
    place: str | None
    handler: str | None
    by: str | None
    where: str | None
    traceback: Sequence[str]
    last_lines: Sequence[str]
    first_at: str
    last_at: str
    count: int


def failure_of(story: Story) -> Failure | None:
    """Return the last failure of a story that did not end well; None if there is none."""
    failed = [step for step in story.steps if not step.ok and step.detail]
    if story.verdict in ("handled", "completed") or not failed:
        return None
    # The end of a run repeats what its last attempt has said; that one knows where.
    last = next((step for step in reversed(failed) if step.lines), failed[-1])
    same = [step for step in failed if step.detail == last.detail and step.what == last.what]
    lines = last.traceback or []
    kind, message = _said(last, lines)
    place, handler = _place(last.detail or "", lines)
    return Failure(
        type=kind,
        message=message,
        place=place,
        handler=handler,
        by=last.by,
        where=last.where,
        traceback=lines,
        last_lines=last.last_lines or [],
        first_at=same[0].at,
        last_at=same[-1].at,
        count=len(same),
    )


def _said(step: Step, traceback: Sequence[str]) -> tuple[str, str]:
    """Return the type and the message of an error: from its traceback, or from the detail of its step."""
    spoken = _PLACE.sub("", step.detail or "")
    for text in (*reversed(traceback[-1:]), spoken, spoken.partition(": ")[2]):
        if (found := _TYPED.fullmatch(text.strip())) is not None:
            return found["type"], found["message"]
    kind, colon, message = spoken.partition(": ")
    return (kind, message) if colon and " " not in kind else (step.what, spoken)


def _place(detail: str, traceback: Sequence[str]) -> tuple[str | None, str | None]:
    """Return where the error was raised, and the function that was called to handle."""
    frames = [found for line in traceback if (found := _FRAME.search(line)) is not None]
    if frames:
        return f"{frames[-1]['file']}:{frames[-1]['line']} in {frames[-1]['function']}", frames[0]["function"]
    if (found := _PLACE.search(detail)) is not None:
        return found["file"], found["function"]
    return None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What would move it on, and how it is done: by a form, on another page, or by a command."""

    text: str
    command: str | None = None
    action: str | None = None
    """Where the form is sent."""
    href: str | None = None
    label: str = ""


_FORMS: Final = (
    (re.compile(r"postroad task retry (\S+)"), "/ui/tasks/{}/retry", "Run it again"),
    (re.compile(r"postroad job resume (\S+)"), "/ui/jobs/{}/resume", "Run the failed tasks again"),
    (re.compile(r"postroad agent redrive (\S+)"), "/ui/agents/{}/redrive", "Redrive the agent's dead letters"),
    (re.compile(r"postroad agent resume (\S+) (\S+)"), "/ui/agents/{}/subscriptions/{}/resume", "Resume"),
)
_LINKS: Final = (
    (re.compile(r"redrive queue (\S+)"), "/ui/dead-letters?queue={}", "Look at the dead letters of {}"),
    (re.compile(r"waits for its key's head (\S+)"), "/ui/events/{}", "Why {} waits"),
    (re.compile(r"purge queue (\S+)"), "/ui/queues/{}", "Look at queue {}"),
    (re.compile(r"postroad outbox redrive (\S+)"), "/ui/outbox", "Look at the outbox"),
)


def next_of(story: Story) -> Next:
    """Return what would move it on, with the form or page that does it if there is one."""
    text = story.next
    found = _COMMAND.search(text)
    command = None if found is None else found[0]
    if (redriven := _LINKS[0][0].fullmatch(text)) is not None:
        command = f"postroad queue redrive {redriven[1]}"
    for pattern, action, label in _FORMS:
        if (match := pattern.search(text)) is not None:
            return Next(text=text, command=command, action=_filled(action, match), label=label)
    for pattern, href, label in _LINKS:
        if (match := pattern.search(text)) is not None:
            return Next(text=text, command=command, href=_filled(href, match), label=label.format(*match.groups()))
    return Next(text=text, command=command)


def _filled(path: str, match: re.Match[str]) -> str:
    return path.format(*(quote(each, safe="") for each in match.groups()))


def moment(given: int | str) -> datetime:
    """Return a time that is given in milliseconds or in ISO 8601."""
    return datetime.fromtimestamp(given / 1_000, UTC) if isinstance(given, int) else datetime.fromisoformat(given)


def later(at: str, before: str) -> Markup:
    """Return how much later a step was than the one before it, with the exact time in its title."""
    length = (moment(at) - moment(before)).total_seconds()
    sign, length = "-" if length < 0 else "+", abs(length)
    text = f"{length * 1_000:.0f} ms" if length < 1 else f"{length:.1f} s" if length < 60 else f"{length / 60:.0f} min"
    return Markup('<time datetime="{}" title="{}">{}{}</time>').format(at, at, sign, text)
