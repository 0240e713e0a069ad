"""Recovery without concurrent clients: what it finds, what it makes durable, and where it stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookie.client.errors import RecoveryNotPossibleError, WrongPasswordError
from bookie.client.recovery.recovery import recover_ledger
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError
from bookie.model.digest import digest_for, master_key
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bookie.model.packet import pack
from bookie.wire.port import AddBatch, AddReply, FenceReply, ReadReply, Status
from bookie.wire.requests import Fence, Read
from tests.worlds.ledgers import LEDGER, PASSWORD, names
from tests.worlds.recovery import (
    KEY,
    Asked,
    Intercept,
    Proceed,
    a_world,
    closed_at,
    ends,
    packet,
    put_copies,
    transport_of,
    with_wrong_bytes,
)
from tests.worlds.virtual_time import in_virtual_time

QUORUMS = [((3, 3), "a b c"), ((3, 2), "a b c"), ((2, 2), "a b c"), ((2, 1), "a b c"), ((3, 2), "a b c d e")]


@pytest.mark.parametrize(("quorum", "names"), QUORUMS)
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_a_ledger_is_closed_at_its_last_entry(quorum: tuple[int, int], names: str, count: int) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with a_world(names) as world:
            ledger = await world.create((0, names), quorum=quorum)
            await world.put_all(ledger, 0, count - 1)
            assert ends(await world.recover()) == closed_at(count - 1)
            assert await world.metadata() == await world.recover()
            await world.assert_durable(await world.metadata())
            assert await world.marked() == ()

    scenario()


@in_virtual_time
async def test_a_closed_ledger_is_left_alone() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        first = await world.recover()
        calls = len(world.transport.calls)
        assert await world.recover() == first
        assert len(world.transport.calls) == calls


@in_virtual_time
async def test_a_ledger_that_does_not_exist_is_an_error() -> None:
    async with a_world("a b c") as world:
        with pytest.raises(NoSuchLedgerError):
            await world.recover()


@in_virtual_time
async def test_a_wrong_password_neither_fences_nor_changes_anything() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        with pytest.raises(WrongPasswordError):
            await world.recover(password=b"guess")
        assert (await world.metadata()).state is LedgerState.OPEN
        for storage in world.storages.values():
            assert (await storage.add(AddBatch(LEDGER, KEY, [packet(0)]))).status is Status.OK
        assert ends(await world.recover(password=PASSWORD)) == closed_at(0)


@in_virtual_time
async def test_a_bookie_with_another_key_aborts_the_recovery() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        await world.storages[BookieId("b")].fence(LEDGER, b"x" * 20)

        async def late(asked: Asked, proceed: Proceed) -> Any:
            await world.clock.sleep(0.5)
            return await proceed()

        world.transport.hooks.update(a=late, c=late)
        with pytest.raises(WrongPasswordError):
            await world.recover()
        assert (await world.metadata()).state is LedgerState.IN_RECOVERY


@in_virtual_time
async def test_every_fenced_bookie_refuses_the_old_writer() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        await world.recover()
        refused = [
            (await storage.add(AddBatch(LEDGER, KEY, [packet(0)]))).status is Status.FENCED
            for storage in world.storages.values()
        ]
        assert refused.count(True) >= 2  # the adds cannot reach a quorum


@in_virtual_time
async def test_an_entry_on_only_one_bookie_is_copied_unchanged() -> None:
    async with a_world("a b c") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2), filled_to=4)
        odd = packet(5, lac=1, payload=b"just one copy", length=63)
        await world.put("c", odd)  # the first member of its write set
        metadata = await world.recover()
        assert ends(metadata) == (LedgerState.CLOSED, 5, 63)
        assert await world.copies(5) == dict.fromkeys(world.storages, odd)
        assert metadata.fragments == ledger.metadata.fragments


@in_virtual_time
async def test_the_recovery_completes_while_one_bookie_hangs() -> None:
    """Catalogue 36 and 42: the others cover the ensemble, and a slow answer does not make the ledger look empty."""
    async with a_world("a b c d") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=6)
        world.hang("a")
        metadata = await world.recover()
        assert ends(metadata) == closed_at(6)
        await world.assert_durable(metadata)
        # Entry 6 had to be stored again; for this, the spare replaced the unresponsive bookie.
        assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 6]
        assert "a" not in metadata.last_fragment.members


@in_virtual_time
async def test_a_slow_bookie_with_the_only_copy_of_entries_is_waited_for() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 1))
        await world.put("c", packet(0))

        async def slow(asked: Asked, proceed: Proceed) -> Any:
            await world.clock.sleep(1.9)
            return await proceed()

        world.transport.hooks["c"] = slow
        assert ends(await world.recover()) == closed_at(0)


@in_virtual_time
async def test_without_a_spare_the_unreachable_bookie_is_marked() -> None:
    async with a_world("a b c") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2), filled_to=6)
        world.hang("a")
        metadata = await world.recover()
        assert ends(metadata) == closed_at(6)
        assert metadata.fragments == ledger.metadata.fragments
        assert await world.marked() == ("a",)


@pytest.mark.parametrize("names", ["a b", "a b c"])
def test_with_too_few_bookies_the_ledger_stays_in_recovery(names: str) -> None:
    """Catalogue 41: the ledger stays unclosed, and the next recovery completes after the bookies have returned."""

    @in_virtual_time
    async def scenario() -> None:
        async with a_world("a b c") as world:
            ledger = await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
            world.hang(*names.split())
            with pytest.raises(RecoveryNotPossibleError) as error:
                await world.recover()
            assert set(error.value.evidence) == set(names.split())
            assert (await world.metadata()).state is LedgerState.IN_RECOVERY
            assert (await world.metadata()).fragments == ledger.metadata.fragments
            assert ends(await world.recover(world.client())) == closed_at(3)

    scenario()


@pytest.mark.parametrize("status", [Status.CORRUPT, Status.LIMBO, Status.IO_ERROR, Status.TOO_MANY_REQUESTS, None])
def test_a_copy_that_cannot_be_read_is_not_absent(status: Status | None) -> None:
    """Catalogue 59 and 60: one member denies the entry, one is in limbo, and one does not answer."""

    @in_virtual_time
    async def scenario() -> None:
        async with a_world("a b c d") as world:
            await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
            await world.put("a", packet(4))  # c stores it as well, and b answers for the third copy
            await world.put("c", packet(4))

            async def damaged(asked: Asked, proceed: Proceed) -> Any:
                reply = await proceed()
                return with_wrong_bytes(reply, [4], status) if isinstance(asked, Read) else reply

            world.transport.hooks["a"] = damaged
            world.hang("c")
            with pytest.raises(RecoveryNotPossibleError, match="entry 4"):
                await world.recover()
            assert (await world.metadata()).state is LedgerState.IN_RECOVERY
            assert ends(await world.recover(world.client())) == closed_at(4)

    scenario()


@pytest.mark.parametrize("status", [Status.NO_LEDGER, Status.NO_ENTRY])
def test_a_refused_read_does_not_deny_any_entry(status: Status) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with a_world("a b c d") as world:
            await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
            await put_copies(world, 4, "ac")

            async def refused(asked: Asked, proceed: Proceed) -> Any:
                return ReadReply(status) if isinstance(asked, Read) else await proceed()

            world.transport.hooks["a"] = refused
            world.hang("c")
            with pytest.raises(RecoveryNotPossibleError, match="entry 4"):
                await world.recover()
            assert ends(await world.recover(world.client())) == closed_at(4)

    scenario()


@in_virtual_time
async def test_a_bookie_in_limbo_counts_neither_for_the_fence_nor_for_the_end() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=2)
        await world.storages[BookieId("a")].set_limbo([LEDGER])
        world.hang("b")
        with pytest.raises(RecoveryNotPossibleError, match="too few bookies"):
            await world.recover()
        metadata = await world.recover(world.client())
        assert ends(metadata) == closed_at(2)


@pytest.mark.parametrize("status", [Status.NO_LEDGER, Status.NO_ENTRY])
def test_a_bookie_that_denies_the_ledger_instead_of_fencing_it_does_not_count(status: Status) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with a_world("a b c") as world:
            await world.create((0, "a b c"), quorum=(3, 2), filled_to=2)

            async def unfenced(asked: Asked, proceed: Proceed) -> Any:
                return FenceReply(status) if isinstance(asked, Fence) else await proceed()

            world.transport.hooks["a"] = unfenced
            world.hang("b")
            with pytest.raises(RecoveryNotPossibleError, match="too few bookies"):
                await world.recover()

    scenario()


@in_virtual_time
async def test_a_last_entry_that_does_not_verify_does_not_count_for_coverage() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=2)
        await world.put("a", packet(3)[:-1] + b"?")
        world.hang("b")
        with pytest.raises(RecoveryNotPossibleError, match="too few bookies"):
            await world.recover()


@in_virtual_time
async def test_a_last_entry_that_confirms_itself_does_not_count_for_coverage() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        await world.put("a", packet(0, lac=0))
        world.hang("b")
        with pytest.raises(RecoveryNotPossibleError, match="too few bookies"):
            await world.recover()


@in_virtual_time
async def test_the_ledger_ends_before_a_gap() -> None:
    """Catalogue 53: no bookie ever stored entry 3, so entry 4 was never acknowledged."""
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=2)
        for name in "abc":
            await world.put(name, packet(4, lac=1), packet(5, lac=1))
        assert ends(await world.recover()) == closed_at(2)


@in_virtual_time
async def test_the_length_is_that_at_the_end_if_a_gap_follows_the_confirmed_entry() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=2)
        await world.put("a", packet(5, lac=2))
        await world.put("b", packet(4, lac=2))
        assert ends(await world.recover()) == closed_at(2)


@in_virtual_time
async def test_an_empty_last_ensemble_does_not_reset_the_end_to_zero() -> None:
    """#2615: every bookie of the last ensemble answers that it has no entries."""
    async with a_world("a b c d e f") as world:
        ledger = await world.create((0, "a b c"), (5, "d e f"), quorum=(3, 2), filled_to=4)
        metadata = await world.recover()
        assert ends(metadata) == closed_at(4)
        assert metadata.fragments == ledger.metadata.fragments


