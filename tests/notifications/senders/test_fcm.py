"""FCM: what is sent, what each answer means, and whose token it is sent with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.notifications.senders.conftest import PUSH
from tests.notifications.senders.standins import PROJECT, Fault, FcmStandIn

from postroad.errors import ConfigurationError, InvalidNotification
from postroad.notifications.devices import TokenResult
from postroad.notifications.messages import PushPayload
from postroad.notifications.senders import FCMSender

TOKEN = "fGx:APA91b-device_1"
COLLAPSED = hashlib.sha256(b"offline:1").hexdigest()[:32]
FCM_ERROR = "type.googleapis.com/google.firebase.fcm.v1.FcmError"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"


def refusal(status: int, word: str, *details: dict[str, Any]) -> Fault:
    """An answer in Google's own form."""
    return Fault(status, word, body={"error": {"code": status, "message": "m", "status": word, "details": details}})


def fcm_error(code: str) -> dict[str, Any]:
    return {"@type": FCM_ERROR, "errorCode": code}


def violation(field: str) -> dict[str, Any]:
    return {"@type": BAD_REQUEST, "fieldViolations": [{"field": field, "description": "d"}]}


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key file of a service account, but for the address at which its tokens are fetched."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    text = key.private_bytes(pem, pkcs8, serialization.NoEncryption()).decode()
    path = tmp_path_factory.mktemp("account") / "account.json"
    path.write_text(json.dumps({"type": "service_account", "private_key": text, "client_email": "a@b.example"}))
    return path


@pytest.fixture
def credentials_file(account: Path, google: FcmStandIn, tmp_path: Path) -> Path:
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps({**json.loads(account.read_text()), "token_uri": f"{google.url}/token"}))
    return path


@pytest.fixture
def by_account(google: FcmStandIn, credentials_file: Path) -> Iterator[FCMSender]:
    with FCMSender(**google.arguments(credentials_file=credentials_file)) as sender:
        yield sender


def test_a_push_reaches_the_device_with_everything_that_google_asks_for(google: FcmStandIn, fcm: FCMSender) -> None:
    result = fcm.send(PUSH, TOKEN, push_id="offline:1")

    seen = google.seen[0]
    assert result == TokenResult(TOKEN, "sent", 200, "", f"projects/{PROJECT}/messages/0:1")
    assert seen.path == f"/v1/projects/{PROJECT}/messages:send"
    assert seen.headers["authorization"] == "Bearer access-1"
    assert seen.body == {
        "message": {
            "token": TOKEN,
            "notification": {"title": "New message", "body": "John: Hey!"},
            "data": {"conversationId": "conv_456"},
            "android": {
                "collapse_key": COLLAPSED,
                "ttl": "86400s",
                "notification": {"tag": COLLAPSED, "sound": "default"},
            },
            "apns": {
                "headers": {"apns-collapse-id": COLLAPSED},
                "payload": {"aps": {"sound": "default", "thread-id": "conv_456"}},
            },
            "webpush": {"headers": {"Topic": COLLAPSED}, "notification": {"tag": COLLAPSED}},
        }
    }


def test_sound_badge_and_thread_are_told_to_each_kind_of_device(google: FcmStandIn, fcm: FCMSender) -> None:
    payload = PushPayload("t", "b", sound="ding.caf", badge=3, threadId="thread")

    fcm.send(replace(PUSH, payload=payload), TOKEN, push_id="offline:1")

    message = google.seen[0].body["message"]
    assert message["apns"]["payload"] == {"aps": {"sound": "ding.caf", "badge": 3, "thread-id": "thread"}}
    assert message["android"]["notification"] == {"tag": COLLAPSED, "sound": "ding.caf", "notification_count": 3}


