"""Blobs in an S3 bucket."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from postroad.arguments import check
from postroad.blobs import port
from postroad.blobs.port import BlobRef
from postroad.clock import SYSTEM_CLOCK, Clock
from postroad.connections import AwsConnection, Make, translated
from postroad.errors import ConfigurationError, OutcomeUnknown, PostroadError, StorageDamaged, Unavailable

_MAX_DELETE = 1_000


class S3Blobs:
    """Blobs as objects of one bucket, which must exist.

    Args:
        connection: The connection to AWS.
        bucket: The bucket's name; by default that of the connection.
        clock: The clock that the ages of blobs are computed with.
    """

    def __init__(self, connection: AwsConnection, bucket: str | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        chosen = bucket or connection.bucket
        if not chosen:
            raise ConfigurationError(
                "bucket: no S3 bucket is given", field="bucket", remedy="Name it: aws://region?bucket=NAME."
            )
        self._connection = connection
        self.bucket = chosen
        self._clock = clock

    def put(self, key: str, data: bytes) -> BlobRef:
        ref = port.reference(key, data)
        with translated(f"S3 put of {key!r}", self._known(key)):
            self._connection.s3.put_object(Bucket=self.bucket, Key=key, Body=data, Metadata={"sha256": ref.sha256})
        return ref

    def get(self, ref: BlobRef) -> bytes:
        port.check_reference(ref)
        try:
            return self._read(ref)
        except (OutcomeUnknown, StorageDamaged):
            # A body may be cut on its way, where botocore repeats nothing: only what is wrong twice is damaged.
            return self._read(ref)

    def _read(self, ref: BlobRef) -> bytes:
        with translated(f"S3 get of {ref.key!r}", self._known(ref.key)):
            answer = self._connection.s3.get_object(Bucket=self.bucket, Key=ref.key)
            with answer["Body"] as body:
                port.check_size(ref, answer["ContentLength"])
                data = body.read()
        return port.check_data(ref, data)

    def delete(self, ref: BlobRef) -> None:
        port.check_reference(ref)
        with translated(f"S3 delete of {ref.key!r}", self._known(ref.key)):
            self._connection.s3.delete_object(Bucket=self.bucket, Key=ref.key)

    def keep(self, ref: BlobRef) -> None:
        """Make the blob as new as if it had just been put, by copying the object onto itself."""
        port.check_reference(ref)
        with translated(f"S3 copy of {ref.key!r}", self._known(ref.key)):
            self._connection.s3.copy_object(
                Bucket=self.bucket,
                Key=ref.key,
                CopySource={"Bucket": self.bucket, "Key": ref.key},
                Metadata={"sha256": ref.sha256},
                # S3 refuses to copy an object onto itself unless something of it is replaced.
                MetadataDirective="REPLACE",
            )

    def prune(self, prefix: str, *, older_than: float) -> int:
        check(prefix, port.Prefix, "prefix")
        check(older_than, port.Age, "older_than")
        removed = 0
        for keys in self._old(prefix, older_than):
            with translated("S3 delete", self._known(keys[0])):
                objects: Any = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
                answer = self._connection.s3.delete_objects(Bucket=self.bucket, Delete=objects)
            if errors := answer.get("Errors"):
                first = errors[0]
                raise Unavailable(f"S3 delete of {first.get('Key')!r}: {first.get('Code')}: {first.get('Message')}")
            removed += len(keys)
        return removed

    def _old(self, prefix: str, older_than: float) -> Iterator[list[str]]:
        """Yield keys in pages of at most a thousand, as many as one delete accepts."""
        limit = self._clock.now() - timedelta(seconds=older_than)
        with translated(f"S3 list of {prefix!r}", self._known(prefix)):
            pages: Any = self._connection.s3.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=prefix, PaginationConfig={"PageSize": _MAX_DELETE}
            )
            for page in pages:
                if keys := [found["Key"] for found in page.get("Contents", ()) if found["LastModified"] < limit]:
                    yield keys

    def _known(self, key: str) -> dict[str, Make]:
        def no_bucket(_: str) -> PostroadError:
            return ConfigurationError(
                f"there is no S3 bucket {self.bucket!r}",
                field="bucket",
                remedy=f"Create it with `aws s3 mb s3://{self.bucket}` or a topology, or name another.",
            )

        return {"NoSuchKey": lambda _: port.missing(key), "404": lambda _: port.missing(key), "NoSuchBucket": no_bucket}
