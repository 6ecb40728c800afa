"""Connections to emulated AWS: one ministack and one moto for each test process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from tests.aws.cloud import Cloud
from tests.aws.emulators import ministack, moto
from tests.aws.endpoint import Endpoint, endpoint
from tests.sharing import shared

from postroad.connections.aws import AwsConnection
from postroad.journal.dynamodb import DynamoRecords
from postroad.testing import FaultProxy
from postroad.wiring import Backend, connect


@pytest.fixture(autouse=True, scope="session")
def _credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def ministack_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with shared("ministack", lambda: ministack(tmp_path_factory.mktemp("ministack"))) as url:
        yield url


@pytest.fixture(scope="session")
def moto_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with shared("moto", lambda: moto(tmp_path_factory.mktemp("moto"))) as url:
        yield url


@pytest.fixture(scope="session")
def aws(ministack_url: str) -> Iterator[AwsConnection]:
    """AWS as ministack emulates it."""
    connection = AwsConnection("us-east-1", ministack_url)
    yield connection
    connection.close()


@pytest.fixture(scope="session")
def moto_aws(moto_url: str) -> Iterator[AwsConnection]:
    """AWS as moto emulates it."""
    connection = AwsConnection("us-east-1", moto_url)
    yield connection
    connection.close()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Make names that no other test uses."""

    def name(stem: str) -> str:
        return f"{stem}-{uuid.uuid4().hex[:12]}"

    return name


@pytest.fixture
def scripted() -> Iterator[Endpoint]:
    """An endpoint that says what the test tells it to."""
    with endpoint() as served:
        yield served


@pytest.fixture
def scripted_aws(scripted: Endpoint) -> Iterator[AwsConnection]:
    """A connection to the scripted endpoint that waits a second at most and tries once."""
    connection = AwsConnection("us-east-1", scripted.url, read_timeout=0.5, attempts=1)
    yield connection
    connection.close()


@pytest.fixture(scope="session")
def strict_url(ministack_url: str) -> Iterator[str]:
    """Ministack with the rules that AWS applies and it does not."""
    with FaultProxy(ministack_url, aws_rules=True) as proxy:
        yield proxy.url


@pytest.fixture(scope="session")
def limited(strict_url: str) -> Iterator[Endpoint]:
    """The same with answers that the test chooses."""
    with endpoint(strict_url) as served:
        yield served


@pytest.fixture(scope="module")
def agents_endpoint(ministack_url: str) -> str:
    """Where the agents of a file are; a file may choose another endpoint."""
    return ministack_url


@pytest.fixture(scope="module")
def agents_region(aws: AwsConnection, agents_endpoint: str) -> Iterator[tuple[Backend, str]]:
    """One set of agents' tables and one stream for all tests of a file."""
    ending = uuid.uuid4().hex[:12]
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("AGENTS_TABLE", "SUBSCRIBERS_TABLE", "SUBSCRIBER_EVENTS_TABLE"):
            patch.setenv(variable, f"{variable.lower()}-{ending}")
        patch.setenv("EVENTS_STREAM", f"agent-events-{ending}")
        patch.setenv("POSTROAD_URL", f"aws://us-east-1?endpoint_url={agents_endpoint}&table=items-{ending}")
        DynamoRecords(aws, f"items-{ending}").init()
        with connect() as backend:
            backend.agents().provision()
            yield backend, f"agent-events-{ending}"


@pytest.fixture
def village(aws: AwsConnection, agents_region: tuple[Backend, str]) -> Cloud:
    """Agents whose ids no other test uses."""
    backend, stream = agents_region
    return Cloud(backend, aws, stream, uuid.uuid4().hex[:12])