def test_a_push_that_is_sent_twice_is_shown_once(google: FcmStandIn, fcm: FCMSender) -> None:
    fcm.send(PUSH, TOKEN, push_id="offline:1")
    fcm.send(PUSH, TOKEN, push_id="offline:1")

    assert len(google.shown(TOKEN)) == 1


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        (refusal(404, "NOT_FOUND", fcm_error("UNREGISTERED")), "dead_token", "UNREGISTERED"),
        (Fault(404, "UNREGISTERED"), "dead_token", "UNREGISTERED"),
        (refusal(403, "PERMISSION_DENIED", fcm_error("SENDER_ID_MISMATCH")), "dead_token", "SENDER_ID_MISMATCH"),
        (refusal(400, "INVALID_ARGUMENT", violation("message.token")), "dead_token", "INVALID_ARGUMENT"),
        (refusal(400, "INVALID_ARGUMENT", violation("message.data")), "permanent", "INVALID_ARGUMENT"),
        (refusal(400, "INVALID_ARGUMENT"), "permanent", "INVALID_ARGUMENT"),
        (refusal(404, "NOT_FOUND"), "auth", "NOT_FOUND"),
        (refusal(403, "PERMISSION_DENIED"), "auth", "PERMISSION_DENIED"),
        (refusal(429, "RESOURCE_EXHAUSTED", fcm_error("QUOTA_EXCEEDED")), "retry", "QUOTA_EXCEEDED"),
        (refusal(503, "UNAVAILABLE", fcm_error("UNAVAILABLE")), "retry", "UNAVAILABLE"),
        (Fault(500, body={"error": ["odd", 7], "details": {"a": 1}}), "retry", ""),
        (Fault(400, body={"error": {"status": 7, "details": ["odd", {"fieldViolations": "x"}]}}), "permanent", ""),
    ],
)
def test_every_answer_has_its_outcome(
    google: FcmStandIn, fcm: FCMSender, fault: Fault, outcome: str, reason: str
) -> None:
    google.fail(TOKEN, fault)

    result = fcm.send(PUSH, TOKEN, push_id="offline:1")

    assert (result.outcome, result.status, result.reason) == (outcome, fault.status, reason)
    assert len(google.seen) == 1


def test_the_wait_that_google_asks_for_is_kept(google: FcmStandIn, fcm: FCMSender) -> None:
    google.fail(TOKEN, Fault(429, "QUOTA_EXCEEDED", {"retry-after": "60"}))

    assert fcm.send(PUSH, TOKEN, push_id="offline:1").retry_after == 60.0


def test_a_connection_that_dies_leaves_a_retry_and_the_next_push_gets_through(
    google: FcmStandIn, fcm: FCMSender
) -> None:
    google.fail(TOKEN, Fault(instead="reset"))

    failed = fcm.send(PUSH, TOKEN, push_id="offline:1")
    after = fcm.send(PUSH, TOKEN, push_id="offline:1")

    assert (failed.outcome, failed.status, after.outcome) == ("retry", None, "sent")


def test_an_answer_that_never_comes_is_a_retry(google: FcmStandIn) -> None:
    google.fail(TOKEN, Fault(instead="silence"))

    with FCMSender(**google.arguments(token_provider=lambda: "access-1", timeout=0.3)) as fcm:
        overdue = fcm.send(PUSH, TOKEN, push_id="offline:1")

    assert (overdue.outcome, overdue.reason) == ("retry", "Timeout")


def test_the_token_is_asked_for_once_and_kept(google: FcmStandIn) -> None:
    asked: list[int] = []

    def give() -> str:
        asked.append(1)
        return "access-1"

    tokens = [f"device{number}" for number in range(20)]
    with FCMSender(**google.arguments(token_provider=give)) as fcm, ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda token: fcm.send(PUSH, token, push_id="offline:1"), tokens))

    assert {result.outcome for result in results} == {"sent"}
    assert len(asked) == 1


def test_a_refused_token_is_replaced_once_and_the_push_sent_again(google: FcmStandIn) -> None:
    given = iter(["expired", "access-1"])

    with FCMSender(**google.arguments(token_provider=lambda: next(given))) as fcm:
        result = fcm.send(PUSH, TOKEN, push_id="offline:1")

    assert result.outcome == "sent"
    assert [seen.status for seen in google.seen] == [401, 200]


