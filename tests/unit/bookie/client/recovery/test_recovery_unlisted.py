"""Recovery with bookies that cannot list entries: a small ledger is read, a large one is left to the worker."""

from __future__ import annotations

from typing import Any

import pytest

from bookie.client.recovery import recovery as recovery_holdings
from bookie.wire.port import ListReply, Status
from bookie.wire.requests import ListEntries
from tests.worlds.recovery import Asked, Proceed, RecoveryWorld, a_world, closed_at, ends, packet
from tests.worlds.virtual_time import in_virtual_time

COUNT = 40


def without_lists(world: RecoveryWorld) -> None:
    async def unlisted(asked: Asked, proceed: Proceed) -> Any:
        return ListReply(Status.UNSUPPORTED) if isinstance(asked, ListEntries) else await proceed()

    world.transport.every = unlisted


async def left_short(world: RecoveryWorld) -> None:
    """Create a ledger whose first entries c never received."""
    await world.create((0, "a b c"), quorum=(3, 2))
    for entry_id in range(COUNT):
        for name in "ab" if entry_id < COUNT - 1 else "abc":
            await world.put(name, packet(entry_id))


@in_virtual_time
async def test_a_member_that_does_not_serve_an_entry_is_marked() -> None:
    async with a_world("a b c") as world:
        await left_short(world)
        without_lists(world)
        assert ends(await world.recover()) == closed_at(COUNT - 1)
        assert await world.marked() == ("c",)


@in_virtual_time
async def test_members_that_serve_everything_are_not_marked() -> None:
    async with a_world("a b c") as world:
        ledger = await world.create((0, "a b c"), quorum=(2, 2))
        await world.put_all(ledger, 0, COUNT - 1)
        without_lists(world)
        assert ends(await world.recover()) == closed_at(COUNT - 1)
        assert await world.marked() == ()


@pytest.mark.parametrize("bound", ["_READ_BYTES_MAX", "_READ_ENTRIES_MAX"])
@in_virtual_time
async def test_a_ledger_too_large_to_be_read_is_closed_and_left_to_the_worker(bound: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery_holdings, bound, 10)
        async with a_world("a b c") as world:
            ledger = await world.create((0, "a b c"), quorum=(3, 2))
            await world.put_all(ledger, 0, COUNT - 1)
            without_lists(world)
            assert ends(await world.recover()) == closed_at(COUNT - 1)
            assert await world.marked() == ("a", "b", "c")
