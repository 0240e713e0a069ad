"""Locations, failure domains, and whether an ensemble meets the policy."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.bookies.topology import InvalidTopologyError, parse_topology
from bookie.model.ids import BookieId
from bookie.model.schedule import Stripe
from bookie.model.spread import InvalidPolicyError, PlacementPolicy, adherence
from bookie.model.topology import InvalidLocationError, Level, Topology, domain, hops, location

A, B, C, D = (BookieId(f"bk{i}:3181") for i in range(1, 5))

PULSAR = """
{"group1": {"bk1:3181": {"rack": "/eu/r1", "hostname": "bk1.example.org"}, "bk2:3181": {"rack": "eu/r2", "x": 1}},
 "group2": {"bk3:3181": {"rack": "/us/r1"}, "bk4:3181": {"rack": "/", "hostname": null}, "bk5:3181": {}}}
"""

names = st.text("abz09._:@=+-", min_size=1, max_size=8)
paths = st.lists(names, min_size=1, max_size=8).map(lambda parts: "/" + "/".join(parts))


@given(paths)
def test_location_is_normalized_and_its_domains_nest(path: str) -> None:
    where = location(path)
    assert where == location(path + "/") == location(f"  {path[1:]}") == path
    rack, zone, region = (domain(where, level) for level in (Level.RACK, Level.ZONE, Level.REGION))
    assert rack == where
    if path.count("/") > 1:
        assert zone + "/" + path.rpartition("/")[2] == rack
        assert zone == region or zone.startswith(region + "/")
        assert region.count("/") == 1
    else:
        assert zone == region == "/default-region"


@pytest.mark.parametrize("text", ["", "/", "/r//s", "/a b", "/ä", "/x" * 9, "/" + "x" * 129])
def test_invalid_text_is_not_a_location(text: str) -> None:
    with pytest.raises(InvalidLocationError):
        location(text)


@given(paths, paths, paths)
def test_hops_are_a_metric(first: str, second: str, third: str) -> None:
    a, b, c = location(first), location(second), location(third)
    assert (hops(a, b) == 0) == (a == b)
    assert hops(a, b) == hops(b, a)
    assert hops(a, c) <= hops(a, b) + hops(b, c)


def test_distance_grows_with_the_levels_not_shared() -> None:
    topology = parse_topology('{"bk1:3181": "/eu/r1", "bk2": "/eu/r1", "bk3:3181": "/eu/r2", "bk4:3181": "/us/r1"}')
    assert [topology.distance_from(location("/eu/r1"), other) for other in (A, B, C, D)] == [2, 2, 4, 6]
    assert topology.distance_from(location("/eu/r1"), BookieId("new:1")) == 6


def test_unknown_bookie_has_the_default_location_of_apache() -> None:
    assert Topology().location_of(A) == "/default-rack"
    assert parse_topology('{"bk2:3181": "/r1"}').location_of(A) == "/default-rack"
    assert parse_topology('{"bk2:3181": "/eu/r1"}').location_of(A) == "/default-region/default-rack"


def test_bookie_is_found_by_its_id_before_its_host() -> None:
    topology = parse_topology('{"bk1": "/r1", "bk1:3182": "/r2"}')
    assert [topology.known(BookieId(f"bk1:{port}")) for port in (3181, 3182)] == ["/r1", "/r2"]
    assert topology.known(BookieId("bk1")) == "/r1"
    assert topology.known(B) is None


def test_pulsars_format_is_read() -> None:
    topology = parse_topology(PULSAR)
    assert topology.locations == {A: "/eu/r1", B: "/eu/r2", C: "/us/r1"}
    assert parse_topology('{"bk1:3181": {"rack": "/r1"}, "g": {"bk2:3181": "/r2"}}').locations == {A: "/r1", B: "/r2"}
    assert parse_topology("{}") == Topology()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "JSON object"),
        ("[]", r"not \[\]"),
        ('{"bk1:3181"', "JSON object"),
        ("[" * 100_000, "JSON object"),
        ('{"bk1:3181": 5}', "bookie 'bk1:3181': a location is a text"),
        ('{"bk1:3181": null}', "bookie 'bk1:3181'"),
        ('{"g": {"bk1:3181": {"rack": []}}}', "group 'g', bookie 'bk1:3181'"),
        ('{"g": {"bk1:3181": "a//b"}}', "group 'g', bookie 'bk1:3181': not a location"),
        ('{"bk 1": "/r"}', "not a bookie id"),
        ('{"g": {"bk1:3181": "/r1"}, "h": {"bk1:3181": "/r2"}}', "/r2 here, and at /r1 elsewhere"),
        ('{"bk1:3181": "/r1", "bk1:3181": "/r1"}', "occurs twice"),
    ],
)
def test_invalid_text_is_not_a_topology(text: str, says: str) -> None:
    with pytest.raises(InvalidTopologyError, match=says):
        parse_topology(text)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda t: st.dictionaries(names, t) | st.lists(t)))
def test_any_json_is_a_topology_or_invalid(content: object) -> None:
    with contextlib.suppress(InvalidTopologyError):
        assert isinstance(parse_topology(json.dumps(content)), Topology)


def test_result_names_each_write_set_with_too_few_domains_and_unknown_members() -> None:
    topology = parse_topology('{"bk1:3181": "/eu/r1", "bk2:3181": "/eu/r1", "bk3:3181": "/us/r1"}')
    verdict = adherence((A, B, C, D), 2, PlacementPolicy(), topology)
    assert [str(thin) for thin in verdict.thin] == ["positions 0, 1 are in /eu/r1 and need 2 racks"]
    assert (verdict.is_met, verdict.shortfall, verdict.unknown) == (False, 1, (D,))
    assert adherence((A, C, B, D), 2, PlacementPolicy(min_regions=2), topology).is_met
    whole = adherence((A, B, C), 3, PlacementPolicy(min_racks=3, min_regions=3), topology)
    assert [(thin.level, thin.missing) for thin in whole.thin] == [(Level.REGION, 1), (Level.RACK, 1)]
    assert adherence((A, B), 2, PlacementPolicy(min_racks=1), topology).is_met


def test_a_write_set_never_needs_more_domains_than_it_has_bookies() -> None:
    topology = parse_topology('{"bk1:3181": "/eu/r1", "bk2:3181": "/eu/r2"}')
    assert adherence((A, B), 2, PlacementPolicy(min_racks=5), topology).is_met
    assert adherence((A,), 1, PlacementPolicy(min_racks=5, min_regions=5), topology).is_met
    assert adherence((), 1, PlacementPolicy(), topology).is_met


@given(st.integers(1, 9), st.integers(1, 9))
def test_write_sets_are_those_of_some_entry(ensemble_size: int, write_quorum: int) -> None:
    sets = Stripe(ensemble_size, write_quorum).write_sets()
    positions = {frozenset((n + i) % ensemble_size for i in range(write_quorum)) for n in range(ensemble_size)}
    assert {frozenset(each) for each in sets} == positions
    assert len(sets) == len(positions)


@pytest.mark.parametrize("wrong", [{"min_racks": 0}, {"min_zones": 0}, {"min_regions": -1}, {"weight_max": 0.5}])
def test_invalid_policy_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidPolicyError):
        PlacementPolicy(**wrong)  # type: ignore[arg-type]
