"""Buckets on S3."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from postroad.connections.aws import AwsConnection
from postroad.connections.aws_errors import translated
from postroad.connections.aws_resources import make_bucket, tag_pairs
from postroad.errors import TopologyConflict
from postroad.topology.aws.calling import ask, unpaired
from postroad.topology.forms import Form

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

EXPIRY = "postroad-expire"


class Buckets:
    """The buckets of one account."""

    def __init__(self, connection: AwsConnection) -> None:
        self._connection = connection

    def read(self, form: Form) -> dict[str, Any] | None:
        name = form.settings["bucket"]
        what = f"bucket {name!r}"
        if ask(what, self._s3.head_bucket, "404", "NoSuchBucket", Bucket=name) is None:
            return None
        tags = ask(what, self._s3.get_bucket_tagging, "NoSuchTagSet", Bucket=name)
        days = [rule["Expiration"]["Days"] for rule in self._lifecycle(name) if rule.get("ID") == EXPIRY]
        return {"bucket": name, "expire_days": days[0] if days else None, "tags": unpaired(tags, "TagSet")}

    def create(self, form: Form) -> None:
        name = form.settings["bucket"]
        with translated(f"making bucket {name!r}"):
            make_bucket(self._s3, name, self._connection.region)
        self.update(form, ("tags", "expire_days") if form.settings["expire_days"] else ("tags",))

    def update(self, form: Form, fields: Collection[str]) -> None:
        name = form.settings["bucket"]
        if "expire_days" in fields:
            self._expire(name, form.settings["expire_days"])
        if "tags" in fields:
            tags = ask(f"tags of bucket {name!r}", self._s3.get_bucket_tagging, "NoSuchTagSet", Bucket=name)
            merged = {**unpaired(tags, "TagSet"), **form.settings["tags"]}
            ask(
                f"tagging bucket {name!r}",
                self._s3.put_bucket_tagging,
                Bucket=name,
                Tagging={"TagSet": tag_pairs(merged)},
            )

    def delete(self, name: str) -> None:
        raise TopologyConflict(f"bucket {name!r} is never removed")

    def _expire(self, name: str, days: int | None) -> None:
        """Set our own rule and leave those of others."""
        rules = [rule for rule in self._lifecycle(name) if rule.get("ID") != EXPIRY]
        if days is not None:
            rules.append({"ID": EXPIRY, "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": days}})
        what = f"expiry of bucket {name!r}"
        if rules:
            ask(what, self._s3.put_bucket_lifecycle_configuration, Bucket=name, LifecycleConfiguration={"Rules": rules})
        else:
            ask(what, self._s3.delete_bucket_lifecycle, Bucket=name)

    def _lifecycle(self, name: str) -> list[dict[str, Any]]:
        operation = self._s3.get_bucket_lifecycle_configuration
        answer = ask(f"expiry of bucket {name!r}", operation, "NoSuchLifecycleConfiguration", Bucket=name)
        return list((answer or {}).get("Rules") or ())

    @property
    def _s3(self) -> S3Client:
        return self._connection.s3
