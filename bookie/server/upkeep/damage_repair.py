"""The replacement of damaged entries by copies from other bookies.

The invariant: an entry is replaced only by bytes that another member of its write set has served and that match the
digest of the ledger, and only if the end of the ledger is final and not before the entry. So the stored entry is the
one that was acknowledged (S3, S10), and no repair decides where a ledger ends. The bytes go through the same admission,
journal and sync as a copy requested by a worker (``bookie.server.copying``). Entries without a replacement stay
CORRUPT, which is never "absent" (S6).

Source: docs/failure-model.md#R103; S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.model.digest import digest_key, master_key
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, LedgerMetadata
from bookie.storage.scrubbing import DamagedCopy
from bookie.wire.handler import BookieHandler
from bookie.wire.port import Status
from bookie.wire.requests import Copy

_log = logging.getLogger(__name__)

_METADATA_TIMEOUT_S: Final = 10.0
"""Deadline for reading the metadata of a ledger."""
_NO_SOURCE: Final = (
    "the ledger is not closed, has no other copy, or should not have the entry here, or its digest cannot be verified"
)


def sources_of(metadata: LedgerMetadata, bookie: BookieId, entry_id: EntryId) -> tuple[BookieId, ...]:
    """Return the other bookies that should have an entry of ``bookie``, in read order; empty if none may be used.

    None may be used if the ledger is not closed or ends before the entry, if ``bookie`` need not have the entry, or if
    the ledger's digest verifies nothing or its key is not known.
    """
    last = metadata.last_entry_id
    if not metadata.is_closed or last is None or entry_id > last or entry_id < metadata.fragments[0].first_entry_id:
        return ()
    if metadata.password is None or metadata.digest_type in (None, DigestType.DUMMY):
        return ()
    members = metadata.fragments[metadata.fragment_index(entry_id)].members
    holders = [members[position] for position in metadata.stripe.write_set(entry_id)]
    return tuple(holder for holder in holders if holder != bookie) if bookie in holders else ()


class DamageRepair:
    """Replaces damaged entries of one bookie."""

    def __init__(self, ledgers: LedgerStore, handler: BookieHandler, bookie: BookieId, incarnation: str) -> None:
        """Store the arguments.

        Args:
            ledgers: the metadata of the cluster.
            handler: this bookie itself, which makes the copies.
            bookie: the id of this bookie.
            incarnation: the incarnation of its disks.
        """
        self._ledgers = ledgers
        self._handler = handler
        self._bookie = bookie
        self._incarnation = incarnation

    async def repair(self, damaged: Sequence[DamagedCopy]) -> int:
        """Replace entries by copies from other bookies, and return their number. All others are unchanged.

        The deadline for each source is that of a copy. No error is raised for an entry without a replacement.

        Args:
            damaged: the entries ordered by ledger, as a scrub finds them.
        """
        replaced = 0
        for ledger_id, found in groupby(damaged, lambda each: each.ledger_id):
            entry_ids = [each.entry_id for each in found]
            metadata = await self._metadata(ledger_id)
            if metadata is not None:
                replaced += await self._replace_all(ledger_id, metadata, entry_ids)
        return replaced

    async def _replace_all(self, ledger_id: LedgerId, metadata: LedgerMetadata, entry_ids: Sequence[EntryId]) -> int:
        """Replace entries of one ledger, and return their number; log the reason for the first of the others."""
        left: list[tuple[EntryId, Sequence[str]]] = []
        for entry_id in entry_ids:
            refusals = await self._replace(ledger_id, metadata, entry_id)
            if refusals is not None:
                left.append((entry_id, refusals))
        if left:
            entry_id, refusals = left[0]
            _log.warning(
                "damaged entries not replaced",
                extra={
                    "bookie_id": self._bookie,
                    "ledger_id": ledger_id,
                    "entries": len(left),
                    "first_entry_id": entry_id,
                    "error": "; ".join(refusals) or _NO_SOURCE,
                },
            )
        return len(entry_ids) - len(left)

    async def _metadata(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        try:
            async with asyncio.timeout(_METADATA_TIMEOUT_S):
                return (await self._ledgers.read(ledger_id)).metadata
        except (BkhealError, TimeoutError) as error:  # deleted, unreadable, or no answer
            _log.warning(
                "damaged entries not replaced",
                extra={"bookie_id": self._bookie, "ledger_id": ledger_id, "error": str(error) or "no answer in time"},
            )
            return None

    async def _replace(self, ledger_id: LedgerId, metadata: LedgerMetadata, entry_id: EntryId) -> Sequence[str] | None:
        """Replace one entry. Return None if this succeeded, else why each source has no copy, or none may be used."""
        refusals: list[str] = []
        for source in sources_of(metadata, self._bookie, entry_id):
            refusal = await self._try_copy(ledger_id, metadata, entry_id, source)
            if refusal is None:
                _log.warning(
                    "damaged entry replaced",
                    extra={
                        "bookie_id": self._bookie,
                        "ledger_id": ledger_id,
                        "entry_id": entry_id,
                        "source": source,
                    },
                )
                return None
            refusals.append(f"{source}: {refusal}")
        return refusals

    async def _try_copy(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, entry_id: EntryId, source: BookieId
    ) -> str | None:
        """Copy one entry from a source. Return None if this succeeded, else why it did not."""
        assert metadata.password is not None
        assert metadata.digest_type is not None
        copy = Copy(
            ledger_id,
            [entry_id],
            source,
            master_key(metadata.password),
            metadata.digest_type,
            digest_key(metadata.digest_type, metadata.password),
            self._incarnation,
        )
        reply = await self._handler.answer(self._incarnation, copy)
        if reply.status is not Status.OK:
            return f"this bookie does not store the copy: {_shown(reply.status, reply.detail)}"
        if reply.refusals:
            return _shown(reply.refusals[0].status, reply.refusals[0].detail)
        return None if reply.covered == 1 else _shown(reply.source, reply.source_detail)


def _shown(status: Status, detail: str) -> str:
    return f"{status.name} ({detail})" if detail else status.name
