"""Queues on SQS keep the rules of queues that their traits promise."""

from __future__ import annotations

import pytest

from postroad.connections.aws import AwsConnection
from postroad.queues.sqs import SQSQueues
from postroad.testing.queues import QueueConformance, QueueFixture
from postroad.testing.queues.delivery import DeliveryRules
from postroad.testing.queues.leases import LeaseRules
from postroad.testing.queues.limits import LimitRules, SettingRules

pytestmark = pytest.mark.aws


def ground_on(connection: AwsConnection) -> QueueFixture:
    return QueueFixture(queues=SQSQueues(connection), reopen=lambda: SQSQueues(connection))


class TestQueuesOnMinistack(QueueConformance):
    known_differences = {
        "test_a_dead_letter_starts_with_no_receives": "SQS goes on counting receives in dead letters",
        "test_a_late_ack_on_a_fifo_queue_is_stale": "ministack deletes by a receipt whose lease is over",
        "test_extending_or_releasing_after_the_lease_is_stale": "ministack extends a lease that is over",
        "test_a_fifo_dead_letter_starts_its_age_anew": "ministack keeps the SentTimestamp of a FIFO dead letter",
    }

    @pytest.fixture
    def ground(self, aws: AwsConnection) -> QueueFixture:
        return ground_on(aws)


class TestQueuesUnderTheLimitsOfAws(LimitRules):
    """What ministack takes and SQS does not is refused by Postroad, and never by SQS."""

    @pytest.fixture
    def ground(self, limited_aws: AwsConnection) -> QueueFixture:
        return ground_on(limited_aws)


class TestQueuesOnMoto(DeliveryRules, LeaseRules, LimitRules, SettingRules):
    """A second opinion on the wire; order, deduplication and dead letters are beyond moto."""

    known_differences = {
        "test_a_deferred_message_comes_later_and_its_receive_counts_only_where_the_traits_say_so": (
            "moto hands out a released group out of order"
        ),
        "test_a_late_ack_on_a_fifo_queue_is_stale": "moto deletes by a receipt whose lease is over",
        "test_extending_or_releasing_after_the_lease_is_stale": "moto extends a lease that is over",
        "test_the_ack_of_a_former_receiver_is_stale": "moto deletes by the receipt of a former receiver",
        "test_sequences_grow_and_never_repeat": "moto's sequence numbers are random",
        "test_the_settings_of_a_queue_are_those_it_was_made_with": "moto drops RedriveAllowPolicy",
    }

    @pytest.fixture
    def ground(self, moto_aws: AwsConnection) -> QueueFixture:
        return ground_on(moto_aws)
