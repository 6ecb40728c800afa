"""Queues on SQS, with their encryption, tags and access policies."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from postroad.connections import AwsConnection, make_queue, translated
from postroad.errors import TopologyConflict
from postroad.queues import QueueSpec, queue_attributes, redrive_allow_policy, spec_of
from postroad.topology.aws.calls import ask
from postroad.topology.forms import Form
from postroad.topology.names import Place

if TYPE_CHECKING:
    from mypy_boto3_sqs.client import SQSClient

_MISSING = ("QueueDoesNotExist", "NonExistentQueue")
# What an emulator says that does not know which queues have their dead letters in another.
_NOT_TOLD = ("InvalidAction",)
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
"""Settings that SQS tells only when they are not as here."""
_HELD = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class Queues:
    """The queues of one account and region."""

    def __init__(self, connection: AwsConnection, place: Place) -> None:
        self._connection = connection
        self._place = place

    def read(self, form: Form) -> dict[str, Any] | None:
        url = self.url(form.name)
        answer = (
            None
            if url is None
            else ask(
                f"queue {form.name!r}", self._sqs.get_queue_attributes, *_MISSING, QueueUrl=url, AttributeNames=["All"]
            )
        )
        if answer is None:
            return None
        attributes: dict[str, str] = answer["Attributes"]
        tags = ask(f"tags of queue {form.name!r}", self._sqs.list_queue_tags, QueueUrl=url)
        return {**_settings(form, attributes), "tags": tags.get("Tags") or {}}

    def create(self, form: Form) -> None:
        settings = form.settings
        with translated(f"making queue {form.name!r}"):
            make_queue(self._sqs, form.name, self._attributes(form), fifo=settings["fifo"], tags=settings["tags"])

    def update(self, form: Form, fields: Collection[str]) -> None:
        url = self.url(form.name)
        wanted = self._attributes(form)
        changed = {name: value for name, value in wanted.items() if set(_FIELDS[name]) & set(fields)}
        if "policy" in changed or "policy" in fields:
            changed["Policy"] = self._merged(form, url)
        if changed:
            ask(f"changing queue {form.name!r}", self._sqs.set_queue_attributes, QueueUrl=url, Attributes=changed)
        if "tags" in fields:
            ask(f"tagging queue {form.name!r}", self._sqs.tag_queue, QueueUrl=url, Tags=form.settings["tags"])

    def delete(self, name: str) -> None:
        if keep := self.keep(name):
            raise TopologyConflict(f"queue {name!r} is not removed: {keep}")
        ask(f"removing queue {name!r}", self._sqs.delete_queue, QueueUrl=self.url(name))

    def keep(self, name: str) -> str:
        """Why the queue must not be removed; empty when it may."""
        counts = self.counts(name)
        return "it holds messages" if counts is not None and any(counts) else ""

    def sources(self, name: str) -> list[str]:
        """The queues that have their dead letters in this one."""
        url, found = self.url(name), list[str]()
        token: dict[str, str] = {}
        while url is not None:
            page = ask(
                f"sources of queue {name!r}",
                self._sqs.list_dead_letter_source_queues,
                *_MISSING,
                *_NOT_TOLD,
                QueueUrl=url,
                **token,
            )
            found += [each.rpartition("/")[2] for each in (page or {}).get("queueUrls") or ()]
            if not (page or {}).get("NextToken"):
                break
            token = {"NextToken": page["NextToken"]}
        return found

    def counts(self, name: str) -> tuple[int, ...] | None:
        """How many messages are visible, in flight and delayed, as far as SQS knows."""
        url = self.url(name)
        if url is None:
            return None
        answer = ask(
            f"queue {name!r}", self._sqs.get_queue_attributes, *_MISSING, QueueUrl=url, AttributeNames=list(_HELD)
        )
        return None if answer is None else tuple(int(answer["Attributes"].get(key, 0)) for key in _HELD)

    def url(self, name: str) -> str | None:
        """The URL of the queue, or None."""
        answer = ask(f"queue {name!r}", self._sqs.get_queue_url, *_MISSING, QueueName=name)
        return None if answer is None else str(answer["QueueUrl"])

    @property
    def _sqs(self) -> SQSClient:
        return self._connection.sqs

    def _attributes(self, form: Form) -> dict[str, str]:
        """Every attribute with its value; an empty one removes it."""
        spec = _spec(form)
        dead_letter = None if spec.dead_letter is None else self._place.arn("queue", spec.dead_letter)
        attributes = {"RedrivePolicy": "", **queue_attributes(spec, dead_letter)}
        if spec.redrive_allow != "all":
            attributes["RedriveAllowPolicy"] = redrive_allow_policy(spec, self._place.arn("queue", form.name))
        attributes |= _encryption(str(form.settings["encryption"]))
        attributes["Policy"] = json.dumps(form.settings["policy"])
        return attributes

    def _merged(self, form: Form, url: str | None) -> str:
        """Our statements beside those of others."""
        answer = ask(f"queue {form.name!r}", self._sqs.get_queue_attributes, QueueUrl=url, AttributeNames=["Policy"])
        before = json.loads((answer.get("Attributes") or {}).get("Policy") or "{}")
        wanted: dict[str, Any] = form.settings["policy"]
        ours = {statement["Sid"] for statement in wanted["Statement"]}
        others = [each for each in before.get("Statement", []) if each.get("Sid") not in ours]
        return json.dumps({**wanted, "Statement": [*others, *wanted["Statement"]]})


def _settings(form: Form, attributes: Mapping[str, str]) -> dict[str, Any]:
    spec = spec_of(form.name, attributes)
    told = {name for attribute in attributes if attribute in _FIELDS for name in _FIELDS[attribute]}
    # A redrive policy that is not told is one that is not there, on every endpoint.
    told |= {"dead_letter", "max_receives", "fifo"}
    settings = {name: getattr(spec, name) for name in told if hasattr(spec, name)}
    if isinstance(settings.get("redrive_allow"), tuple):
        settings["redrive_allow"] = sorted(settings["redrive_allow"])
    if "encryption" in told:
        settings["encryption"] = attributes.get("KmsMasterKeyId") or _managed(attributes)
    if "policy" in told:
        settings["policy"] = _ours(form.settings["policy"], json.loads(attributes["Policy"] or "{}"))
    return settings


def _ours(wanted: dict[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Of the statements that were found those that are ours, in our order."""
    by_sid = {each.get("Sid"): each for each in found.get("Statement", [])}
    statements = [by_sid[each["Sid"]] for each in wanted["Statement"] if each["Sid"] in by_sid]
    return {**wanted, "Statement": statements}


def _managed(attributes: Mapping[str, str]) -> str:
    return "sqs" if attributes.get("SqsManagedSseEnabled") == "true" else "none"


def _encryption(encryption: str) -> dict[str, str]:
    if encryption in ("sqs", "none"):
        return {"SqsManagedSseEnabled": "true" if encryption == "sqs" else "false"}
    return {"KmsMasterKeyId": encryption}


def _spec(form: Form) -> QueueSpec:
    settings = {name: form.settings[name] for names in _FIELDS.values() for name in names if name in form.settings}
    del settings["encryption"], settings["policy"]
    allowed = settings["redrive_allow"]
    settings["redrive_allow"] = tuple(allowed) if isinstance(allowed, list) else allowed
    return QueueSpec(form.name, fifo=form.settings["fifo"], **settings)
