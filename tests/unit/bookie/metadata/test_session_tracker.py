"""A request belongs to the session in which it was made, however quickly the next session begins."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.port import Session, SessionState, StoreUnavailableError
from bookie.metadata.store.session import SessionTracker

SUSPENDED = Session(SessionState.SUSPENDED, 1, 11)
SAME = Session(SessionState.CONNECTED, 1, 11)
LOST = Session(SessionState.LOST, 1, 11)
NEXT = Session(SessionState.CONNECTED, 2, 22)


async def changed_to(tracker: SessionTracker, *sessions: Session) -> Session:
    """Return the session of a request that waits while the session changes within one turn of the loop."""
    request = asyncio.ensure_future(tracker.ready())
    await asyncio.sleep(0)
    for session in sessions:
        tracker.update(session)
    return await request


async def test_a_request_waits_for_the_connection_of_its_session() -> None:
    assert await changed_to(SessionTracker(SUSPENDED), SAME) == SAME


@pytest.mark.parametrize("changes", [[LOST], [LOST, NEXT], [NEXT]])
async def test_a_request_of_a_lost_session_is_not_sent_in_the_next(changes: list[Session]) -> None:
    with pytest.raises(StoreUnavailableError, match="lost before the request was sent"):
        await changed_to(SessionTracker(SUSPENDED), *changes)


async def test_a_request_made_without_a_session_belongs_to_the_next_one() -> None:
    assert await changed_to(SessionTracker(LOST), NEXT) == NEXT


async def test_a_lost_or_replaced_session_is_not_alive() -> None:
    for now in (LOST, NEXT):
        with pytest.raises(StoreUnavailableError):
            SessionTracker(now).ensure(SAME)
    SessionTracker(SUSPENDED).ensure(SAME)
