"""Logs on in-memory twins: order across roll-overs, takeover, truncation, deletion, and what readers see."""

from __future__ import annotations

import asyncio

import pytest

from bookie.client.bookkeeper import BookKeeper
from bookie.client.errors import NotEnoughBookiesError, WriterClosedError
from bookie.client.log.values import (
    InvalidLogOptionsError,
    InvalidPositionError,
    LogDeposedError,
    LogOptions,
    LogPosition,
    LogTruncatedError,
)
from bookie.client.log.writer import LogWriter
from bookie.client.options import InvalidQuorumError, InvalidWriterOptionsError, LedgerOptions, WriterOptions
from bookie.client.writer import writer as ledger_writer
from bookie.metadata.logs import log_store as log_lists
from bookie.metadata.logs.log_list import LogConflictError
from bookie.metadata.logs.log_store import LogExistsError, LogFullError, NoSuchLogError
from bookie.metadata.port import AccessDeniedError, StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.store.memory import Fault
from bookie.model.errors import OutcomeUnknownError
from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.fault_points import inject_faults
from tests.worlds.cluster import ROOT
from tests.worlds.log import BOOKIES, NAME, SETTINGS, SMALL, append_all, is_gone, log_world, read_all
from tests.worlds.stale_store import StaleStore
from tests.worlds.virtual_time import in_virtual_time

LINES = [f"line {index:03}".encode() for index in range(60)]


async def taken(source: object, count: int) -> list[bytes]:
    found: list[bytes] = []
    async for entry in source:  # type: ignore[attr-defined]
        found.append(entry.payload)
        if len(found) == count:
            break
    return found


@in_virtual_time
async def test_entries_are_read_back_in_order_across_roll_overs() -> None:
    async with log_world() as world:
        client = world.client()
        async with await client.log(NAME).write(SMALL) as writer:
            positions = await append_all(writer, LINES)
        assert positions == sorted(positions)
        assert len({position.ledger_id for position in positions}) == 5  # a ledger has room for 12 lines of 8 bytes
        entries = await read_all(client)
        assert [(entry.position, entry.payload) for entry in entries] == list(zip(positions, LINES, strict=True))
        assert [entry.payload for entry in await read_all(client, positions[17])] == LINES[17:]
        assert [entry.payload for entry in await read_all(client, positions[17].following())] == LINES[18:]
        assert [entry.payload for entry in await read_all(client, positions[11].following())] == LINES[12:]
        assert await read_all(client, positions[-1].following()) == []
        assert world.open_at_once_max == 1
        assert await client.logs() == [NAME]


@in_virtual_time
async def test_a_log_rolls_over_with_age_but_not_while_it_is_empty() -> None:
    async with log_world() as world:
        writer = await world.client().log(NAME).write(SMALL)
        first = writer.ledger_id
        await world.clock.sleep(100)
        await writer.append(b"a")
        assert writer.ledger_id == first
        await world.clock.sleep(61)
        assert (await writer.append(b"b")).ledger_id > first
        await writer.close()


@in_virtual_time
async def test_a_log_uses_another_ledger_id_if_the_planned_one_is_taken() -> None:
    async with log_world() as world:
        log = world.client().log(NAME)
        writer = await log.write(SMALL)
        await writer.append(b"a")
        await world.ledgers.create(LedgerId(writer.ledger_id + 1), writer._writer.metadata)
        with pytest.raises(LogConflictError):
            await writer.roll()
        closed = writer.ledger_id
        await writer.append(b"b")
        assert writer.ledger_id > closed + 1
        await writer.close()
        await world.ledgers.create(LedgerId(writer.ledger_id + 1), writer._writer.metadata)
        async with await log.write() as again:
            await again.append(b"c")
        assert [entry.payload for entry in await read_all(world.client(2))] == [b"a", b"b", b"c"]


@in_virtual_time
async def test_a_closed_log_is_read_to_its_end_although_the_server_is_behind() -> None:
    async with log_world() as world:
        store = StaleStore(world.cell)
        reading = BookKeeper(world.client_ports(world.memory_transport(world.store), SETTINGS, store))
        async with await world.client().log(NAME).write() as writer:
            positions = await append_all(writer, LINES[:5])
            store.fall_behind()
        assert [entry.payload for entry in await read_all(reading)] == LINES[:5]
        assert positions[-1].entry_id == 4
        await store.close()


@in_virtual_time
async def test_a_log_rolls_over_on_request() -> None:
    async with log_world() as world:
        writer = await world.client().log(NAME).write(SMALL)
        first = writer.ledger_id
        await writer.roll()
        assert writer.ledger_id == first
        await writer.append(b"a")
        await writer.roll()
        assert writer.ledger_id > first
        await writer.close()
        assert [entry.payload for entry in await read_all(world.client(2))] == [b"a"]


