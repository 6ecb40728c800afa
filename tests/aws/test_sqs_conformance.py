"""Queues on SQS keep the rules of queues that their traits promise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroad.connections.aws import AwsConnection
from postroad.queues.sqs import SQSQueues
from postroad.testing import FaultProxy
from postroad.testing.queues import QueueConformance, QueueFixture
from postroad.testing.queues.delivery import DeliveryRules
from postroad.testing.queues.leases import LeaseRules
from postroad.testing.queues.limits import LimitRules, SettingRules

pytestmark = pytest.mark.aws


@pytest.fixture(scope="module")
def strict_aws(strict_url: str) -> Iterator[AwsConnection]:
    connection = AwsConnection("us-east-1", strict_url)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def strict_moto(moto_url: str) -> Iterator[AwsConnection]:
    with FaultProxy(moto_url, aws_rules=True) as proxy:
        connection = AwsConnection("us-east-1", proxy.url)
        yield connection
        connection.close()


def ground_on(connection: AwsConnection) -> QueueFixture:
    return QueueFixture(queues=SQSQueues(connection), reopen=lambda: SQSQueues(connection))


class TestQueuesOnMinistack(QueueConformance):
    """Ministack behind a proxy that applies the rules of AWS, such as its limits, that ministack lacks."""

    known_differences = {
        "test_a_dead_letter_starts_with_no_receives": "SQS goes on counting receives in dead letters",
        "test_a_fifo_dead_letter_starts_its_age_anew": "ministack keeps the SentTimestamp of a FIFO dead letter",
    }

    @pytest.fixture
    def ground(self, strict_aws: AwsConnection) -> QueueFixture:
        return ground_on(strict_aws)


class TestQueuesOnMoto(DeliveryRules, LeaseRules, LimitRules, SettingRules):
    """A second opinion on the wire; order, deduplication and dead letters are beyond moto."""

    known_differences = {
        "test_a_deferred_message_comes_later_and_its_receive_counts_only_where_the_traits_say_so": (
            "moto hands out a released group out of order"
        ),
        "test_the_ack_of_a_former_receiver_is_stale": "moto deletes by the receipt of a former receiver",
        "test_the_settings_of_a_queue_are_those_it_was_made_with": "moto drops RedriveAllowPolicy",
    }

    @pytest.fixture
    def ground(self, strict_moto: AwsConnection) -> QueueFixture:
        return ground_on(strict_moto)
