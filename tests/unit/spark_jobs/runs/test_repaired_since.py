"""Ledgers that were marked early and repaired before the pass over all ledgers could mark them again: pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from bookie.metadata.ledgers.serde import encode
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from spark_jobs.report.counts import PublishOutcome, PublishResult
from spark_jobs.runs.marking.publish import Marking
from spark_jobs.runs.marking.repaired_since import UnrepairedMarkings, with_early_marks

LOST = BookieId("lost")


def on(*bookies: str) -> bytes:
    members = tuple(map(BookieId, bookies))
    return encode(LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), members),)).closed(EntryId(9), 100))


class Cluster:
    """Marks and ledgers; counts the ledgers that are read."""

    def __init__(self, ledgers: Mapping[int, bytes | str], marked: Collection[int] = ()) -> None:
        self.ledgers = ledgers
        self.marked = marked
        self.read = 0

    def are_marked(self, batch: Sequence[Marking]) -> Sequence[bool]:
        return [ledger_id in self.marked for ledger_id, _ in batch]

    def ledger_data(self, ids: Sequence[LedgerId]) -> Sequence[bytes | str | None]:
        self.read += len(ids)
        return [self.ledgers.get(ledger_id) for ledger_id in ids]


def left(cluster: Cluster, early: Collection[LedgerId], ids: Sequence[int], batch_size: int = 2) -> list[int]:
    unrepaired = UnrepairedMarkings(early, cluster, batch_size)
    found: list[int] = [
        ledger_id for ledger_id, _ in unrepaired.of((LedgerId(ledger_id), (LOST,)) for ledger_id in ids)
    ]
    assert unrepaired.skipped == len(ids) - len(found)
    return found


@pytest.mark.parametrize(
    ("data", "is_left"),
    [
        (on("a", "b"), False),
        (None, False),
        (on("a", "lost"), True),
        (b"damaged", True),
        ("its node is unreadable", True),
    ],
    ids=["repaired", "deleted", "mark deleted", "damaged", "unreadable"],
)
def test_a_ledger_that_lost_its_early_mark_is_judged_by_its_current_metadata(
    data: bytes | str | None, is_left: bool
) -> None:
    cluster = Cluster({} if data is None else {7: data})
    assert left(cluster, {LedgerId(7)}, [7]) == ([7] if is_left else [])


def test_the_order_stays_and_other_ledgers_are_not_read() -> None:
    cluster = Cluster(dict.fromkeys(range(1, 8), on("a", "b")), marked={2, 4})
    assert left(cluster, set(map(LedgerId, (2, 3, 4, 7))), [5, 4, 3, 2, 1, 7, 6]) == [5, 4, 2, 1, 6]
    assert cluster.read == 2


@pytest.mark.parametrize(
    ("outcome", "skipped", "counted"),
    [
        (PublishOutcome.NOTHING_TO_PUBLISH, 3, PublishOutcome.PUBLISHED),
        (PublishOutcome.NOTHING_TO_PUBLISH, 0, PublishOutcome.NOTHING_TO_PUBLISH),
        (PublishOutcome.PUBLISHED, 3, PublishOutcome.PUBLISHED),
        (PublishOutcome.INTERRUPTED, 3, PublishOutcome.INTERRUPTED),
    ],
)
def test_skipped_ledgers_count_as_marked_by_the_run(
    outcome: PublishOutcome, skipped: int, counted: PublishOutcome
) -> None:
    published = with_early_marks(PublishResult(outcome, 2, 5), skipped)
    assert (published.outcome, published.ledgers, published.tasks_changed) == (counted, 2 + skipped, 5)
