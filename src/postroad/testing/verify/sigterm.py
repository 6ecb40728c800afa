"""What SIGTERM leaves behind: what a receiver held and gives back must be receivable at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec

from postroad.queues import Delivery, OutgoingMessage, Queue, QueueSpec
from postroad.receiving import Ack, Receiver
from postroad.signals import die_with_parent, stopped_by_signals
from postroad.testing.verify.nemeses import RunFailed
from postroad.testing.verify.scenario import History, Place
from postroad.testing.verify.workload import held

_QUEUE = "verify-sigterm"
_MESSAGES = 10
_VISIBILITY_SECONDS = 600.0
_END_SECONDS = 60.0
_WAIT_SECONDS = 1.0


def audit_sigterm(place: Place, history: History) -> None:
    """Let a process hold messages for a long visibility, end it by SIGTERM, and receive what it had not handled (I30).

    Raises:
        RunFailed: The process did not begin, or did not end.
    """
    with place.backend() as backend:
        queue = backend.create_queue(QueueSpec(_QUEUE, visibility=_VISIBILITY_SECONDS))
        queue.send([OutgoingMessage(str(number)) for number in range(_MESSAGES)])
        _hold_and_end(place)
        left, taken = held(queue), _receivable(queue)
    detail = f"{taken} of {left} messages could be received after a SIGTERM; {_MESSAGES} were sent, one was handled"
    history.check("I30", taken == left, detail)


def _hold_and_end(place: Place) -> None:
    """Run a process until it holds messages, and wait until SIGTERM has ended it."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(place) + b"\n")
            process.stdin.flush()
            if not process.stdout.readline():
                raise RunFailed(f"a receiver ended with {process.wait(_END_SECONDS)} before it held a message")
            process.send_signal(signal.SIGTERM)
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise RunFailed("a receiver did not end after SIGTERM") from None
        finally:
            process.kill()


def _receivable(queue: Queue) -> int:
    """Return how many messages can be received now."""
    taken = 0
    while page := queue.receive(max_messages=_MESSAGES, wait=_WAIT_SECONDS):
        taken += len(page)
    return taken


def main() -> None:
    """Receive until SIGTERM, with a handler that takes until then; it announces on stdout that it runs."""
    die_with_parent(os.getppid())
    # A parent that died before has closed the pipe, and there is no line.
    place = msgspec.json.decode(sys.stdin.buffer.readline(), type=Place)
    with place.backend() as backend, stopped_by_signals() as stop:

        def decide(delivery: Delivery) -> Ack:
            print("holding", flush=True)
            stop.wait()
            return Ack()

        Receiver(backend.queue(_QUEUE), decide, batch=_MESSAGES, wait=_WAIT_SECONDS).run(stop)


if __name__ == "__main__":
    main()
