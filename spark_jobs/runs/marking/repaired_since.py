"""Leave out ledgers that were repaired since the first marks of a run (R146).

Replicators begin after the first marks. If the pass over all ledgers read a ledger before its repair, its finding is
stale. A second mark would cause useless requests of replicators, and alerts would count it. So the current metadata
decides: the ledger is left out if it was deleted, or if no ensemble names a bookie to be marked.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode
from bookie.model.ids import LedgerId
from spark_jobs.report.counts import PublishOutcome, PublishResult
from spark_jobs.runs.marking.limits import DueLedger
from spark_jobs.runs.marking.publish import BATCH, Marking


class CurrentMarks(Protocol):
    """The current marks and ledgers of a cluster."""

    def are_marked(self, batch: Sequence[Marking]) -> Sequence[bool]:
        """Return for each marking whether its ledger is marked with all of its bookies."""
        ...

    def ledger_data(self, ids: Sequence[LedgerId]) -> Sequence[bytes | str | None]:
        """Return the metadata of ledgers; None: it does not exist; a text: why it cannot be read."""
        ...


class UnrepairedMarkings:
    """The markings of a run without ledgers that it marked early, and that were repaired or deleted since."""

    def __init__(self, early: Container[LedgerId], cluster: CurrentMarks, batch_size: int = BATCH) -> None:
        """Prepare.

        Args:
            early: the ledgers that this run has already marked.
            cluster: reads the current marks and ledgers.
            batch_size: number of ledgers read at a time.
        """
        self._early = early
        self._cluster = cluster
        self._batch_size = batch_size
        self.skipped = 0
        """Number of ledgers left out so far."""

    def of(self, markings: Iterable[Marking]) -> Iterator[Marking]:
        """Yield ``markings`` in order, without the repaired ledgers.

        The marks of the early ledgers are read. Their metadata is read only if the mark is missing.

        Raises:
            StoreUnavailableError: marks or ledgers cannot be read.
        """
        remaining = iter(markings)
        while batch := tuple(islice(remaining, self._batch_size)):
            done = _repaired([marking for marking in batch if marking[0] in self._early], self._cluster)
            self.skipped += len(done)
            yield from (marking for marking in batch if marking[0] not in done)


def unrepaired(ledgers: Iterable[DueLedger], cluster: CurrentMarks, batch_size: int = BATCH) -> Iterator[DueLedger]:
    """Yield ledgers in order, without those that were repaired or deleted since they were found.

    Raises:
        StoreUnavailableError: marks or ledgers cannot be read.
    """
    remaining = iter(ledgers)
    while batch := tuple(islice(remaining, batch_size)):
        done = _repaired([marking for marking, _ in batch], cluster)
        yield from (each for each in batch if each[0][0] not in done)


def with_early_marks(published: PublishResult, skipped: int) -> PublishResult:
    """Count the ledgers that were marked early and then skipped: this run has marked them as well. Pure."""
    is_any = skipped > 0 and published.outcome is PublishOutcome.NOTHING_TO_PUBLISH
    outcome = PublishOutcome.PUBLISHED if is_any else published.outcome
    return replace(published, outcome=outcome, ledgers=published.ledgers + skipped)


def _repaired(marked: Sequence[Marking], cluster: CurrentMarks) -> set[LedgerId]:
    if not marked:
        return set()
    are_marked = cluster.are_marked(marked)
    unmarked = [marking for marking, is_marked in zip(marked, are_marked, strict=True) if not is_marked]
    if not unmarked:
        return set()
    found = cluster.ledger_data([ledger_id for ledger_id, _ in unmarked])
    return {marking[0] for marking, data in zip(unmarked, found, strict=True) if _names_no_missing(data, marking)}


def _names_no_missing(data: bytes | str | None, marking: Marking) -> bool:
    if data is None:
        return True
    if isinstance(data, str):
        return False
    try:
        return decode(data).members().isdisjoint(marking[1])
    except UnreadableMetadataError:
        return False
