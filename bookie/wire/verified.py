"""The verification of entries in a bookie's answer: each may be copied (S10), or is damaged.

Both kinds of copying use it: by a worker, and by a bookie on request.
"""

from __future__ import annotations

from dataclasses import replace

from bookie.model.digest import Digest
from bookie.model.ids import EntryId, LedgerId
from bookie.model.packet import damage_of
from bookie.wire.port import EntryResult, Status


def verified(digest: Digest, ledger_id: LedgerId, entry_id: EntryId, result: EntryResult) -> EntryResult:
    """Return the result of reading an entry; CORRUPT, with the reason, if its bytes are damaged."""
    if result.status is not Status.OK:
        return result
    damage = damage_of(digest, result.packet, ledger_id, entry_id)
    return result if damage is None else replace(result, status=Status.CORRUPT, packet=b"", detail=damage)
