"""One AWS account in one region: clients that are made when first used and shared by all threads."""

from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from postroad.connections.aws_calls import translated, watch
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
T = TypeVar("T")


class _Client(Generic[T]):
    """An attribute that is the connection's client of a service."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __get__(self, connection: AwsConnection, owner: object) -> T:
        client: T = connection.client(self._service)
        return client


class AwsConnection:
    """A connection to AWS. Threads may share it; a forked child makes its own.

    `endpoint_url` is the address of an emulator, `stage` a part of resource names, `bucket` that of blobs and `table`
    that of items. Timeouts are in seconds; `read_timeout` must exceed the 20 seconds of a long poll. `attempts` counts
    the first one too. An `adaptive` connection slows down while AWS throttles it, as suits changes of resources.
    """

    sqs: _Client[SQSClient] = _Client("sqs")
    sns: _Client[SNSClient] = _Client("sns")
    events: _Client[EventBridgeClient] = _Client("events")
    kinesis: _Client[KinesisClient] = _Client("kinesis")
    dynamodb: _Client[DynamoDBClient] = _Client("dynamodb")
    s3: _Client[S3Client] = _Client("s3")
    cloudwatch: _Client[CloudWatchClient] = _Client("cloudwatch")
    functions: _Client[LambdaClient] = _Client("lambda")
    iam: _Client[IAMClient] = _Client("iam")
    sts: _Client[Any] = _Client("sts")
    tagging: _Client[Any] = _Client("resourcegroupstaggingapi")

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
        adaptive: bool = False,
    ) -> None:
        self._session = _session(region)
        self.region: str = self._session.region_name
        self.endpoint_url = endpoint_url
        self.stage = stage
        self.bucket = bucket
        self.table = table
        self._config = _config(connect_timeout, read_timeout, attempts, adaptive=adaptive)
        self._timeouts = connect_timeout, read_timeout
        self._clients: dict[tuple[str, float | None], Any] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    def adaptive(self) -> AwsConnection:
        """Return a connection to the same account and region that slows down while AWS throttles it."""
        return AwsConnection(
            *(self.region, self.endpoint_url, self.stage, self.bucket, self.table),
            attempts=8,
            adaptive=True,
        )

    def once(self, service: str) -> Any:
        """Return a client that makes each call once, for callers with retries of their own."""
        return self.client(service, math.inf)

    def close(self) -> None:
        """Close the clients' connections; closing twice changes nothing."""
        with self._lock:
            clients, self._clients, self._closed = list(self._clients.values()), {}, True
        for client in clients:
            client.close()

    def client(self, service: str, seconds: float | None = None) -> Any:
        """Return a client of the service; with `seconds`, one that tries each call once within that time."""
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
                config = self._config
                if seconds is not None:
                    within = (seconds / 3, seconds * 2 / 3) if math.isfinite(seconds) else self._timeouts
                    config = _config(*within, 1)
                with translated(service):
                    client = self._session.client(service, endpoint_url=self.endpoint_url, config=config)
                watch(client)
                self._clients[service, seconds] = client
            return self._clients[service, seconds]


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


def _config(connect_timeout: float, read_timeout: float, attempts: int, *, adaptive: bool = False) -> Any:
    from botocore.config import Config

    return Config(
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
        max_pool_connections=MAX_POOL_CONNECTIONS,
        retries={"mode": "adaptive" if adaptive else "standard", "total_max_attempts": attempts},
        tcp_keepalive=True,
        user_agent_extra="postroad",
    )
