"""Planted defects of the ledger client: writer, recovery, reader, and its changes of metadata."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from bookie.client.recovery import fence as recovery_fence
from bookie.client.recovery import read as recovery_read
from bookie.client.recovery.read import RecoveryReader
from bookie.client.recovery.tail import LedgerTail
from bookie.client.recovery.votes import FoundEntry, Votes
from bookie.client.recovery.write import RecoveryWriter
from bookie.client.writer import ensemble_change, explicit_lac
from bookie.client.writer.pipeline import Pipeline
from bookie.client.writer.state import WriterState
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.ledgers.ledgers import LedgerStore, NoSuchLedgerError
from bookie.metadata.port import ANY_VERSION
from bookie.model.ids import EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.model.packet import pack, pack_lac
from bookie.wire.port import AddReply, Status
from tests.simulation.planting import Registry, swap

CLIENT_DEFECTS = Registry()
plants = CLIENT_DEFECTS.add


@plants("acks-during-change", "#1591, #1592", "entries are acknowledged before the ensemble change is stored")
def _(stack: ExitStack) -> None:
    def make(confirm: Any) -> Any:
        def without_check(self: WriterState[Any]) -> Any:
            was_changing, self.is_changing = self.is_changing, False
            try:
                return confirm(self)
            finally:
                self.is_changing = was_changing

        return without_check

    swap(stack, WriterState, "confirm", make)


@plants("stale-acks", "#4097, #4194", "acknowledgements of a replaced bookie count for the one that took its place")
def _(stack: ExitStack) -> None:
    def acknowledge(self: WriterState[Any], lane: Any, batch: Any) -> Any:
        if batch in lane.in_flight:
            lane.in_flight.remove(batch)
        bit = 1 << lane.position
        for pending in batch:
            if not pending.is_confirmed:
                pending.acked |= bit
        return self.confirm()

    swap(stack, WriterState, "acknowledge", lambda _: acknowledge)


@plants(
    "replaced-acks-kept",
    "docs/failure-model.md#recovery-rules",
    "an ensemble change keeps the acknowledgements of the replaced bookies",
)
def _(stack: ExitStack) -> None:
    def make(unsettle: Any) -> Any:
        def keep(self: WriterState[Any], pending: Any, bit: int) -> None:
            acked = pending.acked
            unsettle(self, pending, bit)
            pending.acked = acked

        return keep

    swap(stack, WriterState, "_mark_unsettled", make)


@plants("acks-out-of-order", "I1", "an entry is acknowledged although the one before it is not")
def _(stack: ExitStack) -> None:
    def without_check(self: WriterState[Any]) -> list[Any]:
        if self.is_changing:
            return []
        ready = [p for p in self._unconfirmed if p.acked.bit_count() >= self._ack_quorum]
        self._unconfirmed = deque(p for p in self._unconfirmed if p not in ready)
        for pending in ready:
            pending.is_confirmed = True
            self.last_add_confirmed = pending.entry_id
            self.confirmed_length = pending.length
        return ready

    swap(stack, WriterState, "confirm", lambda _: without_check)


@plants("timeout-is-ack", "I1", "an add without an answer counts as stored")
def _(stack: ExitStack) -> None:
    def make(offer: Any) -> Any:
        async def hopeful(self: Pipeline, lane: Any, batch: Any) -> AddReply:
            reply: AddReply = await offer(self, lane, batch)
            return AddReply(Status.OK) if reply.status is Status.TIMEOUT else reply

        return hopeful

    swap(stack, Pipeline, "_offer", make)


@plants(
    "change-starts-late",
    "docs/formats.md#ensemble-change",
    "a new fragment starts after entries that were sent but not confirmed",
)
def _(stack: ExitStack) -> None:
    def make(with_new: Any) -> Any:
        def late(metadata: LedgerMetadata, ledger_id: Any, before: Any, wanted: Any, sent: Any) -> Any:
            later = replace(wanted, first_entry_id=EntryId(wanted.first_entry_id + 1))
            return with_new(metadata, ledger_id, before, later, sent)

        return late

    swap(stack, ensemble_change, "with_new_ensemble", make)


@plants("change-ignores-state", "HandleFailuresTest, rows 7 and 8", "a writer changes the ensemble of a closed ledger")
def _(stack: ExitStack) -> None:
    def without_check(metadata: LedgerMetadata, ledger_id: Any, before: Any, wanted: Any, sent: Any) -> Any:
        return (
            None
            if metadata.last_fragment in sent
            else metadata.with_last_fragment(wanted.first_entry_id, wanted.members)
        )

    swap(stack, ensemble_change, "with_new_ensemble", lambda _: without_check)


@plants("close-over-close", "BK-584, LedgerClose2Test", "a writer closes a ledger again that another client closed")
def _(stack: ExitStack) -> None:
    def without_check(self: LedgerWriter, metadata: LedgerMetadata) -> LedgerMetadata:
        state = self._pipeline.state
        return metadata.closed(state.last_add_confirmed, state.confirmed_length)

    swap(stack, LedgerWriter, "_closed_metadata", lambda _: without_check)


@plants("metadata-overwritten", "BK-584", "metadata is written without comparing its version")
def _(stack: ExitStack) -> None:
    def make(write: Any) -> Any:
        async def overwrite(self: LedgerStore, ledger_id: Any, metadata: Any, version: int, **named: Any) -> Any:
            return await write(self, ledger_id, metadata, ANY_VERSION, **named)

        return overwrite

    swap(stack, LedgerStore, "write", make)


@plants("deleted-ledger-recreated", "R18", "a change of a deleted ledger's metadata creates it again")
def _(stack: ExitStack) -> None:
    def make(write: Any) -> Any:
        async def recreate(self: LedgerStore, ledger_id: Any, metadata: Any, version: int, **named: Any) -> Any:
            try:
                return await write(self, ledger_id, metadata, version, **named)
            except NoSuchLedgerError:
                return await self.create(ledger_id, metadata)

        return recreate

    swap(stack, LedgerStore, "write", make)


@plants("unconfirmed-entries-readable", "I5", "readers learn of entries before they are confirmed")
def _(stack: ExitStack) -> None:
    def make(admit: Any) -> Any:
        def early(self: Pipeline, packet: bytes, payload_bytes: int, waiter: Any) -> None:
            admit(self, packet, payload_bytes, waiter)

        return early

    def without_check(digest: Any, ledger_id: Any, last_add_confirmed: int) -> bytes:
        return pack_lac(digest, ledger_id, last_add_confirmed + 1)

    swap(stack, Pipeline, "admit", make)
    swap(stack, explicit_lac, "pack_lac", lambda _: without_check)


@plants("recovery-does-not-fence-reads", "#2614", "recovery fences only with its first request to a bookie")
def _(stack: ExitStack) -> None:
    def make(init: Any) -> Any:
        def unfenced(self: RecoveryReader, *arguments: Any, **named: Any) -> None:
            init(self, *arguments, **named)
            self._fence_key = None

        return unfenced

    swap(stack, RecoveryReader, "__init__", make)


@plants("recovery-starts-at-zero", "#2615", "recovery starts at entry 0 if its bookies have no entry")
def _(stack: ExitStack) -> None:
    swap(stack, recovery_fence, "_fenced", lambda fenced: lambda first, entries: fenced(EntryId(0), entries))


@plants(
    "one-denial-is-enough",
    "docs/failure-model.md#recovery-rules",
    "recovery ends at the first bookie that denies an entry",
)
def _(stack: ExitStack) -> None:
    swap(stack, recovery_read, "negative_quorum", lambda _: lambda write_quorum, ack_quorum: 1)


def _taken_for_denial(stack: ExitStack, *statuses: Status) -> None:
    def make(answer: Any) -> Any:
        def without_check(self: Votes, position: int, outcome: Any) -> None:
            answer(self, position, Status.NO_ENTRY if outcome in statuses else outcome)

        return without_check

    swap(stack, Votes, "answer", make)


@plants("timeout-is-denial", "BK-365, #1067", 'recovery treats a timeout as "no such entry"')
def _(stack: ExitStack) -> None:
    _taken_for_denial(stack, Status.TIMEOUT, Status.UNREACHABLE, Status.UNRESOLVED)


@plants("corruption-is-denial", "#2908", 'recovery treats a corrupt copy as "no such entry"')
def _(stack: ExitStack) -> None:
    _taken_for_denial(stack, Status.CORRUPT, Status.IO_ERROR)


@plants("limbo-is-denial", "BP-46", 'recovery treats "unknown" as "no such entry"')
def _(stack: ExitStack) -> None:
    _taken_for_denial(stack, Status.LIMBO)


@plants(
    "recovery-below-ack-quorum",
    "T4, BOOKKEEPER-150",
    "recovery closes with entries on fewer bookies than the ack quorum",
)
def _(stack: ExitStack) -> None:
    swap(stack, RecoveryWriter, "_check", lambda _: lambda self, block, parts: None)


@plants("replacements-stored-early", "BK-581", "recovery stores its replacement bookies before it closes")
def _(stack: ExitStack) -> None:
    def make(replace_some: Any) -> Any:
        async def early(self: RecoveryWriter, block: Any, parts: Any) -> bool:
            is_replaced = bool(await replace_some(self, block, parts))
            if is_replaced:
                current = await self._ports.ledgers.read(self._ledger_id)
                if not current.metadata.is_closed:
                    fragments = (*self._tail.began.metadata.fragments[:-1], *self._tail._fragments)
                    wanted = replace(current.metadata, fragments=fragments)
                    await self._ports.ledgers.write(self._ledger_id, wanted, current.version)
            return is_replaced

        return early

    def anyway(self: LedgerTail, metadata: LedgerMetadata, last_entry_id: EntryId, length: int) -> LedgerMetadata:
        fragments = (*self.began.metadata.fragments[:-1], *self._fragments)
        return replace(metadata, fragments=fragments).closed(last_entry_id, length)

    swap(stack, RecoveryWriter, "_replace", make)
    swap(stack, LedgerTail, "closed", lambda _: anyway)


@plants("recovered-lac-changed", "R26, TLA+ 5d69fdd", "recovery builds entries again, with its own last add confirmed")
def _(stack: ExitStack) -> None:
    def make(store: Any) -> Any:
        async def repacked(self: RecoveryWriter, block: Sequence[FoundEntry]) -> None:
            digest = self._access.digest
            again = []
            for one in block:
                entry = one.entry
                lac = entry.entry_id - 1
                packet = pack(digest, entry.ledger_id, entry.entry_id, lac, entry.length, entry.payload)
                again.append(FoundEntry(entry, packet))
            await store(self, again)

        return repacked

    swap(stack, RecoveryWriter, "store", make)


@plants("reader-trusts-any-entry", "I5", "a reader treats a bookie's greatest entry as confirmed")
def _(stack: ExitStack) -> None:
    from bookie.client.reader import last_add_confirmed as lac

    def make(reported: Any) -> Any:
        def without_check(reply: Any, digest: Any, ledger_id: Any) -> Any:
            status, confirmed = reported(reply, digest, ledger_id)
            if reply.last_entry is not None and reply.last_entry.status is Status.OK:
                confirmed = max(confirmed, reply.last_entry.entry_id)
            return status, confirmed

        return without_check

    swap(stack, lac, "verified_lac", make)