@in_virtual_time
async def test_options_are_stored_with_the_log_and_refused_if_invalid() -> None:
    async with log_world() as world:
        log = world.client().log(NAME)
        for wrong in (
            LogOptions(LedgerOptions(1, 2, 1)),
            LogOptions(ledger_bytes_max=0),
            LogOptions(ledger_age_s_max=0),
        ):
            with pytest.raises((InvalidQuorumError, InvalidLogOptionsError)):
                await log.write(wrong)
        with pytest.raises(InvalidLogOptionsError):
            await log.write(writer_options=WriterOptions(has_own_entry_ids=True))
        with pytest.raises(InvalidWriterOptionsError):  # its writer would send without a pause
            await log.write(writer_options=WriterOptions(explicit_lac_interval_s=0))
        with pytest.raises(NoSuchLogError):
            await log.info()
        await log.create(SMALL)
        with pytest.raises(LogExistsError):
            await log.create()
        async with await world.client(2).log(NAME).write() as writer:
            assert writer.options == SMALL
        assert (await log.info()).options == SMALL


@in_virtual_time
async def test_writing_to_a_log_that_must_exist_creates_nothing() -> None:
    async with log_world() as world:
        with pytest.raises(NoSuchLogError):
            await world.client().log(NAME).write(is_created=False)
        assert await world.client().logs() == []


@in_virtual_time
async def test_too_few_bookies_change_nothing() -> None:
    async with log_world() as world:
        client = world.client()
        async with await client.log(NAME).write(SMALL) as writer:
            await writer.append(b"a")
            with pytest.raises(NotEnoughBookiesError):
                await world.client(2).log(NAME).write(LogOptions(LedgerOptions(9, 2, 2)))
            await writer.append(b"b")
        assert [entry.payload for entry in await read_all(client)] == [b"a", b"b"]


@in_virtual_time
async def test_a_takeover_keeps_everything_acknowledged_and_deposes_the_old_writer() -> None:
    async with log_world() as world:
        old = await world.client(1).log(NAME).write(SMALL)
        await append_all(old, LINES[:15])
        new = await world.client(2).log(NAME).write()
        await append_all(new, LINES[15:30])
        for _ in range(2):
            with pytest.raises(LogDeposedError) as caught:
                await old.append(b"too late")
            assert isinstance(caught.value, OutcomeUnknownError)
        with pytest.raises(LogDeposedError):
            await old.close()
        await new.close()
        assert [entry.payload for entry in await read_all(world.client(3))] == LINES[:30]


@in_virtual_time
async def test_a_deposed_writer_cannot_add_a_ledger_to_the_log() -> None:
    async with log_world() as world:
        old = await world.client(1).log(NAME).write(SMALL)
        await append_all(old, LINES[:3])
        new = await world.client(2).log(NAME).write()
        listed = world.listed_now()
        with pytest.raises(LogDeposedError):
            await old.roll()
        assert world.listed_now() == listed
        await new.close()


@in_virtual_time
async def test_empty_ledgers_of_takeovers_are_deleted() -> None:
    async with log_world() as world:
        writers = [await world.client(seed).log(NAME).write(SMALL) for seed in range(5)]
        await writers[-1].append(b"a")
        await writers[-1].close()
        async with await world.client(6).log(NAME).write():
            pass
        listed = world.listed_now()
        assert listed is not None
        assert (len(listed.list.ledgers), listed.list.trimming) == (1, ())
        assert await world.log_ledgers() == list(listed.list.ledgers)


@in_virtual_time
async def test_truncation_deletes_whole_ledgers_and_readers_get_an_error() -> None:
    async with log_world() as world:
        client = world.client()
        log = client.log(NAME)
        writer = await log.write(SMALL)
        positions = await append_all(writer, LINES)
        dropped = await log.truncate(positions[30])
        assert list(dropped) == sorted({position.ledger_id for position in positions[:24]})
        assert [await is_gone(client, ledger_id) for ledger_id in dropped] == [True, True]
        with pytest.raises(LogTruncatedError) as caught:
            await read_all(client, positions[5])
        assert caught.value.first == LogPosition(positions[24].ledger_id, EntryId(0))
        readable = [entry.payload for entry in await read_all(client)]  # the last ledger is still open
        assert readable[:24] == LINES[24:48]
        assert readable == LINES[24 : 24 + len(readable)]
        assert await log.truncate(positions[30]) == ()
        await append_all(writer, [b"more"])  # truncation does not end the writer
        await writer.roll()
        await log.truncate(LogPosition(writer.ledger_id, EntryId(7)))
        await writer.close()
        assert await world.log_ledgers() == []
        with pytest.raises(InvalidPositionError):
            await log.truncate(LogPosition(LedgerId(10_000), EntryId(0)))


