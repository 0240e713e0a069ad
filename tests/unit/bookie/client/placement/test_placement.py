"""Choosing bookies: compared with all possible ensembles if they can be listed, otherwise checked by properties."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bookie.client.errors import NotEnoughBookiesError
from bookie.client.placement import search as placement_search
from bookie.client.placement.placement import Placement, PlacementPolicy
from bookie.model.ids import BookieId
from bookie.model.topology import Location, Topology, location
from bookie.runtime.fault_points import inject_faults

PLACES = ("/a/z/1", "/a/z/2", "/a/y/1", "/b/z/1", "/b/z/2", "/c/z/1", "/rack1", "/a/2")


def bookies(count: int) -> list[BookieId]:
    return [BookieId(f"bk{i}:3181") for i in range(count)]


def topology_of(places: Sequence[str]) -> Topology:
    """Put the bookie of each index at the location with the same index."""
    return Topology(dict(zip(bookies(len(places)), map(location, places), strict=True)))


policies = st.builds(
    PlacementPolicy,
    min_racks=st.integers(1, 4),
    min_zones=st.integers(1, 3),
    min_regions=st.integers(1, 3),
    is_strict=st.booleans(),
)
small = st.integers(1, 7).flatmap(
    lambda count: st.tuples(
        st.lists(st.sampled_from(PLACES), min_size=count, max_size=count),
        st.integers(1, min(5, count)).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))),
    )
)


@settings(max_examples=300, deadline=None)
@example((["/b/z/1", "/b/z/2", "/b/z/2", "/a/y/1"], (4, 2)), PlacementPolicy(2, 3, 2), 0)  # the first candidate fails
@given(small, policies, st.integers())
def test_new_ensemble_is_the_best_possible_one(
    world: tuple[list[str], tuple[int, int]], policy: PlacementPolicy, seed: int
) -> None:
    places, (size, quorum) = world
    placement = Placement(policy, topology_of(places))
    candidates = bookies(len(places))
    least = min(placement.adherence(e, quorum).shortfall for e in itertools.permutations(candidates, size))
    try:
        placed = placement.place(candidates, size, quorum, (), random.Random(seed))
    except NotEnoughBookiesError:
        assert policy.is_strict
        assert least > 0
        return
    assert len(set(placed.members)) == size
    assert set(placed.members) <= set(candidates)
    assert placed.adherence == placement.adherence(placed.members, quorum)
    assert placed.adherence.shortfall == least
    assert placed.adherence.is_met or not policy.is_strict


@settings(max_examples=300, deadline=None)
@given(small, policies, st.data())
def test_replacements_are_the_best_possible_ones(
    world: tuple[list[str], tuple[int, int]], policy: PlacementPolicy, data: st.DataObject
) -> None:
    places, (size, quorum) = world
    placement = Placement(policy, topology_of(places))
    everyone = bookies(len(places))
    members = data.draw(st.permutations(everyone))[:size]
    positions = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    excluded = data.draw(st.sets(st.sampled_from(everyone)))
    usable = set(everyone) - set(members) - excluded

    chosen = placement.replacements(members, positions, quorum, everyone, excluded, random.Random(1))
    assert set(chosen) <= set(positions)
    assert len(set(chosen.values())) == len(chosen)
    assert set(chosen.values()) <= usable

    wanted = positions[: len(usable)]
    if not policy.is_strict:
        assert list(chosen) == wanted
        options = [dict(zip(wanted, each, strict=True)) for each in itertools.permutations(sorted(usable), len(wanted))]
        after = [placement.adherence(changed(members, option), quorum).shortfall for option in options]
        assert placement.adherence(changed(members, chosen), quorum).shortfall == min(after)
    elif chosen:
        left = {position: BookieId(f"elsewhere{position}") for position in chosen}
        ideal = Placement(policy, Topology({**placement.topology.locations, **apart(left)}))
        unavoidable = ideal.adherence(changed(members, left), quorum).shortfall
        assert placement.adherence(changed(members, chosen), quorum).shortfall == unavoidable


def changed(members: Sequence[BookieId], chosen: dict[int, BookieId]) -> list[BookieId]:
    return [chosen.get(position, member) for position, member in enumerate(members)]


def apart(positions: dict[int, BookieId]) -> dict[str, Location]:
    return {bookie: location(f"/region{position}/zone/rack") for position, bookie in positions.items()}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_large_clusters_get_at_least_what_round_robin_over_racks_achieves(data: st.DataObject) -> None:
    racks = data.draw(st.integers(2, 12))
    per_rack = data.draw(st.integers(2, 25))
    size = data.draw(st.integers(1, min(20, racks * per_rack)))
    quorum = data.draw(st.integers(1, size))
    least = data.draw(st.integers(1, racks))
    topology = topology_of([f"/r{i % racks}" for i in range(racks * per_rack)])
    placement = Placement(PlacementPolicy(min_racks=least), topology)
    everyone = bookies(racks * per_rack)
    round_robin = [everyone[i] for i in range(size)]
    placed = placement.place(everyone, size, quorum, (), random.Random(data.draw(st.integers())))
    assert placed.adherence.shortfall <= placement.adherence(round_robin, quorum).shortfall


def test_excluded_bookies_are_never_chosen() -> None:
    everyone = bookies(6)
    placement = Placement()
    for seed in range(50):
        members = placement.ensemble(everyone, 3, 2, 2, everyone[:3], random.Random(seed))
        assert sorted(members) == everyone[3:]
    assert placement.replacement(everyone[:3], 1, 2, everyone, everyone[3:], random.Random(1)) is None


def test_draining_bookies_are_never_chosen() -> None:
    candidates, rng = bookies(6), random.Random(1)
    placement = Placement(draining=frozenset(candidates[3:5]))
    assert set(placement.ensemble(candidates, 4, 3, 2, (), rng)) == {*candidates[:3], candidates[5]}
    with pytest.raises(NotEnoughBookiesError, match="drained"):
        placement.ensemble(candidates, 5, 3, 2, (), rng)
    for _ in range(10):
        assert placement.replacements(candidates[:3], (0, 1, 2), 3, candidates, (), rng) == {0: candidates[5]}


def test_the_choice_depends_only_on_candidates_and_rng() -> None:
    everyone = bookies(40)
    placement = Placement(PlacementPolicy(min_racks=3), topology_of([f"/r{i % 7}" for i in range(40)]))
    backwards = frozenset(reversed(everyone))
    for seed in range(20):
        chosen = placement.ensemble(everyone, 5, 3, 2, (), random.Random(seed))
        assert placement.ensemble(backwards, 5, 3, 2, (), random.Random(seed)) == chosen
    assert len({placement.ensemble(everyone, 5, 3, 2, (), random.Random(seed)) for seed in range(20)}) == 20


def test_all_bookies_are_chosen_equally_often_without_weights() -> None:
    everyone, rng, placement = bookies(10), random.Random(7), Placement()
    counts = Counter(b for _ in range(2000) for b in placement.ensemble(everyone, 3, 3, 2, (), rng))
    assert set(counts) == set(everyone)
    assert max(counts.values()) < 1.25 * min(counts.values())


def test_weights_by_free_space_are_bounded_and_unknown_space_is_the_median() -> None:
    everyone, rng = bookies(6), random.Random(7)
    free = dict(zip(everyone, (10**15, 100, 100, 100, 0), strict=False))  # the free space of the last one is unknown
    placement = Placement(PlacementPolicy(weight_max=3.0), free_bytes=free)
    counts = Counter(placement.ensemble(everyone, 1, 1, 1, (), rng)[0] for _ in range(7000))
    middle = [counts[b] for b in (everyone[1], everyone[2], everyone[3], everyone[5])]
    assert max(middle) < 1.25 * min(middle)
    assert 2.5 < counts[everyone[0]] / (sum(middle) / 4) < 3.5
    assert counts[everyone[4]] < 20
    assert set(placement.ensemble(everyone, 6, 3, 2, (), rng)) == set(everyone)


def test_the_policy_takes_precedence_over_weights() -> None:
    everyone = bookies(4)
    free = dict(zip(everyone, (10**9, 10**9, 10**9, 1), strict=True))
    placement = Placement(PlacementPolicy(), topology_of(("/r1", "/r1", "/r1", "/r2")), free)
    for seed in range(50):
        assert everyone[3] in placement.ensemble(everyone, 2, 2, 2, (), random.Random(seed))


@pytest.mark.parametrize("free", [{}, {BookieId("bk0:3181"): 0, BookieId("bk1:3181"): 0}, None])
def test_without_useful_weights_all_are_equal(free: dict[BookieId, int] | None) -> None:
    everyone, rng, placement = bookies(3), random.Random(7), Placement(free_bytes=free)
    counts = Counter(placement.ensemble(everyone, 1, 1, 1, (), rng)[0] for _ in range(900))
    assert min(counts.values()) > 200


def test_error_contains_the_number_of_missing_bookies() -> None:
    with pytest.raises(
        NotEnoughBookiesError, match="needs 3 bookies and 4 are registered writable, 2 of them excluded"
    ):
        Placement().ensemble(bookies(4), 3, 2, 2, bookies(2), random.Random(1))
    with pytest.raises(NotEnoughBookiesError, match="needs 3 bookies and 0 are registered writable; start more"):
        Placement().ensemble((), 3, 2, 2, (), random.Random(1))


def test_error_of_a_strict_policy_names_the_racks() -> None:
    placement = Placement(PlacementPolicy(min_racks=3, is_strict=True), topology_of(("/r1", "/r1", "/r1", "/r2")))
    says = r"write set of 3 must span 3 racks, .* among the 4 usable bookies .*: /r1 has 3, /r2 has 1; start bookies in"
    with pytest.raises(NotEnoughBookiesError, match=says):
        placement.ensemble(bookies(4), 3, 3, 2, (), random.Random(1))
    regions = Placement(PlacementPolicy(min_regions=2, is_strict=True), topology_of([f"/eu/r{i}" for i in range(20)]))
    with pytest.raises(
        NotEnoughBookiesError, match=r"2 regions and 2 racks, .* /eu has 20; start bookies in other reg"
    ):
        regions.ensemble(bookies(20), 3, 3, 2, (), random.Random(1))


def test_strict_replacement_is_refused_rather_than_squeezed_into_one_rack() -> None:
    everyone = bookies(4)
    topology = topology_of(("/r1", "/r2", "/r1", "/r1"))
    members = everyone[:2]  # r1 and r2; the bookie in r2 is lost, and only r1 has spare bookies
    strict = Placement(PlacementPolicy(is_strict=True), topology)
    assert strict.replacement(members, 1, 2, everyone, (), random.Random(1)) is None
    squeezed = Placement(PlacementPolicy(), topology).replacement(members, 1, 2, everyone, (), random.Random(1))
    assert squeezed in everyone[2:]


def test_an_ensemble_with_too_few_racks_is_still_repaired_under_a_strict_policy() -> None:
    """A lost member is replaced even if the remaining members already share a rack."""
    everyone = bookies(5)
    topology = topology_of(("/r1", "/r1", "/r2", "/r1", "/r3"))
    strict = Placement(PlacementPolicy(min_racks=3, is_strict=True), topology)
    assert strict.replacement(everyone[:3], 2, 3, everyone, (), random.Random(1)) == everyone[4]


def test_two_lost_bookies_are_replaced_together() -> None:
    """If they were replaced one after the other, the first could take the only rack that is possible for the second."""
    everyone = bookies(6)
    # Positions 0 and 1 are lost. Position 1 is between 0 and 2, so 0 may be in r3 only if 1 is in another rack.
    topology = topology_of(("/r1", "/r2", "/r3", "/r4", "/r3", "/r1"))
    placement = Placement(PlacementPolicy(is_strict=True), topology)
    for seed in range(20):
        chosen = placement.replacements(everyone[:4], (0, 1), 2, everyone, (), random.Random(seed))
        assert chosen == {0: everyone[4], 1: everyone[5]}


@pytest.mark.parametrize("spares", [1, 2])
def test_a_position_without_a_suitable_spare_does_not_block_other_replacements(spares: int) -> None:
    everyone = bookies(5 + spares)
    # All spares are in r3, like position 4. Position 0 is adjacent to position 4, position 2 is not.
    topology = topology_of(("/r1", "/r2", "/r1", "/r2", "/r3", *["/r3"] * spares))
    placement = Placement(PlacementPolicy(is_strict=True), topology)
    chosen = placement.replacements(everyone[:5], (0, 2), 2, everyone, (), random.Random(1))
    assert chosen.keys() == {2}
    assert chosen[2] in everyone[5:]


def test_existing_ensembles_are_checked_against_the_current_topology_and_policy() -> None:
    everyone = bookies(3)
    placement = Placement(topology=topology_of(("/r1", "/r1", "/r2")))
    assert not placement.judge().faults(everyone[:2], 2).is_adhering
    placement.topology = topology_of(("/r1", "/r2", "/r2"))
    assert placement.judge().faults(everyone[:2], 2).is_adhering
    placement.policy = PlacementPolicy(min_racks=3, is_strict=True)
    assert not placement.judge().faults(everyone, 3).is_adhering


def test_search_that_takes_too_long_returns_the_best_result_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_search, "STEPS_MAX", 0)
    monkeypatch.setattr(placement_search, "EAGER_STEPS_MAX", 0)
    everyone = bookies(9)
    topology = topology_of([f"/r{i % 3}" for i in range(9)])
    members = Placement(PlacementPolicy(min_racks=3), topology).ensemble(everyone, 9, 3, 2, (), random.Random(1))
    assert sorted(members) == everyone
    strict = Placement(PlacementPolicy(min_racks=3, is_strict=True), topology)
    with pytest.raises(NotEnoughBookiesError, match="no ensemble of 9 was found"):
        strict.ensemble(everyone, 9, 3, 2, (), random.Random(1))


@pytest.mark.parametrize("point", ["placement.least_wanted_first", "placement.farthest_first"])
def test_an_unlikely_search_order_keeps_the_policy_too(point: str) -> None:
    everyone = bookies(12)
    placement = Placement(PlacementPolicy(min_racks=3, is_strict=True), topology_of([f"/r{i % 4}" for i in range(12)]))
    usual = [placement.ensemble(everyone, 6, 3, 2, (), random.Random(seed)) for seed in range(10)]
    with inject_faults(lambda name: name == point):
        unusual = [placement.ensemble(everyone, 6, 3, 2, (), random.Random(seed)) for seed in range(10)]
    assert unusual != usual
    assert all(placement.adherence(members, 3).is_met for members in unusual)


@pytest.mark.parametrize("racks", [1, 2, 20, 500])
def test_placement_among_five_hundred_bookies_takes_few_steps(racks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = bookies(500)
    placement = Placement(PlacementPolicy(min_racks=3), topology_of([f"/r{i % racks}" for i in range(500)]))
    monkeypatch.setattr(placement_search, "STEPS_MAX", 10_000)
    best = min(placement.adherence(everyone[i : i + 7], 3).shortfall for i in range(20))
    for seed in range(20):
        assert placement.place(everyone, 7, 3, (), random.Random(seed)).adherence.shortfall <= best
