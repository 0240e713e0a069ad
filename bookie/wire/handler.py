"""The port a bookie serves: the transport's requests as they arrive, each with the incarnation that was meant.

Implemented by ``bookie.server.service``; called by the gRPC servicer and by the in-process transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookie.model.ids import EntryId, LedgerId
from bookie.wire.port import AddBatch, AddReply, FenceReply, InfoReply, LacReply, ListReply, ReadReply


class BookieHandler(Protocol):
    """Answers requests to one bookie. Refusals are statuses; only cancellation and our own bugs raise.

    A request that was begun runs to its end even if its caller is cancelled, but for a long poll. Adds are handed to
    the storage in the order in which their coroutines first run.
    """

    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        """Store a batch."""
        ...

    async def read(
        self, incarnation: str, ledger_id: LedgerId, entry_ids: Sequence[EntryId], fence_key: bytes | None = None
    ) -> ReadReply:
        """Read entries."""
        ...

    async def read_last(self, incarnation: str, ledger_id: LedgerId) -> ReadReply:
        """Read the entry with the greatest id."""
        ...

    async def fence(self, incarnation: str, ledger_id: LedgerId, master_key: bytes) -> FenceReply:
        """Fence a ledger, and read."""
        ...

    async def read_lac(self, incarnation: str, ledger_id: LedgerId) -> LacReply:
        """The last add confirmed and the last entry."""
        ...

    async def wait_lac(self, incarnation: str, ledger_id: LedgerId, beyond: EntryId, wait_s: float) -> LacReply:
        """Wait for a greater last add confirmed."""
        ...

    async def write_lac(self, incarnation: str, ledger_id: LedgerId, master_key: bytes, explicit: bytes) -> AddReply:
        """Write a last add confirmed."""
        ...

    async def list_entries(self, incarnation: str, ledger_id: LedgerId) -> ListReply:
        """List the entries of a ledger."""
        ...

    async def info(self, incarnation: str) -> InfoReply:
        """Information about the bookie."""
        ...