@in_virtual_time
async def test_an_unknown_length_is_not_guessed() -> None:
    async with a_world("a b c d e f") as world:
        await world.create((0, "a b c"), (5, "d e f"), quorum=(3, 2), filled_to=4)
        world.hang("a", "b", "c")
        with pytest.raises(RecoveryNotPossibleError):
            await world.recover()
        assert (await world.metadata()).state is LedgerState.IN_RECOVERY


@in_virtual_time
async def test_copies_made_by_apache_are_accepted() -> None:
    """Their header has another last add confirmed, so the digest differs as well."""
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=2)
        await world.put("a", packet(3))
        await world.put("b", packet(3, lac=0))
        metadata = await world.recover()
        assert ends(metadata) == closed_at(3)
        assert set(map(world.unpacked, (await world.copies(3)).values())).issubset(
            {world.unpacked(packet(3)), world.unpacked(packet(3, lac=0))}
        )


@pytest.mark.parametrize("ahead", [1, 3, 13, 256])
def test_the_end_does_not_depend_on_the_read_ahead(ahead: int) -> None:
    """Catalogue 46."""

    @in_virtual_time
    async def scenario() -> None:
        async with a_world("a b c d e") as world:
            await world.create((0, "a b c d e"), quorum=(3, 1), filled_to=3)
            for entry_id in range(4, 40):
                name = "abcde"[(entry_id + entry_id % 3) % 5]
                await world.put(name, packet(entry_id, lac=3))
            metadata = await world.recover(world.client(recovery_read_entries=ahead))
            assert ends(metadata) == closed_at(39)
            await world.assert_durable(metadata)

    scenario()


