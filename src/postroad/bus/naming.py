"""The names that belong to one topic: its queues and their dead letters."""

from __future__ import annotations

import re
from dataclasses import dataclass

from postroad.errors import InvalidName
from postroad.queues import check_name

_WORD = re.compile(r"[A-Za-z0-9_-]+")
_RESERVED = ("archive", "dead")
_OWN = "p-"


@dataclass(frozen=True, slots=True)
class Names:
    """Names built from a topic's own."""

    base: str
    fifo: bool

    @property
    def topic(self) -> str:
        """The topic itself."""
        return self.base + self._suffix

    def dead(self, group: str | None) -> str:
        """The dead letters of a group, or of all own queues."""
        middle, field = ("", "topic") if group is None else (f"--{group}", "group")
        return check_name(f"{self.base}{middle}--dead{self._suffix}", field=field)

    def group(self, group: str) -> str:
        """The queue of a group."""
        return check_name(f"{self.base}--{group}{self._suffix}", field="group")

    def own(self, number: str) -> str:
        """A queue of one process."""
        return check_name(f"{self.own_prefix}{number}{self._suffix}", field="topic")

    def check(self, group: str | None) -> None:
        """Refuse a topic or group whose queues could not be named, before anything is made."""
        self.dead(group)
        if group is None:
            self.own("0" * 12)

    @property
    def own_prefix(self) -> str:
        """What all own queues of the topic begin with."""
        return f"{self.base}--{_OWN}"

    @property
    def _suffix(self) -> str:
        return ".fifo" if self.fifo else ""


def is_group(group: object) -> bool:
    """Whether the text can name a group, and is not taken for something else."""
    if not isinstance(group, str) or _WORD.fullmatch(group) is None:
        return False
    return group not in _RESERVED and not group.startswith(_OWN) and "--" not in group


def check_group(group: object) -> None:
    """Refuse what cannot name a group, or would be taken for something else."""
    if not is_group(group):
        raise InvalidName(
            f"group: {group!r} cannot name a group",
            field="group",
            remedy="Use letters, digits, '_' and single '-'; 'archive', 'dead' and 'p-…' are taken.",
        )


def names_of(topic: object, *, fifo: bool = False) -> Names:
    """The names of a topic that is given by its name or its ARN; a name that ends in `.fifo` is FIFO."""
    last = re.split("[:/]", topic)[-1] if isinstance(topic, str) and topic.startswith("arn:") else topic
    base = last.removesuffix(".fifo") if isinstance(last, str) else ""
    if not isinstance(last, str) or _WORD.fullmatch(base) is None:
        raise InvalidName(
            f"topic: {topic!r} is not a topic name",
            field="topic",
            remedy="Use letters, digits, '_' and '-', or the ARN of a topic; a name of a FIFO topic ends in '.fifo'.",
        )
    return Names(base, fifo or last.endswith(".fifo"))
