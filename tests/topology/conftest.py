"""Backends on emulated AWS for topologies, each test under names of its own."""

from __future__ import annotations

import io
import uuid
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from tests.aws.emulators import ministack, moto

from postroad.wiring import Backend, connect

READS = ("Get", "List", "Describe", "Head", "Scan")


@pytest.fixture(autouse=True)
def _an_audit_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def _credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.delenv("AWS_PROFILE", raising=False)
        yield


@pytest.fixture(scope="session")
def ministack_url(tmp_path_factory: pytest.TempPathFactory, _credentials: None) -> Iterator[str]:
    with ministack(tmp_path_factory.mktemp("ministack")) as url:
        yield url


@pytest.fixture(scope="session")
def moto_url(tmp_path_factory: pytest.TempPathFactory, _credentials: None) -> Iterator[str]:
    with moto(tmp_path_factory.mktemp("moto")) as url:
        yield url


@dataclass
class Calls:
    """Every call to AWS, by its operation."""

    made: Counter[str] = field(default_factory=Counter)

    def note(self, model: Any, **_: Any) -> None:
        self.made[model.name] += 1

    def writes(self) -> dict[str, int]:
        return {name: count for name, count in self.made.items() if not name.startswith(READS)}


@dataclass
class Aws:
    """A backend on an emulator, and the emulator itself for looking behind its back."""

    url: str
    backend: Backend

    def client(self, service: str) -> Any:
        session: Any = boto3.session.Session(region_name="us-east-1")
        return session.client(service, endpoint_url=self.url)

    @contextmanager
    def refusing(self, service: str, operation: str, code: str) -> Iterator[None]:
        """Let this operation fail with this code for a while."""
        answer = SimpleNamespace(status_code=400), {"Error": {"Code": code, "Message": "refused"}}
        events = self._connection.client(service).meta.events
        refuse = {"handler": lambda **_: answer, "unique_id": f"refuse-{uuid.uuid4().hex}"}
        events.register(f"before-call.{service}.{operation}", **refuse)
        try:
            yield
        finally:
            events.unregister(f"before-call.{service}.{operation}", **refuse)

    @property
    def _connection(self) -> Any:
        site: Any = self.backend.site()
        return site._connection

    def calls(self) -> Calls:
        """Count the calls that the backend makes from now on."""
        counted = Calls()
        for service in ("sqs", "sns", "kinesis", "dynamodb", "s3", "events", "cloudwatch", "lambda", "iam", "sts"):
            client = self._connection.client(service)
            client.meta.events.register("before-call", counted.note, unique_id=f"count-{uuid.uuid4().hex}")
        return counted


@pytest.fixture(params=["ministack", "moto"])
def aws(request: pytest.FixtureRequest) -> Iterator[Aws]:
    url = request.getfixturevalue(f"{request.param}_url")
    with connect(f"aws://us-east-1?endpoint_url={url}") as backend:
        yield Aws(url, backend)


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Make names that no other test uses."""

    def name(stem: str) -> str:
        return f"{stem}{uuid.uuid4().hex[:8]}"

    return name


@pytest.fixture
def code(aws: Aws, unique: Callable[[str], str]) -> str:
    """An archive with a function, on S3."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("handler.py", "def handler(event, context): return event")
    bucket = unique("code-")
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="postroad.zip", Body=archive.getvalue())
    return f"s3://{bucket}/postroad.zip"
