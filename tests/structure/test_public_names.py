"""The names people import are where the documentation says they are."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from postroad import errors

NAMES = {
    "events": ("Envelope EventRegistry codec default_registry event upcast"),
    "queues": ("AckResult Delivery OutgoingMessage PeekedMessage Queue QueueSpec QueueStats QueueTraits SendResult"),
    "topics": "Subscription Topic TopicTraits",
    "streams": "PutResult Record Stream StreamRecord",
    "blobs": "BlobRef Blobs",
    "items": "Item Items",
    "wiring": "Backend connect",
}
OFFERED = (
    "connect event upcast Bus BusConfig Session Outbox Inbox Consumer DomainEvent task TaskProducer TaskWorker Jobs "
    "Agents Topology QueueSpec OutgoingMessage Delivery Receiver run errors Backend Envelope PublishResult "
    "PostroadError Retryable NonRetryable AgentClient current_context"
)
ERRORS = (
    "PostroadError ConfigurationError InvalidName InvalidMessage MessageTooLarge UnknownEventType QueueNotFound "
    "QueueExists NotSupported StaleReceipt HeldBack StorageFull TransportError Unavailable OutcomeUnknown PublishError "
    "RowRejected TargetUnavailable RemoteError"
)
# Handlers and tasks raise these two, Postroad does not.
RAISED_BY_OTHERS = (errors.Retryable, errors.NonRetryable)
EVERY_ERROR = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, Exception) and value not in RAISED_BY_OTHERS
]
HEAVY = ("boto3", "botocore", "litestar", "uvicorn", "typer", "rich", "psycopg")


@pytest.mark.parametrize(("folder", "name"), [(folder, name) for folder in NAMES for name in NAMES[folder].split()])
def test_a_name_is_importable_from_its_folder_and_from_the_top(folder: str, name: str) -> None:
    at_home = getattr(importlib.import_module(f"postroad.{folder}"), name)

    at_the_top = getattr(importlib.import_module("postroad"), name)

    assert at_the_top is at_home


def test_the_top_offers_the_names_that_programs_use_and_no_other() -> None:
    top = importlib.import_module("postroad")

    assert sorted(top.__all__) == sorted(OFFERED.split())
    assert all(getattr(top, name) is not None for name in OFFERED.split())


@pytest.mark.parametrize("name", ERRORS.split())
def test_an_error_is_importable_from_errors(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.PostroadError)


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: error.__name__)
def test_an_error_says_what_it_is_and_what_to_do(error: type[errors.PostroadError]) -> None:
    assert issubclass(error, errors.PostroadError)
    assert error.__doc__
    assert error.__doc__ in errors.__doc__ or error.__name__ in (errors.__doc__ or "")
    assert 400 <= error.status <= 599
    assert error.remedy.endswith(".")


def test_every_error_has_a_slug_of_its_own() -> None:
    slugs = [error.__dict__.get("slug") for error in EVERY_ERROR]

    assert None not in slugs
    assert len(set(slugs)) == len(slugs)


def test_importing_postroad_loads_no_driver_and_no_framework() -> None:
    code = f"import sys, postroad; print(*[name for name in {HEAVY!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
