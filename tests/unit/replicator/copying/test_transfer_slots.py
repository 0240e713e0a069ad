"""The number of chunks in transfer to one bookie."""

from __future__ import annotations

import asyncio

import pytest

from replicator.copying.transfer_slots import TransferSlots
from tests.worlds.ledgers import names
from tests.worlds.virtual_time import in_virtual_time

T, U = names("t u")


@in_virtual_time
async def test_no_bookie_uses_more_than_its_slots() -> None:
    slots = TransferSlots(3)
    under_way = most = 0

    async def chunk() -> None:
        nonlocal under_way, most
        async with slots.hold([T], 0):
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(1.0)
            under_way -= 1

    await asyncio.gather(*(chunk() for _ in range(10)))
    assert most == 3
    assert not slots._locks


@in_virtual_time
async def test_the_smallest_rank_gets_the_next_slot() -> None:
    slots, entered = TransferSlots(1), []

    async def chunk(rank: int) -> None:
        async with slots.hold([T], rank):
            entered.append(rank)
            await asyncio.sleep(1.0)

    first = asyncio.ensure_future(chunk(9))
    await asyncio.sleep(0.1)
    await asyncio.gather(first, *(chunk(rank) for rank in (5, 7, 1, 6)))
    assert entered == [9, 1, 5, 6, 7]


@in_virtual_time
async def test_a_slot_is_released_when_its_own_target_has_the_chunk() -> None:
    slots = TransferSlots(1)

    async def chunk() -> None:
        async with slots.hold([U, T], 0) as held:
            await held.free(T)
            await held.free(T)
            await asyncio.sleep(10.0)

    holding = asyncio.ensure_future(chunk())
    await asyncio.sleep(0)
    async with asyncio.timeout(1), slots.hold([T], 0):
        pass
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1), slots.hold([U], 0):
            pass
    await holding
    async with slots.hold([T, U], 0):
        pass
    assert not slots._locks


@in_virtual_time
async def test_chunks_for_several_targets_do_not_deadlock() -> None:
    slots = TransferSlots(1)

    async def chunk(*targets: str) -> None:
        async with slots.hold(names(" ".join(targets)), 0):
            await asyncio.sleep(0.1)

    async with asyncio.timeout(60):
        await asyncio.gather(*(chunk(*targets) for targets in (("t", "u"), ("u", "t"), ("t",), ("u", "v")) * 20))
    assert not slots._locks


@in_virtual_time
async def test_a_chunk_cancelled_while_it_waits_takes_no_slot() -> None:
    slots = TransferSlots(1)
    async with slots.hold([T], 0):
        waiting = asyncio.ensure_future(slots.hold([T, U], 0).__aenter__())
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.timeout(1), slots.hold([T, U], 0):
        pass
    assert not slots._locks
