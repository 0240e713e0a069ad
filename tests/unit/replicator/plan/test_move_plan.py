"""The plan of moves: the fewest replacements with which the closed fragments of a ledger meet the policy."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.client.placement.judge import EnsembleJudge
from bookie.client.placement.placement import Placement, PlacementPolicy
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.bookies.topology import parse_topology
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import finished
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.isolation import POLICY_KEY
from bookie.model.metadata import LedgerMetadata
from replicator.plan.installable import CopiedStep, dropping_worse_moves, with_steps
from replicator.plan.moves import is_adhering, plan_moves
from replicator.plan.planner import Knowledge, Plan
from replicator.plan.steps import Cause, CopyPosition, PositionKey, SwapMember
from tests.worlds.ledgers import make_metadata, name_set, names

RACKS = {f"{rack}{number}": f"/{rack}" for rack in "abc" for number in range(1, 5)}
POLICY = PlacementPolicy()


def versioned(metadata: LedgerMetadata, ledger_id: int = 7) -> Versioned:
    return Versioned(LedgerId(ledger_id), metadata, 0)


def closed(members: str, quorum: int, last: int = 9) -> Versioned:
    return versioned(make_metadata((0, members), quorum=(quorum, quorum), last=last))


def placement(policy: PlacementPolicy = POLICY, racks: dict[str, str] | None = None) -> Placement:
    return Placement(policy, parse_topology(json.dumps(RACKS if racks is None else racks)))


def writable(some: str) -> Bookies:
    return Bookies(name_set(some), frozenset())


def after(plan: Plan, index: int = 0) -> tuple[BookieId, ...]:
    members = list(plan.ledger.metadata.fragments[index].members)
    for step in plan.steps:
        if step.fragment_index == index:
            assert members[step.position] == step.old
            members[step.position] = step.target
    return tuple(members)


def test_one_of_two_members_in_a_rack_is_replaced_and_is_a_source() -> None:
    (step,) = plan_moves(closed("a1 a2", 2), writable("a1 a2 a3 b1"), placement()).steps
    assert isinstance(step, CopyPosition)
    assert (step.target, step.cause, step.sources) == ("b1", Cause.MISPLACED, names("a1 a2"))
    assert set(step.holders(0)) == name_set("a1 a2")
    assert step.holders(0)[-1] == step.old
    assert not step.is_of_lost_bookie


def test_a_move_that_makes_its_fragment_worse_without_other_moves_is_not_installed() -> None:
    """R57: some of the members that are moved together may not have been copied."""
    metadata, judge = closed("a1 a2 b1", 3).metadata, placement().judge()
    to_b = CopiedStep(
        SwapMember(fragment_index=0, position=1, old=names("a2")[0], target=names("b2")[0], cause=Cause.MISPLACED)
    )
    to_a = CopiedStep(
        SwapMember(fragment_index=0, position=2, old=names("b1")[0], target=names("a3")[0], cause=Cause.MISPLACED)
    )
    lost = CopiedStep(SwapMember(fragment_index=0, position=2, old=names("b1")[0], target=names("a3")[0]))
    assert finished(dropping_worse_moves(metadata, [to_b, to_a], judge)) == [to_b, to_a]
    assert finished(dropping_worse_moves(metadata, [to_b], judge)) == [to_b]
    assert finished(dropping_worse_moves(metadata, [to_a], judge)) == []
    assert finished(dropping_worse_moves(metadata, [lost], judge)) == [lost], "a lost copy is replaced in any case"


def test_a_plan_at_its_step_limit_is_partial_and_the_next_one_continues() -> None:
    fragments = [(number, "a1 a2") for number in range(4)]
    ledger = versioned(make_metadata(*fragments, quorum=(2, 2), last=9))
    bookies = writable("a1 a2 b1")
    part = plan_moves(ledger, bookies, placement(), steps_max=3)
    assert (part.is_partial, [step.fragment_index for step in part.steps]) == (True, [0, 1, 2])
    rest = plan_moves(
        replace(ledger, metadata=with_steps(ledger.metadata, part.steps)), bookies, placement(), steps_max=3
    )
    assert (rest.is_partial, [step.fragment_index for step in rest.steps]) == (False, [3])


def test_nothing_is_planned_for_an_ensemble_that_meets_the_policy() -> None:
    assert plan_moves(closed("a1 b1", 2), writable("a1 b1 c1"), placement()).is_nothing_missing


def test_a_policy_with_more_racks_than_exist_is_met_by_all_racks_unless_it_is_strict() -> None:
    ledger, bookies = closed("a1 a2 b1", 3), writable("a1 a2 b1 b2")
    racks = {"a1": "/a", "a2": "/a", "b1": "/b", "b2": "/b"}
    assert plan_moves(ledger, bookies, placement(PlacementPolicy(min_racks=3), racks)).is_nothing_missing
    (blocked,) = plan_moves(ledger, bookies, placement(PlacementPolicy(min_racks=3, is_strict=True), racks)).blocked
    assert blocked.reason is ParkReason.MISPLACED


def test_a_strict_policy_is_approached_even_if_it_cannot_be_met() -> None:
    policy = PlacementPolicy(min_racks=3, is_strict=True)
    plan = plan_moves(closed("a1 a2 a3", 3), writable("a1 a2 a3 b1"), placement(policy))
    assert [step.target for step in plan.steps] == ["b1"]
    assert [block.reason for block in plan.blocked] == [ParkReason.MISPLACED]


def test_only_metadata_is_changed_for_a_position_without_entries() -> None:
    ledger = versioned(make_metadata((0, "a1 b1 b2"), quorum=(2, 2), last=0))
    plan = plan_moves(ledger, Bookies(name_set("c1"), name_set("a1 b1 b2")), placement())
    assert len(plan.steps) == 1
    for step in plan.steps:
        assert isinstance(step, SwapMember) == (step.position == 2)
        assert step.cause is Cause.MISPLACED


def test_an_empty_fragment_is_skipped() -> None:
    assert plan_moves(closed("a1 a2", 2, last=-1), writable("a1 a2 b1"), placement()).is_nothing_missing
    beyond = versioned(make_metadata((0, "a1 b1"), (10, "a1 a2"), quorum=(2, 2), last=9))
    assert plan_moves(beyond, writable("a1 a2 b1"), placement()).is_nothing_missing
    assert is_adhering(beyond.metadata, placement().judge())


def test_read_only_draining_failed_and_unlocated_bookies_are_not_targets() -> None:
    bookies = Bookies(name_set("a1 a2 b2 b3 q"), name_set("b1"))
    where = placement()
    where.draining = name_set("b2")
    plan = plan_moves(closed("a1 a2", 2), bookies, where, Knowledge(failed_targets=name_set("b3")))
    assert (plan.steps, [block.reason for block in plan.blocked]) == ((), [ParkReason.MISPLACED])


def test_a_member_that_may_return_is_not_replaced() -> None:
    bookies = replace(writable("a2 b1"), awaited=name_set("a1"))
    (step,) = plan_moves(closed("a1 a2", 2), bookies, placement()).steps
    assert step.old == "a2"


def test_an_unresponsive_bookie_is_chosen_only_if_no_other_is_as_good() -> None:
    known = Knowledge(avoided=name_set("b1"))
    for ledger_id in range(5):
        ledger = versioned(closed("a1 a2", 2).metadata, ledger_id)
        (step,) = plan_moves(ledger, writable("a1 a2 a3 b1 b2"), placement(), known).steps
        assert step.target == "b2"
        (step,) = plan_moves(ledger, writable("a1 a2 a3 b1"), placement(), known).steps
        assert step.target == "b1"


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("target", ["b1", "b2", "c1"])
def test_a_copy_that_was_started_is_continued(position: int, target: str) -> None:
    begun = {(EntryId(0), position): BookieId(target)}
    (step,) = plan_moves(closed("a1 a2", 2), writable("a1 a2 b1 b2 c1"), placement(), begun=begun).steps
    assert (step.position, step.target) == (position, target)


def test_unreadable_entries_are_the_reason_if_nothing_else_can_be_moved() -> None:
    keys = [PositionKey(EntryId(0), at, name) for at, name in enumerate(names("a1 a2"))]
    known = Knowledge(unreadable=dict.fromkeys(keys, "entry 5 is denied"))
    (blocked,) = plan_moves(closed("a1 a2", 2), writable("a1 a2 b1"), placement(), known).blocked
    assert blocked.reason is ParkReason.UNREADABLE_ENTRIES


def test_the_growing_fragments_of_an_open_ledger_are_not_moved() -> None:
    ledger = versioned(make_metadata((0, "a1 a2"), (5, "a1 a2"), (9, "a1 a2"), quorum=(2, 2)))
    plan = plan_moves(ledger, writable("a1 a2 b1"), placement())
    assert [step.fragment_index for step in plan.steps] == [0]
    assert [(block.fragment_index, block.reason) for block in plan.blocked] == [
        (1, ParkReason.OPEN_LEDGER),
        (2, ParkReason.OPEN_LEDGER),
    ]


GROUPS = {
    "red": {"a1": {"rack": "/a"}, "b1": {"rack": "/b"}, "c1": {"rack": "/c"}},
    "blue": {"a2": {"rack": "/a"}, "b2": {"rack": "/b"}, "c2": {"rack": "/c"}},
}
RED = {
    "policyClass": "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy",
    "properties": {"isolationBookieGroups": "red"},
}


def of_red(members: str) -> Versioned:
    custom = ((POLICY_KEY, json.dumps(RED).encode()),)
    metadata = replace(make_metadata((0, members), quorum=(2, 2), last=9), custom=custom)
    return versioned(metadata)


def test_a_member_outside_the_ledgers_group_is_replaced_by_one_of_the_group_in_another_rack() -> None:
    where = Placement(POLICY, parse_topology(json.dumps(GROUPS)))
    bookies = writable("a1 b1 c1 a2 b2 c2").with_groups(where.topology.groups)
    assert plan_moves(of_red("a1 b1"), bookies, where).is_nothing_missing
    plan = plan_moves(of_red("a1 b2"), bookies, where)
    (step,) = plan.steps
    assert step.old == "b2"
    assert step.target in names("b1 c1")
    few = writable("a1 a2 b2 c2").with_groups(where.topology.groups)
    (blocked,) = plan_moves(of_red("a1 b2"), few, where).blocked
    assert "b2 outside the bookie groups red" in blocked.detail


def test_a_too_small_group_allows_bookies_without_a_group_but_not_of_other_groups() -> None:
    groups = {"red": {"a1": {"rack": "/a"}}, "blue": GROUPS["blue"], "b9": "/b"}
    where = Placement(POLICY, parse_topology(json.dumps(groups)))
    bookies = writable("a1 b2 c2 b9").with_groups(where.topology.groups)
    assert plan_moves(of_red("a1 b9"), bookies, where).is_nothing_missing
    (step,) = plan_moves(of_red("a1 b2"), bookies, where).steps
    assert (step.old, step.target) == ("b2", "b9")


FIRST_OR_SECOND = {
    "policyClass": RED["policyClass"],
    "properties": {"isolationBookieGroups": "first", "secondaryIsolationBookieGroups": "second"},
}


def of_first_or_second(members: str, ledger_id: int = 7) -> Versioned:
    custom = ((POLICY_KEY, json.dumps(FIRST_OR_SECOND).encode()),)
    metadata = replace(make_metadata((0, members), quorum=(2, 2), last=9), custom=custom)
    return versioned(metadata, ledger_id)


@pytest.mark.parametrize("ledger_id", range(20))
def test_a_bookie_that_meets_the_policy_is_chosen_among_many_that_do_not(ledger_id: int) -> None:
    """Too few bookies of both groups are registered, so bookies without a group are allowed.

    They still count as faults.
    """
    groups = {
        "first": {"p1": {"rack": "/p"}},
        "second": {name: {"rack": f"/{name}"} for name in ("s1", "s2", "s3")},
        "other": {"o1": {"rack": "/o1"}, "o2": {"rack": "/o2"}},
        **{f"u{number}": f"/u{number}" for number in range(8)},
    }
    where = Placement(POLICY, parse_topology(json.dumps(groups)))
    bookies = writable(f"p1 s1 o1 o2 {' '.join(f'u{number}' for number in range(8))}").with_groups(
        where.topology.groups
    )
    plan = plan_moves(of_first_or_second("p1 o1 o2", ledger_id), bookies, where)
    assert [step.target for step in plan.steps] == ["s1"]


def test_one_secondary_bookie_is_better_than_two_if_primary_ones_are_in_the_wrong_rack() -> None:
    groups = {
        "first": {"p1": {"rack": "/a"}, "p2": {"rack": "/a"}},
        "second": {"s1": {"rack": "/b"}, "s2": {"rack": "/b"}, "s3": {"rack": "/c"}},
    }
    where = Placement(POLICY, parse_topology(json.dumps(groups)))
    bookies = writable("p1 p2 s1 s2 s3").with_groups(where.topology.groups)
    plan = plan_moves(of_first_or_second("p1 s1 s2"), bookies, where)
    assert [step.target for step in plan.steps] == ["s3"]


@given(
    members=st.permutations(sorted(RACKS)).map(lambda order: tuple(map(BookieId, order[:4]))),
    size=st.integers(2, 4),
    write_quorum=st.integers(2, 3),
    min_racks=st.integers(2, 3),
    up=st.sets(st.sampled_from(sorted(RACKS))),
)
def test_no_ensemble_with_the_same_number_of_replacements_is_better(
    members: tuple[BookieId, ...], size: int, write_quorum: int, min_racks: int, up: set[str]
) -> None:
    """The plan is compared with every possible choice of up to three replacements."""
    members, quorum = members[:size], min(write_quorum, size)
    where = placement(PlacementPolicy(min_racks=min_racks))
    judge = where.judge()
    spare = sorted(map(BookieId, up - set(members)))
    metadata = make_metadata((0, " ".join(members)), quorum=(quorum, quorum), last=9)
    plan = plan_moves(versioned(metadata), Bookies(frozenset({*spare, *members}), frozenset()), where)
    moved = len(plan.steps)
    reached = judge.faults(after(plan), quorum).cost
    best = {count: _best(judge, members, quorum, spare, count) for count in range(min(3, size) + 1)}
    assert reached == min(best.values())
    assert all(best[count] > reached for count in range(moved))
    assert bool(plan.blocked) == (reached > (0, 0))


def _best(
    judge: EnsembleJudge, members: tuple[BookieId, ...], quorum: int, spare: list[BookieId], count: int
) -> tuple[int, int]:
    """Return the lowest cost with ``count`` replacements."""
    costs = [judge.faults(members, quorum).cost] if count == 0 else []
    for positions in itertools.combinations(range(len(members)), count):
        for chosen in itertools.permutations(spare, count) if count else ():
            changed = list(members)
            for position, bookie in zip(positions, chosen, strict=True):
                changed[position] = bookie
            costs.append(judge.faults(changed, quorum).cost)
    return min(costs, default=(1 << 30, 0))


def test_fingerprints_are_equal_only_for_equal_rules() -> None:
    one, same = placement().judge(), placement().judge()
    assert one.fingerprint == same.fingerprint
    others = [
        placement(PlacementPolicy(min_racks=3)),
        placement(PlacementPolicy(is_strict=True)),
        placement(racks=RACKS | {"a1": "/b"}),
        Placement(POLICY, parse_topology(json.dumps(GROUPS))),
    ]
    assert len({one.fingerprint, *(other.judge().fingerprint for other in others)}) == 5


def test_the_judge_uses_the_current_topology() -> None:
    where = placement()
    before = where.judge()
    assert where.judge() is before
    where.topology = parse_topology("{}")
    assert not where.judge().has_topology
    assert where.judge().faults(names("a1 b1"), 2).unknown == names("a1 b1")
