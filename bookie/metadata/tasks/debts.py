"""Placement debts: ``/bkheal/debts/<ledgers root>/<ledger id>``, copies that repair placed against the policy.

If there is no good place, repair puts a copy in a bad one, because too few copies are worse. The record is written
before the metadata names the new bookie. So after a crash there may be a needless debt, but never a copy without its
debt. The debt ends once the fragments comply with the policy or the ledger is deleted. Until then, workers mark the
ledger if a better place appears (``replicator.queue.repayment``).

There are at most ``DEBTS_MAX`` records: a worker reads all of them when the bookies or the topology change. Further
debts are not recorded. The next placement check finds their ledgers, as after the loss of a record.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
from dataclasses import dataclass, replace
from typing import Final

from bookie.metadata.nodes import READS_PER_BATCH, change, child_names, find, in_steps, sorted_ids
from bookie.metadata.own_state import own_path
from bookie.metadata.port import BadVersionError, MetadataStore, NoNodeError, NotEmptyError
from bookie.model.ids import EntryId, LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_log = logging.getLogger(__name__)

DEBTS_MAX: Final = 10_000
"""Each worker reads the number of debts before it writes one, so a fleet exceeds it by at most one for each worker."""
FRAGMENTS_MAX: Final = 100
"""Maximum number of fragments named in a record. All fragments of the ledger are checked, named or not."""
_DETAIL_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class PlacementDebt:
    """A ledger with copies in places forbidden by the policy."""

    ledger_id: LedgerId
    since_ms: int
    """Time of the first such placement, epoch milliseconds."""
    first_entry_ids: tuple[EntryId, ...] = ()
    """First entries of the fragments, ascending."""
    detail: str = ""
    """The rule broken by the last placement."""
    last_ms: int = 0
    """Time of the last such placement, epoch milliseconds; 0 in a record of an earlier version."""


class PlacementDebts:
    """Debts of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("debts", ledgers_root)

    async def add(self, debt: PlacementDebt) -> bool:
        """Record a debt, or add its fragments to the ledger's debt. Idempotent.

        False if there are too many debts and the ledger has none. A recorded debt is always updated: a search that has
        read it before must not end it (``end_if_unchanged``).

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; adding it again is safe.
        """
        path = self.path(debt.ledger_id)
        if await self.count() >= DEBTS_MAX and await self._store.stat(path) is None:
            return False

        def added(data: bytes | None) -> bytes:
            before = None if data is None else _decode(debt.ledger_id, data)
            firsts = {*debt.first_entry_ids, *(() if before is None else before.first_entry_ids)}
            merged = replace(
                debt,
                since_ms=debt.since_ms if before is None else min(debt.since_ms, before.since_ms),
                first_entry_ids=tuple(sorted(firsts)[:FRAGMENTS_MAX]),
                detail=debt.detail[:_DETAIL_MAX],
                last_ms=debt.since_ms,
            )
            return encode_record(merged, without=["ledger_id"])

        await change(self._store, path, added)
        return True

    async def list(self) -> builtins.list[PlacementDebt]:
        """Return every debt, by ledger id; yields to the event loop between parts of a long list.

        An unreadable record is a debt of unknown age: its ledger is checked as well.

        Raises:
            StoreUnavailableError: no answer.
        """
        found: builtins.list[PlacementDebt] = []
        ids = await sorted_ids(await child_names(self._store, self._parent))
        async for part in in_steps(ids, READS_PER_BATCH):
            nodes = await self._store.get_many_data([self.path(ledger_id) for ledger_id in part])
            for ledger_id, data in zip(part, nodes, strict=True):
                if data is not None:
                    found.append(_listed(ledger_id, data))
        return found

    async def read(self, ledger_id: LedgerId) -> PlacementDebt | None:
        """Return the debt of a ledger, as in ``list``; None if it has none.

        Raises:
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self.path(ledger_id))
        return None if node is None else _listed(ledger_id, node.data)

    async def end_if_unchanged(self, debt: PlacementDebt) -> None:
        """Delete a debt returned by ``list`` or ``read``, unless a copy was placed since. Idempotent.

        A node with children remains.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; ending it again is safe.
        """
        path = self.path(debt.ledger_id)
        node = await find(self._store, path)
        if node is not None and _listed(debt.ledger_id, node.data) == debt:
            with contextlib.suppress(NoNodeError, BadVersionError, NotEmptyError):
                await self._store.delete(path, node.stat.version)

    async def count(self) -> int:
        """Return the number of debts, in one request.

        Raises:
            StoreUnavailableError: no answer.
        """
        stat = await self._store.stat(self._parent)
        return 0 if stat is None else stat.children_count

    def path(self, ledger_id: LedgerId) -> str:
        """Return the path of a ledger's debt."""
        return f"{self._parent}/{ledger_id}"


def _listed(ledger_id: LedgerId, data: bytes) -> PlacementDebt:
    return _decode(ledger_id, data) or PlacementDebt(ledger_id, 0)


def _decode(ledger_id: LedgerId, data: bytes) -> PlacementDebt | None:
    try:
        return decode_record(data, PlacementDebt, ledger_id=ledger_id)
    except UnreadableRecordError as error:
        _log.warning("placement debt cannot be read", extra={"ledger_id": ledger_id, "error": str(error)})
        return None
