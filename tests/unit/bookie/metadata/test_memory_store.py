"""Features of the in-memory twin for tests, in addition to the port: connection states, faults, exhausted counters."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from bookie.metadata.ledgers.id_generation import IdGenerator, IdsExhaustedError
from bookie.metadata.port import (
    SessionState,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.store.bridge import BridgedResult, LoopBridge
from bookie.metadata.store.memory import Fault, MemoryCell, MemoryStore
from bookie.runtime.signal import waiting_for
from tests.worlds.cluster import formatted

SHORT_END = 2147483647


async def test_request_waits_while_suspended_and_stays_in_its_session() -> None:
    store = MemoryStore(MemoryCell())
    store.suspend()
    waiting = asyncio.create_task(store.create("/a"))
    await asyncio.sleep(0)
    assert store.session.state is SessionState.SUSPENDED
    store.resume()
    assert await waiting == "/a"

    store.suspend()
    waiting = asyncio.create_task(store.create("/b"))
    await asyncio.sleep(0)
    store.expire()
    store.resume()
    with pytest.raises(StoreUnavailableError, match="was lost before"):
        await waiting
    assert await store.stat("/b") is None


async def test_request_made_after_the_loss_belongs_to_the_next_session() -> None:
    store = MemoryStore(MemoryCell())
    store.expire()
    waiting = asyncio.create_task(store.create("/a"))
    await asyncio.sleep(0)
    store.resume()
    assert await waiting == "/a"
    assert store.session.epoch == 2


async def test_request_that_waits_too_long_was_not_sent() -> None:
    store = MemoryStore(MemoryCell(), operation_timeout_s=0.01)
    store.suspend()
    with pytest.raises(StoreUnavailableError, match="not connected"):
        await store.create("/a")


async def test_session_lost_during_a_write_leaves_its_outcome_unknown() -> None:
    cell = MemoryCell()
    store = MemoryStore(cell)
    with waiting_for(cell.signal("/a")) as created:
        writing = asyncio.create_task(store.create("/a"))
        await created
    store.expire()
    with pytest.raises(WriteOutcomeUnknownError):
        await writing


async def test_faults_are_chosen_per_request() -> None:
    async def hook(operation: str, path: str) -> Fault | None:
        return {"/before": Fault.FAIL_BEFORE, "/after": Fault.LOSE_ANSWER}.get(path)

    store = MemoryStore(MemoryCell(), fault_hook=hook)
    with pytest.raises(StoreUnavailableError):
        await store.create("/before")
    with pytest.raises(WriteOutcomeUnknownError):
        await store.create("/after")
    with pytest.raises(WriteOutcomeUnknownError):
        await store.set("/after", b"x", 0)
    with pytest.raises(StoreUnavailableError):
        await store.get("/after")
    store.fault_hook = None
    assert (await store.get("/after")).data == b"x"
    assert await store.stat("/before") is None


async def test_times_are_those_of_the_given_clock() -> None:
    store = MemoryStore(MemoryCell(now_ms=lambda: 77))
    await store.create("/a")
    stat = (await store.get("/a")).stat
    assert (stat.ctime_ms, stat.mtime_ms) == (77, 77)


async def test_ids_continue_in_the_long_range_after_the_short_one_is_used_up() -> None:
    cell = MemoryCell()
    store = MemoryStore(cell)
    generator = IdGenerator(store, await formatted(store))
    assert await generator.next_id() == 0
    cell.skip_sequence("/ledgers/idgen", SHORT_END - 2)
    assert [await generator.next_id() for _ in range(3)] == [SHORT_END - 1, 1 << 32, (1 << 32) + 1]
    assert set((await store.children("/ledgers/idgen-long")).names) == {"HOB-0000000001"}
    cell.skip_sequence("/ledgers/idgen-long/HOB-0000000001", SHORT_END)
    assert [await generator.next_id() for _ in range(2)] == [2 << 32, (2 << 32) + 1]


async def test_counter_overflow_gives_negative_numbers_which_are_not_ids() -> None:
    cell = MemoryCell()
    store = MemoryStore(cell)
    await store.create("/p")
    cell.skip_sequence("/p", SHORT_END)
    assert await store.create("/p/ID-", is_sequential=True) == "/p/ID-2147483647"
    assert await store.create("/p/ID-", is_sequential=True) == "/p/ID--2147483648"


async def test_cluster_without_free_ids_raises_ids_exhausted() -> None:
    cell = MemoryCell()
    store = MemoryStore(cell)
    generator = IdGenerator(store, await formatted(store))
    await store.create("/ledgers/idgen-long")
    await store.create(f"/ledgers/idgen-long/HOB-{SHORT_END:010d}")
    cell.skip_sequence(f"/ledgers/idgen-long/HOB-{SHORT_END:010d}", SHORT_END)
    with pytest.raises(IdsExhaustedError, match="/ledgers"):
        await generator.next_id()


async def test_bridge_keeps_the_order_and_survives_a_failing_callback() -> None:
    loop = asyncio.get_running_loop()
    bridge = LoopBridge(loop)
    seen: list[int] = []
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    first, last = BridgedResult(bridge, loop), BridgedResult(bridge, loop)

    def push_all() -> None:
        first.set("one")
        bridge.push(seen.append, 1)
        bridge.push(seen.remove, 99)
        bridge.push(seen.append, 2)
        first.set_exception(ValueError("late"))
        last.set_exception(KeyError("x"))

    await asyncio.to_thread(push_all)
    assert await first.future == ("one", None)
    value, error = await last.future
    assert (value, type(error)) == (None, KeyError)
    assert seen == [1, 2]
    assert [type(failure) for failure in failures] == [ValueError]
    loop.set_exception_handler(None)


def test_bridge_to_a_closed_loop_drops_results_without_a_caller() -> None:
    loop = asyncio.new_event_loop()
    bridge = LoopBridge(loop)
    loop.close()
    called: list[str] = []

    def callback(text: str) -> None:
        called.append(text)

    dropped = weakref.ref(callback)
    bridge.push(callback, "never")
    del callback
    gc.collect()
    assert (dropped(), called) == (None, [])
