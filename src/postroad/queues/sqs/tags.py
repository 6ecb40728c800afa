"""Signs of life on queues of SQS, which removes none by itself: a tag that its owner renews."""

from __future__ import annotations

from postroad.connections import AwsConnection
from postroad.queues.sqs.calls import SQSCalls, name_in
from postroad.queues.sqs.store import SQSQueues

_TAG = "postroad-alive-until"


class SQSTags:
    """The tags of the queues of one account and region."""

    def __init__(self, connection: AwsConnection, queues: SQSQueues) -> None:
        self._calls = SQSCalls(connection)
        self._queues = queues

    def renew(self, name: str, *, seconds: float) -> None:
        """Say that the owner of the queue lives, for so many seconds."""
        until = self._now() + seconds
        self._calls.call("tag_queue", name, QueueUrl=self._queues.queue(name).url, Tags={_TAG: f"{until:.3f}"})

    def abandoned(self, prefix: str, *, seconds: float) -> list[str]:
        """The queues under this prefix whose owner is gone; one without a sign gets `seconds` to give it."""
        names = [name_in(url) for url in self._urls(prefix)]
        return [name for name in names if self._is_abandoned(name, seconds)]

    def _urls(self, prefix: str) -> list[str]:
        answer = self._calls.call("list_queues", prefix, QueueNamePrefix=prefix, MaxResults=1000)
        return list(answer.get("QueueUrls") or ())

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
