"""Recovery of a ledger whose metadata has no password: a wrong password is refused before anything changes."""

from __future__ import annotations

import pytest

from bookie.client.errors import WrongPasswordError
from bookie.model.digest import digest_for
from bookie.model.ids import EntryId
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bookie.model.packet import pack
from bookie.wire.port import AddBatch, Status
from tests.worlds.ledgers import LEDGER, PASSWORD, names
from tests.worlds.recovery import KEY, PAYLOAD, RecoveryWorld, a_world, closed_at, ends
from tests.worlds.virtual_time import in_virtual_time


async def create_without_password(world: RecoveryWorld, entries_on: str) -> LedgerMetadata:
    """Create a ledger on three bookies; some of them store its only entry."""
    metadata = LedgerMetadata(
        3, 3, 3, (Fragment(EntryId(0), names("a b c")),), digest_type=None, password=None, format_version=1
    )
    await world.ledgers.create(LEDGER, metadata)
    for name in entries_on.split():
        await world.put(name, packet(0))
    return await world.metadata()


def packet(entry_id: int) -> bytes:
    """Return an entry with the digest type of such metadata."""
    data = b"x" * PAYLOAD
    return pack(digest_for(DigestType.CRC32, PASSWORD), LEDGER, EntryId(entry_id), -1, (entry_id + 1) * PAYLOAD, data)


@in_virtual_time
async def test_a_wrong_password_is_refused_without_any_change() -> None:
    async with a_world("a b c") as world:
        before = await create_without_password(world, "b c")
        for password in (None, b"a guess"):
            with pytest.raises(WrongPasswordError, match="bookie b"):
                await world.recover(password=password)
        assert await world.metadata() == before
        for storage in world.storages.values():  # also on a bookie without the ledger: it stores no other key
            assert (await storage.add(AddBatch(LEDGER, KEY, [packet(0)]))).status is Status.OK
        assert ends(await world.recover(password=PASSWORD)) == closed_at(0)


@in_virtual_time
async def test_missing_and_unreachable_members_are_skipped() -> None:
    async with a_world("a b c") as world:
        before = await create_without_password(world, "a b c")
        world.stop_listening("a")
        world.hang("b")
        with pytest.raises(WrongPasswordError, match="bookie c"):
            await world.recover(password=b"a guess")
        assert await world.metadata() == before


@in_virtual_time
async def test_a_wrong_password_that_no_member_can_check_leaves_the_ledger_in_recovery() -> None:
    """No member has an entry when the password is verified."""
    async with a_world("a b c") as world:
        await create_without_password(world, "")
        for storage in world.storages.values():
            assert (await storage.fence(LEDGER, KEY)).status is Status.OK
        with pytest.raises(WrongPasswordError):
            await world.recover(password=b"a guess")
        assert (await world.metadata()).state is LedgerState.IN_RECOVERY
        assert ends(await world.recover(password=PASSWORD)) == (LedgerState.CLOSED, -1, 0)
