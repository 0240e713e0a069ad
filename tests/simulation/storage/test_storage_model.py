"""The store against a dictionary: any sequence of requests, collections, compactions, restarts and full disks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bookie.model.ids import EntryId, LedgerId
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex
from bookie.storage.entry_logs.collection import CollectionMark
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.worlds.clocks import ManualClock
from tests.worlds.machine import SMALL, entry

T = TypeVar("T")
LEDGERS = st.sampled_from([LedgerId(number) for number in (0, 5, 9)])
ENTRIES = st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True)
KEY = b"key"


class StorageMachine(RuleBasedStateMachine):
    """One bookie's store, one request at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.disks = MemoryDisk(), MemoryDisk(), MemoryIndex()
        self.store = self.run(LedgerStorage.open(*self.disks, SMALL, ManualClock(turns=1)))
        self.entries: dict[LedgerId, dict[int, bytes]] = {}
        self.fenced: set[LedgerId] = set()
        self.limbo: set[LedgerId] = set()
        self.marks: dict[LedgerId, CollectionMark] = {}
        self.versions = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.close()

    @rule(ledger_id=LEDGERS, entry_ids=ENTRIES, is_recovery=st.booleans())
    def add(self, ledger_id: LedgerId, entry_ids: list[int], is_recovery: bool) -> None:
        self.versions += 1
        entries = {number: entry(ledger_id, number, b"version %d" % self.versions) for number in entry_ids}
        batch = AddBatch(ledger_id, KEY, list(entries.values()), is_recovery)
        reply = self.run(self.store.add(batch))
        self.marks.pop(ledger_id, None)
        if reply.status is Status.TOO_MANY_REQUESTS:
            return
        if ledger_id in self.fenced and not is_recovery:
            assert reply.status is (Status.LIMBO if ledger_id in self.limbo else Status.FENCED)
        else:
            assert reply.status is Status.OK
            self.entries.setdefault(ledger_id, {}).update(entries)

    @rule(ledger_id=LEDGERS)
    def fence(self, ledger_id: LedgerId) -> None:
        assert self.run(self.store.fence(ledger_id, KEY)).status is Status.OK
        self.fenced.add(ledger_id)
        self.marks.pop(ledger_id, None)
        self.entries.setdefault(ledger_id, {})

    @rule(ledger_id=LEDGERS)
    def mark(self, ledger_id: LedgerId) -> None:
        self.marks[ledger_id] = self.store.mark(ledger_id)

    @precondition(lambda self: self.marks)
    @rule(data=st.data())
    def collect(self, data: st.DataObject) -> None:
        ledger_id = data.draw(st.sampled_from(sorted(self.marks)))
        assert self.run(self.store.collect(ledger_id, self.marks.pop(ledger_id)))
        self.fenced.add(ledger_id)
        self.entries[ledger_id] = {}

    @rule(ledger_id=LEDGERS)
    def collect_with_an_old_mark(self, ledger_id: LedgerId) -> None:
        old = self.store.mark(ledger_id)
        if ledger_id in self.marks:
            self.marks[ledger_id] = self.store.mark(ledger_id)
        else:
            self.store.unmark(ledger_id, old)
        assert not self.run(self.store.collect(ledger_id, old))

    @rule(ledger_id=LEDGERS, is_limbo=st.booleans())
    def change_limbo(self, ledger_id: LedgerId, is_limbo: bool) -> None:
        if is_limbo:
            self.run(self.store.set_limbo([ledger_id]))
            self.limbo.add(ledger_id)
            self.fenced.add(ledger_id)
            self.entries.setdefault(ledger_id, {})
            self.marks.pop(ledger_id, None)
        else:
            self.run(self.store.clear_limbo(ledger_id))
            self.limbo.discard(ledger_id)

    @rule()
    def checkpoint(self) -> None:
        self.run(self.store.checkpoint())

    @rule()
    def compact(self) -> None:
        assert self.run(self.store.compact()).kept_damaged == 0

    @rule()
    def restart(self) -> None:
        self.run(self.store.close())
        journal, ledgers, index = self.disks
        self.disks = journal.restarted(), ledgers.restarted(), index.restarted()
        self.store = self.run(LedgerStorage.open(*self.disks, SMALL, ManualClock(turns=1)))
        self.marks.clear()

    @rule(ledger_id=LEDGERS)
    def list_entries(self, ledger_id: LedgerId) -> None:
        reply = self.run(self.store.list_entries(ledger_id))
        assert set(reply.entries) == set(self.entries.get(ledger_id, {}))
        self.marks.pop(ledger_id, None)

    @invariant()
    def everything_is_served(self) -> None:
        for ledger_id, known in self.entries.items():
            absent = Status.LIMBO if ledger_id in self.limbo else Status.NO_ENTRY
            for numbers in (range(5), range(5, 9), range(9, 13)):  # from the second range on, entries are read ahead
                asked = [EntryId(number) for number in numbers]
                for result in self.run(self.store.read(ledger_id, asked)).results:
                    if result.entry_id in known:
                        assert result.packet == known[result.entry_id]
                    else:
                        assert result.status is absent
        assert self.store.read_cache.size <= SMALL.read_cache_bytes_max

    @invariant()
    def ledgers_are_known(self) -> None:
        listed = set(self.run(self.store.ledger_ids()))
        assert listed >= {ledger_id for ledger_id, known in self.entries.items() if known} | self.limbo
        assert set(self.run(self.store.limbo_ids())) == self.limbo


TestStorage = StorageMachine.TestCase
TestStorage.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
