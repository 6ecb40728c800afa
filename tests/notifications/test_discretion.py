"""What logs and metrics of the chat pipeline keep to themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from prometheus_client import generate_latest
from tests.notifications.people import SENT_AT, Provider, missed
from tests.notifications.test_worker import send, worker_for

from postroad.notifications import (
    NotificationStore,
    OfflineMessage,
    PushNotification,
    PushPayload,
    RealtimeHook,
    TokenResult,
    WorkerReport,
)
from postroad.wiring import Backend

USER, TOKEN, TEXT = "the-user-7c1", "the-token-8d2", "the-text-9e3"
ANSWERS: list[Callable[[str], TokenResult]] = [
    lambda token: TokenResult(token, "sent", 200),
    lambda token: TokenResult(token, "dead_token", 410, "Unregistered"),
    lambda token: TokenResult(token, "permanent", 400, "BadTopic"),
    lambda token: TokenResult(token, "retry", 503, "ServiceUnavailable"),
    lambda token: TokenResult(token, "auth", 401),
]


def test_sec13_neither_logs_nor_metrics_tell_users_tokens_or_texts(
    backend: Backend, store: NotificationStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: OfflineMessage) -> bool:
        raise RuntimeError(message.content)

    caplog.set_level(logging.DEBUG)
    fcm = Provider()
    fcm.answers = {f"{TOKEN}-{number}": answer for number, answer in enumerate(ANSWERS)}
    pushes = [PushNotification(USER, (token,), PushPayload(TEXT, TEXT), SENT_AT) for token in fcm.answers]
    store.register_device(USER, TOKEN)

    RealtimeHook(backend.queue("offline-queue"), is_online=lambda user: True, deliver=fail).on_message(
        missed("m1", USER, TEXT)
    )
    send(backend, "offline-queue", missed("m1", USER, f"{TEXT}, mended").to_json(), f'{{"content": "{TEXT}"')
    send(backend, "push-queue", *(push.to_json() for push in pushes), f'{{"userId": "{USER}", "x": "{TEXT}"}}')
    with worker_for(backend, store, fcm=fcm) as worker:
        while worker.run_once() != WorkerReport():
            continue

    told = caplog.text + generate_latest().decode()
    assert "notification_dead_lettered" in told
    assert [each for each in (USER, TOKEN, TEXT) if each in told] == []
