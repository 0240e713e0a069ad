"""Last adds confirmed in the memory of a bookie: explicit LACs, and readers that wait for a greater one.

All of it is only a hint: a restart loses it, a ledger without recent requests may be removed, and readers verify every
value. A reader is woken after durable adds. It then looks again, and its answer contains its own evidence. No reader
has to trust a value that it cannot verify.
"""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from bookie.model.ids import LEDGER_ID_MAX, NO_ENTRY, EntryId, LedgerId
from bookie.model.packet import HEADER_SIZE
from bookie.runtime.fault_points import fault_point
from bookie.wire.port import LacReply, Status

LAC_PACKET_BYTES_MAX: Final = 64
"""The largest packet of an explicit LAC: two ids and a digest. Ours have 16 to 36 bytes."""

_HEADER: Final = struct.Struct(">qqq")
_IDS: Final = struct.Struct(">qq")


class LacWaiter:
    """One waiting long poll. It misses no event after its creation."""

    def __init__(self, beyond: EntryId, *, may_wait: bool = True) -> None:
        self.beyond = beyond
        self._may_wait = may_wait
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Make the current or next call of ``woken`` return True."""
        self._woken.set()

    async def woken(self, until_s: float) -> bool:
        """Wait to be woken, at most until ``until_s`` in the time of the event loop. Return whether it was woken."""
        if self._may_wait:
            try:
                async with asyncio.timeout_at(until_s):
                    await self._woken.wait()
            except TimeoutError:
                pass
        is_woken = self._woken.is_set()
        self._woken.clear()
        return is_woken


class LacBoard:
    """The last add confirmed of each ledger, and the readers that wait for a greater one.

    Only ``LacWaiter.woken`` yields to the event loop.
    """

    def __init__(self, *, ledgers_max: int, waiters_max: int) -> None:
        """Start without LACs and without waiters.

        Args:
            ledgers_max: the most explicit LACs. Beyond it, the ledger with the oldest last request is removed.
            waiters_max: the most concurrent long polls. Further ones are answered at once.
        """
        self._ledgers_max = ledgers_max
        self._waiters_max = waiters_max
        self._explicit: OrderedDict[LedgerId, tuple[int, bytes]] = OrderedDict()
        self._waiters: dict[LedgerId, list[LacWaiter]] = {}
        self._waiter_count = 0
        self._is_closed = False
        self.refused = 0
        """The number of long polls that were answered at once because of the bound."""

    @property
    def waiter_count(self) -> int:
        """The number of waiting long polls."""
        return self._waiter_count

    def explicit(self, ledger_id: LedgerId) -> bytes:
        """Return the greatest explicit LAC of a ledger as it was written; empty if none is stored."""
        if ledger_id not in self._explicit:
            return b""
        self._explicit.move_to_end(ledger_id)
        return self._explicit[ledger_id][1]

    def write(self, ledger_id: LedgerId, packet: bytes) -> None:
        """Store an explicit LAC unless a greater or equal one is stored. ``check_packet`` must have accepted it."""
        lac = _IDS.unpack_from(packet)[1]
        if lac <= self._explicit.get(ledger_id, (NO_ENTRY,))[0] or fault_point("lac_board.forget_explicit"):
            return
        self._explicit[ledger_id] = (lac, packet)
        self._explicit.move_to_end(ledger_id)
        if len(self._explicit) > self._ledgers_max:
            self._explicit.popitem(last=False)
        self._wake(ledger_id, lac)

    def stored(self, ledger_id: LedgerId, entries: Sequence[bytes]) -> None:
        """Wake the readers that wait for a LAC in the headers of newly durable entries."""
        if ledger_id in self._waiters:
            self._wake(ledger_id, max(map(header_lac, entries), default=NO_ENTRY))

    @contextmanager
    def waiting(self, ledger_id: LedgerId, beyond: EntryId) -> Iterator[LacWaiter]:
        """Yield a waiter for a LAC greater than ``beyond``. Enter this context before the first read of the LAC.

        If the bound is reached, or after ``close``, the waiter's ``woken`` returns at once.
        """
        is_over = self._is_closed or self._waiter_count >= self._waiters_max
        if is_over or fault_point("lac_board.no_place"):
            self.refused += not self._is_closed
            yield LacWaiter(beyond, may_wait=False)
            return
        waiter = LacWaiter(beyond)
        self._waiters.setdefault(ledger_id, []).append(waiter)
        self._waiter_count += 1
        try:
            yield waiter
        finally:
            self._waiter_count -= 1
            places = self._waiters[ledger_id]
            places.remove(waiter)
            if not places:
                del self._waiters[ledger_id]

    def close(self) -> None:
        """Wake all waiters, and accept no new ones."""
        self._is_closed = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.wake()

    def _wake(self, ledger_id: LedgerId, lac: int) -> None:
        for waiter in self._waiters.get(ledger_id, ()):
            if waiter.beyond < lac or fault_point("lac_board.wake_for_nothing"):
                waiter.wake()


def header_lac(packet: bytes) -> int:
    """Return the last add confirmed in a stored entry's header, or -1 if it has none.

    No writer stores a LAC that is not smaller than the entry's own id, so such a LAC is ignored.
    """
    if len(packet) < HEADER_SIZE:
        return NO_ENTRY
    _, entry_id, lac = _HEADER.unpack_from(packet)
    return int(lac) if NO_ENTRY < lac < entry_id else NO_ENTRY


def proven_lac(reply: LacReply) -> int:
    """Return the greatest last add confirmed that an answer shows to a reader, or -1."""
    explicit = int(_IDS.unpack_from(reply.explicit)[1]) if reply.explicit else NO_ENTRY
    last = reply.last_entry
    return max(explicit, header_lac(last.packet) if last is not None and last.status is Status.OK else NO_ENTRY)


def check_packet(ledger_id: LedgerId, packet: bytes) -> str | None:
    """Return the problem of an explicit LAC packet, as far as a bookie can detect one, or None."""
    if not _IDS.size <= len(packet) <= LAC_PACKET_BYTES_MAX:
        return f"explicit LAC of {len(packet)} bytes, allowed are {_IDS.size} to {LAC_PACKET_BYTES_MAX}"
    found_ledger, lac = _IDS.unpack_from(packet)
    if found_ledger != ledger_id:
        return f"explicit LAC of ledger {found_ledger}, sent to ledger {ledger_id}"
    if not 0 <= lac <= LEDGER_ID_MAX:
        return f"not an entry id: {lac}"
    return None
