"""Streams on Kinesis."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from postroad.connections.aws import AwsConnection
from postroad.connections.aws_errors import translated
from postroad.connections.aws_resources import make_stream, wait_for_stream
from postroad.topology.aws.calling import ask, unpaired
from postroad.topology.forms import Form

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

_MISSING = ("ResourceNotFoundException",)


class Streams:
    """The streams of one account and region."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    def read(self, form: Form) -> dict[str, Any] | None:
        what = f"stream {form.name!r}"
        answer = ask(what, self._kinesis.describe_stream_summary, *_MISSING, StreamName=form.name)
        if answer is None:
            return None
        summary = answer["StreamDescriptionSummary"]
        tags = ask(what, self._kinesis.list_tags_for_stream, *_MISSING, StreamName=form.name)
        return {
            "shards": summary["OpenShardCount"],
            "retention_hours": summary["RetentionPeriodHours"],
            "tags": unpaired(tags),
        }

    def create(self, form: Form) -> None:
        with translated(f"making stream {form.name!r}"):
            make_stream(self._kinesis, form.name, form.settings["shards"])
        self.update(form, ("retention_hours", "tags"))

    def update(self, form: Form, fields: Collection[str]) -> None:
        if "retention_hours" in fields:
            self._keep_for(form)
        if "shards" in fields:
            ask(
                f"resharding stream {form.name!r}", self._kinesis.update_shard_count, StreamName=form.name,
                TargetShardCount=form.settings["shards"], ScalingType="UNIFORM_SCALING",
            )  # fmt: skip
            with translated(f"stream {form.name!r}"):
                wait_for_stream(self._kinesis, form.name)
        if "tags" in fields:
            tags = form.settings["tags"]
            ask(f"tagging stream {form.name!r}", self._kinesis.add_tags_to_stream, StreamName=form.name, Tags=tags)

    def delete(self, name: str) -> None:
        ask(f"removing stream {name!r}", self._kinesis.delete_stream, StreamName=name)

    def _keep_for(self, form: Form) -> None:
        what, hours = f"retention of stream {form.name!r}", form.settings["retention_hours"]
        summary = ask(what, self._kinesis.describe_stream_summary, StreamName=form.name)["StreamDescriptionSummary"]
        have = summary["RetentionPeriodHours"]
        if have == hours:
            return
        longer, shorter = (
            self._kinesis.increase_stream_retention_period,
            self._kinesis.decrease_stream_retention_period,
        )
        ask(what, longer if hours > have else shorter, StreamName=form.name, RetentionPeriodHours=hours)

    @property
    def _kinesis(self) -> KinesisClient:
        return self._connection.kinesis