@in_virtual_time
async def test_large_entries_are_read_and_stored_in_several_rounds() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 1))
        size = 1 << 20
        for entry_id in range(20):
            data = packet(entry_id, lac=-1, payload=bytes([entry_id]) * size, length=(entry_id + 1) * size)
            await world.put("a", data)
        metadata = await world.recover()
        assert ends(metadata) == (LedgerState.CLOSED, 19, 20 * size)
        await world.assert_durable(metadata)


@in_virtual_time
async def test_after_short_answers_of_several_members_reading_continues_at_the_first_gap() -> None:
    async with a_world("a b c") as world:
        ledger = await world.create((0, "a b c"), quorum=(2, 2))
        for entry_id in range(12):
            for i in range(2):
                await world.put(ledger.metadata.last_fragment.members[(entry_id + i) % 3], packet(entry_id, lac=-1))

        def full_after(count: int) -> Intercept:
            async def cut(asked: Asked, proceed: Proceed) -> Any:
                reply = await proceed()
                if not isinstance(asked, Read):
                    return reply
                await world.clock.sleep(count / 10)
                return replace(reply, results=reply.results[:count])

            return cut

        world.transport.hooks = {name: full_after(count) for count, name in enumerate("abc", 1)}
        metadata = await world.recover()
        assert ends(metadata) == closed_at(11)
        await world.assert_durable(metadata)


