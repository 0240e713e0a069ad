"""The severity of a fragment: surviving copies per write set, and the resulting level.

A copy survives if its bookie is registered, writable or read-only (safety rule S8); only the replica check asks the
bookie itself. The Spark pipeline computes the same in SQL; a property test checks that both give the same result.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass

from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerMetadata
from bookie.model.schedule import Stripe


class Severity(enum.IntEnum):
    """Levels in the order of repair: smaller is worse. A healthy fragment has no level."""

    LOST = 0
    """Every holder answered "no such entry", or an operator accepted the loss."""
    NO_LIVE_COPY = 1
    """Some entry is on no registered bookie, but a holder may return."""
    CRITICAL = 2
    """Some entry has only one copy left of several."""
    BELOW_ACK_QUORUM = 3
    BELOW_WRITE_QUORUM = 4
    METADATA_ONLY = 5
    """The metadata names an unregistered bookie, but this bookie stores no entry of the fragment."""
    MISPLACED = 6
    DRAIN = 7
    """The metadata names a draining bookie; it serves its copies until they are elsewhere."""

    @property
    def label(self) -> str:
        """The name in documents, metrics and texts, such as ``no_live_copy``."""
        return self.name.lower()

    @classmethod
    def of_label(cls, label: str) -> Severity:
        """Return the level for a name in a document; earlier releases wrote names in upper case.

        Raises:
            KeyError: there is no such level.
        """
        return cls[label.upper()]


@dataclass(frozen=True, slots=True)
class FragmentHealth:
    """The verdict on one fragment."""

    missing_positions: tuple[int, ...]
    """Ensemble positions with an unregistered or draining bookie, ascending."""
    copies_min: int
    """Number of copies of the entry with the fewest copies; the write quorum for a fragment without entries. A bookie
    that is named twice has one copy."""
    severity: Severity | None
    """None for a healthy fragment."""


def health_of(
    metadata: LedgerMetadata, index: int, live: Container[BookieId], draining: Container[BookieId] = frozenset()
) -> FragmentHealth:
    """Judge the fragment with this index; ``live`` contains the registered bookies, ``draining`` the draining ones."""
    fragment = metadata.fragments[index]
    return fragment_health(
        [member in live for member in fragment.members],
        metadata.write_quorum,
        metadata.ack_quorum,
        fragment.first_entry_id,
        metadata.fragment_last_entry_id(index),
        [member in draining for member in fragment.members],
        members=fragment.members,
    )


def fragment_health(
    is_live: Sequence[bool],
    write_quorum: int,
    ack_quorum: int,
    first_entry_id: int,
    last_entry_id: int | None,
    is_draining: Sequence[bool] = (),
    *,
    members: Sequence[Hashable] = (),
) -> FragmentHealth:
    """Judge a fragment by the registrations of its members.

    Args:
        is_live: per ensemble position, whether its bookie is registered.
        write_quorum: Qw.
        ack_quorum: Qa.
        first_entry_id: first entry of the fragment, inclusive.
        last_entry_id: last entry, inclusive; below the first for an empty fragment; None if unknown.
        is_draining: per ensemble position, whether its bookie is draining; empty if none is. Copies on a draining
            bookie count while it is registered.
        members: per ensemble position, its bookie; empty if all are different.
    """
    stripe = Stripe(len(is_live), write_quorum)
    has_duplicates = len(set(members)) < len(members)
    leaving = is_draining or (False,) * len(is_live)
    missing = tuple(position for position, live in enumerate(is_live) if not live or leaving[position])
    copies_min = min(
        (
            len({members[position] for position in stripe.write_set(start) if is_live[position]})
            if has_duplicates
            else sum(is_live[position] for position in stripe.write_set(start))
            for start in stripe.starts(first_entry_id, last_entry_id)
        ),
        default=write_quorum,
    )
    return FragmentHealth(
        missing, copies_min, _level(bool(missing), all(is_live), copies_min, write_quorum, ack_quorum)
    )


def bytes_to_copy(metadata: LedgerMetadata, index: int, positions: int, severity: Severity | None) -> float:
    """Estimate the payload bytes on missing positions of a fragment, by the mean size of the ledger's entries.

    Each position stores about Qw/E of the entries. The result is 0 if the size is unknown, as in an open ledger, and if
    the positions store no entry.

    Args:
        metadata: of the ledger.
        index: of the fragment.
        positions: number of missing positions.
        severity: of the fragment without these positions.
    """
    end, last, length = metadata.last_entry_id, metadata.fragment_last_entry_id(index), metadata.length
    if severity is Severity.METADATA_ONLY or end is None or last is None or length is None or end < 0:
        return 0.0
    entries = max(0, min(last, end) - metadata.fragments[index].first_entry_id + 1)
    return length / (end + 1) * entries * positions * metadata.write_quorum / metadata.ensemble_size


def _level(
    is_missing_any: bool, are_all_live: bool, copies_min: int, write_quorum: int, ack_quorum: int
) -> Severity | None:
    if not is_missing_any:
        return None
    if are_all_live:
        return Severity.DRAIN
    if copies_min >= write_quorum:
        return Severity.METADATA_ONLY
    if copies_min == 0:
        return Severity.NO_LIVE_COPY
    if copies_min == 1:
        return Severity.CRITICAL
    return Severity.BELOW_ACK_QUORUM if copies_min < ack_quorum else Severity.BELOW_WRITE_QUORUM
