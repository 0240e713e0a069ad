"""The data of ledgers on certain bookies, by metadata."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.tasks.decisions import Copies
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.ownership import Component, owner_of

TOPICS_SHOWN_MAX: Final = 1000
"""Largest number of topics in a status."""


@dataclass(slots=True)
class HeldLedgers:
    """The data of many ledgers on certain bookies."""

    ledgers: dict[LedgerId, tuple[BookieId, ...]] = field(default_factory=dict)
    """The ledgers on these bookies, each with those of the bookies that it names."""
    unclosed: set[LedgerId] = field(default_factory=set)
    open_topics: set[str] = field(default_factory=set)
    """The Pulsar topics of the unclosed ledgers."""
    fragments: int = 0
    bytes: int = 0
    """Payload of closed ledgers, by the average size of each ledger's entries; that of unclosed ledgers is unknown."""
    named: set[BookieId] = field(default_factory=set)
    """Those of the bookies that any ledger names, including the ledgers in ``accepted``."""
    accepted: set[LedgerId] = field(default_factory=set)
    """Ledgers with accepted losses of all their copies on these bookies; the other fields do not count them."""

    def add(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        bookies: AbstractSet[BookieId],
        accepted: Copies = frozenset(),
    ) -> None:
        """Count the data of one ledger on ``bookies``, except on bookies with an ``accepted`` loss of all copies."""
        named = metadata.members() & bookies
        if not named:
            return
        self.named |= named
        if accepted:
            named = frozenset(
                member
                for fragment in metadata.fragments
                for position, member in enumerate(fragment.members)
                if member in named and (fragment.first_entry_id, position, member) not in accepted
            )
        if not named:
            self.accepted.add(ledger_id)
            return
        self.ledgers[ledger_id] = tuple(sorted(named))
        self.fragments += sum(not named.isdisjoint(fragment.members) for fragment in metadata.fragments)
        if metadata.is_closed:
            self.bytes += _bytes_on(metadata, named)
        else:
            self.unclosed.add(ledger_id)
            if topic := unloadable_topic(metadata):
                self.open_topics.add(topic)


def unloadable_topic(metadata: LedgerMetadata) -> str:
    """Return the full name of the topic whose unloading closes this ledger; empty if the ledger names none.

    Unloading does not close ledgers of schemas.
    """
    owner = owner_of(metadata.custom)
    if owner is None or owner.topic is None or owner.component is Component.SCHEMA:
        return ""
    return owner.topic.name


def _bytes_on(metadata: LedgerMetadata, bookies: AbstractSet[BookieId]) -> int:
    if not metadata.length or metadata.last_entry_id is None or metadata.last_entry_id < 0:
        return 0
    entries = 0
    for index, fragment in enumerate(metadata.fragments):
        last = metadata.fragment_last_entry_id(index)
        if last is None:
            continue
        last = min(last, metadata.last_entry_id)
        if last < fragment.first_entry_id:
            continue
        for position, member in enumerate(fragment.members):
            if member in bookies:
                entries += metadata.stripe.count(position, fragment.first_entry_id, last)
    return round(metadata.length / (metadata.last_entry_id + 1) * entries)
