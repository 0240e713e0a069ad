"""Each ledger has one state object, which is loaded once and never dropped while it is needed."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.ids import LedgerId
from bookie.storage.checkpoint import _state_pairs
from bookie.storage.disks.index_format import state_key
from bookie.storage.disks.memory import MemoryIndex, Operation
from bookie.storage.errors import UnsupportedFormatError
from bookie.storage.ledger_state import LedgerStates, StoredLedgerState
from bookie.storage.port import DiskError
from bookie.wire.port import Status

SEVEN = LedgerId(7)


def taken(states: LedgerStates) -> list[tuple[bytes, bytes]]:
    return [pair for part in states.take_changed().parts() for pair in part]


@given(st.none() | st.binary(max_size=30), st.booleans(), st.booleans())
def test_state_survives_the_round_trip(key: bytes | None, is_fenced: bool, is_limbo: bool) -> None:
    state = StoredLedgerState(SEVEN, key, key is not None, is_known=True, is_fenced=is_fenced, is_limbo=is_limbo)
    found = StoredLedgerState(SEVEN)
    found.restore(state.encode())
    assert (found.master_key, found.is_known, found.is_fenced, found.is_fence_durable, found.is_limbo) == (
        key,
        True,
        is_fenced,
        is_fenced,
        is_limbo,
    )


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x02\x00key"])
def test_state_of_an_unknown_format_is_refused(value: bytes) -> None:
    with pytest.raises(UnsupportedFormatError, match="ledger 7"):
        StoredLedgerState(SEVEN).restore(value)


def test_absence_is_reported_only_if_it_is_certain() -> None:
    assert StoredLedgerState(SEVEN).absent_status is Status.NO_LEDGER
    assert StoredLedgerState(SEVEN, is_known=True).absent_status is Status.NO_ENTRY
    assert StoredLedgerState(SEVEN, is_known=True, is_limbo=True).absent_status is Status.LIMBO


def test_repr_of_a_state_never_shows_its_key() -> None:
    assert "secret" not in repr(StoredLedgerState(SEVEN, b"secret"))


def test_key_that_is_not_durable_is_not_saved() -> None:
    found = StoredLedgerState(SEVEN)
    found.restore(StoredLedgerState(SEVEN, b"key", is_key_durable=False, is_limbo=True).encode())
    assert found.master_key is None


async def test_all_users_share_one_object_that_is_loaded_once() -> None:
    reads = []

    async def slow(operation: Operation, path: str) -> None:
        reads.append(operation)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    index = MemoryIndex()
    await index.write([(state_key(7), StoredLedgerState(SEVEN, b"key", is_key_durable=True, is_fenced=True).encode())])
    index.before = slow
    states = LedgerStates(index, 1, kept=0)
    seen: list[StoredLedgerState] = []

    async def use() -> None:
        async with states.using(SEVEN) as state:
            seen.append(state)
            assert state.is_fenced
            assert state.master_key == b"key"

    await asyncio.gather(*(use() for _ in range(10)))
    assert len({id(state) for state in seen}) == 1
    assert len(reads) == 1


async def test_failed_load_is_tried_again_by_the_next_user() -> None:
    is_broken = True

    async def broken(operation: Operation, path: str) -> None:
        if is_broken:
            raise DiskError("unreadable")

    index = MemoryIndex()
    await index.write([(state_key(7), StoredLedgerState(SEVEN, b"key", is_key_durable=True).encode())])
    index.before = broken
    states = LedgerStates(index, 1, kept=10)
    with pytest.raises(DiskError):
        async with states.using(SEVEN):
            pass
    is_broken = False
    async with states.using(SEVEN) as state:
        assert state.master_key == b"key"


async def test_unused_states_are_evicted_oldest_first() -> None:
    states = LedgerStates(MemoryIndex(), 0, kept=3)
    for number in (1, 2, 3, 1, 4, 5):
        async with states.using(LedgerId(number)):
            pass
    assert sorted(states._states) == [1, 4, 5]


async def test_state_in_use_is_never_evicted() -> None:
    states = LedgerStates(MemoryIndex(), 0, kept=0)
    async with states.using(SEVEN) as state:
        for number in range(100, 200):
            async with states.using(LedgerId(number)):
                pass
        async with states.using(SEVEN) as again:
            assert again is state
    assert not states._states


@pytest.mark.parametrize("changed", [32, 5_000])
async def test_changed_states_do_not_keep_others_in_memory(changed: int) -> None:
    states = LedgerStates(MemoryIndex(), 0, kept=6_000)
    for number in range(changed):
        async with states.using(LedgerId(number)) as state:
            states.changed(state)
    for number in range(10_000, 20_000):
        async with states.using(LedgerId(number)):
            pass
        assert len(states._states) <= 6_200
    assert states._states.keys() >= set(range(changed))
    assert len(states._states) == 6_000


async def test_changed_state_is_kept_until_it_is_in_the_index() -> None:
    index = MemoryIndex()
    states = LedgerStates(index, 0, kept=0)
    async with states.using(SEVEN) as state:
        state.master_key, state.is_key_durable = b"key", True
        states.changed(state)
        states.changed(state)
    assert states.count == 1
    async with states.using(SEVEN) as again:
        assert again is state
    puts = taken(states)
    async with states.using(SEVEN) as again:
        assert again is state
    await index.write(puts)
    states.saved()
    async with states.using(SEVEN) as again:
        assert again is not state
        assert again.master_key == b"key"
        assert again.is_known
    assert states.count == 1
    assert taken(states) == []


async def test_state_changed_while_being_saved_is_saved_again() -> None:
    states = LedgerStates(MemoryIndex(), 0, kept=0)
    async with states.using(SEVEN) as state:
        states.changed(state)
        states.take_changed()
        state.is_fenced = True
        states.changed(state)
        states.saved()
    assert taken(states) == [(state_key(7), state.encode())]


async def test_states_taken_and_not_saved_are_taken_again() -> None:
    states = LedgerStates(MemoryIndex(), 0, kept=0)
    async with states.using(SEVEN) as state:
        states.changed(state)
    assert taken(states) == taken(states) == [(state_key(7), state.encode())]


async def change(states: LedgerStates, *numbers: int, is_limbo: bool = False, is_collected: bool = False) -> None:
    for number in numbers:
        async with states.using(LedgerId(number)) as state:
            state.is_limbo, state.is_collected = is_limbo, is_collected
            states.changed(state)


async def save(states: LedgerStates, index: MemoryIndex) -> None:
    await index.write(taken(states))
    states.saved()


@pytest.mark.parametrize("seed", range(30))
async def test_pages_contain_every_ledger_once_in_order_despite_saves_meanwhile(seed: int) -> None:
    rng, index, wanted, in_limbo = random.Random(seed), MemoryIndex(), set[int](), set[int]()
    states = LedgerStates(index, 0, kept=10)

    async def change_some() -> None:
        for number in rng.sample(range(300), rng.randint(0, 150)):
            is_limbo, is_collected = rng.random() < 0.3, rng.random() < 0.3
            await change(states, number, is_limbo=is_limbo, is_collected=is_collected)
            (in_limbo.add if is_limbo else in_limbo.discard)(number)
            (wanted.discard if is_collected and not is_limbo else wanted.add)(number)

    async def save_meanwhile(operation: Operation, path: str) -> None:
        await asyncio.sleep(0)
        if operation is Operation.INDEX_READ and rng.random() < 0.3:
            await save(states, index)

    await change_some()
    await save(states, index)
    await change_some()
    states.take_changed()
    await change_some()
    index.before = save_meanwhile
    for only_limbo, expected in ((True, in_limbo), (False, wanted)):
        limit, after, found = rng.randint(1, 20), -1, list[int]()
        while page := await states.page(after, limit, only_limbo=only_limbo):
            assert len(page) <= 3 * limit
            found += page
            after = page[-1]
        assert found == sorted(expected)
        await change_some()


class _Compared(int):
    """A number that counts the comparisons of all its instances."""

    count = 0

    def _counted(self) -> None:
        _Compared.count += 1

    def __lt__(self, other: int) -> bool:
        self._counted()
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        self._counted()
        return int(self) > int(other)

    def __le__(self, other: int) -> bool:
        self._counted()
        return int(self) <= int(other)

    def __ge__(self, other: int) -> bool:
        self._counted()
        return int(self) >= int(other)


async def test_page_costs_depend_on_its_own_ledgers_and_not_on_all_changed_ones() -> None:
    index = MemoryIndex()
    states = LedgerStates(index, 0, kept=100_000)
    await change(states, *range(0, 40_000, 2))
    await save(states, index)
    await change(states, *map(_Compared, range(1, 40_000, 2)))
    for after, expected in ((-1, range(199)), (20_000, range(20_001, 20_200)), (39_998, [39_999])):
        _Compared.count = 0
        page = await states.page(after, 100)
        assert page == list(expected)
        assert _Compared.count < 5_000


async def test_checkpoint_encodes_no_state_and_yields_between_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    states = LedgerStates(MemoryIndex(), 0, kept=0)
    numbers = random.Random(1).sample(range(1 << 40), 10_000)
    await change(states, *numbers)
    expected = [(state_key(number), StoredLedgerState(LedgerId(number)).encode()) for number in sorted(numbers)]
    monkeypatch.setattr(StoredLedgerState, "encode", lambda state: pytest.fail("encoded at the checkpoint"))
    assert taken(states) == expected
    assert all(len(part) <= 2000 for part in states.take_changed().parts())
    turns, is_done = 0, False

    async def other() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    assert await _state_pairs(states.take_changed()) == expected
    is_done = True
    await running
    assert turns >= 4
