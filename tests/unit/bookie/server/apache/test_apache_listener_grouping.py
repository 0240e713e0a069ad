"""Requests that are received together: which of them form one batch."""

from __future__ import annotations

import pytest

from bookie.model.ids import EntryId, LedgerId
from bookie.server.apache.dialect_v2 import DialectV2
from bookie.server.apache.grouping import READS_MAX, AddGroups, group_requests
from bookie.server.apache.known_lacs import KnownLacs
from bookie.server.apache.requests import Add, AddKind, Info, Read
from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX
from tests.worlds.clocks import VirtualClock

DIALECT = DialectV2()


def add(number: int, ledger: int = 1, key: bytes = b"k", size: int = 10, *, is_recovery: bool = False) -> Add:
    return Add(AddKind(DIALECT, LedgerId(ledger), key, is_recovery), bytes(size), str(number).encode())


def read(entry_id: int, ledger: int = 1, fence_key: bytes | None = None) -> Read:
    return Read(DIALECT, 2, LedgerId(ledger), EntryId(entry_id), fence_key)


def numbers(adds: list[Add]) -> list[list[int]]:
    found = AddGroups()
    for item in adds:
        found.add(item.kind, [item.packet], [item.accepted])
    assert [group.size for group in found.groups] == [sum(map(len, group.packets)) for group in found.groups]
    return [[int(answer) for answer in group.accepted] for group in found.groups]


def test_adds_of_one_ledger_key_and_kind_are_one_batch_even_if_interleaved() -> None:
    adds = [add(0), add(1, 2), add(2), add(3, key=b"x"), add(4, is_recovery=True), add(5, 2), add(6)]
    assert numbers(adds) == [[0, 2, 6], [1, 5], [3], [4]]


def test_a_batch_stays_within_the_limits_of_the_storage() -> None:
    by_count = numbers([add(number) for number in range(BATCH_ENTRIES_MAX + 1)])
    assert [len(group) for group in by_count] == [BATCH_ENTRIES_MAX, 1]
    half = BATCH_BYTES_MAX // 2
    assert numbers([add(0, size=half), add(1, size=half), add(2, size=half), add(3, size=3 * half)]) == [
        [0, 1],
        [2],
        [3],
    ]


@pytest.mark.parametrize("size", [0, 1, 5000, BATCH_BYTES_MAX // 2, BATCH_BYTES_MAX, 2 * BATCH_BYTES_MAX])
def test_adds_that_arrive_together_are_grouped_like_those_that_arrive_one_by_one(size: int) -> None:
    entry = bytes(size)
    count = 2500 if size <= 1 else 500 if size <= 5000 else 5
    kind = AddKind(DIALECT, LedgerId(1), b"k", False)
    together = AddGroups()
    together.add(kind, [b"first"], [b"0"])
    together.add(kind, [entry] * count, [str(number).encode() for number in range(1, count + 1)])
    one_by_one = numbers([add(0, size=5), *(add(number, size=size) for number in range(1, count + 1))])
    assert [[int(answer) for answer in group.accepted] for group in together.groups] == one_by_one


def test_reads_of_one_ledger_are_grouped_unless_they_fence_or_read_the_last_entry() -> None:
    info = Info(1, True, True)
    one, two, last, fencing, elsewhere = read(5), read(3), read(-1), read(4, fence_key=b"k"), read(3, 2)
    groups = group_requests([one, last, two, info, fencing, elsewhere])
    assert groups == [[one, two], [last], info, [fencing], [elsewhere]]


def test_a_group_of_reads_is_bounded() -> None:
    groups = group_requests([read(number) for number in range(READS_MAX + 1)])
    assert [len(group) for group in groups if isinstance(group, list)] == [READS_MAX, 1]


async def test_known_lacs_only_grow_and_the_least_recently_seen_ledger_is_forgotten() -> None:
    clock = VirtualClock()
    known = KnownLacs(clock, ledgers_max=2)
    one, two, three = LedgerId(1), LedgerId(2), LedgerId(3)
    assert known.note(one, -1) == -1
    assert known.updated_ms(one) is None
    assert [known.note(one, lac) for lac in (4, 2, 6)] == [4, 4, 6]
    assert known.updated_ms(one) == clock.epoch_ms()
    known.note(two, 1)
    known.note(one, -1)
    known.note(three, 1)
    assert [known.note(ledger, -1) for ledger in (one, two, three)] == [6, -1, 1]
