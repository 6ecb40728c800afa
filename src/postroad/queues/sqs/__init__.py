"""Queues on SQS, standard and FIFO."""

from postroad.queues.sqs.queue import SQSQueue
from postroad.queues.sqs.store import SQSQueues, SQSTags

__all__ = ["SQSQueue", "SQSQueues", "SQSTags"]
