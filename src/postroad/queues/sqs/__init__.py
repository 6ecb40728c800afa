"""Queues on SQS, standard and FIFO."""

from postroad.queues.sqs.calls import SQSClient
from postroad.queues.sqs.queue import SQSQueue
from postroad.queues.sqs.store import SQSQueues
from postroad.queues.sqs.tags import SQSTags

__all__ = ["SQSClient", "SQSQueue", "SQSQueues", "SQSTags"]
