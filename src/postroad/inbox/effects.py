"""Effects outside the database: begun, finished, or left in between by a crash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

EffectStatus = Literal["new", "done", "busy", "unknown"]


class EffectNotDone(Exception):
    """A handler raises it when its effect surely did not happen: the event is forgotten and comes again as new."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One attempt at an effect outside. Give `idempotency_key` and `token` to whoever can refuse a repeated call."""

    status: EffectStatus
    attempt: int
    token: int
    idempotency_key: str
    retry_after: float = 0.0
    """When busy: the seconds until the other one's lease ends, unless it is renewed."""

    @property
    def consumer(self) -> str:
        """Whose effect it is."""
        return self.idempotency_key.rpartition(":")[0]

    @property
    def event_id(self) -> UUID:
        """The event whose effect it is."""
        return UUID(self.idempotency_key.rpartition(":")[2])


def key_of(consumer: str, event_id: str) -> str:
    """The name of an effect, the same in every attempt."""
    return f"{consumer}:{event_id}"