@in_virtual_time
async def test_an_interrupted_truncation_leaks_nothing() -> None:
    async with log_world() as world:
        client = world.client()
        log = client.log(NAME)
        writer = await log.write(SMALL)
        positions = await append_all(writer, LINES)
        with inject_faults(lambda name: name == "log.leave_trimming"):
            dropped = await log.truncate(positions[30])
        assert (await log.info()).waiting_for_deletion == tuple(dropped)
        assert not await is_gone(client, dropped[0])
        await world.client(2).log(NAME).write()
        assert (await log.info()).waiting_for_deletion == ()
        assert await is_gone(client, dropped[0])


@pytest.mark.parametrize("operation", ["read", "delete"])
@in_virtual_time
async def test_a_ledger_that_may_not_be_read_or_deleted_does_not_keep_the_others_of_a_truncation(
    operation: str,
) -> None:
    async with log_world() as world:
        client = world.client()
        log = client.log(NAME)
        positions = await append_all(await log.write(SMALL), LINES)
        with inject_faults(lambda name: name == "log.leave_trimming"):
            dropped = await log.truncate(positions[30])
        denied, *others = dropped
        path = world.ledgers.path(denied)
        if operation == "read":
            world.cell.deny(path)

        async def refuse(called: str, of: str) -> Fault | None:
            if (called, of) == (operation, path):
                raise AccessDeniedError(path)
            return None

        client = world.client(2, refuse)
        assert await client.log(NAME).truncate(positions[30]) == ()
        assert (await log.info()).waiting_for_deletion == (denied,)
        assert others
        assert all([await is_gone(client, each) for each in others])
        with pytest.raises(AccessDeniedError):
            await client.log(NAME).delete()
        world.cell.allow(path)
        await world.client(3).log(NAME).delete()
        assert await world.log_ledgers() == []


@in_virtual_time
async def test_a_tail_continues_across_roll_overs_takeovers_and_truncation() -> None:
    async with log_world() as world:
        writer = await world.client(1).log(NAME).write(SMALL)
        tail = asyncio.create_task(taken(world.client(2).log(NAME).tail(), 60))
        positions = await append_all(writer, LINES[:40])
        await world.clock.sleep(30)
        other = await world.client(3).log(NAME).write()
        await world.client(3).log(NAME).truncate(positions[20])
        await append_all(other, LINES[40:])
        await other.close()
        assert await asyncio.wait_for(tail, 600) == LINES


@in_virtual_time
async def test_a_tail_resumes_after_an_outage_with_the_next_entry() -> None:
    async with log_world() as world:
        writer, client = await world.client(1).log(NAME).write(), world.client(2)
        is_down = False

        async def hook(operation: str, path: str) -> Fault | None:
            return Fault.FAIL_BEFORE if is_down else None

        client.store.fault_hook = hook
        await append_all(writer, LINES[:30])
        await append_all(writer, LINES[30:])
        with inject_faults(lambda name: name in {"reader.tiny_chunk", "reader.extra_reread"}):
            tail = client.log(NAME).tail()
            found = [(await anext(tail)).payload for _ in range(10)]
            is_down = True
            following = asyncio.ensure_future(taken(tail, 50))
            await world.clock.sleep(5)
            is_down = False
            await writer.close()
            assert found + await asyncio.wait_for(following, 600) == LINES


@pytest.mark.parametrize("is_reread", [False, True])
@in_virtual_time
async def test_a_slow_reader_misses_nothing_in_a_ledger_that_is_closed_meanwhile(is_reread: bool) -> None:
    """It may read the metadata of its ledger again after bookies were replaced; by then, the ledger is longer."""
    disturbances = {"reader.tiny_chunk", "reader.extra_reread"} if is_reread else {"reader.tiny_chunk"}
    async with log_world() as world:
        writer = await world.client(1).log(NAME).write(LogOptions(LedgerOptions(3, 3, 2)))
        for line in LINES[:10]:  # one after another, so each entry confirms the ones before it
            await writer.append(line)
        with inject_faults(lambda name: name in disturbances):
            reading = world.client(2).log(NAME).read()
            found = [(await anext(reading)).payload]
            await append_all(writer, LINES[10:20])
            await writer.roll()
            await append_all(writer, LINES[20:])
            await writer.close()
            found += [entry.payload async for entry in reading]
        assert len(found) >= 9
        assert found == LINES[: len(found)]


