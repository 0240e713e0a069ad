"""Judge a ledger by the answers of its bookies. Pure.

For each entry denied by some bookie, the other copies are counted. A bookie holds the entries in its list. A registered
bookie with an unknown answer counts as holding an entry (S6: unknown is never absent), and an unregistered one as a
copy that may return, as in the bookie check. A damaged copy, which the bookie leaves out of its list (R105), also
counts as one that may return, because its bytes may be read by other means. A bookie that the fragment names twice has
one copy. The severity is ``LOST`` only if every holder denies the entry (S13).

A finding is accepted if an operator accepted the loss of every entry with a missing copy, by its id, no bookie of the
entry lists it, and the record names each bookie that lacks it (R148). If one lists it, the entry is not lost, and the
missing copies can be made. A bookie that the record does not name got the entry from another program, and lost it.

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bookie.metadata.tasks.decisions import LostFragment
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from bookie.model.schedule import Stripe
from bookie.model.severity import Severity
from bookie.runtime.human import counted
from spark_jobs.checks.replicas.expected import SettledFragment, SettledLedger

_NAMED_MAX: Final = 10
BIGINT_MAX: Final = (1 << 63) - 1
"""The largest number that a table can hold. If the length of a ledger is damaged, the computed bytes can exceed it or
be negative; if its last entry is damaged, the computed entries can exceed it."""
_NOTHING: Final = EntryRuns(())
_NONE_ACCEPTED: Final = MappingProxyType[EntryId, LostFragment]({})


@dataclass(frozen=True, slots=True)
class Holdings:
    """One bookie's answer about a ledger."""

    entries: EntryRuns = _NOTHING
    """The listed entries."""
    is_sure: bool = False
    """Whether the bookie cannot serve any entry outside its list."""
    is_damaged: bool = False
    """Whether some entries outside its list are damaged rather than absent."""
    is_sampled: bool = False
    """Whether the list was concluded from a sample, so it is no proof that the bookie has an entry."""
    why: str = ""
    """The bookie's answer to the read of a damaged entry."""
    is_registered: bool = True


NOT_REGISTERED = Holdings(is_registered=False)


@dataclass(frozen=True, slots=True)
class FragmentFinding:
    """A fragment with missing entries on some bookie."""

    fragment: SettledFragment
    positions: tuple[int, ...]
    """Ensemble positions whose bookie lacks entries, ascending."""
    missing: tuple[BookieId, ...]
    """The bookies at these positions, each once."""
    copies_min: int
    """The smallest number of remaining copies of any entry that some bookie lacks."""
    severity: Severity
    absent: int
    """Number of missing copies."""
    bytes_estimate: int | None
    detail: str
    is_damaged: bool = False
    """Whether some of the copies are damaged rather than absent."""
    is_accepted: bool = False
    """Whether an operator accepted the loss of each of these entries, by its id."""


def findings(
    ledger: SettledLedger,
    holdings: Mapping[BookieId, Holdings],
    accepted: Mapping[EntryId, LostFragment] = _NONE_ACCEPTED,
) -> Iterator[FragmentFinding]:
    """Yield a finding for each fragment of which some bookie certainly lacks entries.

    Args:
        ledger: the expected entries.
        holdings: the answers of the bookies; a bookie without an answer here counts as not registered.
        accepted: the accepted losses that name the lost entries, by the first entry of their fragment.
    """
    for fragment in ledger.fragments:
        found = _Fragment(ledger, fragment, holdings, accepted.get(EntryId(fragment.first))).finding()
        if found is not None:
            yield found


