"""The limits on all copies of one process: rates, shares, the minimum rate, and slow bookies."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.tasks.copy_limits import CopyLimits, CopyProfile
from bookie.model.ids import BookieId
from replicator.copying.pace import (
    CRITICAL_RANK,
    SLOWED_BYTES_PER_SECOND_MIN,
    UNLIMITED,
    CopyPace,
    Rates,
    worker_share,
)
from replicator.copying.throttle import DEBT_S_MAX
from tests.worlds.clocks import VirtualClock
from tests.worlds.virtual_time import in_virtual_time

MIB = 1 << 20
A, B = BookieId("a:3181"), BookieId("b:3181")
LIMITS = CopyLimits(100 * MIB, 1000, 40 * MIB, 30 * MIB, 10 * MIB, CopyProfile.BALANCED)
OTHER_RANK = 2


async def sent_in(
    pace: CopyPace, seconds: float, *bookies: BookieId, rank: int = OTHER_RANK, store_s: float = 0.0
) -> int:
    """Return the bytes sent in this time, with four lanes per bookie and 1 MiB per request."""
    total = 0

    async def lane(bookie: BookieId) -> None:
        nonlocal total
        while True:
            await pace.before_add(bookie, MIB, rank)
            await asyncio.sleep(store_s or 0.001)
            pace.added(bookie, MIB, store_s or 0.001)
            total += MIB

    lanes = [asyncio.ensure_future(lane(bookie)) for bookie in bookies for _ in range(4)]
    await asyncio.sleep(seconds)
    for each in lanes:
        each.cancel()
    await asyncio.gather(*lanes, return_exceptions=True)
    return total


def test_the_shares_of_all_workers_add_up_to_no_more_than_the_limits() -> None:
    for workers in (1, 3, 7, 400):
        share = worker_share(LIMITS, workers)
        assert share.bytes_per_second * workers <= LIMITS.bytes_per_second
        assert share.requests_per_second * workers <= LIMITS.requests_per_second
        assert share.bookie_in_bytes_per_second * workers <= LIMITS.bookie_in_bytes_per_second
        assert share.bookie_out_bytes_per_second * workers <= LIMITS.bookie_out_bytes_per_second
        assert share.critical_bytes_per_second * workers <= LIMITS.critical_bytes_per_second


def test_no_limit_stays_unlimited_and_a_small_one_never_stops_a_worker() -> None:
    assert worker_share(CopyLimits(), 9) == UNLIMITED
    assert worker_share(CopyLimits(bytes_per_second=5), 400).bytes_per_second == 1


@pytest.mark.parametrize(
    ("rates", "most_bytes"),
    [
        (Rates(bytes_per_second=4 * MIB), 4 * MIB),
        (Rates(requests_per_second=3), 3 * MIB),
        (Rates(bookie_in_bytes_per_second=2 * MIB), 4 * MIB),
    ],
    ids=["bytes", "requests", "bytes to each of two bookies"],
)
@in_virtual_time
async def test_each_limit_is_enforced(rates: Rates, most_bytes: int) -> None:
    pace = CopyPace(VirtualClock())
    pace.set_share(rates)
    sent = await sent_in(pace, 20, A, B)
    assert 0.8 * most_bytes <= sent / 20 <= 1.3 * most_bytes


@in_virtual_time
async def test_reads_from_a_bookie_have_a_separate_limit_and_count_by_their_actual_size() -> None:
    pace, clock = CopyPace(VirtualClock()), VirtualClock()
    pace.set_share(Rates(bookie_out_bytes_per_second=2 * MIB))
    begun_s = clock.monotonic_s()
    for _ in range(20):
        await pace.before_read(A, 1000, OTHER_RANK)
        pace.was_read(A, 1000, MIB, 0.001)
    assert 9 <= clock.monotonic_s() - begun_s <= 11
    begun_s = clock.monotonic_s()
    for _ in range(20):
        await pace.before_add(A, MIB, OTHER_RANK)
    assert clock.monotonic_s() == begun_s


@in_virtual_time
async def test_the_smaller_of_the_workers_own_rate_and_its_share_applies() -> None:
    pace = CopyPace(VirtualClock(), MIB)
    assert pace.bytes_per_second == MIB
    pace.set_share(Rates(bytes_per_second=4 * MIB))
    assert pace.bytes_per_second == MIB
    pace.set_rate(0)
    assert pace.bytes_per_second == 4 * MIB
    pace.set_share(UNLIMITED)
    assert pace.bytes_per_second == 0


@in_virtual_time
async def test_critical_copies_have_a_minimum_rate_before_others() -> None:
    pace = CopyPace(VirtualClock())
    pace.set_share(Rates(bytes_per_second=2 * MIB, critical_bytes_per_second=MIB))
    critical, others = await asyncio.gather(
        sent_in(pace, 60, A, rank=CRITICAL_RANK), sent_in(pace, 60, B, rank=OTHER_RANK)
    )
    assert critical >= 60 * MIB
    assert critical + others <= 1.1 * 60 * 2 * MIB


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize(("general", "floor"), [(1, 10), (4, 4), (10, 1)])
@in_virtual_time
async def test_critical_copies_have_their_minimum_rate_whatever_the_other_limits_are(
    general: int, floor: int, lanes: int
) -> None:
    clock = VirtualClock()
    pace = CopyPace(clock)
    pace.set_share(Rates(bytes_per_second=general * MIB, critical_bytes_per_second=floor * MIB))
    sent = 0

    async def lane() -> None:
        nonlocal sent
        while clock.monotonic_s() < end_s:
            await pace.before_add(A, MIB, CRITICAL_RANK)
            sent += 1

    end_s = clock.monotonic_s() + 60
    await asyncio.gather(*(lane() for _ in range(lanes)))
    expected = 60 * max(general, floor)
    assert expected <= sent <= 1.05 * (expected + floor + general) + lanes
    assert pace.waited_s <= clock.monotonic_s()

    after_s = clock.monotonic_s()
    await pace.before_add(A, MIB, OTHER_RANK)
    assert clock.monotonic_s() - after_s <= DEBT_S_MAX + 1 / general


@pytest.mark.parametrize("lanes", [1, 8])
@in_virtual_time
async def test_critical_copies_reach_their_minimum_rate_although_each_byte_is_read_and_sent(lanes: int) -> None:
    clock = VirtualClock()
    pace = CopyPace(clock)
    pace.set_share(Rates(bytes_per_second=1000, critical_bytes_per_second=MIB))
    copied = 0

    async def lane() -> None:
        nonlocal copied
        while clock.monotonic_s() < end_s:
            await pace.before_read(A, MIB, CRITICAL_RANK)
            pace.was_read(A, MIB, MIB, 0.001)
            await pace.before_add(B, MIB, CRITICAL_RANK)
            copied += 1

    end_s = clock.monotonic_s() + 60
    await asyncio.gather(*(lane() for _ in range(lanes)))
    assert 60 <= copied <= 62 + lanes


@in_virtual_time
async def test_nothing_is_sent_before_the_share_is_known() -> None:
    pace = CopyPace(VirtualClock())
    pace.close()
    assert await sent_in(pace, 5, A) == 0
    pace.set_share(UNLIMITED)
    assert await sent_in(pace, 1, A) > 0


@pytest.mark.parametrize("size_bytes", [MIB // 16, 5 * MIB])
@in_virtual_time
async def test_the_time_for_the_bytes_of_a_request_does_not_make_a_bookie_slow(size_bytes: int) -> None:
    clock = VirtualClock()
    pace = CopyPace(clock)
    pace.set_share(worker_share(CopyLimits(profile=CopyProfile.CLIENT_FIRST), 1))
    took_s = 0.01 + size_bytes / (100 * MIB)
    sent, end_s = 0, clock.monotonic_s() + 60
    while clock.monotonic_s() < end_s:
        await pace.before_add(A, size_bytes, OTHER_RANK)
        await clock.sleep(took_s)
        pace.added(A, size_bytes, took_s)
        sent += 1
    assert sent * took_s >= 60


@pytest.mark.parametrize("profile", CopyProfile)
@in_virtual_time
async def test_a_slow_bookie_gets_less_depending_on_the_profile(profile: CopyProfile) -> None:
    pace = CopyPace(VirtualClock())
    pace.set_share(worker_share(CopyLimits(profile=profile), 1))
    full = await sent_in(pace, 10, A, store_s=0.1)
    later = await sent_in(pace, 10, A, store_s=0.1)
    slower = await sent_in(pace, 30, A, store_s=0.6)
    assert (later < full / 2) == (profile is CopyProfile.CLIENT_FIRST)
    assert (slower < 30 * 4 * MIB) == (profile is not CopyProfile.RECOVERY_FIRST)
    assert slower >= 0.9 * 30 * SLOWED_BYTES_PER_SECOND_MIN


@in_virtual_time
async def test_a_bookie_that_is_fast_again_gets_the_full_rate_and_others_always_had_it() -> None:
    pace = CopyPace(VirtualClock())
    pace.set_share(worker_share(CopyLimits(profile=CopyProfile.CLIENT_FIRST), 1))
    await sent_in(pace, 30, A, store_s=0.2)
    assert await sent_in(pace, 10, B, store_s=0.01) >= 0.9 * 10 * 400 * MIB
    await sent_in(pace, 120, A, store_s=0.01)
    assert await sent_in(pace, 10, A, store_s=0.01) >= 0.9 * 10 * 400 * MIB
