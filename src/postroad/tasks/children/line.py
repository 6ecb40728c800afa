"""The keeper's end of the socket to its worker."""

from __future__ import annotations

import socket

from postroad.tasks.children.wire import Frames, FromKeeper, ToKeeper, message, to_keeper


class WorkerGone(Exception):
    """The worker closed its end or died: everything of it ends."""


class Line:
    """Takes in what the worker says, and tells it what happens."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._frames = Frames()

    def fileno(self) -> int:
        """For polls."""
        return self._end.fileno()

    def tell(self, value: FromKeeper) -> None:
        """Tell the worker."""
        try:
            self._end.sendall(message(value))
        except OSError as error:
            raise WorkerGone from error

    def hear(self) -> list[ToKeeper]:
        """What the worker has said since the last time; waits for it."""
        try:
            data = self._end.recv(1 << 18)
        except OSError as error:
            raise WorkerGone from error
        if not data:
            raise WorkerGone
        return [to_keeper.decode(found) for found in self._frames.feed(data)]
