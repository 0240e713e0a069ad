"""The ledger reader: any replica, next one on error or bad digest, ranges striped over the ensemble in parallel.

Opening does not fence and does not recover. An open ledger is readable up to a last add confirmed that some bookie of
the last ensemble has seen; it is a safe lower bound (only acknowledged entries are ever named by it) and may lag.

Not here: speculative reads, long polls, quorum LAC reads, recovery.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Final

from bookie.client.errors import EntryLostError, EntryUnavailableError, NoSuchEntryError
from bookie.client.ports import ClientPorts
from bookie.metadata.ledgers import Versioned
from bookie.model.digest import Digest
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.packet import DamagedEntry, Entry, unpack
from bookie.model.schedule import write_set
from bookie.wire.port import EntryResult, ReadReply, Status

_CHUNK_BYTES: Final = 16 << 20
"""Payload aimed at by one chunk of a range read of a closed ledger."""
_EVIDENCE_MAX: Final = 64
"""Members remembered per unreadable entry; ensembles are far smaller."""

_Evidence = dict[EntryId, dict[BookieId, Status]]
"""Which members could not serve an entry, and why."""


class LedgerReader:
    """Reads one ledger. Get it from ``BookKeeper.open_ledger``."""

    def __init__(self, ports: ClientPorts, ledger: Versioned, digest: Digest) -> None:
        self._ports = ports
        self._ledger = ledger
        self._digest = digest
        self._last: EntryId | None = None

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger being read."""
        return self._ledger.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata this reader works with."""
        return self._ledger.metadata

    async def refresh(self) -> EntryId:
        """Read the metadata again and return the last readable entry (see ``last_entry_id``)."""
        await self._reread()
        self._last = await self._find_last()
        return self._last

    async def last_entry_id(self) -> EntryId:
        """Last readable entry, inclusive: the ledger's end when closed, else a confirmed entry; -1 for none.

        Raises:
            EntryUnavailableError: the ledger is open and no bookie of its last ensemble answered.
        """
        if self._last is None:
            self._last = await self._find_last()
        return self._last

    async def read(self, entry_id: EntryId) -> Entry:
        """Read one entry.

        Raises:
            NoSuchEntryError: it lies beyond ``last_entry_id``.
            EntryUnavailableError: no replica could be read now.
            EntryLostError: every replica says that it never stored it.
            NoSuchLedgerError: no replica could be read, and the ledger was deleted.
            StoreUnavailableError: no replica could be read, and the metadata neither.
        """
        await self._check_range(entry_id, entry_id)
        [entry] = await self._read_chunk([entry_id])
        return entry

    async def read_range(self, first: EntryId, last: EntryId) -> AsyncIterator[Entry]:
        """Entries ``first..last`` (inclusive), in order. Raises as ``read`` does; what was yielded is valid."""
        await self._check_range(first, last)
        size = self._chunk_entries()
        for start in range(first, last + 1, size):
            stop = min(last, start + size - 1)
            for entry in await self._read_chunk([EntryId(entry_id) for entry_id in range(start, stop + 1)]):
                yield entry

    async def read_all(self) -> AsyncIterator[Entry]:
        """Every readable entry, in order."""
        last = await self.last_entry_id()
        if last >= 0:
            async for entry in self.read_range(EntryId(0), last):
                yield entry

    def _chunk_entries(self) -> int:
        """Entries to ask for at once: fewer where they are large on average, so that a chunk fits in memory."""
        entries_max = self._ports.settings.read_chunk_entries
        length, last = self.metadata.length, self.metadata.last_entry_id
        if not length or last is None:
            return entries_max
        return max(1, min(entries_max, _CHUNK_BYTES * (last + 1) // length))

    async def _check_range(self, first: int, last: int) -> None:
        end = await self.last_entry_id()
        if first < 0 or last > end:
            raise NoSuchEntryError(
                f"ledger {self.ledger_id} is readable from entry 0 to {end}; asked for {first} to {last}"
            )

    async def _read_chunk(self, entry_ids: Sequence[EntryId]) -> list[Entry]:
        found: dict[EntryId, Entry] = {}
        while True:
            ledger = self._ledger
            evidence = await self._read_replicas(ledger.metadata, entry_ids, found)
            missing = next((entry_id for entry_id in entry_ids if entry_id not in found), None)
            if missing is None:
                return [found[entry_id] for entry_id in entry_ids]
            if not await self._has_changed_since(ledger):
                raise self._unreadable(missing, evidence[missing])

    async def _read_replicas(
        self, metadata: LedgerMetadata, entry_ids: Sequence[EntryId], found: dict[EntryId, Entry]
    ) -> _Evidence:
        """Ask the first member of each write set for what is not ``found`` yet, then the second, and so on."""
        evidence: _Evidence = defaultdict(dict)
        for attempt in range(metadata.write_quorum):
            by_bookie: dict[BookieId, list[EntryId]] = defaultdict(list)
            for entry_id in entry_ids:
                if entry_id not in found:
                    by_bookie[_replica(metadata, entry_id, attempt)].append(entry_id)
            answers = await asyncio.gather(*(self._ask(bookie, ids) for bookie, ids in by_bookie.items()))
            for bookie, results in zip(by_bookie, answers, strict=True):
                self._take(bookie, results, found, evidence)
        return evidence

    def _take(
        self, bookie: BookieId, results: list[EntryResult], found: dict[EntryId, Entry], evidence: _Evidence
    ) -> None:
        for result in results:
            status = self._accept(result, found)
            if status is not Status.OK and len(evidence[result.entry_id]) < _EVIDENCE_MAX:
                evidence[result.entry_id][bookie] = status

    async def _ask(self, bookie: BookieId, entry_ids: list[EntryId]) -> list[EntryResult]:
        """One result for each of ``entry_ids``, over as many requests as the answers' bound asks for."""
        results: list[EntryResult] = []
        while len(results) < len(entry_ids):
            rest = entry_ids[len(results) :]
            reply: ReadReply = await self._ports.transport.read(
                bookie, self.ledger_id, rest, self._ports.settings.read_timeout_s
            )
            results.extend(reply.results)
            if reply.status is not Status.OK or not reply.results:
                status = reply.status if reply.status is not Status.OK else Status.IO_ERROR
                results.extend(EntryResult(entry_id, status) for entry_id in entry_ids[len(results) :])
        return results

    def _accept(self, result: EntryResult, found: dict[EntryId, Entry]) -> Status:
        if result.status is not Status.OK:
            return result.status
        try:
            found[result.entry_id] = unpack(self._digest, result.packet, self.ledger_id, result.entry_id)
        except DamagedEntry:
            return Status.CORRUPT
        return Status.OK

    def _unreadable(
        self, entry_id: EntryId, evidence: dict[BookieId, Status]
    ) -> EntryLostError | EntryUnavailableError:
        if evidence and all(status.is_absent for status in evidence.values()):
            return EntryLostError(self.ledger_id, entry_id)
        return EntryUnavailableError(self.ledger_id, entry_id, evidence)

    async def _reread(self) -> None:
        ledger = await self._ports.ledgers.read(self.ledger_id)
        if ledger.version > self._ledger.version:  # the server asked may lag behind what was seen already
            self._ledger = ledger

    async def _has_changed_since(self, seen: Versioned) -> bool:
        """Whether the metadata is newer than ``seen``: repair or the writer may have replaced the bookies asked."""
        if self._ledger.version == seen.version:
            await self._reread()
        return self._ledger.version != seen.version

    async def _find_last(self) -> EntryId:
        while (end := self.metadata.last_entry_id) is None:
            ledger = self._ledger
            try:
                confirmed = await self._confirmed_by_bookies(ledger.metadata.last_fragment)
            except EntryUnavailableError:
                if not await self._has_changed_since(ledger):
                    raise
            else:
                return confirmed if self._last is None else max(confirmed, self._last)
        return end

    async def _confirmed_by_bookies(self, fragment: Fragment) -> EntryId:
        """Greatest last add confirmed in the last entries of the last ensemble; floor: what the metadata proves."""
        timeout_s = self._ports.settings.read_timeout_s
        replies = await asyncio.gather(
            *(self._ports.transport.read_last(bookie, self.ledger_id, timeout_s) for bookie in fragment.members)
        )
        best = fragment.first_entry_id - 1
        evidence: dict[BookieId, Status] = {}
        is_answered = False
        for bookie, reply in zip(fragment.members, replies, strict=True):
            result = reply.results[0] if reply.results else EntryResult(EntryId(-1), reply.status)
            evidence[bookie] = result.status
            is_answered = is_answered or result.status.is_absent
            if result.status is Status.OK:
                try:
                    best = max(best, unpack(self._digest, result.packet, self.ledger_id, None).last_add_confirmed)
                    is_answered = True
                except DamagedEntry:
                    evidence[bookie] = Status.CORRUPT
        if not is_answered:
            raise EntryUnavailableError(self.ledger_id, EntryId(best), evidence)
        return EntryId(best)


def _replica(metadata: LedgerMetadata, entry_id: EntryId, attempt: int) -> BookieId:
    """The ``attempt``-th member of an entry's write set."""
    members = metadata.fragments[metadata.fragment_index(entry_id)].members
    return members[write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)[attempt]]
