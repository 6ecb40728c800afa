"""Agents on AWS: DynamoDB stores them and their rows, FIFO queues of SQS deliver their events."""