@in_virtual_time
async def test_adds_refused_by_all_leave_the_ledger_in_recovery() -> None:
    """Catalogue 47: the end can be read, but nothing can be stored."""
    async with a_world("a b c d") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)

        async def read_only(asked: Asked, proceed: Proceed) -> Any:
            return AddReply(Status.READ_ONLY) if isinstance(asked, AddBatch) else await proceed()

        world.transport.every = read_only
        with pytest.raises(RecoveryNotPossibleError, match="entry 3"):
            await world.recover()
        assert (await world.metadata()).state is LedgerState.IN_RECOVERY
        assert (await world.metadata()).fragments == ledger.metadata.fragments


@in_virtual_time
async def test_an_entry_on_fewer_bookies_than_the_ack_quorum_leaves_the_ledger_in_recovery() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)

        async def no_adds(asked: Asked, proceed: Proceed) -> Any:
            return AddReply(Status.UNREACHABLE) if isinstance(asked, AddBatch) else await proceed()

        world.transport.hooks.update(b=no_adds, c=no_adds)
        with pytest.raises(RecoveryNotPossibleError, match="entry 3 reached 1 of 2 bookies"):
            await world.recover()
        assert (await world.metadata()).state is LedgerState.IN_RECOVERY


@in_virtual_time
async def test_bookies_that_fail_adds_are_replaced_from_that_entry_on() -> None:
    """Catalogue 44: two of three bookies, at the same time."""
    async with a_world("a b c d e f") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)

        async def no_adds(asked: Asked, proceed: Proceed) -> Any:
            return AddReply(Status.UNREACHABLE) if isinstance(asked, AddBatch) else await proceed()

        world.transport.hooks.update(a=no_adds, c=no_adds)
        metadata = await world.recover()
        assert ends(metadata) == closed_at(3)
        assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 3]
        assert metadata.last_fragment.members[1] == "b"
        assert not {"a", "c"} & set(metadata.last_fragment.members)
        await world.assert_durable(metadata)
        assert await world.marked() == ()


@in_virtual_time
async def test_a_replacement_is_a_member_from_the_first_entry_of_the_batch() -> None:
    async with a_world("a b c d") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
        for entry_id in (4, 5, 6):
            for name in "bc":
                await world.put(name, packet(entry_id, lac=2))

        async def no_adds(asked: Asked, proceed: Proceed) -> Any:
            return AddReply(Status.UNREACHABLE) if isinstance(asked, AddBatch) else await proceed()

        world.transport.hooks["a"] = no_adds
        metadata = await world.recover()
        assert ends(metadata) == closed_at(6)
        assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 3]
        assert metadata.last_fragment.members == ("d", "b", "c")
        for entry_id in (3, 4, 5, 6):
            assert {"b", "c", "d"} <= (await world.copies(entry_id)).keys()


@pytest.mark.parametrize("seed", range(12))
def test_a_bookie_that_refused_is_not_chosen_again(seed: int) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with a_world("a b c d e") as world:
            await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)

            async def no_adds(asked: Asked, proceed: Proceed) -> Any:
                return AddReply(Status.UNREACHABLE) if isinstance(asked, AddBatch) else await proceed()

            ports = world.client(seed=seed, ensemble_change_attempts_max=3)
            transport_of(ports).hooks.update(c=no_adds, d=no_adds)
            metadata = await world.recover(ports)
            assert ends(metadata) == closed_at(3)
            assert metadata.last_fragment.members == ("a", "b", "e")
            assert set("abe") <= (await world.copies(3)).keys()
            assert await world.marked() == ()

    scenario()


@in_virtual_time
async def test_an_empty_last_fragment_is_replaced_in_place() -> None:
    async with a_world("a b c d") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        await put_copies(world, 0, "ab")
        world.hang("c")
        metadata = await world.recover()
        assert ends(metadata) == closed_at(0)
        assert [fragment.first_entry_id for fragment in metadata.fragments] == [0]
        assert metadata.last_fragment.members == ("a", "b", "d")


