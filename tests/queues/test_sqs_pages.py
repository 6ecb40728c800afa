"""Lists of SQS that come in several pages."""

from __future__ import annotations

from typing import Any

from postroad.queues import SQSQueues, SQSTags

PAGES = {None: ("group-a", "group-b"), "more": ("group-c",)}


class PagedClient:
    """What SQS answers about three queues, two on a page, whose owners are gone."""

    def list_queues(self, *, NextToken: str | None = None, **_: Any) -> dict[str, Any]:
        urls = [_url(name) for name in PAGES[NextToken]]
        return {"QueueUrls": urls} if NextToken else {"QueueUrls": urls, "NextToken": "more"}

    def list_dead_letter_source_queues(self, *, NextToken: str | None = None, **_: Any) -> dict[str, Any]:
        urls = [_url(name) for name in PAGES[NextToken]]
        return {"queueUrls": urls} if NextToken else {"queueUrls": urls, "NextToken": "more"}

    def get_queue_url(self, *, QueueName: str) -> dict[str, str]:
        return {"QueueUrl": _url(QueueName)}

    def list_queue_tags(self, *, QueueUrl: str) -> dict[str, Any]:
        return {"Tags": {"postroad-alive-until": "0"}}


def _url(name: str) -> str:
    return f"https://sqs.example/1/{name}"


def test_queues_of_all_pages_are_listed() -> None:
    client: Any = PagedClient()
    queues = SQSQueues(client)

    assert queues.queues() == ["group-a", "group-b", "group-c"]
    assert queues.sources("dead") == ["group-a", "group-b", "group-c"]


def test_abandoned_queues_are_found_on_every_page() -> None:
    client: Any = PagedClient()

    assert SQSTags(client, SQSQueues(client)).abandoned("group-", seconds=60) == ["group-a", "group-b", "group-c"]
