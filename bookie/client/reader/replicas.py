"""Reads of entries from their replicas: any valid copy is enough, and after each failure the next replica is asked.

An answer counts only for the requested entry, and only after its digest and ids were verified
(docs/formats.md#verification, #plain-reads; S18).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bookie.client.ports import ClientPorts
from bookie.client.settings import ReadMode
from bookie.model.digest import Digest
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.packet import DamagedEntry, Entry, unpack
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import cancel_all, guarded
from bookie.wire.port import Status
from bookie.wire.requests import Read

Evidence = dict[BookieId, Status]
"""The replicas that could not serve an entry, with the reasons."""

_Outcome = Entry | Status
_Asking = asyncio.Task[list[_Outcome]]
_SILENT = (Status.TIMEOUT, Status.UNREACHABLE, Status.UNRESOLVED)


@dataclass(frozen=True, slots=True)
class EntriesRead:
    """A prefix of the requested entries; if it is empty, ``evidence`` explains why the first one could not be read."""

    entries: list[Entry]
    evidence: Evidence


class ReplicaReads:
    """Reads of one ledger. Slow bookies are recorded for a while, and asked last."""

    def __init__(self, ports: ClientPorts, ledger_id: LedgerId, digest: Digest) -> None:
        self.ports = ports
        self._ledger_id = ledger_id
        self._digest = digest
        self._slow_until_s: dict[BookieId, float] = {}
        self.reasons: dict[BookieId, str] = {}
        """The latest answer of each bookie for the first failed entry, or for the whole request."""

    async def read(self, metadata: LedgerMetadata, entry_ids: Sequence[EntryId]) -> EntriesRead:
        """Read a prefix of ``entry_ids`` (ascending): a shorter one if they are large, or if one cannot be read now.

        Each replica is asked at most once, so the call ends within ``Qw`` read deadlines.
        """
        return await _ReplicaRead(self, metadata, entry_ids).run()

    def replicas(self, metadata: LedgerMetadata, entry_id: EntryId) -> list[BookieId]:
        """Return the bookies of an entry in the order to ask: not slow first, then near, else by the write set."""
        members = metadata.fragments[metadata.fragment_index(entry_id)].members
        positions = metadata.stripe.write_set(entry_id)
        found = list(dict.fromkeys(members[position] for position in positions))
        near, now_s = self.ports.near, self.ports.clock.monotonic_s()
        if fault_point("reader.last_replica_first"):
            found.reverse()
        return sorted(found, key=lambda one: (self._slow_until_s.get(one, 0.0) > now_s, near(one) if near else 0))

    def note_slow(self, bookie: BookieId) -> None:
        """Ask ``bookie`` after the others for a while: its answer was slow, or there was none."""
        self._slow_until_s[bookie] = self.ports.clock.monotonic_s() + self.ports.settings.failed_bookie_quarantine_s

    async def ask(self, bookie: BookieId, entry_ids: Sequence[EntryId]) -> list[_Outcome]:
        """Return one bookie's answers for a prefix of ``entry_ids``; if it fails, for all of them."""
        timeout_s = self.ports.settings.read_timeout_s
        reply = await self.ports.transport.ask(bookie, Read(self._ledger_id, entry_ids), timeout_s)
        self.reasons[bookie] = next(filter(None, (result.detail for result in reply.results)), reply.detail)
        outcomes: list[_Outcome] = []
        for entry_id, result in zip(entry_ids, reply.results, strict=False):
            if result.status is Status.OK:
                outcomes.append(self._verified(entry_id, result.packet))
            else:
                outcomes.append(result.status if result.entry_id == entry_id else Status.IO_ERROR)
        if reply.status is not Status.OK or not outcomes:
            failure = reply.status if reply.status is not Status.OK else Status.IO_ERROR
            outcomes.extend(failure for _ in entry_ids[len(outcomes) :])
        return outcomes

    def _verified(self, entry_id: EntryId, packet: bytes) -> _Outcome:
        try:
            return unpack(self._digest, packet, self._ledger_id, entry_id)
        except DamagedEntry:
            return Status.CORRUPT


