"""The journal on DynamoDB."""

from postroad.journal.dynamodb.records import DynamoRecords

__all__ = ["DynamoRecords"]