@in_virtual_time
async def test_a_tail_of_a_log_that_is_deleted_ends_with_an_error() -> None:
    async with log_world() as world:
        writer = await world.client(1).log(NAME).write(SMALL)
        await append_all(writer, LINES[:20])
        tail = asyncio.create_task(taken(world.client(2).log(NAME).tail(), 60))
        await world.clock.sleep(10)
        await world.client(3).log(NAME).delete()
        with pytest.raises(NoSuchLogError):
            await asyncio.wait_for(tail, 600)


@in_virtual_time
async def test_deleting_a_log_deletes_its_ledgers_and_its_writer_gets_an_error() -> None:
    async with log_world() as world:
        client = world.client(1)
        writer = await client.log(NAME).write(SMALL)
        positions = await append_all(writer, LINES[:20])
        await world.client(2).log(NAME).delete()
        assert await client.logs() == []
        assert await world.log_ledgers() == []
        with pytest.raises(LogDeposedError):
            await append_all(writer, LINES[20:40])
        with pytest.raises(NoSuchLogError):
            await client.log(NAME).delete()
        again = await client.log(NAME).write(SMALL)
        assert (await again.append(b"new")) > positions[-1]
        await again.close()
        assert [entry.payload for entry in await read_all(client)] == [b"new"]
        with pytest.raises(LogTruncatedError):
            await read_all(client, positions[0])


@in_virtual_time
async def test_nothing_is_acknowledged_in_the_last_ledger_of_a_deleted_log() -> None:
    async with log_world() as world:
        writer = await world.client(1).log(NAME).write()
        await append_all(writer, LINES[:3])
        await world.client(2).log(NAME).delete()
        with pytest.raises(LogDeposedError):
            await writer.append(b"more")


@in_virtual_time
async def test_a_truncation_keeps_the_last_ledger() -> None:
    async with log_world() as world:
        client = world.client(1)
        writer = await client.log(NAME).write()
        await append_all(writer, LINES[:3])
        await writer.close()
        empty = await client.log(NAME).write()
        await empty.close()
        assert empty.ledger_id > writer.ledger_id
        assert await client.log(NAME).truncate(LogPosition(empty.ledger_id, EntryId(0))) == ()
        assert [entry.payload for entry in await read_all(client)] == LINES[:3]


@in_virtual_time
async def test_a_closed_writer_refuses_appends_and_can_be_closed_again() -> None:
    async with log_world() as world:
        writer = await world.client().log(NAME).write(SMALL)
        await writer.append(b"a")
        await writer.close()
        await writer.close()
        with pytest.raises(WriterClosedError):
            await writer.append(b"b")


@in_virtual_time
async def test_a_log_with_a_full_list_continues_in_its_last_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    async with log_world() as world:
        log = world.client().log(NAME)
        writer = await log.write(SMALL)
        await append_all(writer, LINES[:30])
        monkeypatch.setattr(log_lists, "LIST_BYTES_MAX", 10)
        before = len((await log.info()).ledgers)
        positions = await append_all(writer, LINES[30:])
        assert len((await log.info()).ledgers) == before
        monkeypatch.setattr("bookie.client.log.takeover.TAKEOVER_BYTES_MAX", 10)
        with pytest.raises(LogFullError, match="truncate"):
            await world.client(2).log(NAME).write()
        monkeypatch.undo()
        assert positions == sorted(positions)
        assert [entry.payload for entry in await read_all(world.client(3))] == LINES


@pytest.mark.parametrize("kind", [Fault.LOSE_ANSWER, Fault.FAIL_BEFORE])
@pytest.mark.parametrize("nth", range(6))
@in_virtual_time
async def test_a_lost_answer_to_a_list_change_is_resolved(kind: Fault, nth: int) -> None:
    seen = 0

    async def faults(operation: str, path: str) -> Fault | None:
        nonlocal seen
        if operation in ("multi", "set"):
            seen += 1
            return kind if seen == nth + 1 else None
        return None

    async with log_world() as world:
        written: list[bytes] = []
        failures = 0
        writer: LogWriter | None = None
        client = world.client(1, faults)
        for line in LINES[:40]:
            for _ in range(3):
                try:
                    if writer is None:
                        writer = await client.log(NAME).write(SMALL)
                    await writer.append(line)
                    written.append(line)
                    break
                except StoreUnavailableError:
                    failures += 1
        assert writer is not None
        await writer.close()
        assert written == LINES[:40]
        assert kind is Fault.FAIL_BEFORE or failures == 0
        assert [entry.payload for entry in await read_all(world.client(2))] == written
        listed = world.listed_now()
        assert listed is not None
        assert await world.log_ledgers() == list(listed.list.ledgers)


