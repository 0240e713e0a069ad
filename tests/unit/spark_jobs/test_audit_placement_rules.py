"""The verdict on an ensemble: the policy, what the topology makes possible, and what is unknown."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bookie.client.placement.judge import EnsembleJudge
from bookie.client.placement.placement import Placement
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.bookies.topology import parse_topology
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.ids import BookieId, LedgerId
from bookie.model.isolation import POLICY_KEY, Isolation
from bookie.model.spread import PlacementPolicy, adherence
from replicator.plan.moves import plan_moves
from spark_jobs.checks.placement_rules import PlacementRules, Spread
from tests.worlds.ledgers import make_metadata

TOPOLOGY = parse_topology('{"a": "/eu/r1", "b": "/eu/r1", "c": "/eu/r2", "d": "/us/r3", "e": "/us/r3", "f": "/us/r4"}')
KNOWN = tuple(map(BookieId, "abcdef"))


def letters(text: str) -> list[BookieId]:
    """Return one bookie for each letter."""
    return list(map(BookieId, text))


def listed(writable: str, registered: str = "") -> Bookies:
    return Bookies(frozenset(letters(writable)), frozenset(letters(registered)) - frozenset(letters(writable)))


def rules(policy: PlacementPolicy, *, known: str = "abcdef", writable: str = "") -> PlacementRules:
    return PlacementRules.of(policy, TOPOLOGY, letters(known), listed(writable))


@pytest.mark.parametrize(
    ("members", "quorum", "spread"),
    [
        ("ac", 2, Spread.MET),
        ("ab", 2, Spread.MISPLACED),
        ("ab", 1, Spread.MET),
        ("acb", 2, Spread.MISPLACED),  # positions 2 and 0 form a write set
        ("acd", 2, Spread.MET),
        ("ax", 2, Spread.UNKNOWN),
    ],
)
def test_each_write_set_is_checked(members: str, quorum: int, spread: Spread) -> None:
    assert rules(PlacementPolicy(min_racks=2)).judge(letters(members), quorum).spread is spread


def test_the_best_possible_placement_is_a_finding_only_for_a_strict_policy() -> None:
    wish = PlacementPolicy(min_racks=3)
    assert rules(wish, known="abcd").judge(letters("acd"), 3).spread is Spread.MET
    assert rules(wish, known="abc").judge(letters("abc"), 3).spread is Spread.AS_GOOD_AS_POSSIBLE
    assert rules(wish, known="abcd").judge(letters("abc"), 3).spread is Spread.MISPLACED
    strict = PlacementPolicy(min_racks=3, is_strict=True)
    assert rules(strict, known="abc").judge(letters("abc"), 3).spread is Spread.MISPLACED


def test_a_placement_is_fixable_if_one_replacement_improves_it() -> None:
    policy = PlacementPolicy(min_racks=2)
    assert rules(policy, writable="c").judge(letters("ab"), 2).is_fixable
    assert not rules(policy, writable="ab").judge(letters("ab"), 2).is_fixable
    assert not rules(policy, writable="").judge(letters("ab"), 2).is_fixable
    regions = PlacementPolicy(min_racks=1, min_regions=2)
    assert not rules(regions, writable="bc").judge(letters("ac"), 2).is_fixable
    assert rules(regions, writable="f").judge(letters("ac"), 2).is_fixable


def test_the_finding_names_the_write_set_and_the_bookies() -> None:
    verdict = rules(PlacementPolicy(min_racks=2)).judge(letters("ab"), 2)
    assert verdict.detail == "positions 0, 1 are in /eu/r1 and need 2 racks"
    assert "x, y" in rules(PlacementPolicy()).judge(letters("xay"), 2).detail


@given(st.lists(st.sampled_from(KNOWN), min_size=1, max_size=5), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_a_verdict_agrees_with_the_policy(
    members: list[BookieId], quorum: int, min_racks: int, is_strict: bool
) -> None:
    policy = PlacementPolicy(min_racks=min_racks, is_strict=is_strict)
    quorum = min(quorum, len(members))
    judged = rules(policy, writable="abcdef").judge(members, quorum)
    assert (judged.spread is Spread.MET) == adherence(members, quorum, policy, TOPOLOGY).is_met
    assert not (is_strict and judged.spread is Spread.AS_GOOD_AS_POSSIBLE)
    assert not (judged.is_fixable and judged.spread is not Spread.MISPLACED)


def test_rules_can_be_sent_to_an_executor() -> None:
    sent = pickle.loads(pickle.dumps(rules(PlacementPolicy())))
    assert sent.judge(letters("ac"), 2).spread is Spread.MET


GROUPS = parse_topology(
    json.dumps(
        {
            "red": {name: {"rack": where} for name, where in (("a", "/r1"), ("b", "/r1"), ("c", "/r2"))},
            "blue": {name: {"rack": where} for name, where in (("d", "/r3"), ("e", "/r4"))},
            "green": {"f": {"rack": "/r5"}},
            "g": "/r6",
        }
    )
)
RED = Isolation(frozenset({"red"}), frozenset({"blue"}))


def grouped(writable: str, registered: str = "abcdefg") -> PlacementRules:
    policy = PlacementPolicy(min_racks=2)
    return PlacementRules.of(policy, GROUPS, letters("abcdefg"), listed(writable, registered))


def test_a_member_outside_the_groups_is_misplaced_even_if_there_are_enough_racks() -> None:
    judged = grouped("abcdefg").judge(letters("af"), 2, RED)
    assert (judged.spread, judged.is_outside, judged.is_fixable) == (Spread.MISPLACED, True, True)
    assert judged.detail == "f outside the bookie groups red; secondary blue"
    assert grouped("abcdefg").judge(letters("af"), 2).spread is Spread.MET
    assert grouped("abcdefg").judge(letters("ac"), 2, RED).spread is Spread.MET
    assert grouped("abcdefg").judge(letters("adce"), 2, RED).spread is Spread.MET, "red has only three bookies"


def test_only_a_bookie_that_the_groups_permit_makes_a_placement_fixable() -> None:
    assert not grouped("afg").judge(letters("af"), 2, RED).is_fixable
    assert not grouped("de", "ade").judge(letters("af"), 2, RED).is_fixable, "secondary bookies are outside too"
    assert grouped("c").judge(letters("af"), 2, RED).is_fixable
    thin = grouped("dg").judge(letters("ab"), 2, RED)
    assert (thin.spread, thin.is_outside, thin.is_fixable) == (Spread.MISPLACED, False, False)
    assert grouped("cd").judge(letters("ab"), 2, RED).is_fixable


def test_bookies_of_one_rack_but_different_groups_are_not_interchangeable() -> None:
    racks = {"red": {"b": "/r1", "c": "/r2", "x": "/r3"}, "blue": {"a": "/r1"}, "green": {"e": "/r4", "f": "/r5"}}
    places = {group: {name: {"rack": rack} for name, rack in those.items()} for group, those in racks.items()}
    policy, topology = PlacementPolicy(min_racks=2), parse_topology(json.dumps(places))
    rules = PlacementRules.of(policy, topology, letters("abcefx"), listed("ab", "abcef"))
    assert rules.judge(letters("cef"), 2, RED).is_fixable, "b is in the primary group, a is not"


def test_a_bookie_of_a_secondary_group_does_not_replace_an_ungrouped_one_in_its_rack() -> None:
    racks = {"red": {"c": "/r2"}, "blue": {"b": "/r1", "x": "/r3", "y": "/r3"}, "green": {"e": "/r4", "f": "/r5"}}
    places = {group: {name: {"rack": rack} for name, rack in those.items()} for group, those in racks.items()}
    policy, topology = PlacementPolicy(min_racks=2), parse_topology(json.dumps({**places, "a": "/r1"}))
    rules = PlacementRules.of(policy, topology, letters("abcefxy"), listed("ab", "abcef"))
    assert rules.judge(letters("cef"), 2, RED).is_fixable, "b is in the secondary group, a is in no group"


def test_unreadable_groups_are_not_mistaken_for_none() -> None:
    rules = grouped("abcdefg")
    judged = rules.judge(letters("af"), 2, None, "no JSON")
    assert (judged.spread, judged.detail) == (Spread.UNREADABLE_GROUPS, "no JSON")
    assert rules.judge(letters("ab"), 2, None, "no JSON").spread is Spread.MISPLACED


@given(
    st.lists(st.sampled_from(letters("abcdefg")), min_size=1, max_size=4, unique=True),
    st.frozensets(st.sampled_from(["red", "blue", "green"]), min_size=1),
    st.frozensets(st.sampled_from(["red", "blue", "green"])),
    st.integers(1, 4),
)
def test_misplaced_members_are_those_that_a_replicator_would_move(
    members: list[BookieId], primary: frozenset[str], secondary: frozenset[str], quorum: int
) -> None:
    """Otherwise a mark of the check would end without a move, or a debt would never end."""
    properties = {
        "isolationBookieGroups": ",".join(sorted(primary)),
        "secondaryIsolationBookieGroups": ",".join(sorted(secondary)),
    }
    policy = {"policyClass": "IsolatedBookieEnsemblePlacementPolicy", "properties": properties}
    custom = ((POLICY_KEY, json.dumps(policy).encode()),)
    quorum = min(quorum, len(members))
    faults = EnsembleJudge.of(PlacementPolicy(min_racks=2), GROUPS).faults(members, quorum, custom)
    judged = grouped("abcdefg").judge(members, quorum, Isolation(primary, secondary))
    assert (judged.spread is Spread.MISPLACED) == (not faults.is_adhering)
    assert judged.is_outside == (faults.outside > 0)
    assert judged.detail == faults.detail


def custom_of(wish: Isolation) -> tuple[tuple[str, bytes], ...]:
    properties = {
        "isolationBookieGroups": ",".join(sorted(wish.primary)),
        "secondaryIsolationBookieGroups": ",".join(sorted(wish.secondary)),
    }
    policy = {"policyClass": "IsolatedBookieEnsemblePlacementPolicy", "properties": properties}
    return ((POLICY_KEY, json.dumps(policy).encode()),)


def moves(members: list[BookieId], quorum: int, wish: Isolation, bookies: Bookies, policy: PlacementPolicy) -> bool:
    """Return whether a replicator would move a copy of a ledger with this ensemble."""
    plain = make_metadata((0, " ".join(members)), quorum=(quorum, quorum), last=9)
    ledger = Versioned(LedgerId(7), replace(plain, custom=custom_of(wish)), 0)
    where = Placement(policy, GROUPS, draining=bookies.draining)
    return bool(plan_moves(ledger, bookies.with_groups(GROUPS.groups), where).steps)


SOME = st.frozensets(st.sampled_from(letters("abcdefg")))
SOME_GROUPS = st.frozensets(st.sampled_from(["red", "blue", "green"]))


@settings(max_examples=400)
@example(letters("acb"), 3, Isolation(frozenset(), RED.primary), 3, listed("beg", "acdf"), frozenset(letters("a")))
@example(letters("bac"), 3, Isolation(frozenset(), RED.primary), 3, listed("efg", "abcd"), frozenset())
@example(letters("cga"), 3, Isolation(frozenset({"green", "red"})), 3, listed("bad", "cefg"), frozenset())
@example(letters("ba"), 2, Isolation(frozenset({"blue", "green"})), 2, listed("cg", "abdef"), frozenset())
@given(
    st.lists(st.sampled_from(letters("abcdefg")), min_size=1, max_size=4, unique=True),
    st.integers(1, 4),
    st.builds(Isolation, SOME_GROUPS, SOME_GROUPS),
    st.integers(1, 3),
    st.builds(Bookies, SOME, SOME),
    SOME,
)
def test_fixable_placements_are_those_that_a_replicator_would_change(
    members: list[BookieId],
    quorum: int,
    wish: Isolation,
    min_racks: int,
    up: Bookies,
    draining: frozenset[BookieId],
) -> None:
    """Only members that may move count: a replicator first replaces lost and draining ones."""
    policy = PlacementPolicy(min_racks=min_racks)
    bookies = Bookies(up.writable, up.read_only - up.writable).with_draining(draining)
    rules = PlacementRules.of(policy, GROUPS, letters("abcdefg"), bookies)
    quorum = min(quorum, len(members))
    is_moved = moves(members, quorum, wish, bookies, policy)
    judged = rules.judge(members, quorum, wish)
    if bookies.staying.issuperset(members):
        assert judged.is_fixable == is_moved
    else:
        assert judged.is_fixable or not is_moved
