"""What the chat pipeline refuses, and what it could not hand on."""

from __future__ import annotations

from postroad.errors.refusals import InvalidMessage
from postroad.errors.transport import TransportError


class InvalidNotification(InvalidMessage):
    """A push or an offline message that is refused; the message names the field, never what it holds."""

    slug = "invalid-notification"
    remedy = "Correct the field that the message names; nothing was stored or sent."


class SendFailed(TransportError):
    """A queue did not take a message; its cause is what the queue said."""

    slug = "send-failed"
    remedy = "Send the message again: a second copy of one message is recognised when it is stored."
