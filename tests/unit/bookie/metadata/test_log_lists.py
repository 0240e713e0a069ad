"""Lists of ledgers in the metadata store: changes by compare-and-set, names, damage, and where readers continue."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from bookie.client.log.reader import Cursor, next_position_after
from bookie.client.log.values import InvalidPositionError, LogPosition, LogTruncatedError
from bookie.metadata.logs.log_list import LogConflictError, LogList, UnreadableLogError
from bookie.metadata.logs.log_store import (
    Decide,
    InvalidLogNameError,
    LogExistsError,
    LogFullError,
    LogLists,
    NoSuchLogError,
)
from bookie.metadata.nodes import ensure_path
from bookie.metadata.port import (
    AccessDeniedError,
    Create,
    MultiFailedError,
    Stat,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.store.memory import Fault, MemoryStore, ReadableTree
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.model.ids import EntryId, LedgerId
from tests.worlds.virtual_time import run_virtual


def lists_on(store: MemoryStore) -> LogLists:
    return LogLists(store, "/ledgers")


def ids(*values: int) -> tuple[LedgerId, ...]:
    return tuple(LedgerId(value) for value in values)


def place(ledger: int, entry: int) -> LogPosition:
    return LogPosition(LedgerId(ledger), EntryId(entry))


@given(st.text(max_size=80))
def test_any_name_is_stored_or_refused(name: str) -> None:
    async def main() -> None:
        store = MemoryStore(MemoryCell())
        lists = lists_on(store)
        try:
            await lists.create(name, {}, 0, "t")
        except InvalidLogNameError:
            assert await lists.names() == []
            return
        assert await lists.names() == [name]
        assert (await lists.read(name)).list.writer == "t"

    run_virtual(main())


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 256, "é" * 43])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidLogNameError, match="not a log name"):
        lists_on(MemoryStore(MemoryCell())).path(name)


def node(ledgers: list[int], last_listed: int) -> bytes:
    fields = {"format": 1, "ledgers": ledgers, "writer": "", "trimming": [], "truncated_through": -1, "ctime_ms": 0}
    return json.dumps({**fields, "last_listed": last_listed, "options": {}}).encode()


def listing(ledger: int, writer: str) -> Decide:
    return lambda now: now.with_ledger(LedgerId(ledger), writer)


async def test_every_change_is_read_back_from_the_store() -> None:
    lists = lists_on(MemoryStore(MemoryCell()))
    listed = await lists.create("a", {"x": 1}, 7, "t")
    for ledger in (3, 5, 9):
        listed = await lists.change(listed, listing(ledger, "w"))
    listed = await lists.change(listed, lambda now: now.without(ids(3, 4), is_truncation=True))
    listed = await lists.change(listed, lambda now: now.without(ids(9), is_truncation=False))
    assert listed.list == LogList(ids(5), "w", ids(3, 9), LedgerId(3), LedgerId(9), {"x": 1}, 7)
    assert (await lists.read("a", is_newest=True)).list == listed.list
    assert listed.list.trimmed(ids(3)).trimming == ids(9)
    with pytest.raises(LogConflictError):
        listed.list.with_ledger(LedgerId(9), "w")
    with pytest.raises(LogExistsError):
        await lists.create("a", {}, 7, "other")


async def test_a_stale_list_is_read_again_and_a_full_one_refused() -> None:
    lists = lists_on(MemoryStore(MemoryCell()))
    old = await lists.create("a", {}, 0, "t")
    await lists.change(old, lambda now: now.with_ledger(LedgerId(1), "w"))
    listed = await lists.change(old, lambda now: now.with_ledger(LedgerId(2), "w"))
    assert listed.list.ledgers == ids(1, 2)
    with pytest.raises(LogFullError, match="truncate"):
        await lists.change(listed, lambda now: now.with_ledger(LedgerId(3), "w"), bytes_max=10)
    smaller = await lists.change(listed, lambda now: now.without(ids(1), is_truncation=True), bytes_max=10)
    assert smaller.list.ledgers == ids(2)


@pytest.mark.parametrize("kind", ["create", "set", "multi"])
async def test_a_lost_answer_is_resolved_by_a_read(kind: str) -> None:
    lost: list[str] = []

    async def hook(operation: str, path: str) -> Fault | None:
        if operation == kind and path not in lost:
            lost.append(path)
            return Fault.LOSE_ANSWER
        return None

    def decide(now: LogList) -> LogList | None:
        return None if LedgerId(1) in now.ledgers else now.with_ledger(LedgerId(1), "w")

    store = MemoryStore(MemoryCell(), fault_hook=hook)
    await ensure_path(store, "/ledgers")
    lists = lists_on(store)
    listed = await lists.create("a", {}, 0, "t")
    create = Create("/ledgers/00/0000/L0001", b"m") if kind == "multi" else None
    listed = await lists.change(listed, decide, create=create)
    assert lost
    assert (await lists.read("a")).list.ledgers == ids(1)
    assert create is None or (await store.get(create.path)).data == b"m"


async def test_a_log_is_created_if_the_answer_was_lost() -> None:
    fault: Fault | None = None

    async def hook(operation: str, path: str) -> Fault | None:
        return fault if operation == "create" else None

    lists = lists_on(MemoryStore(MemoryCell(), fault_hook=hook))
    await lists.create("first", {}, 0, "t")
    fault = Fault.LOSE_ANSWER
    assert (await lists.create("a", {}, 0, "ours")).list.writer == "ours"
    with pytest.raises(LogExistsError):
        await lists.create("a", {}, 0, "another's")


async def test_a_change_whose_answers_are_all_lost_is_unknown() -> None:
    class LosingStore(MemoryStore):
        @override
        async def set(self, path: str, data: bytes, version: int) -> Stat:
            raise WriteOutcomeUnknownError(path)

    lists = lists_on(LosingStore(MemoryCell()))
    listed = await lists.create("a", {}, 0, "t")
    with pytest.raises(WriteOutcomeUnknownError):
        await lists.change(listed, listing(1, "t"))


async def test_a_refused_transaction_is_reported_as_such() -> None:
    store = MemoryStore(MemoryCell())
    await store.create("/ledgers")
    lists = lists_on(store)
    listed = await lists.create("a", {}, 0, "t")
    store.cell.deny("/ledgers")
    with pytest.raises(MultiFailedError) as refused:
        await lists.change(listed, listing(1, "t"), create=Create("/ledgers/L0001", b"m"))
    assert isinstance(refused.value.cause, AccessDeniedError)
    assert (await lists.read("a")).list.ledgers == ()


async def test_the_newest_list_is_found_on_a_stale_server() -> None:
    class BehindStore(MemoryStore):
        """A store that reads from a server without any data before its first ``sync``."""

        is_behind = True

        @override
        def view(self) -> ReadableTree:
            return MemoryCell() if self.is_behind else super().view()

        @override
        async def sync(self, path: str) -> None:
            await super().sync(path)
            self.is_behind = False

    cell = MemoryCell()
    await lists_on(MemoryStore(cell)).create("a", {}, 0, "t")
    lists = lists_on(BehindStore(cell))
    with pytest.raises(NoSuchLogError):
        await lists.read("a")
    assert (await lists.read("a", is_newest=True)).list.writer == "t"


async def test_a_ledger_and_its_list_entry_are_created_together_or_not_at_all() -> None:
    store = MemoryStore(MemoryCell())
    await store.create("/ledgers")
    lists = lists_on(store)
    old = await lists.create("a", {}, 0, "t")
    await lists.change(old, lambda now: now.with_ledger(LedgerId(1), "other"))

    def decide(now: LogList) -> LogList:
        if now.writer != "t":
            raise LogConflictError("deposed")
        return now.with_ledger(LedgerId(2), "t")

    create = Create("/ledgers/00/0000/L0002", b"m")
    with pytest.raises(LogConflictError, match="deposed"):
        await lists.change(old, decide, create=create)
    assert await store.stat(create.path) is None


async def test_an_outage_is_reported_as_one() -> None:
    fault = Fault.FAIL_BEFORE

    async def hook(operation: str, path: str) -> Fault | None:
        return fault if operation != "sync" and is_down else None

    is_down = False
    lists = lists_on(MemoryStore(MemoryCell(), fault_hook=hook))
    listed = await lists.create("a", {}, 0, "t")
    is_down = True
    with pytest.raises(StoreUnavailableError):
        await lists.change(listed, lambda now: now.with_ledger(LedgerId(1), "w"))
    fault = Fault.LOSE_ANSWER
    with pytest.raises(WriteOutcomeUnknownError):
        await lists.change(listed, lambda now: now.with_ledger(LedgerId(1), "w"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":2}',
        node([2, 1], last_listed=9),
        node([2], last_listed=1),
        node([-2], last_listed=1),
    ],
)
async def test_a_damaged_list_is_an_error_and_stays_listed(data: bytes) -> None:
    store = MemoryStore(MemoryCell())
    lists = lists_on(store)
    await lists.create("a", {}, 0, "t")
    await store.set(lists.path("a"), data, -1)
    with pytest.raises(UnreadableLogError):
        await lists.read("a")
    with pytest.raises(UnreadableLogError):
        await lists.create("a", {}, 0, "t")
    assert await lists.names() == ["a"]


async def test_a_tombstone_keeps_versions_and_ids_growing() -> None:
    lists = lists_on(MemoryStore(MemoryCell()))
    old = await lists.create("a", {}, 0, "t")
    old = await lists.change(old, lambda now: now.with_ledger(LedgerId(4), "w"))
    gone = LogList((), "", ids(4), LedgerId(4), LedgerId(4), is_deleted=True)
    await lists.change(old, lambda now: gone)
    assert await lists.names() == []
    with pytest.raises(NoSuchLogError):
        await lists.read("a")
    again = await lists.create("a", {}, 0, "t2")
    assert again.version > old.version
    assert (again.list.last_listed, again.list.trimming) == (4, ids(4))
    assert again.list.truncated_through == 4


LOG = LogList(ledgers=ids(5, 8), truncated_through=LedgerId(3), last_listed=LedgerId(9))


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        (None, place(5, 0)),
        (Cursor(place(5, 7)), place(5, 7)),
        (Cursor(place(5, 7), is_done=True), place(8, 0)),
        (Cursor(place(8, 1), is_done=True), None),
        (Cursor(place(6, 0)), place(8, 0)),  # it was empty and has left the list
        (Cursor(place(9, 0)), None),  # the same with the last ledger
        (Cursor(place(3, 2), is_done=True), place(5, 0)),  # the ledger was read to its end before it was truncated
        (Cursor(place(4, 0)), place(5, 0)),
    ],
)
def test_a_reader_resumes_at_its_position(cursor: Cursor | None, expected: LogPosition | None) -> None:
    assert next_position_after("a", LOG, cursor) == expected


@pytest.mark.parametrize("cursor", [Cursor(place(3, 0)), Cursor(place(1, 0)), Cursor(place(1, 0), is_done=True)])
def test_a_reader_before_the_start_gets_the_start_of_the_log(cursor: Cursor) -> None:
    with pytest.raises(LogTruncatedError, match="5:0") as caught:
        next_position_after("a", LOG, cursor)
    assert caught.value.first == place(5, 0)


def test_a_position_that_never_existed_is_refused() -> None:
    with pytest.raises(InvalidPositionError):
        next_position_after("a", LOG, Cursor(place(10, 0)))
    assert next_position_after("a", LogList(), None) is None


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_positions_are_printed_and_parsed(ledger: int, entry: int) -> None:
    assert LogPosition.parse(str(place(ledger, entry))) == place(ledger, entry)


@pytest.mark.parametrize("text", ["", "1", "1:", ":1", "a:b", "1:2:3", "-1:0", "1:0 ", f"1:{1 << 63}"])
def test_text_that_is_not_a_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidPositionError, match="ledger:entry"):
        LogPosition.parse(text)
