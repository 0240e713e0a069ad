"""The accepted losses, divided by whether they are still valid. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

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
