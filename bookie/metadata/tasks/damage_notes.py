"""Members of unclosed ledgers that served no good copy of an entry.

If a worker finds such a member of a closed ledger, it adds the member to the task. It must not do this with a member of
an unclosed ledger, because a recovery would then no longer accept denials from this member (R91). So it records the
member here, before it sends the entry to a target. After the ledger is closed, an audit marks it with these members,
and a worker requests all of their entries from them.

The only effect of a lost record is that the damage is no longer known. So it is safe to keep at most ``NOTES_MAX``
records.

Source: R41 and R140, docs/failure-model.md#R140.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.nodes import change, child_names, ledger_ids
from bookie.metadata.own_state import own_path
from bookie.metadata.port import BadVersionError, MetadataStore, NoNodeError, NotEmptyError
from bookie.model.ids import BookieId, LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_log = logging.getLogger(__name__)

NOTES_MAX: Final = 10_000
"""Maximum number of ledgers with a record: each audit that marks reads all of them. Further ones are not recorded."""


@dataclass(frozen=True, slots=True)
class _Record:
    members: frozenset[BookieId]


@dataclass(frozen=True, slots=True)
class DamageNote:
    """The record of one ledger."""

    ledger_id: LedgerId
    members: frozenset[BookieId] | None
    """None: the record is damaged, so it may name any member."""
    version: int


class DamageNotes:
    """The records of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("damage", ledgers_root)

    async def add(self, ledger_id: LedgerId, members: Collection[BookieId]) -> bool:
        """Add members to the record of an unclosed ledger; return False if there are too many records.

        A damaged record is left as it is.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; adding again is safe.
        """
        path = self.path(ledger_id)
        if await self._store.stat(path) is None:
            parent = await self._store.stat(self._parent)
            if parent is not None and parent.children_count >= NOTES_MAX:
                return False

        def with_members(data: bytes | None) -> bytes | None:
            known = frozenset() if data is None else _decode(path, data)
            return None if known is None else encode_record(_Record(known.union(members)))

        await change(self._store, path, with_members)
        return True

    async def all(self) -> Sequence[DamageNote]:
        """Return the records, by ledger id.

        Raises:
            StoreUnavailableError: no answer.
        """
        ids = sorted(ledger_ids(await child_names(self._store, self._parent)))
        nodes = await self._store.get_many([self.path(ledger_id) for ledger_id in ids])
        return [
            DamageNote(ledger_id, _decode(self.path(ledger_id), node.data), node.stat.version)
            for ledger_id, node in zip(ids, nodes, strict=True)
            if node is not None
        ]

    async def remove(self, note: DamageNote) -> None:
        """Delete a record, unless it was changed since it was read, or its node has children. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; removing it again is safe.
        """
        try:
            await self._store.delete(self.path(note.ledger_id), note.version)
        except (NoNodeError, BadVersionError, NotEmptyError) as error:
            _log.info("record of damage is not deleted", extra={"ledger_id": note.ledger_id, "reason": str(error)})

    def path(self, ledger_id: LedgerId) -> str:
        """Return the path of a ledger's record."""
        return f"{self._parent}/{ledger_id}"


def _decode(path: str, data: bytes) -> frozenset[BookieId] | None:
    try:
        return decode_record(data, _Record).members
    except UnreadableRecordError as error:
        _log.warning("record of damage cannot be decoded", extra={"path": path, "error": str(error)})
        return None
