"""Two processes, one file: what one publishes, the other hears.

Run it: python examples/02_two_processes.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading

import postroad


@postroad.event(name="examples.parcel-sent")
class ParcelSent:
    number: int


@postroad.event(name="examples.parcel-arrived")
class ParcelArrived:
    number: int


def customer(url: str) -> None:
    with postroad.connect(url) as backend, backend.bus("parcels", event_types=[ParcelSent]) as bus:
        bus.subscribe(ParcelSent, lambda event: bus.publish(ParcelArrived(event.number)))
        bus.start_receiver()
        print("customer: I am listening", flush=True)
        sys.stdin.read()


def sender(url: str) -> None:
    all_arrived = threading.Event()

    def note(event: ParcelArrived) -> None:
        print(f"sender:   parcel {event.number} has arrived in the other process")
        if event.number == 3:
            all_arrived.set()

    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, __file__, url], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        with postroad.connect(url) as backend, backend.bus("parcels", event_types=[ParcelArrived]) as bus:
            bus.subscribe(ParcelArrived, note)
            bus.start_receiver()
            print(process.stdout.readline(), end="")
            for number in (1, 2, 3):
                bus.publish(ParcelSent(number)).raise_if_errors()
            assert all_arrived.wait(8), "the other process did not answer"
        process.communicate()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        customer(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            sender(f"sqlite:///{directory}/postroad.db")
