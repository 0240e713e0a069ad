"""The rows of Pulsar's nodes: none is lost, and an unknown reference is never treated as absent."""

from __future__ import annotations

from typing import Any

import pytest

from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from spark_jobs.datasource import references
from spark_jobs.datasource.references import TopicShare, reference_batches
from spark_jobs.pacing.budget import TaskBudget
from spark_jobs.pacing.pace import Pace
from spark_jobs.pacing.paced_store import PacedStore
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import ROOT
from tests.worlds.pulsar_nodes import cursor, managed, put_node
from tests.worlds.virtual_time import in_virtual_time

TOPICS = "/managed-ledgers/t/n/persistent"
SHARE = TopicShare("", TOPICS.removeprefix("/"), 0, 1)
IN_LEDGER = b"\x08\x05"
"""The node of a subscription whose position is in ledger 5."""


async def batches(store: MemoryStore) -> list[list[dict[str, Any]]]:
    paced = PacedStore(store, Pace(VirtualClock(), TaskBudget()), ROOT)
    return [batch.to_pylist() async for batch in reference_batches(paced, [SHARE])]


@in_virtual_time
async def test_a_node_with_an_unknown_reference_has_a_row() -> None:
    store = MemoryStore(MemoryCell())
    await put_node(store, f"{TOPICS}/fine", managed(1, 2))
    await put_node(store, f"{TOPICS}/damaged", b"\xff")
    await put_node(store, f"{TOPICS}/denied", managed(3))
    store.cell.deny(f"{TOPICS}/denied")
    await put_node(store, f"{TOPICS}/empty", managed())
    await put_node(store, f"{TOPICS}/empty/__compaction", IN_LEDGER)
    await put_node(store, f"{TOPICS}/empty/sub", cursor())
    rows = {(row["name"].rpartition("/")[2], row["cursor"]): row for batch in await batches(store) for row in batch}
    assert set(rows) == {("fine", None), ("damaged", None), ("denied", None), ("empty", "__compaction")}
    for name in ("damaged", "denied"):
        row = rows[name, None]
        assert (bool(row["error"]), row["ledgers"], row["topic"]) == (True, [], f"persistent://t/n/{name}")
    position = rows["empty", "__compaction"]
    assert (position["position_in"], position["error"], position["topic"]) == (5, None, "persistent://t/n/empty")
    assert [each["ledger_id"] for each in rows["fine", None]["ledgers"]] == [1, 2]


@in_virtual_time
async def test_nodes_are_divided_into_batches_by_their_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "_ROWS_MAX", 6)
    store = MemoryStore(MemoryCell())
    for number in range(10):
        await put_node(store, f"{TOPICS}/topic-{number}", managed(3 * number, 3 * number + 1, 3 * number + 2))
    found = await batches(store)
    assert [len(batch) for batch in found if batch] == [2] * 5
    assert sorted(each["ledger_id"] for batch in found for row in batch for each in row["ledgers"]) == list(range(30))
