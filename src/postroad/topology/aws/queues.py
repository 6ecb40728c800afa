"""Queues on SQS, with their encryption, tags and access policies."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from postroad.connections import AwsConnection, ask, make_queue, pages, translated
from postroad.errors import TopologyConflict
from postroad.queues import QueueSpec, queue_attributes, redrive_allow_policy, spec_of
from postroad.topology.aws_properties import Form
from postroad.topology.names import SOMEWHERE, Place

_MISSING = ("QueueDoesNotExist", "NonExistentQueue")
_FIELDS = {
    "VisibilityTimeout": ("visibility",),
    "MessageRetentionPeriod": ("retention",),
    "DelaySeconds": ("delay",),
    "ReceiveMessageWaitTimeSeconds": ("receive_wait",),
    "MaximumMessageSize": ("max_message_bytes",),
    "ContentBasedDeduplication": ("content_dedup",),
    "DeduplicationScope": ("dedup_scope",),
    "FifoThroughputLimit": ("dedup_scope",),
    "RedrivePolicy": ("dead_letter", "max_receives"),
    "RedriveAllowPolicy": ("redrive_allow",),
    "SqsManagedSseEnabled": ("encryption",),
    "KmsMasterKeyId": ("encryption",),
    "Policy": ("policy",),
}
DEFAULTS: Mapping[str, Any] = {
    "redrive_allow": "all",
    "policy": None,
    "encryption": "none",
    "dedup_scope": "queue",
    "content_dedup": False,
}
"""Settings that SQS returns only if they differ from these."""
_HELD = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues of one account and region."""

    aws: AwsConnection
    place: Place

    def read(self, form: Form) -> dict[str, Any] | None:
        url = self.url(form.name)
        attributes = self._found(form.name, url, "All")
        if attributes is None:
            return None
        tags = ask(f"tags of queue {form.name!r}", self.aws.sqs.list_queue_tags, QueueUrl=url)
        return {**_settings(form, attributes), "tags": tags.get("Tags") or {}}

    def create(self, form: Form) -> None:
        settings = form.settings
        with translated(f"making queue {form.name!r}"):
            attributes = _attributes(form, self.place)
            make_queue(self.aws.sqs, form.name, attributes, fifo=settings["fifo"], tags=settings["tags"])

    def update(self, form: Form, fields: Collection[str]) -> None:
        url = self.url(form.name)
        wanted = _attributes(form, self.place)
        changed = {name: value for name, value in wanted.items() if set(_FIELDS[name]) & set(fields)}
        if "policy" in fields:
            changed["Policy"] = self._merged(form, url)
        if changed:
            ask(f"changing queue {form.name!r}", self.aws.sqs.set_queue_attributes, QueueUrl=url, Attributes=changed)
        if "tags" in fields:
            ask(f"tagging queue {form.name!r}", self.aws.sqs.tag_queue, QueueUrl=url, Tags=form.settings["tags"])

    def delete(self, name: str) -> None:
        if keep := self.keep(name):
            raise TopologyConflict(f"queue {name!r} is not removed: {keep}")
        ask(f"removing queue {name!r}", self.aws.sqs.delete_queue, QueueUrl=self.url(name))

    def keep(self, name: str) -> str:
        """Return why the queue must not be removed; an empty text if it may."""
        counts = self.counts(name)
        return "it holds messages" if counts is not None and any(counts) else ""

    def sources(self, name: str) -> list[str]:
        """Return the queues that have their dead letters in this one."""
        if (url := self.url(name)) is None:
            return []
        operation = self.aws.sqs.list_dead_letter_source_queues
        # InvalidAction comes from an emulator that does not know which queues have their dead letters in another.
        found = pages(f"sources of queue {name!r}", operation, *_MISSING, "InvalidAction", QueueUrl=url)
        return [each.rpartition("/")[2] for page in found for each in page.get("queueUrls") or ()]

    def counts(self, name: str) -> tuple[int, ...] | None:
        """Return how many messages are visible, in flight and delayed, as far as SQS knows."""
        found = self._found(name, self.url(name), *_HELD)
        return None if found is None else tuple(int(found.get(key, 0)) for key in _HELD)

    def _found(self, name: str, url: str | None, *attributes: str) -> dict[str, str] | None:
        if url is None:
            return None
        operation = self.aws.sqs.get_queue_attributes
        answer = ask(f"queue {name!r}", operation, *_MISSING, QueueUrl=url, AttributeNames=list(attributes))
        return None if answer is None else answer.get("Attributes") or {}

    def url(self, name: str) -> str | None:
        answer = ask(f"queue {name!r}", self.aws.sqs.get_queue_url, *_MISSING, QueueName=name)
        return None if answer is None else str(answer["QueueUrl"])

    def _merged(self, form: Form, url: str | None) -> str:
        """Return the policy with our statements and those of others."""
        before = json.loads((self._found(form.name, url, "Policy") or {}).get("Policy") or "{}")
        wanted: dict[str, Any] = form.settings["policy"]
        ours = {statement["Sid"] for statement in wanted["Statement"]}
        others = [each for each in before.get("Statement", []) if each.get("Sid") not in ours]
        return json.dumps({**wanted, "Statement": [*others, *wanted["Statement"]]})


