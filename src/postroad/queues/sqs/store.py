"""The queues of one AWS account and region, and the tags by which their owners show that they live."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections import ATTEMPTS, AwsConnection, was_unsure
from postroad.errors import ConfigurationError, NotPermitted, PostroadError, QueueNotFound, Unavailable
from postroad.queues import rules
from postroad.queues.port import QueueOverview
from postroad.queues.rules import QueueSpec
from postroad.queues.sqs.calls import SQSCalls, name_in
from postroad.queues.sqs.queue import SQSQueue
from postroad.queues.sqs.wire import queue_attributes, redrive_allow_policy, rounded

if TYPE_CHECKING:
    from mypy_boto3_sqs.client import SQSClient

_AT_ONCE = 10
_TAG = "postroad-alive-until"


class SQSQueues:
    """Queues by name or URL. Using one needs no right to list or create queues.

    Args:
        connection: A connection, a boto3 client, or any object with `send_message`, `receive_message` and
            `delete_message`. What else a boto3 client offers is used if it is there.
        clock: The clock that dates messages if the client does not say when they were sent.
    """

    def __init__(self, connection: AwsConnection | SQSClient | Any, clock: Clock = SYSTEM_CLOCK) -> None:
        self._calls = SQSCalls(connection)
        self.clock = clock
        self._policies = threading.Lock()
        self._urls: dict[str, str] = {}

    def queue(self, name: str, *, attempts: int = ATTEMPTS) -> SQSQueue:
        """Return the queue of this name or URL. For a URL no call is made.

        An entry that fails through no fault of its own is tried up to `attempts` times.
        """
        if str(name).startswith(("http://", "https://")):
            return SQSQueue(self._calls, name, self.clock, attempts=attempts)
        rules.check_name(name)
        if not self._calls.has("get_queue_url"):
            raise ConfigurationError(
                f"the SQS client cannot look up queue {name!r}", field="name", remedy="Give the queue's URL."
            )
        url = self._urls[name] = self._calls.call("get_queue_url", name, QueueName=name)["QueueUrl"]
        return SQSQueue(self._calls, url, self.clock, attempts=attempts)

    def create_queue(self, spec: QueueSpec) -> SQSQueue:
        """Create the queue, or return it if it exists with the same settings; seconds are rounded up."""
        rules.check_spec(spec)
        spec = rounded(spec)
        try:
            return _same(self.queue(spec.name), spec)
        except QueueNotFound:
            pass
        attributes = queue_attributes(spec, self._dead_letter_arn(spec))
        try:
            self._calls.make(spec.name, attributes, fifo=spec.fifo)
        except PostroadError as error:
            # Another process has just created it.
            if "QueueNameExists" not in error.message and "QueueAlreadyExists" not in error.message:
                raise
            return _same(self.queue(spec.name), spec)
        if spec.redrive_allow != "all":
            self._allow_redrive(self.queue(spec.name), spec)
        return self.queue(spec.name)

    def update_queue(self, spec: QueueSpec) -> SQSQueue:
        """Give an existing queue these settings; seconds are rounded up."""
        rules.check_spec(spec)
        spec = rounded(spec)
        queue = self.queue(spec.name)
        attributes = queue_attributes(spec, self._dead_letter_arn(spec))
        if spec.dead_letter is None and queue.spec.dead_letter is not None:
            attributes["RedrivePolicy"] = ""
        self._set(queue, attributes)
        if spec.redrive_allow != queue.spec.redrive_allow:
            self._allow_redrive(queue, spec)
        return self.queue(spec.name)

    def delete_queue(self, name: str) -> None:
        """Remove the queue with its messages; SQS takes up to a minute for it."""
        url = self.queue(name).url
        try:
            self._calls.call("delete_queue", name, QueueUrl=url)
        except QueueNotFound:
            # An attempt whose answer was lost has deleted it.
            if not was_unsure():
                raise

    def queue_spec(self, name: str) -> QueueSpec:
        return self.queue(name).spec

    def queues(self) -> list[str]:
        urls = [url for page in self._calls.pages("list_queues", "*") for url in page.get("QueueUrls") or ()]
        self._urls.update({name_in(url): url for url in urls})
        return sorted(map(name_in, urls))

    def overviews(self, names: Iterable[str] | None = None) -> list[QueueOverview]:
        """Return these queues, by default all, by one call each, ten at a time."""
        wanted = self.queues() if names is None else list(names)
        with ThreadPoolExecutor(_AT_ONCE, "postroad-look") as pool:
            found = list(pool.map(self._overview, wanted))
        return [overview for overview in found if overview is not None]

    def _overview(self, name: str) -> QueueOverview | None:
        try:
            # The URL of a queue that was listed or used before is known, and never changes.
            return self.queue(self._urls.get(name, name)).overview()
        except QueueNotFound:
            return None

    def sources(self, dead_letters: str) -> list[str]:
        url = self._urls.get(dead_letters) or self.queue(dead_letters).url
        try:
            pages = self._calls.pages("list_dead_letter_source_queues", dead_letters, QueueUrl=url)
            return sorted(name_in(source) for page in pages for source in page.get("queueUrls") or ())
        except NotPermitted:
            raise
        except Unavailable as error:
            if "InvalidAction" not in error.message and "UnknownOperation" not in error.message:
                raise
        # An emulator does not know the call.
        return [each.spec.name for each in self.overviews() if each.spec.dead_letter == dead_letters]

    def change_policy(self, queue: SQSQueue, change: Callable[[str | None], str]) -> None:
        """Replace the queue's access policy by what `change` returns for it; an empty one removes it."""
        # SQS has no conditional write: at least the threads of this process do not overwrite each other.
        with self._policies:
            before = queue.attributes("Policy").get("Policy")
            after = change(before)
            if after != (before or ""):
                self._set(queue, {"Policy": after})

    def _dead_letter_arn(self, spec: QueueSpec) -> str | None:
        if spec.dead_letter is None:
            return None
        try:
            dead_letters = self.queue(spec.dead_letter)
        except QueueNotFound as error:
            raise rules.dead_letter_missing(spec.dead_letter) from error
        rules.check_source_allowed(dead_letters.spec, spec.name)
        return dead_letters.arn

    def _allow_redrive(self, queue: SQSQueue, spec: QueueSpec) -> None:
        self._set(queue, {"RedriveAllowPolicy": json.dumps(redrive_allow_policy(spec.redrive_allow, queue.arn))})

    def _set(self, queue: SQSQueue, attributes: dict[str, str]) -> None:
        self._calls.call("set_queue_attributes", queue.name, QueueUrl=queue.url, Attributes=attributes)


