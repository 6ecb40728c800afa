"""A dispatcher in a process of its own: publishes by appending lines to a file, and prints its report at the end.

Some publishes fail by chance, before or after they took effect; rows whose number `poison` divides fail always.

`python -m tests.outbox.dispatching.child DSN FILE [CONFIG as JSON] [failure rate] [seed] [poison]`
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from postroad import OutgoingMessage, SendResult, failpoints
from postroad.outbox import DispatcherConfig, Outbox, OutboxDispatcher


class FilePublisher:
    """One line `group seq event-id` for each message it takes; lines of all processes are in the order of writing."""

    def __init__(self, path: Path, failures: float, seed: int, poison: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._failures = failures
        self._chance = random.Random(seed)
        self._poison = poison

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[SendResult]:
        return [self._published(message) for message in messages]

    def _published(self, message: OutgoingMessage) -> SendResult:
        if self._poison and int(message.attributes["Seq"]) % self._poison == 0:
            return SendResult(ok=False, error=TimeoutError("never"))
        fate = self._chance.random() / self._failures if self._failures else 1.0
        if fate < 0.5:
            return SendResult(ok=False, error=TimeoutError("not applied"))
        os.write(self._file, f"{message.group} {message.attributes['Seq']} {message.dedup_id}\n".encode())
        if fate < 1.0:
            return SendResult(ok=False, error=TimeoutError("applied, but nobody knows"))
        return SendResult(ok=True)


def main(dsn: str, path: str, config: str = "{}", failures: str = "0", seed: str = "0", poison: str = "0") -> None:
    failpoints.load(os.environ.get("POSTROAD_FAILPOINTS"))
    settings: dict[str, Any] = json.loads(config)
    publisher = FilePublisher(Path(path), float(failures), int(seed), int(poison))
    outbox = Outbox.open(dsn)
    dispatcher = OutboxDispatcher(outbox, publisher, DispatcherConfig(**settings))
    threading.Thread(target=_say_when_ready, args=(dispatcher,), daemon=True).start()
    report = dispatcher.run()
    outbox.close()
    print(json.dumps(asdict(report)), flush=True)


def _say_when_ready(dispatcher: OutboxDispatcher) -> None:
    while not dispatcher.ready:
        time.sleep(0.01)
    print("ready", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
