"""Which messages an operation is meant for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.arguments import check
from postroad.errors import InvalidInput
from postroad.queues.fingerprint import fingerprint
from postroad.queues.markers import DeadLetter, read_dead
from postroad.queues.port import PeekedMessage

_Moment = Annotated[datetime, Meta(tz=True, description="a moment with a time zone")]


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """Messages for which all that is given holds. `key` is the message group, `fingerprint` that of a dead letter."""

    fingerprint: str | None = None
    key: str | None = None
    event_type: str | None = None
    attributes: Mapping[str, str] = {}
    ids: Collection[str] = ()
    sent_before: datetime | None = None
    sent_after: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("fingerprint", "key", "event_type"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidInput(f"match.{name}: {getattr(self, name)!r} is not text", field=f"match.{name}")
        if isinstance(self.ids, str):
            raise InvalidInput(f"match.ids: {self.ids!r} is one text; give a list of message ids", field="match.ids")
        check(self.sent_before, _Moment | None, "match.sent_before")
        check(self.sent_after, _Moment | None, "match.sent_after")

    def holds(self, message: PeekedMessage) -> bool:
        """Whether all that is given holds for the message."""
        return (
            (self.key is None or message.group == self.key)
            and (not self.ids or message.message_id in self.ids)
            and (self.sent_before is None or message.sent_at < self.sent_before)
            and (self.sent_after is None or message.sent_at > self.sent_after)
            and (not self.attributes or self.attributes.items() <= message.attributes.items())
            and (self.event_type is None or event_type(message) == self.event_type)
            and (self.fingerprint is None or failure(message) == self.fingerprint)
        )


def event_type(message: PeekedMessage) -> str | None:
    """The type of the event the message carries, as far as its attributes tell."""
    return _type(message, None if "EventType" in message.attributes else read_dead(message.attributes))


def failure(message: PeekedMessage) -> str:
    """The fingerprint of what a dead letter died of."""
    dead = read_dead(message.attributes)
    return fingerprint(None if dead is None else dead.error, _type(message, dead))


def _type(message: PeekedMessage, dead: DeadLetter | None) -> str | None:
    return message.attributes.get("EventType") or (None if dead is None else dead.type)