def _settings(form: Form, attributes: Mapping[str, str]) -> dict[str, Any]:
    spec = spec_of(form.name, attributes)
    returned = {name for attribute in attributes if attribute in _FIELDS for name in _FIELDS[attribute]}
    # A redrive policy that is not returned does not exist, on every endpoint.
    returned |= {"dead_letter", "max_receives", "fifo"}
    settings = {name: getattr(spec, name) for name in returned if hasattr(spec, name)}
    if isinstance(settings.get("redrive_allow"), tuple):
        settings["redrive_allow"] = sorted(settings["redrive_allow"])
    if "encryption" in returned:
        managed = "sqs" if attributes.get("SqsManagedSseEnabled") == "true" else "none"
        settings["encryption"] = attributes.get("KmsMasterKeyId") or managed
    if "policy" in returned:
        # Only our statements, in our order.
        wanted, found = form.settings["policy"], json.loads(attributes["Policy"] or "{}").get("Statement", [])
        by_sid = {each.get("Sid"): each for each in found}
        ours = [by_sid[each["Sid"]] for each in wanted["Statement"] if each["Sid"] in by_sid]
        settings["policy"] = {**wanted, "Statement": ours}
    return settings


def queue_definition(form: Form) -> dict[str, Any]:
    """Return the queue without its policy in the form of CloudFormation: SQS's attributes as numbers and objects."""
    attributes = {"FifoQueue": "true" if form.settings["fifo"] else "", **_attributes(form, SOMEWHERE)}
    del attributes["Policy"]
    return {
        name: json.loads(value) if value[0] in "{tf" or value.isdigit() else value
        for name, value in attributes.items()
        if value
    }


def _attributes(form: Form, place: Place) -> dict[str, str]:
    """Return every attribute with its value; an empty one removes it."""
    settings = {name: form.settings[name] for names in _FIELDS.values() for name in names if name in form.settings}
    del settings["encryption"], settings["policy"]
    allowed = settings["redrive_allow"]
    settings["redrive_allow"] = tuple(allowed) if isinstance(allowed, list) else allowed
    spec = QueueSpec(form.name, fifo=form.settings["fifo"], **settings)
    encryption = str(form.settings["encryption"])
    dead_letter = None if spec.dead_letter is None else place.arn("queue", spec.dead_letter)
    attributes = {"RedrivePolicy": "", **queue_attributes(spec, dead_letter)}
    if spec.redrive_allow != "all":
        policy = redrive_allow_policy(spec.redrive_allow, place.arn("queue", form.name))
        attributes["RedriveAllowPolicy"] = json.dumps(policy)
    if encryption in ("sqs", "none"):
        attributes["SqsManagedSseEnabled"] = "true" if encryption == "sqs" else "false"
    else:
        attributes["KmsMasterKeyId"] = encryption
    attributes["Policy"] = json.dumps(form.settings["policy"])
    return attributes
