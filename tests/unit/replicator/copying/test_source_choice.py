"""Which holder of an entry is asked first, and the known load of each bookie."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.bookies.topology import parse_topology
from bookie.model.ids import BookieId
from replicator.copying.loads import ASSUMED_S, MEASURED_READ_TTL_S, BookieLoads
from replicator.copying.source_choice import EQUALLY_FAST_S, HolderStanding, HolderView, distance, source_order
from tests.worlds.clocks import VirtualClock
from tests.worlds.ledgers import names
from tests.worlds.virtual_time import in_virtual_time

A, B, C = names("a b c")


def first(turn: int = 0, **known: HolderView) -> str:
    return source_order(names("a b c"), {BookieId(name): view for name, view in known.items()}, turn)[0]


def test_equal_holders_take_turns_as_the_first() -> None:
    assert [first(turn) for turn in range(4)] == ["a", "b", "c", "a"]


def test_a_bookie_in_the_rack_of_the_target_is_preferred() -> None:
    near = HolderView(distance=0)
    far = HolderView(distance=4)
    assert {first(turn, a=far, b=near, c=far) for turn in range(3)} == {"b"}


def test_load_decides_before_the_rack_if_it_differs_enough() -> None:
    quick, slow = HolderView(expected_s=0.02, distance=4), HolderView(expected_s=0.2)
    assert {first(turn, a=slow, b=quick, c=quick) for turn in range(3)} == {"b", "c"}
    hardly_slower = HolderView(expected_s=0.9 * EQUALLY_FAST_S)
    assert {first(turn, a=hardly_slower, b=quick, c=quick) for turn in range(3)} == {"a"}


def test_an_unresponsive_bookie_comes_last_however_near_it_is() -> None:
    unresponsive = HolderView(HolderStanding.UNRESPONSIVE)
    slow = HolderView(expected_s=10.0, distance=4)
    assert source_order(names("a b"), {A: unresponsive, B: slow}, 0) == [B, A]


views = st.builds(HolderView, st.sampled_from(HolderStanding), st.floats(0, 100), st.integers(0, 8))


@given(
    st.lists(st.sampled_from(names("a b c d e")), unique=True), st.lists(views, min_size=5, max_size=5), st.integers()
)
def test_the_order_contains_each_holder_once_and_is_deterministic(
    holders: list[BookieId], seen: list[HolderView], turn: int
) -> None:
    known = dict(zip(names("a b c d e"), seen, strict=True))
    order = source_order(holders, known, turn)
    assert sorted(order) == sorted(holders)
    assert order == source_order(holders, known, turn)
    standings = [known[bookie].standing for bookie in order]
    assert standings == sorted(standings)


def test_the_distance_to_the_nearest_target_counts() -> None:
    topology = parse_topology('{"a": "/z1/r1", "b": "/z1/r2", "c": "/z2/r1", "t": "/z1/r1", "u": "/z2/r1"}')
    assert [distance(bookie, names("t"), topology.location_of) for bookie in names("a b c")] == [0, 2, 4]
    assert [distance(bookie, names("t u"), topology.location_of) for bookie in names("a b c")] == [0, 2, 0]
    assert distance(A, (), topology.location_of) == 0


async def read(loads: BookieLoads, bookie: BookieId, seconds: float) -> None:
    with loads.read(bookie):
        await asyncio.sleep(seconds)


@in_virtual_time
async def test_the_expected_time_depends_on_the_last_reads() -> None:
    loads = BookieLoads(VirtualClock())
    assert loads.expected_s(A) == ASSUMED_S
    await read(loads, A, 0.2)
    assert loads.expected_s(A) > loads.expected_s(B)
    for _ in range(20):
        await read(loads, A, 0.001)
    assert loads.expected_s(A) < ASSUMED_S


@in_virtual_time
async def test_reads_in_progress_count_towards_the_expected_time() -> None:
    loads = BookieLoads(VirtualClock())
    with loads.add(A), loads.read(A), loads.read(A):
        assert loads.expected_s(A) == 4 * loads.expected_s(B)
    assert loads.expected_s(B) == ASSUMED_S


@in_virtual_time
async def test_a_hanging_read_counts_before_it_ends() -> None:
    loads = BookieLoads(VirtualClock())
    hanging = asyncio.ensure_future(read(loads, A, 10.0))
    await asyncio.sleep(2.0)
    assert loads.expected_s(A) >= 2.0
    await hanging


@in_virtual_time
async def test_an_old_measurement_does_not_count() -> None:
    loads = BookieLoads(VirtualClock())
    await read(loads, A, 5.0)
    await asyncio.sleep(MEASURED_READ_TTL_S)
    assert loads.expected_s(A) == loads.expected_s(B)


@in_virtual_time
async def test_remembered_bookies_are_bounded() -> None:
    loads = BookieLoads(VirtualClock())
    for number in range(3000):
        await read(loads, BookieId(f"b{number}"), 0.001)
    assert len(loads._seen) <= 1000