def test_a_token_that_stays_refused_is_an_auth(google: FcmStandIn) -> None:
    with FCMSender(**google.arguments(token_provider=lambda: "revoked")) as fcm:
        result = fcm.send(PUSH, TOKEN, push_id="offline:1")

    assert (result.outcome, result.status, result.reason) == ("auth", 401, "UNAUTHENTICATED")
    assert len(google.seen) == 2


def failing(error: Exception) -> Any:
    def give() -> str:
        raise error

    return give


@pytest.mark.parametrize(
    ("give", "outcome", "reason"),
    [
        (failing(ConnectionError("secret-1")), "retry", "ConnectionError"),
        (failing(RuntimeError("secret-1")), "auth", "RuntimeError"),
        (lambda: "a\r\nx-evil: 1", "auth", "NoUsableToken"),
        (lambda: "", "auth", "NoUsableToken"),
        (lambda: None, "auth", "NoUsableToken"),
    ],
)
def test_a_token_that_cannot_be_had_is_a_result(google: FcmStandIn, give: Any, outcome: str, reason: str) -> None:
    with FCMSender(**google.arguments(token_provider=give)) as fcm:
        result = fcm.send(PUSH, TOKEN, push_id="offline:1")

    assert result == TokenResult(TOKEN, outcome, None, reason)  # type: ignore[arg-type]  # a parameter is any text
    assert google.seen == []


def test_a_service_account_fetches_its_tokens_and_replaces_refused_ones(
    google: FcmStandIn, by_account: FCMSender
) -> None:
    first = by_account.send(PUSH, TOKEN, push_id="offline:1")
    google.access_tokens = {"another", "and", "one-more"}
    second = by_account.send(PUSH, TOKEN, push_id="offline:2")

    assert (first.outcome, second.outcome) == ("sent", "sent")
    assert [seen.status for seen in google.seen] == [200, 401, 200]


@pytest.mark.parametrize(
    ("fault", "outcome"), [(Fault(400, "invalid_grant"), "auth"), (Fault(503, "unavailable"), "retry")]
)
def test_an_account_that_gets_no_token_is_a_result(
    google: FcmStandIn, by_account: FCMSender, fault: Fault, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
    google.token_fault = fault

    result = by_account.send(PUSH, TOKEN, push_id="offline:1")

    assert (result.outcome, result.status) == (outcome, None)


@pytest.mark.parametrize("token", ["a/b", "../x", "a\r\nx: y", "a\n", ""])
def test_what_is_no_device_token_is_never_sent(google: FcmStandIn, fcm: FCMSender, token: str) -> None:
    with pytest.raises(InvalidNotification, match="token"):
        fcm.send(PUSH, token, push_id="offline:1")

    assert google.seen == []


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("project_id", {"project_id": "a/b", "token_provider": str}),
        ("project_id", {"project_id": "", "token_provider": str}),
        ("token_provider", {}),
        ("token_provider", {"token_provider": str, "credentials_file": "x.json"}),
        ("credentials_file", {"credentials_file": "/nowhere/account.json"}),
        ("timeout", {"token_provider": str, "timeout": -1}),
        ("base_url", {"token_provider": str, "base_url": "ftp://fcm.googleapis.com"}),
    ],
)
def test_an_argument_that_cannot_work_is_refused_by_its_name(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}: ") as refused:
        FCMSender(**{"project_id": PROJECT, **changes})

    assert refused.value.field == field


@pytest.mark.parametrize("text", ['{"type": "service_account", "private_key": "s3cret"}', "s3cret", "[]", '{"a": 1}'])
def test_a_file_that_is_no_account_is_refused_and_never_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "account.json"
    path.write_text(text)

    with pytest.raises(ConfigurationError, match="credentials_file") as refused:
        FCMSender(project_id=PROJECT, credentials_file=path)

    assert refused.value.__cause__ is None
    assert "s3cret" not in str(refused.value)