def _same(queue: SQSQueue, wanted: QueueSpec) -> SQSQueue:
    if differences := queue.spec.differences(wanted):
        raise rules.settings_differ(wanted.name, differences)
    return queue


class SQSTags:
    """The tags of queues on SQS, which deletes none by itself: their owner renews them as long as it lives."""

    def __init__(self, connection: AwsConnection, queues: SQSQueues) -> None:
        self._calls = SQSCalls(connection)
        self._queues = queues

    def renew(self, name: str, *, seconds: float) -> None:
        """Mark the owner of the queue as alive for so many seconds."""
        until = self._now() + seconds
        self._calls.call("tag_queue", name, QueueUrl=self._queues.queue(name).url, Tags={_TAG: f"{until:.3f}"})

    def abandoned(self, prefix: str, *, seconds: float) -> list[str]:
        """Return the queues under this prefix whose owner is gone; one without a tag gets `seconds` to set it."""
        pages = self._calls.pages("list_queues", prefix, QueueNamePrefix=prefix)
        names = [name_in(url) for page in pages for url in page.get("QueueUrls") or ()]
        return [name for name in names if self._is_abandoned(name, seconds)]

    def _is_abandoned(self, name: str, seconds: float) -> bool:
        answer = self._calls.call("list_queue_tags", name, QueueUrl=self._queues.queue(name).url)
        try:
            until = float((answer.get("Tags") or {}).get(_TAG, ""))
        except ValueError:
            self.renew(name, seconds=seconds)
            return False
        return until < self._now()

    def _now(self) -> float:
        return self._queues.clock.now().timestamp()
