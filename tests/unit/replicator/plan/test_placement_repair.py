"""Repair follows the placement policy: the bookies that replicators choose for lost positions."""

from __future__ import annotations

import pytest

from bookie.client.placement.placement import Placement, PlacementPolicy
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.bookies.topology import parse_topology
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from replicator.plan.planner import Plan, plan_repair
from replicator.plan.steps import PositionKey
from replicator.plan.target_choice import target_chooser
from tests.worlds.ledgers import name_set, names

TOPOLOGY = parse_topology('{"a": "/r1", "b": "/r2", "c": "/r3", "x1": "/r1", "x2": "/r2", "x3": "/r3", "y1": "/r1"}')


def plan(ledger_id: int, members: str, writable: str, policy: PlacementPolicy) -> Plan:
    size = len(names(members))
    metadata = LedgerMetadata(size, size, size, (Fragment(EntryId(0), names(members)),)).closed(EntryId(9), 10)
    ledger = Versioned(LedgerId(ledger_id), metadata, 0)
    choose = target_chooser(ledger.ledger_id, metadata.write_quorum, Placement(policy, TOPOLOGY))
    return plan_repair(ledger, Bookies(name_set(writable), frozenset()), choose)


def test_a_started_target_in_the_wrong_rack_is_not_preferred() -> None:
    key = PositionKey(EntryId(0), 1, BookieId("b"))
    for begun, chosen in (("x1", "x2"), ("x2", "x2"), ("x3", "x3")):
        placement = Placement(PlacementPolicy(), TOPOLOGY)
        choose = target_chooser(LedgerId(1), 2, placement, {(EntryId(0), 1): BookieId(begun)})
        assert choose(key, names("a b"), names(f"x1 {chosen}")) == chosen


@pytest.mark.parametrize("ledger_id", range(10))
def test_lost_positions_get_bookies_in_the_missing_racks(ledger_id: int) -> None:
    result = plan(ledger_id, "a b c", "a x1 y1 x2 x3", PlacementPolicy(min_racks=3))
    assert sorted(step.target for step in result.steps) == ["x2", "x3"]


def test_chosen_targets_count_for_later_positions() -> None:
    for ledger_id in range(10):
        result = plan(ledger_id, "b x2 a", "a x3 y1 c x1", PlacementPolicy(min_racks=2))
        assert {step.target for step in result.steps} & {"x3", "c"}


def test_best_effort_repairs_in_the_same_rack_rather_than_not_at_all() -> None:
    (step,) = plan(1, "a b", "a x1", PlacementPolicy()).steps
    assert step.target == "x1"


def test_strict_policy_waits_for_a_bookie_in_another_rack() -> None:
    (blocked,) = plan(1, "a b", "a x1", PlacementPolicy(is_strict=True)).blocked
    assert blocked.reason is ParkReason.NO_CANDIDATE_BOOKIE
    assert "on which the strict placement policy allows a copy" in blocked.detail
    (step,) = plan(1, "a b", "a x1 x2", PlacementPolicy(is_strict=True)).steps
    assert step.target == "x2"
