"""How a story is shown: its last failure as a person reads it, and the form, link or command of the next step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

from postroad.dashboard.texts import error_parts
from postroad.journal import ATTEMPT_FAILED, Step, Story

_FRAME: Final = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>[0-9]+), in (?P<function>\S+)')
_TYPED: Final = re.compile(r"\b[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout): ")
_UNSEEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
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
    failed = [(_said(step), step) for step in story.steps if not step.ok and step.detail]
    if story.verdict in ("handled", "completed") or not failed:
        return None
    last_said = failed[-1][0]
    same = [step for each, step in failed if each == last_said]
    # What ends a run, or makes a message a dead letter, repeats what the last attempt has said, unless it was rejected.
    attempts = [step for step in same if _is_attempt(step)] or same
    last = attempts[-1]
    place, handler = _place(last.detail or "", last.traceback or [])
    return Failure(
        type=last_said[0],
        message=last_said[1],
        place=place,
        handler=handler,
        by=last.by,
        where=last.where,
        traceback=last.traceback or [],
        last_lines=last.last_lines or [],
        first_at=attempts[0].at,
        last_at=last.at,
        count=len(attempts),
    )


def _is_attempt(step: Step) -> bool:
    return step.what in (ATTEMPT_FAILED, "failed") or (step.what == "dead" and bool(step.traceback))


def _said(step: Step) -> tuple[str, str]:
    """Return the type and the message of an error: from the end of its traceback, or from the detail of its step."""
    is_message = step.what in ("failed", "dead")
    ends = [line for line in (step.traceback or [])[-1:] if not is_message and _TYPED.search(line)]
    kind, message = said(ends[0] if ends else step.detail)
    return (kind, message) if message else (step.what.replace("_", " "), kind)


def said(error: str | None) -> tuple[str, str]:
    """Return the type and the message of an error, without what was put before them."""
    typed = _TYPED.search(error or "")
    kind, message, _ = error_parts(error if error is None or typed is None else error[typed.start() :])
    return kind, message


def _place(detail: str, traceback: Sequence[str]) -> tuple[str | None, str | None]:
    """Return where the error was raised, and the function that was called to handle."""
    frames = [found for line in traceback if (found := _FRAME.search(line)) is not None]
    if frames:
        return f"{frames[-1]['file']}:{frames[-1]['line']} in {frames[-1]['function']}", frames[0]["function"]
    file, colon, function = error_parts(detail)[2].partition(":")
    return (file, function) if colon else (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What would move it on, and how it is done: by a form, on another page, or by a command."""

    text: str
    """What would move it on, without the command."""
    explained: str
    """All that the story says."""
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
    found = _COMMAND.search(story.next)
    command = None if found is None else found[0]
    text = story.next if command is None else story.next.removesuffix(command).rstrip(": ")
    if (redriven := _LINKS[0][0].fullmatch(story.next)) is not None:
        command = f"postroad queue redrive {redriven[1]}"
    made = Next(text=text, explained=story.next, command=command)
    for pattern, action, label in _FORMS:
        if (match := pattern.search(story.next)) is not None:
            return replace(made, action=_filled(action, match), label=label)
    for pattern, href, label in _LINKS:
        if (match := pattern.search(story.next)) is not None:
            return replace(made, href=_filled(href, match), label=label.format(*match.groups()))
    return made


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


def visible(value: Any) -> Any:
    """Return a text with control characters and direction marks escaped, so that data cannot rearrange a page."""
    if type(value) is not str:
        return value
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), value)
