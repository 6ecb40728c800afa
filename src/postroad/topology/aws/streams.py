"""Streams on Kinesis."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from postroad.connections.aws import AwsConnection
from postroad.connections.aws_errors import translated
from postroad.topology.aws.calling import ask, unpaired
from postroad.topology.forms import Form

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

_MISSING = ("ResourceNotFoundException",)
_WAIT: Any = {"Delay": 1, "MaxAttempts": 300}


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
        ask(
            f"making stream {form.name!r}", self._kinesis.create_stream, StreamName=form.name,
            ShardCount=form.settings["shards"],
        )  # fmt: skip
        self._settled(form.name)
        self.update(form, ("retention_hours", "tags"))

    def update(self, form: Form, fields: Collection[str]) -> None:
        if "retention_hours" in fields:
            self._keep_for(form)
        if "shards" in fields:
            ask(
                f"resharding stream {form.name!r}", self._kinesis.update_shard_count, StreamName=form.name,
                TargetShardCount=form.settings["shards"], ScalingType="UNIFORM_SCALING",
            )  # fmt: skip
            self._settled(form.name)
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

    def _settled(self, name: str) -> None:
        with translated(f"stream {name!r}"):
            self._kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig=_WAIT)

    @property
    def _kinesis(self) -> KinesisClient:
        return self._connection.kinesis
