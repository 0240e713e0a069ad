"""The final fragments of a recovery: kept in memory, and stored only by the change that closes the ledger (pure).

The reason (docs/failure-model.md#recovery-rules): another recovery, or a repetition of this one, reads from the last
ensemble in the metadata. If the metadata named a replacement before the ledger is closed, the new bookie would
truthfully answer "never stored" for existing entries, and the tail would be cut off.
"""

from __future__ import annotations

from dataclasses import replace

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import Fragment, LedgerMetadata


class LedgerTail:
    """The last fragment as it was when the recovery began, and the fragments that replace it."""

    def __init__(self, ledger: Versioned) -> None:
        self.began = ledger
        self._fragments = [ledger.metadata.last_fragment]

    @property
    def members(self) -> tuple[BookieId, ...]:
        """The bookies for the entries added from now on."""
        return self._fragments[-1].members

    @property
    def is_changed(self) -> bool:
        """Whether some bookie was replaced."""
        return self._fragments != [self.began.metadata.last_fragment]

    @property
    def spares(self) -> frozenset[BookieId]:
        """Bookies that only the closing change names."""
        named = self.began.metadata.members()
        return frozenset(member for fragment in self._fragments for member in fragment.members if member not in named)

    def replace_member(self, first: EntryId, position: int, bookie: BookieId) -> None:
        """Assign ``position`` to ``bookie`` from entry ``first`` on; earlier entries stay where they are."""
        last = self._fragments[-1]
        assert first >= last.first_entry_id, f"a change at {first}, below the fragment that begins at {last}"
        members = (*last.members[:position], bookie, *last.members[position + 1 :])
        if last.first_entry_id == first:
            self._fragments.pop()
        self._fragments.append(Fragment(first, members))

    def closed(self, metadata: LedgerMetadata, last_entry_id: EntryId, length: int) -> LedgerMetadata | None:
        """Return ``metadata`` with this tail, closed; None if its last fragment changed after the recovery began.

        Older fragments are taken from ``metadata``: a repair may have changed them.
        """
        if metadata.last_fragment != self.began.metadata.last_fragment:
            return None
        return replace(metadata, fragments=(*metadata.fragments[:-1], *self._fragments)).closed(last_entry_id, length)
