"""The outbox that the settings name, for routes and the overview."""

from __future__ import annotations

from functools import cached_property

from postroad.errors import PostroadError, RouteNotFound
from postroad.outbox import Outbox, OutboxStatus
from postroad.settings import Settings


class OutboxAccess:
    """The outbox of this server, opened when it is first used."""

    def __init__(self, settings: Settings) -> None:
        self._dsn = settings.outbox_dsn

    @property
    def is_set(self) -> bool:
        """Whether the settings name an outbox."""
        return self._dsn is not None

    @cached_property
    def outbox(self) -> Outbox:
        """The outbox; raises `RouteNotFound` if the settings name none."""
        if self._dsn is None:
            raise RouteNotFound(
                "no outbox is set", remedy="Set dsn in the table [outbox] of postroad.toml, or POSTROAD_OUTBOX_DSN."
            )
        return Outbox.open(self._dsn)

    def status(self) -> OutboxStatus | str | None:
        """Return what the outbox holds; a text says why it cannot be read, None that there is none."""
        if not self.is_set:
            return None
        try:
            return self.outbox.status()
        except PostroadError as error:
            return str(error)

    def close(self) -> None:
        """Close its connections."""
        if "outbox" in self.__dict__:
            self.outbox.close()
