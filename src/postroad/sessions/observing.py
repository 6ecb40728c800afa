"""Those who want to know when a slice changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from postroad.sessions.slices import Values
from postroad.telemetry import get_logger

Observer = Callable[[tuple[Any, ...], tuple[Any, ...]], object]


@dataclass(frozen=True, slots=True, eq=False)
class Subscription:
    """One observer's place; it is told of changes until it unsubscribes."""

    slice_type: type
    observer: Observer
    leave: Callable[[Subscription], None]

    def unsubscribe(self) -> None:
        """Tell the observer nothing more. Unsubscribing twice changes nothing."""
        self.leave(self)

    def tell(self, old: Values, new: Values) -> None:
        """Call the observer; what it raises is logged only, since the change has happened."""
        try:
            self.observer(old, new)
        except Exception as error:
            get_logger("sessions").error(
                "session_observer_failed",
                slice_type=self.slice_type.__qualname__,
                observer=getattr(self.observer, "__qualname__", repr(self.observer)),
                error=f"{type(error).__name__}: {error}",
            )
