"""A few messages first: the others follow when these were handled."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from postroad.queues.match import Chosen
from postroad.queues.moves import Movable
from postroad.queues.pace import STEP

_LOOK_AGAIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """How many of which dead letters go first, and how long they are waited for."""

    dead_letters: str
    size: int
    wait: float
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]

    def is_well(self, source: Movable, ids: Collection[str], chosen: Chosen) -> bool:
        """Whether all of them were handled, or, where nobody can tell that, none came back in time."""
        deadline = self.monotonic() + self.wait
        while (places := source.whereabouts(ids)) is not None:
            back = [message_id for message_id, queue in places.items() if queue == self.dead_letters]
            chosen.returned.update(back)
            if back or not places:
                return not back
            if (left := deadline - self.monotonic()) <= 0:
                return False
            self.sleep(min(_LOOK_AGAIN, left))
        self.sleep(self.wait)
        return not _any_returned(source, chosen)


def _any_returned(source: Movable, chosen: Chosen) -> bool:
    """Look through the dead letters until one of this run is met."""
    cursor: str | None = None
    while True:
        looked = source.look(cursor=cursor, limit=STEP)
        if any(chosen.has_returned(message) for message in looked.messages):
            source.stop(looked.cursor)
            return True
        if (cursor := looked.cursor) is None:
            return False
