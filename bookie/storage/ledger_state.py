"""The state that a bookie keeps about a ledger besides its entries: key, fence, limbo.

There is one object per ledger id, which stays in memory while it is in use or newer than the index. A caller can
therefore check it and enqueue to the journal without yielding in between, so the fences and adds of a ledger have one
order. (Two objects for the same ledger were a defect in Apache: apache/bookkeeper #4701.)
"""

from __future__ import annotations

import asyncio
import hmac
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from bookie.model.errors import FatalError
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.storage.disks.index_format import ledger_id_of_state, state_key, states_after
from bookie.storage.errors import UnsupportedFormatError
from bookie.storage.port import EntryIndex
from bookie.wire.port import Status

_FORMAT: Final = 1
_FENCED: Final = 1
_LIMBO: Final = 2
_HAS_KEY: Final = 4
_COLLECTED: Final = 8
_FORGET_SCAN_MAX: Final = 32
"""The number of states examined after each use: a constant cost, and far more than the one state that a use can add."""
_BLOCK_IDS_MAX: Final = 2000
"""The most ids of changed ledgers in one sorted list, and so the most ids that one insertion moves."""


@dataclass(slots=True, eq=False)
class StoredLedgerState:
    """The state of one ledger.

    Attributes:
        master_key: the key as it was enqueued to the journal; None before the ledger's first use, and for a ledger that
            is only in limbo.
        is_key_durable: the key survives a crash.
        is_known: the ledger is durably recorded on this bookie.
        is_fenced: ordinary adds are refused, from the moment when the fence is enqueued.
        is_fence_durable: the fence survives a crash; before that, no reply may depend on it.
        is_limbo: the entries stored here earlier are unknown; the status is LIMBO instead of any "absent".
        is_collected: the entries were collected and none were added since; the rest of the state, above all the fence,
            is permanent.
        deleting: an event that is set when the running deletion of entries ends; None if none is running.
        fencing: completes when the current write of a fence is durable or has failed; shared by concurrent fences.
    """

    ledger_id: LedgerId
    master_key: bytes | None = field(default=None, repr=False)
    is_key_durable: bool = False
    is_known: bool = False
    is_fenced: bool = False
    is_fence_durable: bool = False
    is_limbo: bool = False
    is_collected: bool = False
    deleting: asyncio.Event | None = field(default=None, repr=False)
    fencing: asyncio.Future[FatalError | None] | None = field(default=None, repr=False)
    uses: int = field(default=0, repr=False)
    loading: asyncio.Lock | None = field(default=None, repr=False)

    @property
    def absent_status(self) -> Status:
        """The status for an entry not stored here (S6)."""
        if self.is_limbo:
            return Status.LIMBO
        return Status.NO_ENTRY if self.is_known else Status.NO_LEDGER

    def accepts(self, master_key: bytes) -> bool:
        """Return whether the key is the ledger's key. Before the first use of the ledger, any key is accepted."""
        return self.master_key is None or hmac.compare_digest(self.master_key, master_key)

    def encode(self) -> bytes:
        """Return the value to store in the index."""
        key = self.master_key if self.is_key_durable else None
        flags = _FENCED * self.is_fenced | _LIMBO * self.is_limbo | _HAS_KEY * (key is not None)
        return bytes((_FORMAT, flags | _COLLECTED * self.is_collected)) + (key or b"")

    def restore(self, value: bytes) -> None:
        """Set the state from its value in the index.

        Raises:
            UnsupportedFormatError: the value was written by a newer version.
        """
        if len(value) < 2 or value[0] != _FORMAT:
            raise UnsupportedFormatError(
                f"state of ledger {self.ledger_id} has an unknown format: start the version of bkheal that wrote it"
            )
        self.is_known = True
        self.is_fenced = self.is_fence_durable = bool(value[1] & _FENCED)
        self.is_limbo = bool(value[1] & _LIMBO)
        self.is_collected = bool(value[1] & _COLLECTED)
        self.is_key_durable = bool(value[1] & _HAS_KEY)
        self.master_key = value[2:] if self.is_key_durable else None


def _is_wanted(flags: int, only_limbo: bool) -> bool:
    return bool(flags & _LIMBO) or not (only_limbo or flags & _COLLECTED)


