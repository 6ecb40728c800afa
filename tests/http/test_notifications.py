"""`/notifications/users/{id}`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.http.api import Api
from tests.notifications.people import missed

from postroad.notifications import NotificationStore, OfflineProcessor


def test_a_user_is_shown_as_the_command_shows_it(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    monkeypatch.setenv("NOTIFICATIONS_DATABASE_URL", url)
    with NotificationStore(url) as store:
        store.register_device("ann", "phone-token", "fcm")
        OfflineProcessor(store).handle(missed("m1"))

    answer = api.client.get("/notifications/users/ann")

    assert answer.status_code == 200
    assert answer.json()["pending"][0]["message_id"] == "m1"
    assert "phone-token" not in answer.text
    assert api.client.get("/notifications/users/eve").status_code == 404


def test_without_a_store_there_is_nothing_to_show(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFICATIONS_DATABASE_URL", raising=False)

    answer = api.client.get("/notifications/users/ann")

    assert answer.status_code == 404
    assert "NOTIFICATIONS_DATABASE_URL" in answer.json()["remedy"]
