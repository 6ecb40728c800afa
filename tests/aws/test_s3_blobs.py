"""Blobs on S3 keep every rule of blobs."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from postroad.blobs.s3 import S3Blobs
from postroad.connections.aws import AwsConnection
from postroad.errors import ConfigurationError
from postroad.testing.blobs import BlobsConformance, BlobsFixture

pytestmark = pytest.mark.aws


def fresh(connection: AwsConnection, bucket: str) -> BlobsFixture:
    connection.s3.create_bucket(Bucket=bucket)
    return BlobsFixture(blobs=S3Blobs(connection, bucket), advance=time.sleep)


class TestBlobsOnMinistack(BlobsConformance):
    @pytest.fixture
    def ground(self, aws: AwsConnection, unique: Callable[[str], str]) -> BlobsFixture:
        return fresh(aws, unique("blobs"))


class TestBlobsOnMoto(BlobsConformance):
    @pytest.fixture
    def ground(self, moto_aws: AwsConnection, unique: Callable[[str], str]) -> BlobsFixture:
        return fresh(moto_aws, unique("blobs"))


def test_a_missing_bucket_is_told_with_its_remedy(aws: AwsConnection, unique: Callable[[str], str]) -> None:
    blobs = S3Blobs(aws, unique("missing"))

    with pytest.raises(ConfigurationError, match="there is no S3 bucket"):
        blobs.put("overflow/a", b"x")


def test_blobs_without_a_bucket_are_refused(aws: AwsConnection) -> None:
    with pytest.raises(ConfigurationError) as refused:
        S3Blobs(aws)

    assert refused.value.field == "bucket"
