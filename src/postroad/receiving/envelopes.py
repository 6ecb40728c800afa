"""The envelope of a delivery, whichever of the two JSON forms its body has."""

from __future__ import annotations

from postroad.events import Codec, Envelope
from postroad.events.domain import OUTBOX
from postroad.events.envelope import envelope_of
from postroad.queues import Delivery

PUBLISHER_ID = "PublisherId"


def read_envelope(codec: Codec, delivery: Delivery) -> Envelope:
    """Return the envelope in the body; an event from the outbox names the dispatcher's service as its publisher."""
    envelope = codec.decode(delivery.body)
    publisher = delivery.attributes.get(PUBLISHER_ID)
    if envelope.publisher_id != OUTBOX or not publisher:
        return envelope
    return envelope_of({**vars(envelope), "publisher_id": publisher})
