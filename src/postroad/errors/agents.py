"""What is refused to agents and about them."""

from __future__ import annotations

from postroad.errors.root import Conflict, NotFound, PostroadError


class AgentNotFound(NotFound):
    """There is no agent of this id, or it is not the caller's."""

    slug = "agent-not-found"
    status = 404
    remedy = "Name an agent that is registered; agents.register() or `postroad agent create` makes one."


class AgentExists(Conflict):
    """An agent of this id is registered."""

    slug = "agent-exists"
    status = 409
    remedy = "Choose another id, or leave it out to be given one."


class AgentDeleted(PostroadError):
    """The agent of this id was deleted; an id is never given again."""

    slug = "agent-deleted"
    status = 409
    remedy = "Register under another id."


class SubscriptionNotFound(NotFound):
    """This listener is not subscribed to this producer."""

    slug = "subscription-not-found"
    status = 404
    remedy = "Subscribe first: agents.subscribe(listener, producer)."


class ConsentRequired(PostroadError):
    """The producer chooses its listeners and has not chosen this one."""

    slug = "consent-required"
    status = 403
    remedy = "Ask the producer or an admin to grant it: PUT /agents/{producerId}/grants/{listenerId}."


class IdentityMismatch(PostroadError):
    """The body names another agent than the token."""

    slug = "identity-mismatch"
    status = 403
    remedy = "Leave `agentId` out, or name the agent whose token is sent."
