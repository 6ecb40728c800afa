"""A topology written down and read back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from postroad.errors import TopologyError
from postroad.topology import (
    Topology,
    agents_topology,
    bus_topology,
    chat_topology,
    lint,
    task_topology,
    transfers_topology,
)

TEMPLATES = [
    chat_topology("rtchat", "prod"),
    transfers_topology(),
    task_topology("dev"),
    agents_topology(),
    bus_topology(),
]


def written(*resources: dict[str, Any], **more: Any) -> str:
    return json.dumps({"name": "test", "resources": list(resources), **more})


def queue(**spec: Any) -> dict[str, Any]:
    return {"kind": "queue", "spec": {"name": "orders", **spec}}


@pytest.mark.parametrize("topology", TEMPLATES, ids=lambda topology: topology.name)
def test_what_is_written_is_read_back_equal(topology: Topology) -> None:
    assert Topology.from_json(topology.to_json()) == topology


def test_defaults_may_be_left_out() -> None:
    topology = Topology.from_json(written(queue(visibility=60), components=[{"name": "app", "sends": ["orders"]}]))

    assert topology.get("queue", "orders").spec.visibility == 60  # type: ignore[union-attr]  # it is a queue
    assert topology.components[0].sends == ("orders",)


def test_a_resource_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        chat_topology("rtchat", "prod").get("queue", "nowhere")


@pytest.mark.parametrize(
    ("text", "path", "nearest"),
    [
        (written({"kind": "quue", "spec": {}}), "$.resources[0].kind", "queue"),
        (written({"kind": "warehouse"}), "$.resources[0].kind", None),
        (written({"name": "orders"}), "$.resources[0].kind", None),
        (written(queue(visiblity=3)), "$.resources[0].spec.visiblity", "visibility"),
        (written({**queue(), "encription": "sqs"}), "$.resources[0].encription", "encryption"),
        (written(queue(), resorces=[]), "$.resorces", "resources"),
        (written(components=[{"name": "app", "send": ["orders"]}]), "$.components[0].send", "sends"),
        (
            written({"kind": "table", "name": "abc", "hash_key": "a", "indexes": [{"name": "i", "hash_kye": "b"}]}),
            "$.resources[0].indexes[0].hash_kye",
            "hash_key",
        ),
        (written({"kind": "table", "name": "abc", "hash_key": 3}), "$.resources[0].hash_key", None),
        (written(queue(visibility="long")), "$.resources[0].spec.visibility", None),
        (written(queue(visibility=-1)), "$.resources[0].spec.visibility", None),
        (written("queue"), "$.resources[0]", None),  # type: ignore[arg-type]  # not a resource on purpose
        (json.dumps({"name": "test", "resources": {}}), "$.resources", None),
        (json.dumps({"name": "test"}), "$", None),
        (json.dumps({"name": 3, "resources": []}), "$.name", None),
        (json.dumps([]), "$", None),
        ("", "$", None),
        ("no json", "$", None),
        ('{"name": "test", "resources": [], "tags": {"a": NaN}}', "$", None),
        ("[" * 10_000 + "]" * 10_000, "$", None),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, "$", None),
        ('{"name": "\ud800"}', "$", None),
        ('{"name": "test", "name": "other", "resources": []}', "name", None),
        ('{"name": "test", "resources": [{"kind": "bus", "name": "a", "name": "b"}]}', "name", None),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_path_and_the_nearest_name(
    text: str, path: str, nearest: str | None
) -> None:
    with pytest.raises(TopologyError) as refused:
        Topology.from_json(text)

    assert refused.value.field == path
    assert refused.value.nearest == nearest
    assert nearest is None or refused.value.remedy == f"Write {nearest!r}."


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"name": "or.ders"}, "name-invalid"),
        ({"name": ""}, "name-invalid"),
        ({"name": "orders", "dead_letter": "orders"}, "dlq-cycle"),
        ({"name": "orders", "dead_letter": "dead.fifo"}, "fifo-mismatch"),
        ({"name": "orders.fifo", "fifo": True, "dead_letter": "dead"}, "fifo-mismatch"),
    ],
)
def test_a_queue_that_cannot_be_is_refused_under_the_code_of_lint(spec: dict[str, Any], code: str) -> None:
    with pytest.raises(TopologyError) as refused:
        Topology.from_json(written({"kind": "queue", "spec": spec}))

    assert refused.value.codes == (code,)


def test_dead_letters_that_are_not_there_or_go_round_are_found_by_lint() -> None:
    missing = Topology.from_json(written(queue(dead_letter="nowhere")))
    ring = Topology.from_json(
        written(queue(dead_letter="b"), {"kind": "queue", "spec": {"name": "b", "dead_letter": "orders"}})
    )

    assert "unknown-reference" in {finding.code for finding in lint(missing)}
    assert "dlq-cycle" in {finding.code for finding in lint(ring)}
