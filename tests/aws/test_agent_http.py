"""The routes of agents on emulated AWS: the same answers as on a file."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest
from tests.aws.cloud import Cloud
from tests.http.api import Serve
from tests.http.conftest import serve as serve
from tests.http.village import slug

pytestmark = pytest.mark.aws


def test_agents_publish_lease_and_settle_by_http_on_sqs_as_on_a_file(
    village: Cloud, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    api = serve(os.environ["POSTROAD_URL"])
    ann, bob = (village.id(name) for name in ("ann", "bob"))
    made = {name: api.client.post("/agents", json={"agentId": name}) for name in (ann, bob)}
    with api.as_caller(made[ann].json()["token"]) as anns, api.as_caller(made[bob].json()["token"]) as bobs:
        refused = bobs.put(f"/agents/{bob}/subscriptions/{ann}")
        anns.put(f"/agents/{ann}/grants/{bob}")
        heard = bobs.put(f"/agents/{bob}/subscriptions/{ann}")
        published = anns.post("/events", json={"eventType": "x", "data": {"n": 1}})
        village.aggregate()
        village.release()
        [delivery] = bobs.post(f"/agents/{bob}/leases", json={"wait": 5}).json()["deliveries"]
        foreign = _ok(anns.post(f"/agents/{ann}/acks", json={"receipts": [delivery["receipt"], "garbage"]}))
        extended = _ok(bobs.post(f"/agents/{bob}/extensions", json={"receipts": [delivery["receipt"]], "seconds": 9}))
        acked = _ok(bobs.post(f"/agents/{bob}/acks", json={"receipts": [delivery["receipt"]]}))
        stats = bobs.get(f"/agents/{bob}/stats").json()
        gone = bobs.delete(f"/agents/{bob}")

    assert [answer.status_code for answer in (*made.values(), heard, published, gone)] == [201, 201, 204, 202, 200]
    assert (refused.status_code, slug(refused)) == (403, "consent-required")
    assert (delivery["eventId"], delivery["receiveCount"]) == (published.json()["eventId"], 1)
    assert (foreign, extended, acked) == ([False, False], [True], [True])
    assert sorted(stats) == ["dead", "delayed", "held", "inFlight", "oldestAgeSeconds", "visible"]
    assert api.client.get(f"/agents/{bob}").status_code == 404


def _ok(answer: httpx.Response) -> list[bool]:
    assert answer.status_code == 200, answer.text
    return [result["ok"] for result in answer.json()["results"]]
