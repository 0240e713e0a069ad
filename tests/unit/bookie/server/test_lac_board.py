"""Explicit LACs and waiting clients: compared with a model, and the bookie's checks of a packet."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.digest import digest_for
from bookie.model.ids import LEDGER_ID_MAX, NO_ENTRY, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import pack_lac
from bookie.server.lac_board import LAC_PACKET_BYTES_MAX, LacBoard, LacWaiter, check_packet, header_lac, proven_lac
from bookie.wire.port import EntryResult, LacReply, Status
from tests.worlds.entries import DIGEST, packed_entry
from tests.worlds.virtual_time import in_virtual_time, run_virtual

LEDGERS_MAX = 3
WAITERS_MAX = 4

ledgers = st.integers(0, 5).map(LedgerId)
lacs = st.integers(0, 12)
steps = st.one_of(
    st.tuples(st.just("write"), ledgers, lacs),
    st.tuples(st.just("store"), ledgers, lacs),
    st.tuples(st.just("read"), ledgers, st.just(0)),
    st.tuples(st.just("wait"), ledgers, lacs),
    st.tuples(st.just("leave"), ledgers, st.just(0)),
)


def explicit(ledger_id: int, lac: int) -> bytes:
    return pack_lac(DIGEST, LedgerId(ledger_id), lac)


def entry(ledger_id: int, entry_id: int, lac: int) -> bytes:
    return packed_entry(ledger_id, entry_id, b"x", last_add_confirmed=lac)


async def is_woken(waiter: LacWaiter) -> bool:
    return await waiter.woken(asyncio.get_running_loop().time())


class Model:
    """The expected content of the board, as simple as possible."""

    def __init__(self) -> None:
        self.explicit: dict[int, int] = {}  # the most recently used ledger comes last
        self.waiters: list[tuple[int, int, LacWaiter, ExitStack]] = []
        self.woken: list[LacWaiter] = []

    def use(self, ledger_id: int) -> int:
        lac = self.explicit.pop(ledger_id, -1)
        if lac >= 0:
            self.explicit[ledger_id] = lac
        return lac

    def raised(self, ledger_id: int, lac: int) -> None:
        self.woken += [
            waiter for waits_for, beyond, waiter, _ in self.waiters if waits_for == ledger_id and beyond < lac
        ]


@given(st.lists(steps, max_size=40))
def test_the_board_behaves_like_its_model(sequence: list[tuple[str, LedgerId, int]]) -> None:
    async def run() -> None:
        board, model = LacBoard(ledgers_max=LEDGERS_MAX, waiters_max=WAITERS_MAX), Model()
        for step, ledger_id, lac in sequence:
            match step:
                case "write":
                    board.write(ledger_id, explicit(ledger_id, lac))
                    if lac > model.explicit.get(ledger_id, -1):
                        model.explicit.pop(ledger_id, None)
                        model.explicit[ledger_id] = lac
                        model.raised(ledger_id, lac)
                    while len(model.explicit) > LEDGERS_MAX:
                        del model.explicit[next(iter(model.explicit))]
                case "store":
                    board.stored(ledger_id, [entry(ledger_id, 1, -1), entry(ledger_id, lac + 1, lac)])
                    model.raised(ledger_id, lac)
                case "read":
                    known = model.use(ledger_id)
                    assert board.explicit(ledger_id) == (explicit(ledger_id, known) if known >= 0 else b"")
                case "wait":
                    stack = ExitStack()
                    waiter = stack.enter_context(board.waiting(ledger_id, EntryId(lac)))
                    if len(model.waiters) < WAITERS_MAX:
                        model.waiters.append((ledger_id, lac, waiter, stack))
                case "leave" if model.waiters:
                    *_, waiter, stack = model.waiters.pop(0)
                    stack.close()
                    assert await is_woken(waiter) == (waiter in model.woken)
            assert board.waiter_count == len(model.waiters)
        for _, _, waiter, _ in model.waiters:
            assert await is_woken(waiter) == (waiter in model.woken)

    run_virtual(run())


@in_virtual_time
async def test_a_waiter_waits_until_its_deadline_and_can_wait_again() -> None:
    loop = asyncio.get_running_loop()
    waiter = LacWaiter(NO_ENTRY)
    begun_s = loop.time()
    assert not await waiter.woken(begun_s + 5)
    assert loop.time() == begun_s + 5
    waiter.wake()
    assert await waiter.woken(begun_s + 9)
    assert not await waiter.woken(begun_s + 9)
    assert loop.time() == begun_s + 9


@in_virtual_time
async def test_a_wake_up_at_the_deadline_counts() -> None:
    loop = asyncio.get_running_loop()
    waiter = LacWaiter(NO_ENTRY)
    end_s = loop.time() + 5
    waiting = asyncio.create_task(waiter.woken(end_s))
    await asyncio.sleep(0)
    loop.call_at(end_s, waiter.wake)
    assert await waiting


@in_virtual_time
async def test_waiters_over_the_limit_do_not_wait() -> None:
    board = LacBoard(ledgers_max=1, waiters_max=1)
    far_s = asyncio.get_running_loop().time() + 1000
    begun_s = asyncio.get_running_loop().time()
    with board.waiting(LedgerId(1), NO_ENTRY), board.waiting(LedgerId(1), NO_ENTRY) as second:
        assert not await second.woken(far_s)
        assert board.waiter_count == 1
    assert asyncio.get_running_loop().time() == begun_s


@in_virtual_time
async def test_closing_wakes_all_waiters_and_refuses_new_ones() -> None:
    board = LacBoard(ledgers_max=1, waiters_max=9)
    far_s = asyncio.get_running_loop().time() + 1000
    with board.waiting(LedgerId(1), NO_ENTRY) as one, board.waiting(LedgerId(2), EntryId(7)) as other:
        board.close()
        assert await one.woken(far_s)
        assert await other.woken(far_s)
    with board.waiting(LedgerId(1), NO_ENTRY) as late:
        assert not await late.woken(far_s)


@pytest.mark.parametrize(
    ("entry_id", "lac", "expected"),
    [(0, -1, -1), (5, 4, 4), (5, 0, 0), (5, 5, -1), (5, 6, -1), (5, -2, -1), (5, -(1 << 63), -1), (0, 0, -1)],
)
def test_only_a_value_that_a_writer_could_have_sent_is_a_lac(entry_id: int, lac: int, expected: int) -> None:
    assert header_lac(entry(1, entry_id, lac)) == expected


@given(st.binary(max_size=80))
def test_arbitrary_bytes_have_a_lac_in_range(packet: bytes) -> None:
    assert NO_ENTRY <= header_lac(packet) <= LEDGER_ID_MAX


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_accepted_or_refused(packet: bytes) -> None:
    problem = check_packet(LedgerId(1), packet)
    assert (problem is None) == (
        16 <= len(packet) <= LAC_PACKET_BYTES_MAX and packet[:8] == b"\0" * 7 + b"\1" and packet[8] < 0x80
    )


@pytest.mark.parametrize("digest", list(DigestType))
def test_packets_of_every_digest_are_accepted(digest: DigestType) -> None:
    for lac in (0, LEDGER_ID_MAX):
        assert check_packet(LedgerId(3), pack_lac(digest_for(digest, b"secret"), LedgerId(3), lac)) is None


def test_an_answer_proves_the_greater_of_its_lacs() -> None:
    shown = EntryResult(EntryId(6), Status.OK, entry(1, 6, 5))
    assert proven_lac(LacReply(Status.OK)) == NO_ENTRY
    assert proven_lac(LacReply(Status.OK, b"", shown)) == 5
    assert proven_lac(LacReply(Status.OK, explicit(1, 3), shown)) == 5
    assert proven_lac(LacReply(Status.OK, explicit(1, 8), shown)) == 8
    assert proven_lac(LacReply(Status.LIMBO, b"", EntryResult(EntryId(6), Status.LIMBO))) == NO_ENTRY
