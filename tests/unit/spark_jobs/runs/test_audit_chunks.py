"""The chunks of a long check, their sums, and the sample: pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind
from bookie.model.severity import Severity
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.report.counts import FindingSums, PublishOutcome, PublishResult, SeverityCount, WorstLedger
from spark_jobs.runs.chunks import chunks, is_sampled, nodes_in_range
from spark_jobs.runs.outcome import FindingTotals
from spark_jobs.runs.reading.completeness import ScanTotals

CLUSTER = Cluster("/ledgers", LayoutKind.HIERARCHICAL, "id")


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 50))
def test_every_node_is_in_one_chunk_and_only_single_nodes_exceed_the_limit(sizes: list[int], largest: int) -> None:
    plan = [LeafParent(f"/n{index}", size) for index, size in enumerate(sizes)]
    groups = list(chunks(plan, largest))
    assert [parent for group in groups for parent in group] == plan
    assert all(sum(parent.planned for parent in group) <= largest or len(group) == 1 for group in groups)


def test_nodes_outside_of_the_range_are_left_out() -> None:
    plan = [LeafParent(f"/ledgers/00/{middle:04d}", 1) for middle in range(4)]
    kept = nodes_in_range(plan, CLUSTER, 10_000, 29_999)
    assert [parent.path for parent in kept] == ["/ledgers/00/0001", "/ledgers/00/0002"]
    assert nodes_in_range(plan, CLUSTER, 19_999, 20_000) == tuple(plan[1:3])


def test_a_sample_depends_only_on_ids_and_seed() -> None:
    ids = range(20_000)
    first = [ledger_id for ledger_id in ids if is_sampled(ledger_id, 7, 0.01)]
    assert first == [ledger_id for ledger_id in ids if is_sampled(ledger_id, 7, 0.01)]
    assert first != [ledger_id for ledger_id in ids if is_sampled(ledger_id, 8, 0.01)]
    assert 150 <= len(first) <= 250
    assert set(first) <= {ledger_id for ledger_id in ids if is_sampled(ledger_id, 7, 0.02)}
    assert all(is_sampled(ledger_id, 7, 1.0) for ledger_id in ids)


def totals(ledgers: int, path: str) -> ScanTotals:
    return ScanTotals(ledgers, ledgers, 0, 0, 0, 0, 0, 0, ledgers, {path: (ledgers,)}, {"a": ledgers}, {"a": ledgers})


def test_the_results_of_chunks_are_summed() -> None:
    gathering = FindingTotals(worst_max=2)
    critical = SeverityCount(Severity.CRITICAL, 1, 2, 10)
    lost = SeverityCount(Severity.LOST, 1, 1, 5)
    gathering.add(
        totals(3, "/1"),
        FindingSums((critical,), {"a": (1, 2)}),
        [WorstLedger(number, Severity.CRITICAL, 1, number, ("a",)) for number in (1, 2)],
        PublishResult(PublishOutcome.PUBLISHED, 1, 1),
    )
    gathering.add(
        totals(4, "/2"),
        FindingSums((lost, critical), {"a": (1, 1), "b": (1, 1)}),
        [WorstLedger(3, Severity.LOST, 1, 0, ("b",))],
        PublishResult(PublishOutcome.DISABLED),
    )
    assert (gathering.totals.ledgers, gathering.totals.listed) == (7, {"/1": (3,), "/2": (4,)})
    assert gathering.sums.severities == (lost, SeverityCount(Severity.CRITICAL, 2, 4, 20))
    assert gathering.sums.by_bookie == {"a": (2, 3), "b": (1, 1)}
    assert [ledger.ledger_id for ledger in gathering.worst] == [3, 2]
    assert gathering.published == PublishResult(PublishOutcome.DISABLED, 1, 1)
