"""An event has two JSON forms, the bus's flat envelope and the outbox's three keys; every reader reads both."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from postroad.errors import InvalidMessage
from postroad.events import DomainEvent, Envelope, codec

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
EVENT = DomainEvent(
    "orders.placed",
    key={"orderId": "A-1", "customer": "c-7"},
    payload={"amount": 25},
    tenant_id="acme",
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    event_id=ID,
    occurred_at=NOON,
    v=3,
)


def test_the_form_of_the_outbox_decodes_to_an_envelope() -> None:
    assert codec.decode(EVENT.to_json()) == Envelope(
        event_type="orders.placed",
        event_id=ID,
        created_at=NOON,
        publisher_id="outbox",
        payload={"amount": 25},
        version=3,
        tenant_id="acme",
        key="c-7/A-1",
        traceparent=EVENT.traceparent,
        keys={"orderId": "A-1", "customer": "c-7"},
    )


def test_an_envelope_from_the_outbox_gives_back_the_whole_event() -> None:
    assert DomainEvent.from_envelope(codec.decode(EVENT.to_json())) == EVENT


@pytest.mark.parametrize(
    ("key", "text"),
    [({}, None), ({"transferId": "T-1", "a": "x"}, "T-1"), ({"b": "2", "a": "1"}, "1/2"), ({"a": ""}, None)],
)
def test_the_ordering_key_is_the_text_that_the_outbox_uses_for_the_row(key: dict[str, str], text: str | None) -> None:
    envelope = codec.decode(DomainEvent("orders.placed", key=key, payload={}).to_json())

    assert (envelope.key, envelope.keys) == (text, key)


@pytest.mark.parametrize(("key", "keys"), [("A-1", {"key": "A-1"}), (None, {})])
def test_a_flat_event_is_read_as_a_domain_event(key: str | None, keys: dict[str, str]) -> None:
    flat = Envelope("orders.placed", ID, NOON, "web", {"amount": 25}, version=2, tenant_id="acme", key=key)

    found = DomainEvent.from_envelope(codec.decode(codec.encode(flat)))

    assert found == DomainEvent("orders.placed", keys, {"amount": 25}, "acme", event_id=ID, occurred_at=NOON, v=2)


@given(
    key=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    payload=st.dictionaries(st.text(max_size=5), st.integers(-100, 100) | st.text(max_size=5) | st.none()),
    tenant=st.none() | st.text(min_size=1, max_size=5),
    version=st.integers(1, 9),
)
def test_nothing_that_both_forms_know_is_lost(
    key: dict[str, str], payload: dict[str, Any], tenant: str | None, version: int
) -> None:
    event = DomainEvent("t", key, payload, tenant, event_id=ID, occurred_at=NOON, v=version)

    envelope = codec.decode(event.to_json())
    flat = codec.decode(codec.encode(envelope))

    assert DomainEvent.from_envelope(envelope) == event
    assert (flat.event_id, flat.payload, flat.tenant_id, flat.version) == (ID, payload, tenant, version)
    assert (flat.key, flat.keys) == (envelope.key, {})


@pytest.mark.parametrize("body", [EVENT.to_json(), codec.encode(Envelope("t", ID, NOON, "web", {}))])
def test_either_form_may_be_inside_a_notification_of_sns(body: bytes) -> None:
    notification = json.dumps({"Type": "Notification", "MessageId": "1", "Message": body.decode()})

    assert codec.decode(notification) == codec.decode(body)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"nonsense", None),
        (b"[]", None),
        (b'{"hello": 1}', "event_type"),
        (b'{"envelope": 5, "key": {}, "payload": {}}', "envelope"),
        (b'{"envelope": {"eventId": "x", "type": "t"}, "key": {}, "payload": {}}', "envelope.eventId"),
        (b'{"envelope": {"type": "t"}, "key": {}, "payload": {}}', "envelope.eventId"),
        (b'{"Type": "Notification", "Message": "{}"}', "event_type"),
    ],
)
def test_what_has_neither_form_is_refused_with_the_names_of_both(body: bytes, field: str | None) -> None:
    with pytest.raises(InvalidMessage) as caught:
        codec.decode(body)

    assert caught.value.field == field
    assert "event_type, event_id, created_at, publisher_id, payload" in caught.value.remedy
    assert "envelope, key, payload" in caught.value.remedy
