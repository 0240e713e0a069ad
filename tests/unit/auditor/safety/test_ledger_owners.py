"""Lists of ledgers show the owner of each ledger in Pulsar."""

from __future__ import annotations

import random
from dataclasses import replace

from auditor.operating.owners import owner_text, with_owners
from auditor.operating.stopping import reasons
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.model.ids import LedgerId
from bookie.model.ownership import OWNER_COLUMNS
from tests.worlds.cluster import formatted
from tests.worlds.ledgers import make_metadata

CUSTOM = (
    ("application", b"pulsar"),
    ("component", b"managed-ledger"),
    ("pulsar/managed-ledger", b"t/n/persistent/orders"),
    ("pulsar/cursor", b"billing"),
)


async def test_each_row_contains_the_owner_of_its_ledger() -> None:
    store = MemoryStore(MemoryCell())
    cluster = await formatted(store)
    ledgers = LedgerStore(store, cluster, random.Random(1))
    plain = make_metadata((0, "a b"), quorum=(2, 2), last=9)
    await ledgers.create_many([(LedgerId(1), replace(plain, custom=CUSTOM)), (LedgerId(2), plain)])
    rows = await with_owners(ledgers, [{"ledger_id": number, "kept": True} for number in (1, 2, 3)])
    assert [[row[name] for name in OWNER_COLUMNS] for row in rows] == [
        ["t", "t/n", "persistent://t/n/orders", "cursor", "billing"],
        [None] * 5,
        [None] * 5,
    ]
    assert all(row["kept"] for row in rows)
    assert [owner_text(row) for row in rows] == ["persistent://t/n/orders (cursor)", "-", "-"]
    assert await with_owners(ledgers, []) == []


def test_a_ledger_at_risk_is_listed_with_its_topic_and_without_control_characters() -> None:
    risk = {
        "ledger_id": 1,
        "fragment_first_entry_id": 0,
        "copies_left": 0,
        "copies_needed": 1,
        "growing": False,
        "topic": "persistent://t/n/\x1b[2J",
        "component": "managed-ledger",
    }
    verdict = {
        "not_registered": [],
        "ledgers_at_risk": 1,
        "worst": [risk],
        "placement_problems": [],
        "unreadable_ledgers": 0,
    }
    (_, line) = reasons(verdict)
    assert "persistent://t/n/" in line
    assert "\x1b" not in line