class ChangedStates:
    """The changed states that wait for one checkpoint, as index pairs ordered by ledger id.

    Each state is encoded and inserted when it changes. Doing this for all states at once would delay all requests.
    """

    def __init__(self) -> None:
        self._pairs: dict[LedgerId, tuple[bytes, bytes]] = {}
        self._blocks: list[list[LedgerId]] = [[]]
        self._firsts: list[LedgerId] = []
        """The first id of each block except the first one."""

    def __len__(self) -> int:
        return len(self._pairs)

    def __contains__(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._pairs

    def put(self, ledger_id: LedgerId, pair: tuple[bytes, bytes]) -> None:
        """Add a pair, replacing an earlier one of the same ledger."""
        if ledger_id not in self._pairs:
            place = bisect_right(self._firsts, ledger_id)
            block = self._blocks[place]
            insort(block, ledger_id)
            if len(block) > _BLOCK_IDS_MAX:
                middle = len(block) // 2
                self._firsts.insert(place, block[middle])
                self._blocks.insert(place + 1, block[middle:])
                del block[middle:]
        self._pairs[ledger_id] = pair

    def parts(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield all pairs in the order of their ids, at most ``_BLOCK_IDS_MAX`` at a time."""
        for block in self._blocks:
            yield [self._pairs[ledger_id] for ledger_id in block]

    def update(self, newer: ChangedStates) -> None:
        """Add pairs, replacing earlier ones of the same ledgers."""
        for ledger_id, pair in newer._pairs.items():
            self.put(ledger_id, pair)

    def part(self, after: int, last: int, limit: int) -> list[tuple[LedgerId, bytes]]:
        """Return the first ids > ``after`` and <= ``last`` with their values, at most ``limit``."""
        found: list[LedgerId] = []
        for block in islice(self._blocks, bisect_right(self._firsts, after), None):
            first, end = bisect_right(block, after), bisect_right(block, last)
            found += block[first : min(end, first + limit - len(found))]
            if end < len(block) or len(found) == limit:
                break
        return [(ledger_id, self._pairs[ledger_id][1]) for ledger_id in found]


class LedgerStates:
    """The ledger states of one store.

    Attributes:
        count: the number of ledgers durably recorded.
    """

    def __init__(self, index: EntryIndex, count: int, kept: int) -> None:
        self.count = count
        self._index = index
        self._kept = kept
        self._states: OrderedDict[LedgerId, StoredLedgerState] = OrderedDict()
        self._changed = ChangedStates()
        self._being_saved = ChangedStates()

    def using(self, ledger_id: LedgerId) -> _Use:
        """Return a context manager for the state object of a ledger, which is loaded.

        No other object exists for the ledger until the block ends.

        Raises:
            DiskError: the index cannot be read.
        """
        return _Use(self, ledger_id)

    def take(self, ledger_id: LedgerId) -> StoredLedgerState:
        """Return the state object of a ledger, which may not be loaded yet; it stays in memory until ``release``."""
        if (state := self._states.get(ledger_id)) is None:
            state = self._states[ledger_id] = StoredLedgerState(ledger_id, loading=asyncio.Lock())
        self._states.move_to_end(ledger_id)
        state.uses += 1
        return state

    async def load(self, state: StoredLedgerState) -> None:
        """Load a state from the index, unless it is already loaded.

        Raises:
            DiskError: the index cannot be read.
        """
        if state.loading is not None:
            await self._load(state, state.loading)

    def release(self, state: StoredLedgerState) -> None:
        """End one use of a state object."""
        state.uses -= 1
        self._forget_surplus()

    def changed(self, state: StoredLedgerState) -> None:
        """Schedule a durable change for the next checkpoint, which writes it to the index."""
        if not state.is_known:
            state.is_known = True
            self.count += 1
        self._changed.put(state.ledger_id, (state_key(state.ledger_id), state.encode()))

    def take_changed(self) -> ChangedStates:
        """Return all states changed since the last ``saved``; they stay in memory until then."""
        taken, self._changed = self._changed, ChangedStates()
        if self._being_saved:  # the states taken before were not saved
            self._being_saved.update(taken)
        else:
            self._being_saved = taken
        return self._being_saved

    def saved(self) -> None:
        """Record that the states from ``take_changed`` are durable in the index."""
        self._being_saved = ChangedStates()
        self._forget_surplus()

    async def page(self, after: int, limit: int, *, only_limbo: bool = False) -> list[LedgerId]:
        """Return about ``limit`` ids of recorded ledgers greater than ``after``, ascending; empty only at the end.

        Collected ledgers are omitted unless they are in limbo. With ``only_limbo``, only ledgers in limbo are returned.

        Raises:
            DiskError: the index cannot be read.
        """
        while True:
            before = [self._being_saved, self._changed]  # a save during the read may be too late to be in its result
            pairs = await self._index.range(*states_after(after), limit)
            last = ledger_id_of_state(pairs[-1][0]) if len(pairs) == limit else LEDGER_ID_MAX
            is_wanted = {ledger_id_of_state(key): _is_wanted(value[1], only_limbo) for key, value in pairs}
            now = [each for each in (self._being_saved, self._changed) if each not in before]
            for changes in [*before, *now]:  # from the oldest to the newest
                part = changes.part(after, last, limit)
                last = part[-1][0] if len(part) == limit else last
                is_wanted |= {ledger_id: _is_wanted(value[1], only_limbo) for ledger_id, value in part}
            found = sorted(LedgerId(each) for each, wanted in is_wanted.items() if wanted and each <= last)
            if found or last == LEDGER_ID_MAX:
                return found
            after = last

    async def _load(self, state: StoredLedgerState, loading: asyncio.Lock) -> None:
        async with loading:
            if state.loading is None:
                return
            [value] = await self._index.get_many([state_key(state.ledger_id)])
            if value is not None:
                state.restore(value)
            state.loading = None

    def _forget_surplus(self) -> None:
        surplus = len(self._states) - self._kept
        if surplus <= 0:
            return
        oldest = list(islice(self._states.values(), _FORGET_SCAN_MAX))
        for state in oldest[:surplus]:
            if state.uses or state.ledger_id in self._changed or state.ledger_id in self._being_saved:
                self._states.move_to_end(state.ledger_id)  # otherwise 32 of these would keep all others in memory
            else:
                del self._states[state.ledger_id]


class _Use:
    """One use of a state. Every request has one; a generator would take three times as long as this class."""

    __slots__ = ("_ledger_id", "_state", "_states")

    def __init__(self, states: LedgerStates, ledger_id: LedgerId) -> None:
        self._states = states
        self._ledger_id = ledger_id
        self._state: StoredLedgerState | None = None

    async def __aenter__(self) -> StoredLedgerState:
        self._state = state = self._states.take(self._ledger_id)
        if state.loading is not None:
            try:
                await self._states.load(state)
            except BaseException:
                self._states.release(state)
                raise
        return state

    async def __aexit__(self, *error: object) -> None:
        assert self._state is not None
        self._states.release(self._state)