@dataclass(frozen=True, slots=True)
class _Fragment:
    ledger: SettledLedger
    fragment: SettledFragment
    holdings: Mapping[BookieId, Holdings]
    accepted: LostFragment | None

    def finding(self) -> FragmentFinding | None:
        lacking = {position: count for position in range(self._size) if (count := self._absent(position))}
        if not lacking:
            return None
        members = self.fragment.members
        copies_min, severity = min(self._levels(lacking), key=lambda level: (level[1], level[0]))
        missing = tuple(dict.fromkeys(members[position] for position in lacking))
        absent = sum(lacking.values())
        size = self.ledger.entry_bytes
        return FragmentFinding(
            fragment=self.fragment,
            positions=tuple(lacking),
            missing=missing,
            copies_min=copies_min,
            severity=severity,
            absent=absent,
            bytes_estimate=None if size is None else max(0, min(round(size * absent), BIGINT_MAX)),
            detail="; ".join(self._detail(position, count) for position, count in list(lacking.items())[:_NAMED_MAX]),
            is_damaged=any(self._of(position).is_damaged for position in lacking),
            is_accepted=self.accepted is not None and self._is_accepted(lacking, self.accepted),
        )

    def _is_accepted(self, lacks: Collection[int], loss: LostFragment) -> bool:
        """Whether each entry that some bookie lacks is accepted as lost, and listed by no bookie of its write set.

        The record must also name each bookie that lacks entries.
        """
        members, accepted = self.fragment.members, loss.lost_entries
        if any(loss.bookie_at(position) != members[position] for position in lacks):
            return False
        lists = [self._of(each).entries for each in range(self._size) if self._lists(each)]
        absent = [self._of(position).entries for position in lacks]
        for first, last in self._stripe.uniform_ranges(
            [*lists, *absent, accepted], self.fragment.first, self.fragment.last
        ):
            for start in self._stripe.starts(first, last):
                where = self._stripe.write_set(start)
                is_lacked = any(each in lacks and first not in self._of(each).entries for each in where)
                is_listed = any(self._lists(each) and first in self.holdings[members[each]].entries for each in where)
                if is_lacked and (is_listed or first not in accepted):
                    return False
        return True

    def _lists(self, position: int) -> bool:
        """Whether the bookie gave a list, which proves that it has the listed entries."""
        holdings = self._of(position)
        return bool(holdings.entries) and not holdings.is_sampled

    @property
    def _size(self) -> int:
        return len(self.fragment.members)

    @property
    def _stripe(self) -> Stripe:
        return Stripe(self._size, self.ledger.write_quorum)

    def _of(self, position: int) -> Holdings:
        return self.holdings.get(self.fragment.members[position], NOT_REGISTERED)

    def _stored(self, position: int, first: int, last: int) -> int:
        return self._stripe.count(position, first, last)

    def _absent(self, position: int) -> int:
        """Return the number of entries of the position that its bookie certainly lacks."""
        holdings, where = self._of(position), (self.fragment.first, self.fragment.last)
        if not holdings.is_sure:
            return 0
        return self._stored(position, *where) - self._stripe.held_count(position, holdings.entries, *where)

    def _first_absent(self, position: int) -> int:
        """Return the first entry of the position that its bookie lacks; there must be one."""
        held, next_entry = self._of(position).entries, self.fragment.first
        for group in held.groups_within(self.fragment.first, self.fragment.last):
            where = (group.first, group.last)
            is_whole = self._stripe.held_count(position, held, *where) == self._stored(position, *where)
            for first, last in [where] if is_whole else group.runs():
                absent = self._stripe.first_entry(position, next_entry, first - 1)
                if absent is not None:
                    return absent
                next_entry = last + 1
        absent = self._stripe.first_entry(position, next_entry, self.fragment.last)
        assert absent is not None, f"position {position} lacks nothing"
        return absent

    def _levels(self, lacks: Collection[int]) -> Iterator[tuple[int, Severity]]:
        """Yield copies and severity of the entries that some bookie lacks, for each stretch with the same holders."""
        members = self.fragment.members
        has_duplicates = len(set(members)) < len(members)
        lists = [self.holdings[bookie].entries for bookie in dict.fromkeys(members[position] for position in lacks)]
        for first, last in self._stripe.uniform_ranges(lists, self.fragment.first, self.fragment.last):
            # A bookie with a sure answer that lacks nothing has all entries of its position.
            listed = [
                first in self._of(position).entries if position in lacks else self._of(position).is_sure
                for position in range(self._size)
            ]
            for start in self._stripe.starts(first, last):
                where = self._stripe.write_set(start)
                lacking = [self._of(each) for each in where if not listed[each]]
                sure = [each for each in lacking if each.is_sure]
                if sure:
                    damaged = sum(each.is_damaged for each in sure)
                    away = sum(not each.is_registered for each in lacking)
                    copies = self.ledger.write_quorum - len(sure) - away
                    if has_duplicates:
                        copies = len({members[each] for each in where if listed[each] or self._may_hold(each)})
                    yield self._level(len(sure) - damaged, copies)

    def _may_hold(self, position: int) -> bool:
        """Whether the bookie counts as holding entries outside its list."""
        holdings = self._of(position)
        return holdings.is_registered and not holdings.is_sure

    def _level(self, absent: int, copies: int) -> tuple[int, Severity]:
        if absent == self.ledger.write_quorum:
            return 0, Severity.LOST
        if copies == 0:
            return 0, Severity.NO_LIVE_COPY
        if copies == 1:
            return 1, Severity.CRITICAL
        is_below_ack = copies < self.ledger.ack_quorum
        return copies, Severity.BELOW_ACK_QUORUM if is_below_ack else Severity.BELOW_WRITE_QUORUM

    def _detail(self, position: int, count: int) -> str:
        expected = self._stored(position, self.fragment.first, self.fragment.last)
        what = "has damaged copies of" if self._of(position).is_damaged else "lacks"
        first = self._first_absent(position)
        why = f" ({self._of(position).why})" if self._of(position).why else ""
        missing = f"{what} {count} of {counted(expected, 'entry')}"
        return f"{self.fragment.members[position]} {missing}, the first is {first}{why}"
