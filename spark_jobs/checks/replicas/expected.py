"""The settled entries that each bookie should hold according to a ledger's metadata. Pure.

Only fragments that can never change again count (S2, S19): all fragments of a closed ledger, and all but the last two
of any other ledger. The last fragment belongs to its writer, and the end of the previous one may not be confirmed yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata, LedgerState
from bookie.model.ownership import NO_OWNER, OwnerNames, owner_names, owner_of
from bookie.model.schedule import Stripe

_UNSETTLED_FRAGMENTS: Final = 2


@dataclass(frozen=True, slots=True)
class SettledFragment:
    """A fragment with entries that can never change again. Entry ids are inclusive."""

    index: int
    first: int
    last: int
    is_last: bool
    members: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class SettledLedger:
    """The settled part of a ledger."""

    ledger_id: LedgerId
    state: str
    write_quorum: int
    ack_quorum: int
    entry_bytes: float | None
    """Mean payload of an entry, bytes; None unless the ledger is closed."""
    fragments: tuple[SettledFragment, ...]
    owner: OwnerNames = NO_OWNER
    """The values of ``OWNER_COLUMNS``."""
    ctime_ms: int | None = None
    """The creation time in the metadata; None: it has none, or the ledger was made from a row."""

    @property
    def is_closed(self) -> bool:
        """Whether the whole ledger is settled."""
        return self.state == LedgerState.CLOSED.name

    def holders(self) -> list[BookieId]:
        """Return the bookies with expected entries, sorted."""
        return sorted({member for part in self.fragments for member in self._storing_members(part)})

    def expected(self, bookie: BookieId) -> int:
        """Return the number of copies the bookie should hold, summed over its positions."""
        return sum(
            self._stripe(part).count(position, part.first, part.last) for part, position in self._positions(bookie)
        )

    def is_whole(self, bookie: BookieId, held: EntryRuns) -> bool:
        """Return whether ``held`` has every entry expected on the bookie. Costs a step per run, not per entry."""
        for part, position in self._positions(bookie):
            stripe, where = self._stripe(part), (part.first, part.last)
            if stripe.held_count(position, held, *where) < stripe.count(position, *where):
                return False
        return True

    def sample(self, bookie: BookieId) -> list[EntryId]:
        """Return the first and the last entry of each position of the bookie, ascending (docs/formats.md#sampling)."""
        ends: set[EntryId] = set()
        for part, position in self._positions(bookie):
            stripe, where = self._stripe(part), (position, part.first, part.last)
            ends.update(entry for entry in (stripe.first_entry(*where), stripe.last_entry(*where)) if entry is not None)
        return sorted(ends)

    def all_entries_except(self, missing: Iterable[EntryId]) -> EntryRuns:
        """Return all entries of the settled part, on any bookie, except ``missing`` (ascending)."""
        runs: list[tuple[int, int]] = []
        gaps = iter([*missing, None])
        gap = next(gaps)
        for part in self.fragments:
            first = part.first
            while gap is not None and gap <= part.last:
                if first <= gap:
                    runs.append((first, gap - 1))
                    first = gap + 1
                gap = next(gaps)
            runs.append((first, part.last))
        return EntryRuns.of_runs(run for run in runs if run[0] <= run[1])

    def _stripe(self, part: SettledFragment) -> Stripe:
        return Stripe(len(part.members), self.write_quorum)

    def _positions(self, bookie: BookieId) -> Iterator[tuple[SettledFragment, int]]:
        for part in self.fragments:
            for position, member in enumerate(part.members):
                if member == bookie:
                    yield part, position

    def _storing_members(self, part: SettledFragment) -> Iterator[BookieId]:
        for position, member in enumerate(part.members):
            if self._stripe(part).count(position, part.first, part.last):
                yield member


def settled_row(row: Mapping[str, Any]) -> SettledLedger:
    """Return the settled part of a readable row of ``bk_ledgers``."""
    fragments = row["fragments"]
    parts = [(part["first_entry_id"], part["last_entry_id"], part["members"]) for part in fragments]
    return _settled(
        LedgerId(row["ledger_id"]),
        row["state"],
        (row["write_quorum"], row["ack_quorum"]),
        (row["last_entry_id"], row["length"]),
        parts,
        (row["tenant"], row["namespace"], row["topic"], row["component"], row["subscription"]),
    )


def settled_metadata(ledger_id: LedgerId, metadata: LedgerMetadata) -> SettledLedger:
    """Return the settled part of a ledger."""
    parts = [
        (part.first_entry_id, metadata.fragment_last_entry_id(index), part.members)
        for index, part in enumerate(metadata.fragments)
    ]
    ledger = _settled(
        ledger_id,
        metadata.state.name,
        (metadata.write_quorum, metadata.ack_quorum),
        (metadata.last_entry_id, metadata.length),
        parts,
        owner_names(owner_of(metadata.custom)),
    )
    return replace(ledger, ctime_ms=metadata.ctime_ms)


def _settled(
    ledger_id: LedgerId,
    state: str,
    quorums: tuple[int, int],
    end: tuple[int | None, int | None],
    parts: Sequence[tuple[int, int | None, Sequence[str]]],
    owner: OwnerNames,
) -> SettledLedger:
    last_entry, length = end
    is_closed = state == LedgerState.CLOSED.name
    count = len(parts) if is_closed else len(parts) - _UNSETTLED_FRAGMENTS
    fragments = []
    for index, (first, last, members) in enumerate(parts[: max(count, 0)]):
        if last is not None and last_entry is not None:
            last = min(last, last_entry)  # a fragment beyond the ledger's end has no entries
        if last is not None and last >= first:
            fragments.append(
                SettledFragment(index, first, last, index == len(parts) - 1, tuple(map(BookieId, members)))
            )
    has_size = last_entry is not None and last_entry >= 0 and length is not None
    entry_bytes = length / (last_entry + 1) if has_size and length is not None and last_entry is not None else None
    return SettledLedger(ledger_id, state, *quorums, entry_bytes, tuple(fragments), owner)
