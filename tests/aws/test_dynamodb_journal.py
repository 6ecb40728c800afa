"""The journal on DynamoDB keeps every rule of journals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from postroad.blobs.s3 import S3Blobs
from postroad.connections.aws import AwsConnection
from postroad.journal.dynamodb import DynamoRecords
from postroad.journal.overflow import Overflow
from postroad.journal.stored import StoredJournal
from postroad.testing.journal import JournalConformance, JournalGround

pytestmark = pytest.mark.aws


def fresh(connection: AwsConnection, unique: Callable[[str], str]) -> JournalGround:
    bucket = unique("journal")
    connection.s3.create_bucket(Bucket=bucket)
    blobs = S3Blobs(connection, bucket)
    journal = StoredJournal(DynamoRecords(connection, unique("events")), Overflow(blobs))
    journal.init()
    return JournalGround(journal=journal, blobs=blobs)


class TestJournalOnMinistack(JournalConformance):
    @pytest.fixture
    def ground(self, aws: AwsConnection, unique: Callable[[str], str]) -> JournalGround:
        return fresh(aws, unique)


class TestJournalOnMoto(JournalConformance):
    known_differences = {
        "test_many_threads_append_each_event_once": "moto checks a condition and writes in two steps",
    }

    @pytest.fixture
    def ground(self, moto_aws: AwsConnection, unique: Callable[[str], str]) -> JournalGround:
        return fresh(moto_aws, unique)
