"""Connections with limits, so that one peer cannot keep the others from being served.

Limits apply before a token is checked, so that a peer which sends half a request is limited, too.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 10.0
"""Seconds in which a request's headers have to come, however they are cut."""
MOST_OF_PEER: Final = 100
"""Connections of one address. Viewers behind a proxy, or on this machine, share theirs."""
_numbers: Final = count()


class LimitedConnection(H11Protocol):
    """A connection that is closed if a request's headers do not come in time.

    If an address has too many, the one that has waited longest for its headers makes room.
    """

    overdue: asyncio.TimerHandle | None = None
    """Ends the wait for the headers of a request."""
    number: int = 0
    """The turn in which the wait began: times of a loop may be equal."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        own = self._of_peer()
        if len(own) > MOST_OF_PEER:
            waiting = [one for one in own if one.overdue is not None]
            min(waiting, key=lambda one: one.number, default=self).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def drop(self) -> None:
        """Close the connection without an answer."""
        self._stop_watching()
        self.transport.abort()

    def _of_peer(self) -> list[LimitedConnection]:
        """Return the open connections of the same address, and this one."""
        open_ = [
            one
            for one in self.connections
            if isinstance(one, LimitedConnection) and not one.transport.is_closing()
        ]
        host = self.client and self.client[0]
        return [one for one in open_ if (one.client and one.client[0]) == host]

    def _watch(self) -> None:
        """Begin to wait for headers, or end the wait if all of them have come."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_watching()
        elif self.overdue is None:
            self.number = next(_numbers)
            self.overdue = self.loop.call_later(REQUEST_S, self.drop)

    def _stop_watching(self) -> None:
        if self.overdue is not None:
            self.overdue.cancel()
            self.overdue = None
