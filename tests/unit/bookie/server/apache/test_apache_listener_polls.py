"""Long polls of a connection that ends."""

from __future__ import annotations

import asyncio

from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.server.apache.answering import RequestAnswerer
from bookie.server.apache.dialect_v3 import DialectV3
from bookie.server.apache.incoming import Fresh
from bookie.server.apache.limits import ListenerLimits
from bookie.server.apache.outgoing import OutgoingAnswers
from bookie.server.apache.pending import PendingRequests
from bookie.server.apache.requests import LongPoll
from bookie.server.apache.room import SharedRoom
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import open_bookie


async def test_a_long_poll_that_ends_in_the_moment_of_its_arrival_no_longer_counts() -> None:
    bookie = await open_bookie()
    limits = ListenerLimits()
    room = SharedRoom.within(limits)
    out = OutgoingAnswers(room, limits, lambda reason: None)
    answering = RequestAnswerer(bookie.service, ManualClock())
    pending = PendingRequests(answering, limits, room, out, lambda: None, lambda reason: None)
    fresh = Fresh()
    fresh.put(LongPoll(DialectV3(), 1, LedgerId(7), NO_ENTRY, EntryId(0), 60.0, True))
    pending.put(fresh, is_more_coming=False)
    pending.end_polls()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not pending.has_running_requests
    await bookie.storage.abort()