@in_virtual_time
async def test_a_roll_over_with_an_unknown_outcome_continues_with_the_same_ledger() -> None:
    failing: list[str] = []

    async def faults(operation: str, path: str) -> Fault | None:
        if failing and operation == failing[0]:
            failing.pop(0)
            return Fault.LOSE_ANSWER if operation == "multi" else Fault.FAIL_BEFORE
        return None

    async with log_world() as world:
        writer = await world.client(1, faults).log(NAME).write(SMALL)
        await writer.append(b"a")
        failing += ["multi", "sync"]
        with pytest.raises(WriteOutcomeUnknownError):
            await writer.roll()
        listed = world.listed_now()
        assert listed is not None
        assert len(listed.list.ledgers) == 2  # the ledger is listed, although the write was not confirmed
        assert (await writer.append(b"b")).ledger_id == listed.list.last
        await writer.close()
        assert [entry.payload for entry in await read_all(world.client(2))] == [b"a", b"b"]
        assert world.open_at_once_max == 1


@in_virtual_time
async def test_a_log_continues_in_its_ledger_while_no_new_one_can_be_created() -> None:
    is_down = False

    async def faults(operation: str, path: str) -> Fault | None:
        return Fault.FAIL_BEFORE if is_down else None

    async with log_world() as world:
        writer = await world.client(1, faults).log(NAME).write(SMALL)
        await append_all(writer, LINES[:6])
        is_down = True
        positions = await append_all(writer, LINES[6:30])
        assert len({position.ledger_id for position in positions}) == 1
        is_down = False
        assert (await writer.append(LINES[30])).ledger_id > positions[0].ledger_id
        await writer.close()
        assert [entry.payload for entry in await read_all(world.client(2))] == LINES[:31]


@in_virtual_time
async def test_an_append_that_is_cancelled_at_any_moment_leaves_the_writer_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_writer, "_ENTRIES_PER_TURN", 1)  # each admission lets the loop run other tasks
    async with log_world() as world:
        client = world.client()
        async with await client.log(NAME).write() as writer:
            await writer.append(b"before")
            for turns in range(4):
                cancelled = asyncio.create_task(writer.append(b"maybe"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                cancelled.cancel()
                await asyncio.wait([cancelled])
            await writer.roll()
            await writer.append(b"after")
        payloads = [entry.payload for entry in await read_all(client)]
        assert (payloads[0], payloads[-1]) == (b"before", b"after")
        assert set(payloads[1:-1]) <= {b"maybe"}


@in_virtual_time
async def test_nothing_of_a_takeover_runs_after_it_was_cancelled() -> None:
    async with log_world() as world:
        log = world.client().log(NAME)
        async with await log.write(SMALL) as writer:
            positions = await append_all(writer, LINES)
        may_delete = asyncio.Event()

        async def hold(operation: str, path: str) -> Fault | None:
            if operation == "delete" and path.startswith(f"{ROOT}/00"):  # the metadata of a ledger
                await may_delete.wait()
            return None

        log = world.client(2, hold).log(NAME)
        truncation = asyncio.create_task(log.truncate(positions[-1]))
        await asyncio.sleep(1)
        before = asyncio.all_tasks()
        everything = WriterOptions(explicit_lac_interval_s=1, add_quorum_timeout_s=5)
        takeover = asyncio.create_task(log.write(writer_options=everything))
        await asyncio.sleep(1)  # it is listed, and waits for the deletion of the truncated ledgers
        assert not takeover.done()
        takeover.cancel()
        await asyncio.wait([takeover])
        assert takeover.cancelled()
        assert asyncio.all_tasks() == before
        may_delete.set()
        await truncation


@in_virtual_time
async def test_nothing_of_a_writer_runs_after_its_context_was_left_by_a_cancellation() -> None:
    async with log_world() as world:
        client = world.client()
        everything = WriterOptions(explicit_lac_interval_s=1, add_quorum_timeout_s=60)

        async def write() -> None:
            async with await client.log(NAME).write(writer_options=everything) as writer:
                for bookie in BOOKIES:
                    client.transport.faults(bookie).is_request_lost = True
                await writer.submit(b"x")  # the close waits for its copies

        before = asyncio.all_tasks()
        writing = asyncio.create_task(write())
        await asyncio.sleep(1)
        writing.cancel()
        await asyncio.wait([writing])
        assert asyncio.all_tasks() == before
