"""Two agents over HTTP: each has an address and a token, and neither has a database.

Run it: python examples/11_agents_over_http.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading

import postroad
from postroad.agents import ReceivedEvent


def talk(url: str, anns_token: str, bobs_token: str) -> None:
    stop = threading.Event()
    with postroad.AgentClient(url, anns_token) as ann, postroad.AgentClient(url, bobs_token) as bob:

        @bob.on(producer="ann", event_type="order.*")
        def ship(event: ReceivedEvent) -> None:
            bob.publish("parcel.sent", {"order": event.data["id"]})

        @ann.on(producer="bob")
        def note(event: ReceivedEvent) -> None:
            print(f"ann: {event.agent_id} has sent order {event.data['order']}")
            if event.data["order"] == 3:
                stop.set()

        shipping = threading.Thread(target=bob.run, args=(stop,))
        shipping.start()
        for number in (1, 2, 3):
            ann.publish("order.placed", {"id": number})
        ann.run(stop)  # a program of its own runs until SIGTERM: ann.run()
        shipping.join()


def main(url: str) -> None:
    with postroad.connect(url) as backend:
        agents = backend.agents()  # or: postroad agent create ann
        tokens = [agents.register(name).token for name in ("ann", "bob")]
        agents.subscribe_many([("bob", "ann"), ("ann", "bob")])
    command = [sys.executable, "-m", "postroad", "up", "--json", "--port", "0", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        talk(json.loads(server.stdout.readline())["url"], *tokens)
        server.terminate()
        server.communicate()
    print(f"the server has ended with {server.returncode}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(f"sqlite:///{directory}/postroad.db")
