"""Topologies, chat notifications and outgoing webhooks."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.faults.bad_input.cases import Answer, State, attempt, newest_dead_letter
from tests.faults.bad_input.library import Library, send
from tests.notifications.people import Provider, missed, push_to
from tests.tasks.webhooks import receiving

from postroad.notifications import NotificationStore, NotificationWorker, parse_notification
from postroad.queues import QueueSpec
from postroad.tasks.health import SlackAlerts
from postroad.topology import Topology, apply, chat_topology, lint, plan, render_cloudformation


class TopologySurface(Library):
    """A chat that was applied to the store."""

    def __init__(self) -> None:
        super().__init__()
        apply(chat_topology("rtchat", "test"), self.backend)

    def chat(self, project: str, env: str) -> Answer:
        """Plan a chat under a name."""
        return attempt(lambda: plan(chat_topology(project, env), self.backend))

    def read(self, text: str) -> Answer:
        """Read a topology, and render and apply it if it can be read."""

        def call() -> object:
            topology = Topology.from_json(text)
            render_cloudformation(topology)
            return apply(topology, self.backend)

        return attempt(call)

    def apply(self, **options: Any) -> Answer:
        """Apply another chat under a condition."""
        return attempt(lambda: apply(chat_topology("rtchat", "other"), self.backend, **options))

    def works(self) -> None:
        """Plan what is there already."""
        topology = chat_topology("rtchat", "test")
        assert plan(topology, self.backend).empty
        assert not [finding for finding in lint(topology) if finding.severity == "error"]


class Notifications(Library):
    """A worker with a provider, and the two queues of a chat with their dead letters."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        for name in ("push", "offline"):
            self.backend.create_queue(QueueSpec(f"{name}-dlq", retention=1_209_600))
            self.backend.create_queue(QueueSpec(f"{name}-queue", dead_letter=f"{name}-dlq"))
        self.store = NotificationStore(f"sqlite:///{folder}/chat.db")
        self.provider = Provider()
        self.worker = NotificationWorker(
            self.backend, self.store, push_queue="push-queue", offline_queue="offline-queue", fcm=self.provider
        )
        self._number = 0
        self.works()

    def parse(self, body: Any) -> Answer:
        """Read a notification."""
        return attempt(lambda: parse_notification(body))

    def receive(self, body: str, queue: str = "push") -> Answer:
        """Put a body into a queue and let the worker receive it; nothing reaches the provider."""
        asked = list(self.provider.asked)
        send(self.backend.queue(f"{queue}-queue"), body)
        self.worker.run_once()
        assert self.provider.asked == asked
        return newest_dead_letter(self.backend.queue(f"{queue}-dlq"), body.encode())

    def register(self, user: str = "ann", token: Any = "t", platform: Any = None) -> Answer:
        """Register a device."""
        return attempt(lambda: self.store.register_device(user, token, platform))

    def worker_with(self, **options: Any) -> Answer:
        """Make a worker."""
        queues: dict[str, Any] = {"push_queue": "push-queue", "offline_queue": "offline-queue"}
        return attempt(lambda: NotificationWorker(self.backend, self.store, **(queues | options)))

    def store_at(self, url: str) -> Answer:
        """Open a store of notifications."""
        return attempt(lambda: NotificationStore(url))

    def works(self) -> None:
        """Store a missed message and send a push."""
        self._number += 1
        token = f"token-{self._number}"
        send(self.backend.queue("offline-queue"), missed(f"m{self._number}").to_json())
        send(self.backend.queue("push-queue"), push_to(token).to_json())
        report = self.worker.run_once()
        assert (report.stored, report.sent) == (1, 1)
        assert token in [each for _, each in self.provider.asked]

    def close(self) -> None:
        """Close the worker and both stores."""
        self.worker.close()
        self.store.close()
        super().close()


class Webhook:
    """A receiver of alerts on this machine, which no refused address may reach."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self.receiver = self._open.enter_context(receiving())

    def give(self, input: Any) -> Answer:
        """Prepare an alert to an address; a string is the address itself."""
        options = {"webhook_url": input} if isinstance(input, str) else dict(input)
        return attempt(lambda: SlackAlerts(options.pop("webhook_url"), **options))

    def state(self) -> State:
        """Return what the receiver has got."""
        return {"received": list(self.receiver.bodies)}

    def letters(self) -> tuple[State, dict[str, list[Any]]]:
        """No address is kept."""
        return self.state(), {}

    def works(self) -> None:
        """Send an alert to where it may go."""
        before = len(self.receiver.bodies)
        assert SlackAlerts(self.receiver.url, allow_loopback=True).send("good").ok
        assert len(self.receiver.bodies) == before + 1

    def close(self) -> None:
        """Stop the receiver."""
        self._open.close()
