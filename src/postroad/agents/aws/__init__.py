"""Agents on AWS: DynamoDB holds them and their rows, SQS FIFO queues are their lanes."""
