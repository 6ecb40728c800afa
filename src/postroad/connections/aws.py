"""One AWS account in one region: clients that are made when first used and shared by all threads."""

from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING, Any, cast

from postroad.connections.aws_errors import translated, watch
from postroad.errors import ConfigurationError, Unavailable

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch.client import CloudWatchClient
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_events.client import EventBridgeClient
    from mypy_boto3_iam.client import IAMClient
    from mypy_boto3_kinesis.client import KinesisClient
    from mypy_boto3_lambda.client import LambdaClient
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_sns.client import SNSClient
    from mypy_boto3_sqs.client import SQSClient

MAX_POOL_CONNECTIONS = 50
_PATIENT_ATTEMPTS = 8


class AwsConnection:
    """The way to AWS. Two threads may share it; a forked child makes its own."""

    def __init__(
        self,
        region: str | None = None,
        endpoint_url: str | None = None,
        stage: str = "dev",
        bucket: str | None = None,
        table: str | None = None,
        *,
        connect_timeout: float = 5.0,
        read_timeout: float = 30.0,
        attempts: int = 3,
        patient: bool = False,
    ) -> None:
        """Read timeouts stay above the 20 seconds of a long poll; `attempts` counts the first one too.

        A `patient` connection slows down while AWS throttles it: for who makes and changes resources.
        """
        self._session = _session(region)
        self.region: str = self._session.region_name
        self.endpoint_url = endpoint_url
        self.stage = stage
        self.bucket = bucket
        self.table = table
        self._config = _config(connect_timeout, read_timeout, attempts, patient=patient)
        self._timeouts = connect_timeout, read_timeout
        self._clients: dict[tuple[str, float | None], Any] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    @property
    def sqs(self) -> SQSClient:
        return cast("SQSClient", self._client("sqs"))

    @property
    def sns(self) -> SNSClient:
        return cast("SNSClient", self._client("sns"))

    @property
    def events(self) -> EventBridgeClient:
        return cast("EventBridgeClient", self._client("events"))

    @property
    def kinesis(self) -> KinesisClient:
        return cast("KinesisClient", self._client("kinesis"))

    @property
    def dynamodb(self) -> DynamoDBClient:
        return cast("DynamoDBClient", self._client("dynamodb"))

    @property
    def s3(self) -> S3Client:
        return cast("S3Client", self._client("s3"))

    @property
    def cloudwatch(self) -> CloudWatchClient:
        return cast("CloudWatchClient", self._client("cloudwatch"))

    @property
    def functions(self) -> LambdaClient:
        return cast("LambdaClient", self._client("lambda"))

    @property
    def iam(self) -> IAMClient:
        return cast("IAMClient", self._client("iam"))

    @property
    def sts(self) -> Any:
        return self._client("sts")

    @property
    def tagging(self) -> Any:
        return self._client("resourcegroupstaggingapi")

    def patient(self) -> AwsConnection:
        """The same account and region for whoever makes and changes resources."""
        return AwsConnection(
            self.region,
            self.endpoint_url,
            self.stage,
            self.bucket,
            self.table,
            attempts=_PATIENT_ATTEMPTS,
            patient=True,
        )

    def once(self, service: str) -> Any:
        """A client that makes each call once, for callers with retries of their own."""
        return self._client(service, math.inf)

    def dynamodb_within(self, seconds: float) -> DynamoDBClient:
        """A client that tries each call once and gives it up after `seconds`, for callers that count attempts."""
        return cast("DynamoDBClient", self._client("dynamodb", seconds))

    def close(self) -> None:
        """Close the clients' connections; closing twice changes nothing."""
        with self._lock:
            clients, self._clients, self._closed = list(self._clients.values()), {}, True
        for client in clients:
            client.close()

    def _client(self, service: str, seconds: float | None = None) -> Any:
        if os.getpid() != self._pid:
            raise ConfigurationError("this connection was made before a fork", remedy="Connect again in the child.")
        client = self._clients.get((service, seconds))
        return self._made(service, seconds) if client is None else client

    def _made(self, service: str, seconds: float | None) -> Any:
        # The session is not safe for threads while it makes a client; the clients themselves are.
        with self._lock:
            if self._closed:
                raise Unavailable("the connection to AWS is closed", remedy="Connect again.")
            if (service, seconds) not in self._clients:
                with translated(service):
                    client = self._session.client(
                        service, endpoint_url=self.endpoint_url, config=self._config_for(seconds)
                    )
                watch(client)
                self._clients[service, seconds] = client
            return self._clients[service, seconds]

    def _config_for(self, seconds: float | None) -> Any:
        """The settings of a client that retries, or of one that tries each call once, within `seconds` if finite."""
        if seconds is None:
            return self._config
        connect, read = (seconds / 3, seconds * 2 / 3) if math.isfinite(seconds) else self._timeouts
        return _config(connect, read, 1)


def _session(region: str | None) -> Any:
    try:
        import boto3
    except ImportError as error:
        raise ConfigurationError("boto3 is not installed", remedy="pip install 'postroad[aws]'") from error
    with translated("AWS"):
        session = boto3.session.Session(region_name=region or None)
    if not session.region_name:
        raise ConfigurationError(
            "region: no AWS region is given",
            field="region",
            remedy="Name the region: aws://eu-central-1, or set AWS_DEFAULT_REGION.",
        )
    return session


def _config(connect_timeout: float, read_timeout: float, attempts: int, *, patient: bool = False) -> Any:
    from botocore.config import Config

    return Config(
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
        max_pool_connections=MAX_POOL_CONNECTIONS,
        retries={"mode": "adaptive" if patient else "standard", "total_max_attempts": attempts},
        tcp_keepalive=True,
        user_agent_extra="postroad",
    )
