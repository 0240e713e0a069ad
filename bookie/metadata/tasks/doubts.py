"""Members of unclosed ledgers that lost acknowledged entries, or may have.

For a recovery, "no such entry" from a member is evidence that an entry was never acknowledged. It is not evidence after
the loss of the member's disks (S6). The signs of this loss can disappear before the recovery: a repair may copy entries
back to the member, and a recovery may write entries to it before it fails. So the loss is recorded here before either
of them begins, for every worker and across restarts, until the ledger is closed or no entry is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from bookie.metadata.nodes import change, child_names, find, ledger_ids, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import Delete, MetadataStore
from bookie.model.ids import BookieId, LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Record:
    members: frozenset[BookieId]


class DoubtedMembers:
    """Records of doubted members, one per ledger, for the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("doubts", ledgers_root)

    async def get(self, ledger_id: LedgerId) -> frozenset[BookieId] | None:
        """Return the doubted members of a ledger, no older than this call.

        None: the record is damaged, so every member of the ledger must be doubted.

        Raises:
            StoreUnavailableError: no answer.
        """
        path = self.path(ledger_id)
        await self._store.sync(path)
        node = await find(self._store, path)
        return frozenset() if node is None else _decode(path, node.data)

    async def add(self, ledger_id: LedgerId, members: Collection[BookieId]) -> None:
        """Add doubted members to the record. A damaged record is left as it is.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; adding again is safe.
        """
        path = self.path(ledger_id)

        def with_members(data: bytes | None) -> bytes | None:
            known = frozenset() if data is None else _decode(path, data)
            return None if known is None else encode_record(_Record(known.union(members)))

        await change(self._store, path, with_members)

    async def deletion(self, ledger_id: LedgerId) -> Delete | None:
        """Return an operation to delete the current record in a transaction, which fails if the record has changed.

        None: there is no record, or its node has children, so that it cannot be deleted.

        Raises:
            StoreUnavailableError: no answer.
        """
        path = self.path(ledger_id)
        await self._store.sync(path)
        stat = await self._store.stat(path)
        return None if stat is None or stat.children_count else Delete(path, stat.version)

    async def forget(self, ledger_id: LedgerId) -> None:
        """Delete the record of a closed or deleted ledger. Idempotent.

        The worker with the lock of an open ledger may write a new record at any time: see ``deletion``.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; forgetting again is safe.
        """
        await remove(self._store, self.path(ledger_id))

    async def ledgers(self) -> frozenset[LedgerId]:
        """Return the ledgers with a record.

        Raises:
            StoreUnavailableError: no answer.
        """
        return frozenset(ledger_ids(await child_names(self._store, self._parent)))

    def path(self, ledger_id: LedgerId) -> str:
        """Return the path of a ledger's record."""
        return f"{self._parent}/{ledger_id}"


def _decode(path: str, data: bytes) -> frozenset[BookieId] | None:
    try:
        return decode_record(data, _Record).members
    except UnreadableRecordError as error:
        _log.warning("record of doubted members cannot be decoded", extra={"path": path, "error": str(error)})
        return None