@in_virtual_time
async def test_an_aborted_recovery_does_not_store_its_ensemble_change() -> None:
    """BK-581: the next recovery reads from the bookies that the writer used."""
    async with a_world("a b c d") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2))
        for name in "ab":
            await world.put(name, packet(0), packet(1, lac=-1))
        ports = world.client(recovery_read_entries=1)
        transport = transport_of(ports)
        transport.faults(BookieId("c")).is_request_lost = True

        async def then_all_fail(asked: Asked, proceed: Proceed) -> Any:
            reply = await proceed()
            if isinstance(asked, AddBatch):
                transport.faults(BookieId("a")).is_request_lost = True
                transport.faults(BookieId("b")).is_request_lost = True
            return reply

        transport.hooks["d"] = then_all_fail
        with pytest.raises(RecoveryNotPossibleError):
            await world.recover(ports)
        assert await world.holds("d") == [0]
        assert (await world.metadata()).fragments == ledger.metadata.fragments
        assert ends(await world.recover()) == closed_at(1)


@in_virtual_time
async def test_a_ledger_deleted_meanwhile_is_an_error() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))

        async def deletes(asked: Asked, proceed: Proceed) -> Any:
            if isinstance(asked, Read):
                await world.ledgers.delete(LEDGER)
            return await proceed()

        world.transport.hooks["a"] = deletes
        with pytest.raises(NoSuchLedgerError):
            await recover_ledger(world.ports, LEDGER)


@in_virtual_time
async def test_adds_to_a_busy_bookie_are_retried() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 3))
        await put_copies(world, 0, "abc")
        refusals = 3

        async def busy(asked: Asked, proceed: Proceed) -> Any:
            nonlocal refusals
            if isinstance(asked, AddBatch) and refusals:
                refusals -= 1
                return AddReply(Status.TOO_MANY_REQUESTS)
            return await proceed()

        world.transport.hooks["b"] = busy
        assert ends(await world.recover()) == closed_at(0)
        assert await world.marked() == ()
        assert EntryId(0) in await world.holds("b")


@in_virtual_time
async def test_an_unreachable_member_is_waited_for_once_and_not_until_the_deadline() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=0)
        for entry_id in range(1, 60):
            for name in "abc":
                await world.put(name, packet(entry_id, lac=0))

        async def silent(asked: Asked, proceed: Proceed) -> Any:
            if isinstance(asked, Read):
                await world.clock.sleep(1000)
            return await proceed()

        ports = world.client(recovery_read_entries=3, read_timeout_s=500)
        transport_of(ports).hooks["a"] = silent
        started = world.clock.monotonic_s()
        assert ends(await world.recover(ports)) == closed_at(59)
        assert world.clock.monotonic_s() - started < 3 * ports.settings.speculative_after_s


@pytest.mark.parametrize("password", [None, b"mine"])
def test_metadata_without_a_password_is_opened_with_the_given_one_or_an_empty_one(password: bytes | None) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with a_world("a b c") as world:
            metadata = LedgerMetadata(
                3,
                3,
                3,
                (Fragment(EntryId(0), names("a b c")),),
                digest_type=None,
                password=None,
                format_version=1,
            )
            await world.ledgers.create(LEDGER, metadata)
            key = master_key(password or b"")
            data = pack(digest_for(DigestType.CRC32, password or b""), LEDGER, EntryId(0), -1, 2, b"hi")
            for storage in world.storages.values():
                await storage.add(AddBatch(LEDGER, key, [data]))
            assert ends(await world.recover(password=password)) == (LedgerState.CLOSED, 0, 2)

    scenario()


@in_virtual_time
async def test_another_key_found_only_by_a_read_or_add_aborts_the_recovery_as_well() -> None:
    async with a_world("a b c") as world:
        for kind, refused in ((Read, ReadReply), (AddBatch, AddReply)):
            await world.create((0, "a b c"), quorum=(3, 2), filled_to=1)

            async def unauthorized(asked: Asked, proceed: Proceed, kind: Any = kind, refused: Any = refused) -> Any:
                if isinstance(asked, Fence):
                    await world.clock.sleep(1)
                if isinstance(asked, kind):
                    return refused(Status.UNAUTHORIZED)
                return await proceed()

            world.transport.hooks["b"] = unauthorized
            with pytest.raises(WrongPasswordError, match="bookie b"):
                await world.recover()
            await world.ledgers.delete(LEDGER)
