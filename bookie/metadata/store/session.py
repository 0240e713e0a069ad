"""The client's view of its session, shared by the kazoo adapter and the in-memory twin.

A request belongs to the session in which it was made (S14). ``SessionTracker.ready`` lets it wait while the connection
is interrupted, and fails it once its session is lost. So no decision of one session is carried out in the next.
"""

from __future__ import annotations

from dataclasses import replace

from bookie.metadata.port import Session, SessionState, StoreUnavailableError
from bookie.runtime.signal import Signal, waiting_for


class SessionTracker:
    """Holds the current ``Session`` and wakes tasks waiting for another one. For one event loop."""

    def __init__(self, session: Session) -> None:
        self.current = session
        self.changed = Signal()
        self.changes = 0
        """How often the session has changed."""
        self.is_closed = False

    def update(self, session: Session) -> None:
        """Make ``session`` the current one."""
        if session != self.current:
            self.current = session
            self.changes += 1
            self.changed.fire()

    def close(self) -> None:
        """End the session permanently."""
        self.is_closed = True
        self.update(replace(self.current, state=SessionState.LOST))
        self.changed.fire()

    async def wait_changed(self, seen: Session) -> Session:
        """Return the session once it differs from ``seen``."""
        while self.current == seen:
            with waiting_for(self.changed) as waiter:
                await waiter
        return self.current

    async def wait_changes(self, seen: int) -> None:
        """Return once ``changes`` differs from ``seen``, even if the session is the same again."""
        while self.changes == seen:
            with waiting_for(self.changed) as waiter:
                await waiter

    async def ready(self) -> Session:
        """Wait for a connected session, and return it for a request. Does not yield to the loop if already connected.

        Raises:
            StoreUnavailableError: the session was lost during the call, or the store is closed.
        """
        made_in = self.current
        while not self.current.is_connected:
            if self.is_closed:
                raise StoreUnavailableError("the connection to the metadata store is closed; open another one")
            if made_in.state is not SessionState.LOST:
                self.ensure(made_in)
            await self.wait_changed(self.current)
        if made_in.state is not SessionState.LOST:
            self.ensure(made_in)
        return self.current

    def lives(self, session: Session) -> bool:
        """Whether ``session`` is the current one and is not lost, connected or not."""
        return self.current.epoch == session.epoch and self.current.state is not SessionState.LOST

    def ensure(self, session: Session) -> None:
        """Fail unless ``session`` still lives, connected or not.

        Raises:
            StoreUnavailableError: it was lost; nothing was sent.
        """
        if not self.lives(session):
            raise StoreUnavailableError(
                f"session {session.session_id:#x} (epoch {session.epoch}) was lost before the request was sent"
            )
