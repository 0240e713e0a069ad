"""The accepted losses: whether they are still valid, and the bookies that nothing else names. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode
from bookie.metadata.tasks.decisions import Decision
from bookie.model.ids import BookieId
from spark_jobs.runs.marking.publish import Marking


@dataclass(frozen=True, slots=True)
class AcceptedLosses:
    """Accepted losses, divided into those still valid and those no longer valid."""

    standing: tuple[Decision, ...] = ()
    """None of their bookies is registered."""
    returned: tuple[Decision, ...] = ()
    """One of their bookies is registered again, so the ledger may have copies: the acceptance is no longer valid."""

    @property
    def bookies(self) -> frozenset[BookieId]:
        """The bookies of the losses that are still valid."""
        return frozenset(bookie for decision in self.standing for bookie in decision.bookies)

    def markings(self) -> Iterator[Marking]:
        """Yield each ledger with a returned bookie, with all bookies of its loss, which a worker then asks."""
        for decision in self.returned:
            yield decision.ledger_id, decision.bookies


def accepted_losses(decisions: Iterable[Decision], live: AbstractSet[BookieId]) -> AcceptedLosses:
    """Divide accepted losses by whether one of their bookies is registered."""
    standing: list[Decision] = []
    returned: list[Decision] = []
    for decision in decisions:
        (standing if decision.is_valid(live) else returned).append(decision)
    return AcceptedLosses(tuple(standing), tuple(returned))


def only_accepted(
    decisions: Sequence[Decision], found: Sequence[bytes | str | None], ledgers_by_bookie: Mapping[str, int]
) -> frozenset[BookieId]:
    """Return the bookies of which every copy that metadata names was accepted as lost.

    Args:
        decisions: accepted losses that are still valid.
        found: the metadata of each of their ledgers; other values than bytes: it could not be read.
        ledgers_by_bookie: the number of ledgers that name each bookie.
    """
    ledgers = Counter(bookie for members, accepted in _read(decisions, found) for bookie in accepted)
    return frozenset(bookie for bookie, count in ledgers.items() if ledgers_by_bookie.get(bookie) == count)


def given_up(decisions: Sequence[Decision], found: Sequence[bytes | str | None]) -> frozenset[BookieId]:
    """As ``only_accepted``, for bookies that no other ledgers name than those of ``decisions``."""
    named: Counter[str] = Counter(bookie for members, _ in _read(decisions, found) for bookie in members)
    return only_accepted(decisions, found, named)


def _read(
    decisions: Sequence[Decision], found: Sequence[bytes | str | None]
) -> Iterator[tuple[frozenset[BookieId], frozenset[BookieId]]]:
    """Yield the members of each readable ledger, and those of which every copy in it was accepted as lost."""
    for decision, data in zip(decisions, found, strict=True):
        if not isinstance(data, bytes):
            continue
        try:
            metadata = decode(data)
        except UnreadableMetadataError:
            continue
        named = {
            (fragment.first_entry_id, position, bookie)
            for fragment in metadata.fragments
            for position, bookie in enumerate(fragment.members)
        }
        members = frozenset(metadata.members())
        yield members, members - {bookie for _, _, bookie in named - decision.copies_in(metadata)}