@dataclass(slots=True)
class _WantedEntry:
    """A requested entry."""

    replicas: list[BookieId]
    """Bookies that were not asked yet."""
    waits_for: int = 0
    """Requests under way for it."""
    evidence: Evidence = field(default_factory=dict)
    entry: Entry | None = None

    @property
    def is_settled(self) -> bool:
        return self.entry is not None or not (self.replicas or self.waits_for)


@dataclass(slots=True)
class _Request:
    """A request to one bookie."""

    bookie: BookieId
    entry_ids: list[EntryId]
    patient_until_s: float
    """Monotonic time after which the next replica is asked as well."""
    is_overdue: bool = False


class _ReplicaRead:
    """One ``ReplicaReads.read``."""

    def __init__(self, reads: ReplicaReads, metadata: LedgerMetadata, entry_ids: Sequence[EntryId]) -> None:
        self._reads = reads
        self._mode = reads.ports.settings.read_mode
        self._wanted = {entry_id: _WantedEntry(reads.replicas(metadata, entry_id)) for entry_id in entry_ids}
        self._first = entry_ids[0]
        self._asking: dict[_Asking, _Request] = {}

    async def run(self) -> EntriesRead:
        try:
            self._ask(self._wanted)
            while self._mode is ReadMode.PARALLEL and self._ask(self._wanted):
                pass
            while not all(wanted.is_settled for wanted in self._wanted.values()):
                await self._wait()
        finally:
            await cancel_all(self._asking)
        entries: list[Entry] = []
        for wanted in self._wanted.values():
            if wanted.entry is None:
                break
            entries.append(wanted.entry)
        return EntriesRead(entries, self._wanted[self._first].evidence)

    async def _wait(self) -> None:
        done, _ = await asyncio.wait(self._asking, timeout=self._patience_s(), return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in self._asking if task in done]:
            request = self._asking.pop(task)
            self._take(request, task.result())
        now_s = self._reads.ports.clock.monotonic_s()
        for request in list(self._asking.values()) if self._mode is ReadMode.SPECULATIVE else []:
            is_late = request.patient_until_s <= now_s or fault_point("reader.ask_next_early")
            if is_late and not request.is_overdue:
                request.is_overdue = True
                self._reads.note_slow(request.bookie)
                self._ask(entry_id for entry_id in request.entry_ids if entry_id in self._wanted)

    def _patience_s(self) -> float | None:
        if self._mode is not ReadMode.SPECULATIVE:
            return None
        waiting = [request.patient_until_s for request in self._asking.values() if not request.is_overdue]
        return max(0.0, min(waiting) - self._reads.ports.clock.monotonic_s()) if waiting else None

    def _take(self, request: _Request, outcomes: list[_Outcome]) -> None:
        for entry_id, outcome in zip(request.entry_ids, outcomes, strict=False):
            wanted = self._wanted.get(entry_id)
            if wanted is None:
                continue
            wanted.waits_for -= 1
            if isinstance(outcome, Entry):
                wanted.entry = wanted.entry or outcome
            else:
                wanted.evidence[request.bookie] = outcome
                if outcome in _SILENT:
                    self._reads.note_slow(request.bookie)
        if len(outcomes) < len(request.entry_ids):
            self._leave_from(request.entry_ids[len(outcomes)])
        self._ask(
            entry_id
            for entry_id in request.entry_ids
            if entry_id in self._wanted and not self._wanted[entry_id].waits_for
        )

    def _leave_from(self, entry_id: EntryId) -> None:
        """Leave the entries from ``entry_id`` on to another call: they did not fit into an answer."""
        for following in [other for other in self._wanted if other >= entry_id]:
            del self._wanted[following]

    def _ask(self, entry_ids: Iterable[EntryId]) -> bool:
        """Ask one more replica for each missing entry; return whether there was one to ask."""
        by_bookie: dict[BookieId, list[EntryId]] = defaultdict(list)
        for entry_id in entry_ids:
            wanted = self._wanted[entry_id]
            if wanted.entry is None and wanted.replicas:
                by_bookie[wanted.replicas.pop(0)].append(entry_id)
                wanted.waits_for += 1
        patient_until_s = self._reads.ports.clock.monotonic_s() + self._reads.ports.settings.speculative_after_s
        for bookie, ids in by_bookie.items():
            task = guarded("read", self._reads.ask(bookie, ids))
            self._asking[task] = _Request(bookie, ids, patient_until_s)
        return bool(by_bookie)
