"""Several threads may be the first to read values of a type: the process must not crash."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import dataclasses, sys, threading
from postroad.events import Codec, EventRegistry
sys.setswitchinterval(1e-6)

def at_once(work):
    together = threading.Barrier(4)
    def run():
        together.wait()
        work()
    threads = [threading.Thread(target=run) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


def codec_and_class():
    Item = dataclasses.make_dataclass("Item", [("name", str), ("sizes", dict[str, list[int]])])
    Order = dataclasses.make_dataclass("Order", [("items", list[Item]), ("first", Item | None, None)])
    registry = EventRegistry()
    registry.register(Order, name="order.placed")
    return Codec(registry), Order

writer, Order = codec_and_class()
body = writer.encode(writer.wrap(Order([]), publisher_id="test"))
for _ in range(100):
    reader, Order = codec_and_class()
    at_once(lambda: reader.unwrap(reader.decode(body)))
"""


def test_threads_that_are_the_first_to_read_an_event_do_not_crash_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-2_000:]
