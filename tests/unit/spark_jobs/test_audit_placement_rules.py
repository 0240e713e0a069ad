"""The verdict on an ensemble: the policy, what the topology can offer, and what is unknown."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.bookies.topology import parse_topology
from bookie.model.ids import BookieId
from bookie.model.spread import PlacementPolicy, adherence
from spark_jobs.checks.placement_rules import PlacementRules, Spread

TOPOLOGY = parse_topology('{"a": "/eu/r1", "b": "/eu/r1", "c": "/eu/r2", "d": "/us/r3", "e": "/us/r3", "f": "/us/r4"}')
KNOWN = tuple(map(BookieId, "abcdef"))


def letters(text: str) -> list[BookieId]:
    """One bookie for each letter."""
    return list(map(BookieId, text))


def rules(policy: PlacementPolicy, *, known: str = "abcdef", writable: str = "") -> PlacementRules:
    return PlacementRules.of(policy, TOPOLOGY, letters(known), letters(writable))


@pytest.mark.parametrize(
    ("members", "quorum", "spread"),
    [
        ("ac", 2, Spread.MET),
        ("ab", 2, Spread.MISPLACED),
        ("ab", 1, Spread.MET),
        ("acb", 2, Spread.MISPLACED),  # positions 2 and 0 are a write set
        ("acd", 2, Spread.MET),
        ("ax", 2, Spread.UNKNOWN),
    ],
)
def test_each_write_set_counts(members: str, quorum: int, spread: Spread) -> None:
    assert rules(PlacementPolicy(min_racks=2)).judge(letters(members), quorum).spread is spread


def test_what_no_cluster_could_do_better_is_a_finding_for_a_strict_policy_only() -> None:
    wish = PlacementPolicy(min_racks=3)
    assert rules(wish, known="abcd").judge(letters("acd"), 3).spread is Spread.MET
    assert rules(wish, known="abc").judge(letters("abc"), 3).spread is Spread.AS_GOOD_AS_POSSIBLE
    assert rules(wish, known="abcd").judge(letters("abc"), 3).spread is Spread.MISPLACED
    strict = PlacementPolicy(min_racks=3, is_strict=True)
    assert rules(strict, known="abc").judge(letters("abc"), 3).spread is Spread.MISPLACED


def test_it_is_fixable_if_one_replacement_brings_it_nearer() -> None:
    policy = PlacementPolicy(min_racks=2)
    assert rules(policy, writable="c").judge(letters("ab"), 2).is_fixable
    assert not rules(policy, writable="ab").judge(letters("ab"), 2).is_fixable
    assert not rules(policy, writable="").judge(letters("ab"), 2).is_fixable
    regions = PlacementPolicy(min_racks=1, min_regions=2)
    assert not rules(regions, writable="bc").judge(letters("ac"), 2).is_fixable
    assert rules(regions, writable="f").judge(letters("ac"), 2).is_fixable


def test_it_says_which_write_set_and_which_bookies() -> None:
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
