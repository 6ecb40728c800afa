"""Waking those who wait at lanes: each by its lane, or everybody when an event is for very many."""

from __future__ import annotations

from typing import Final

from postroad.agents.sqlite.names import channel
from postroad.engine import Transaction, every

MOST: Final = 1_000
"""So many lanes are woken by name: the names of a hundred thousand would cost more memory than the rows do."""
_EVERY_LANE: Final = "a*"
_LISTENERS: Final = "SELECT subscriber FROM agent_pair WHERE producer = ? LIMIT ?"
_HELD: Final = "SELECT lane FROM agent_held_row WHERE place = ? LIMIT ?"


def channels_of(lane: int) -> tuple[str, str]:
    """Where whoever waits at the lane has to listen."""
    return channel(lane), _EVERY_LANE


def wake_listeners(tx: Transaction, producer: int) -> None:
    """After the commit, wake those who wait for the producer's events."""
    _wake(tx, _LISTENERS, producer)


def wake_held(tx: Transaction, place: int) -> None:
    """After the commit, wake those for whom the event at this place was held back."""
    _wake(tx, _HELD, place)


def _wake(tx: Transaction, statement: str, key: int) -> None:
    if _EVERY_LANE in tx.channels:
        return
    room = max(0, MOST - len(tx.channels))
    lanes = every(tx.connection, statement, (key, room + 1))
    tx.channels.update([channel(lane) for (lane,) in lanes] if len(lanes) <= room else [_EVERY_LANE])
