"""The ledger reader. It reads any replica, the next one after an error or a wrong digest, and ranges in parallel.

Opening does not fence and does not recover. An open ledger is readable up to a last add confirmed that some bookie of
the last ensemble has. Every entry up to it is acknowledged. It may be stale, but it never decreases. Entries beyond it
are never returned.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from bookie.client.access import ledger_access
from bookie.client.errors import (
    EntryLostError,
    EntryUnavailableError,
    InvalidPollError,
    LastConfirmedUnknownError,
    NoSuchEntryError,
    WrongDigestTypeError,
)
from bookie.client.ports import ClientPorts
from bookie.client.reader.last_add_confirmed import ConfirmedReads, LastAddConfirmedResult, PendingPolls
from bookie.client.reader.replicas import Evidence, ReplicaReads
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError, Versioned
from bookie.model.digest import Digest
from bookie.model.errors import TransientError
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import DigestType, LedgerMetadata
from bookie.model.packet import Entry
from bookie.runtime.fault_points import fault_point

_log: Final = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 16 << 20
"""Intended payload bytes of one chunk in a range read of a closed ledger."""
_REREADS_MAX: Final = 20
"""Maximum attempts of one read, each with newer metadata; repair changes a fragment's bookies a few times at most."""


class LedgerReader:
    """Reads one ledger. Get it from ``BookKeeper.open_ledger``."""

    def __init__(self, ports: ClientPorts, ledger: Versioned, digest: Digest) -> None:
        self._ports = ports
        self._ledger = ledger
        self._replicas = ReplicaReads(ports, ledger.ledger_id, digest)
        self._confirmed = ConfirmedReads(ports, digest)
        self._last: EntryId | None = None

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger to read."""
        return self._ledger.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata that this reader uses."""
        return self._ledger.metadata

    async def refresh(self) -> EntryId:
        """Read the metadata again and return the last readable entry (see ``last_entry_id``)."""
        await self._reread()
        return self._advance(await self._find_last())

    async def last_entry_id(self) -> EntryId:
        """Return the last readable entry, inclusive: the end of a closed ledger, else a confirmed entry; -1 for none.

        The bookies are asked only once. ``refresh`` asks again; ``tail`` and ``quorum_last_add_confirmed`` also advance
        the value.

        Raises:
            EntryUnavailableError: the ledger is open and no bookie of its last ensemble answered.
        """
        if self._last is None:
            self._advance(await self._find_last())
        assert self._last is not None
        return self._last

    async def quorum_last_add_confirmed(self) -> EntryId:
        """Return a last add confirmed from so many bookies that no entry acknowledged before this call is overlooked.

        So it is at least the last add confirmed that any such entry carries. For a closed ledger it is the end.

        Raises:
            LastConfirmedUnknownError: too few bookies of the last ensemble answered.
            NoSuchLedgerError, UnreadableMetadataError, StoreUnavailableError: the metadata cannot be read.
        """
        await self._reread()  # no entry is acknowledged by an ensemble that the metadata does not name yet
        if self.metadata.last_entry_id is not None:
            return self._advance(self.metadata.last_entry_id)
        confirmed = await self._confirmed.read(self._ledger)
        if not confirmed.is_covered:
            raise LastConfirmedUnknownError(self.ledger_id, confirmed.evidence)
        return self._advance(confirmed.entry_id)

    async def read(self, entry_id: EntryId) -> Entry:
        """Read one entry.

        Raises:
            NoSuchEntryError: it lies beyond ``last_entry_id``.
            EntryUnavailableError: no replica could be read now.
            EntryLostError: every replica answered "never stored".
            NoSuchLedgerError: no replica could be read, and the ledger was deleted.
            UnreadableMetadataError: no replica could be read, and the metadata has become unreadable.
            StoreUnavailableError: neither a replica nor the metadata could be read.
        """
        await self._check_range(entry_id, entry_id)
        [entry] = await self._read_some([entry_id])
        return entry

    async def read_range(self, first: EntryId, last: EntryId) -> AsyncGenerator[Entry, None]:
        """Yield the entries ``first..last`` (inclusive), in order.

        Raises as ``read``; entries yielded before are valid.
        """
        await self._check_range(first, last)
        start = first
        while start <= last:
            stop = min(last, start + self._chunk_entries() - 1)
            for entry in await self._read_some([EntryId(entry_id) for entry_id in range(start, stop + 1)]):
                start = EntryId(entry.entry_id + 1)
                yield entry

    async def read_all(self) -> AsyncGenerator[Entry, None]:
        """Yield every readable entry, in order."""
        last = await self.last_entry_id()
        if last >= 0:
            async with contextlib.aclosing(self.read_range(EntryId(0), last)) as entries:
                async for entry in entries:
                    yield entry

    async def tail(self, first: EntryId, *, poll_s: float | None = None) -> AsyncGenerator[Entry, None]:
        """Yield every entry from ``first`` on, in order, as it becomes readable, until the end of the closed ledger.

        An entry becomes readable after a later one, or an explicit last add confirmed, shows its acknowledgement. While
        no new entry is confirmed, bookies and a store that do not answer only delay later entries. After the generator
        is closed (``contextlib.aclosing``), nothing runs in the background any more.

        Args:
            first: the start; this entry need not exist yet.
            poll_s: longest wait before the metadata is read again, in seconds; None for ``tail_poll_s``.

        Raises:
            InvalidPollError: the wait is not greater than 0.
            NoSuchEntryError: ``first`` is negative.
            EntryUnavailableError, EntryLostError: a confirmed entry cannot be read; tail again from this entry.
            NoSuchLedgerError, UnreadableMetadataError: the ledger was deleted, or its metadata has become unreadable.
        """
        if first < 0:
            raise NoSuchEntryError(f"ledger {self.ledger_id} begins at entry 0; asked for {first}")
        wait_s = poll_interval_s(self._ports, poll_s)
        start, polls = first, PendingPolls()
        try:
            while True:
                last = self._last if self._last is not None else EntryId(-1)
                if start <= last:
                    async with contextlib.aclosing(self.read_range(start, last)) as entries:
                        async for entry in entries:
                            start = EntryId(entry.entry_id + 1)
                            yield entry
                if self.metadata.is_closed and self._last == self.metadata.last_entry_id:
                    return
                news = await self._advance_last_confirmed(last, wait_s, polls)
                if news is not None and news.piggybacked is not None and news.piggybacked.entry_id == start:
                    yield news.piggybacked
                    start = EntryId(start + 1)
        finally:
            await polls.stop()

    async def _advance_last_confirmed(
        self, last: EntryId, wait_s: float, polls: PendingPolls
    ) -> LastAddConfirmedResult | None:
        """Advance ``_last``. If nothing new is confirmed, read the metadata again after ``wait_s``."""
        if not self.metadata.is_closed:
            confirmed = await self._confirmed.wait(self._ledger, last, wait_s, polls)
            if self._advance(confirmed.entry_id) > last:
                return confirmed
            try:
                await self._reread(is_newest=False)
            except TransientError as error:
                _log.debug("following without metadata", extra={"ledger_id": self.ledger_id, "error": str(error)})
        if self.metadata.last_entry_id is not None:
            self._advance(self.metadata.last_entry_id)
        return None

    def _advance(self, last: EntryId) -> EntryId:
        """Advance the last readable entry to ``last``, and return it: never backwards, and not beyond a closed end."""
        if self.metadata.last_entry_id is not None:
            self._last = self.metadata.last_entry_id
        else:
            self._last = last if self._last is None else max(self._last, last)
        return self._last

    def _chunk_entries(self) -> int:
        """Return the number of entries per request: fewer if their mean size is large, so a chunk fits in memory."""
        if fault_point("reader.tiny_chunk"):
            return 1
        entries_max = self._ports.settings.read_chunk_entries
        length, last = self.metadata.length, self.metadata.last_entry_id
        if not length or last is None:
            return entries_max
        return max(1, min(entries_max, _CHUNK_BYTES * (last + 1) // length))

    async def _check_range(self, first: int, last: int) -> None:
        end = await self.last_entry_id()
        if first < 0 or last > end:
            extent = f"is readable from entry 0 to {end}" if end >= 0 else "has no readable entry"
            raise NoSuchEntryError(f"ledger {self.ledger_id} {extent}; asked for {first} to {last}")

    async def _read_some(self, entry_ids: Sequence[EntryId]) -> list[Entry]:
        """Read a prefix of ``entry_ids``, at least the first one."""
        if fault_point("reader.extra_reread"):
            await self._reread()
        for _ in range(_REREADS_MAX):
            asked = self._ledger
            found = await self._replicas.read(asked.metadata, entry_ids)
            if found.entries:
                return found.entries
            if not await self._has_changed_since(asked):
                break
        raise self._unreadable_error(entry_ids[0], found.evidence)

    def _unreadable_error(self, entry_id: EntryId, evidence: Evidence) -> EntryLostError | EntryUnavailableError:
        if evidence and all(status.is_absent for status in evidence.values()):
            return EntryLostError(self.ledger_id, entry_id)
        return EntryUnavailableError(self.ledger_id, entry_id, evidence, self._replicas.reasons)

    async def _reread(self, *, is_newest: bool = True) -> None:
        """Read the metadata again; with ``is_newest``, never from a stale ZooKeeper server."""
        ledger: Versioned | None = None
        if not is_newest:
            with contextlib.suppress(NoSuchLedgerError):  # a stale server may not have it yet
                ledger = await self._ports.ledgers.read(self.ledger_id)
        if ledger is None:
            ledger = await self._ports.ledgers.current(self.ledger_id)
        if ledger is None:
            raise NoSuchLedgerError(f"ledger {self.ledger_id} does not exist")
        if ledger.version > self._ledger.version:  # a stale server may return an older version than before
            self._ledger = ledger

    async def _has_changed_since(self, seen: Versioned) -> bool:
        """Return whether the metadata is newer than ``seen``: repair or the writer may have replaced the bookies."""
        if self._ledger.version == seen.version:
            await self._reread()
        return self._ledger.version != seen.version

    async def _find_last(self) -> EntryId:
        for _ in range(_REREADS_MAX):
            end = self.metadata.last_entry_id
            if end is not None:
                return end
            asked = self._ledger
            confirmed = await self._confirmed.read(asked)
            if confirmed.is_answered:
                return confirmed.entry_id
            if not await self._has_changed_since(asked):
                break
        raise EntryUnavailableError(self.ledger_id, confirmed.entry_id, confirmed.evidence)


def poll_interval_s(ports: ClientPorts, poll_s: float | None) -> float:
    """Return the longest wait between two reads of the metadata by a tail; None for the value in the settings.

    Raises:
        InvalidPollError: it is not greater than 0.
    """
    wait_s = ports.settings.tail_poll_s if poll_s is None else poll_s
    if not wait_s > 0:  # or if it is not a number
        raise InvalidPollError(f"the interval between two polls must be greater than 0 s, not {wait_s:g} s")
    return wait_s


async def ledger_to_read(ports: ClientPorts, ledger_id: LedgerId) -> Versioned:
    """Return a ledger for a new reader. If it is not closed, the metadata is no older than this call.

    So if the writer has closed the ledger before the call, the reader sees the end, even if its ZooKeeper server lags.

    Raises:
        NoSuchLedgerError: there is no such ledger.
        UnreadableMetadataError: its metadata cannot be decoded.
        StoreUnavailableError: no answer.
    """
    with contextlib.suppress(NoSuchLedgerError):  # a stale server may not have it yet
        ledger = await ports.ledgers.read(ledger_id)
        if ledger.metadata.is_closed:
            return ledger
    current = await ports.ledgers.current(ledger_id)
    if current is None:
        raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
    return current


def open_reader(
    ports: ClientPorts, ledger: Versioned, password: bytes | None, digest_type: DigestType | None = None
) -> LedgerReader:
    """Return a reader of ``ledger``. For None, the password or digest type in the metadata is used.

    Raises:
        WrongPasswordError: the password is not the ledger's.
        WrongDigestTypeError: it has another digest type.
    """
    digest = ledger_access(ledger, password).digest
    if digest_type is not None and digest_type is not digest.type:
        raise WrongDigestTypeError(
            f"ledger {ledger.ledger_id} has the digest type {digest.type.name}, not {digest_type.name}"
        )
    return LedgerReader(ports, ledger, digest)
