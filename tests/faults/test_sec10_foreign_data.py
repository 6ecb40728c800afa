"""Data of another tenant or agent is never shown, not even that it is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.faults.bad_input.cases import stored
from tests.http.api import Api, serving

from postroad.journal import JournalEvent
from postroad.queues import OutgoingMessage, QueueSpec
from postroad.tasks import TaskProducer

pytestmark = pytest.mark.slow

CANARY = "canary-of-tenant-b"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with the data of two agents and two tenants."""
    with serving(f"sqlite:///{tmp_path_factory.mktemp('sec08')}/data.db") as api:
        api.backend.create_queue(QueueSpec("ann")).send([OutgoingMessage("x")])
        for name in ("ann", "bob"):
            api.backend.agents().register(name)
        TaskProducer(api.backend, tenant_id="b").submit("echo", {"text": CANARY}, request_id="ann")
        properties = {"requestId": "ann", "name": CANARY}
        api.backend.journal().append(
            [JournalEvent.create("Task Pending", tenant_id="b", entity_id="ann", app="postroad", properties=properties)]
        )
        yield api


def test_sec08_a_foreign_id_is_answered_like_one_that_does_not_exist(api: Api) -> None:
    with api.as_caller(api.backend.agents().rotate_token("bob")) as bob:
        foreign, missing = (bob.get(f"/agents/{name}").json() for name in ("ann", "nobody"))

    assert foreign["status"] == 404
    assert {**foreign, "request_id": ""} == {
        **json.loads(json.dumps(missing).replace("nobody", "ann")),
        "request_id": "",
    }


def test_sec10_nothing_of_another_tenant_reaches_an_answer(api: Api) -> None:
    described: dict[str, Any] = api.client.get("/schema/openapi.json").json()["paths"]
    paths = [
        path for path, methods in described.items() if "get" in methods and not path.endswith(("/live", "/stream"))
    ]

    answers = {path: api.client.get(re.sub(r"\{[^}]*\}", "ann", path)).text for path in paths}

    assert [path for path, text in answers.items() if CANARY in text] == []
    assert CANARY in str(stored(api.backend))
