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
        """See ``Transport.add``."""
        ...

    async def read(
        self, incarnation: str, ledger_id: LedgerId, entry_ids: Sequence[EntryId], fence_key: bytes | None = None
    ) -> ReadReply:
        """See ``Transport.read``."""
        ...

    async def read_last(self, incarnation: str, ledger_id: LedgerId) -> ReadReply:
        """See ``Transport.read_last``."""
        ...

    async def fence(self, incarnation: str, ledger_id: LedgerId, master_key: bytes) -> FenceReply:
        """See ``Transport.fence``."""
        ...

    async def read_lac(self, incarnation: str, ledger_id: LedgerId) -> LacReply:
        """See ``Transport.read_lac``."""
        ...

    async def wait_lac(self, incarnation: str, ledger_id: LedgerId, beyond: EntryId, wait_s: float) -> LacReply:
        """See ``Transport.wait_lac``."""
        ...

    async def write_lac(self, incarnation: str, ledger_id: LedgerId, master_key: bytes, explicit: bytes) -> AddReply:
        """See ``Transport.write_lac``."""
        ...

    async def list_entries(self, incarnation: str, ledger_id: LedgerId) -> ListReply:
        """See ``Transport.list_entries``."""
        ...

    async def info(self, incarnation: str) -> InfoReply:
        """See ``Transport.info``."""
        ...
