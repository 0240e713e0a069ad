"""The proof: reads each copy directly from its bookie, and compares it with the writer's record.

It does not rely on the audit or the replicators. Metadata is read again, and entries are read from specific bookies,
not through a reader that would use the next copy.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from auditor.quickstart.workload import WrittenLedger, payload_hash
from bookie.client.bookkeeper import BookKeeper, stored_digest
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.errors import FatalError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.packet import DamagedEntry, unpack
from bookie.model.severity import Severity, health_of
from bookie.runtime.human import counted
from bookie.wire.port import READ_ENTRIES_MAX, EntryResult, Status
from bookie.wire.requests import Read

_READ_TIMEOUT_S: Final = 30.0


class ProofFailedError(FatalError):
    """The cluster does not have the data that it should have; the message has the first difference."""


@dataclass(frozen=True, slots=True)
class ExpectedFinding:
    """A finding that an audit must make, computed with simple arithmetic from newly read metadata."""

    ledger_id: int
    first_entry_id: int
    severity: Severity


@dataclass(frozen=True, slots=True)
class LackingCopies:
    """The copies that the cluster lacks before the repair."""

    findings: frozenset[ExpectedFinding]
    payload_bytes: dict[LedgerId, int]
    """Payload of the lost copies, by ledger."""


async def recount_loss(client: BookKeeper, written: Sequence[WrittenLedger]) -> LackingCopies:
    """Find every fragment that names an unregistered bookie, with its severity and the bytes of the bookie's copies."""
    registered = (await client.ports.registrations.list()).registered
    findings = set()
    payload_bytes: dict[LedgerId, int] = {}
    for ledger, known in zip(await _read(client, written), written, strict=True):
        metadata = ledger.metadata
        for index, fragment in enumerate(metadata.fragments):
            health = health_of(metadata, index, registered)
            if health.severity is not None:
                findings.add(ExpectedFinding(ledger.ledger_id, fragment.first_entry_id, health.severity))
        payload_bytes[ledger.ledger_id] = _lost_payload(ledger, known, registered)
    return LackingCopies(frozenset(findings), payload_bytes)


def _lost_payload(ledger: Versioned, known: WrittenLedger, registered: frozenset[BookieId]) -> int:
    metadata = ledger.metadata
    total = 0
    for entry_id, size in enumerate(known.spec.sizes[: len(known.hashes)]):
        members = metadata.fragments[metadata.fragment_index(EntryId(entry_id))].members
        positions = metadata.stripe.write_set(entry_id)
        total += size * sum(members[position] not in registered for position in positions)
    return total


@dataclass(slots=True)
class Proof:
    """The numbers of compared objects."""

    ledgers: int = 0
    entries: int = 0
    copies: int = 0
    copied_bytes: int = 0


async def prove_copies(
    client: BookKeeper, written: Sequence[WrittenLedger], dead: BookieId, on_ledger: Callable[[], None]
) -> Proof:
    """Check every copy of every entry of ``written`` (closed ledgers).

    Raises:
        ProofFailedError: a ledger names the killed bookie, has a different end than its writer wrote, or a copy is
            missing, damaged or different.
    """
    proof = Proof()
    for ledger, known in zip(await _read(client, written), written, strict=True):
        _check_metadata(ledger, known, dead)
        await _prove_ledger(client, ledger, known, proof)
        proof.ledgers += 1
        proof.entries += len(known.hashes)
        on_ledger()
    return proof


async def with_its_end(client: BookKeeper, known: WrittenLedger) -> WrittenLedger:
    """Return a recovered ledger with its required content: every acknowledged entry, and the later ones up to its end.

    Raises:
        ProofFailedError: it is not closed, it ends before the last acknowledged entry, or after the last written one.
    """
    (ledger,) = await _read(client, [known])
    last = ledger.metadata.last_entry_id
    if last is None:
        raise ProofFailedError(f"ledger {known.ledger_id} is {ledger.metadata.state.name}, not closed")
    acknowledged, written = len(known.hashes), len(known.hashes) + len(known.under_way)
    if not acknowledged - 1 <= last <= written - 1:
        raise ProofFailedError(
            f"ledger {known.ledger_id} was closed at entry {last}; its writer was acknowledged "
            f"{counted(acknowledged, 'entry')} and wrote {written}"
        )
    return replace(known, hashes=[*known.hashes, *known.under_way][: last + 1], under_way=[])


async def prove_readable(client: BookKeeper, written: Sequence[WrittenLedger]) -> int:
    """Read every acknowledged entry of ledgers whose bookies may be lost, from any copy; return their number.

    Raises:
        ProofFailedError: an entry differs from the written one.
        EntryUnavailableError: an entry cannot be read.
    """
    count = 0
    for known in written:
        reader = await client.open_ledger(known.ledger_id)
        async for entry in reader.read_range(EntryId(0), EntryId(len(known.hashes) - 1)):
            if payload_hash(entry.payload) != known.hashes[entry.entry_id]:
                raise ProofFailedError(f"ledger {known.ledger_id} entry {entry.entry_id} reads back different bytes")
            count += 1
    return count


def _check_metadata(ledger: Versioned, known: WrittenLedger, dead: BookieId) -> None:
    if dead in ledger.metadata.members():
        raise ProofFailedError(f"ledger {ledger.ledger_id} still names the dead bookie {dead}")
    if ledger.metadata.custom != known.spec.custom:
        raise ProofFailedError(f"ledger {ledger.ledger_id} lost its custom metadata")
    if ledger.metadata.last_entry_id != len(known.hashes) - 1:
        raise ProofFailedError(
            f"ledger {ledger.ledger_id} ends at entry {ledger.metadata.last_entry_id}, "
            f"its writer was acknowledged {counted(len(known.hashes), 'entry')}"
        )


async def _prove_ledger(client: BookKeeper, ledger: Versioned, known: WrittenLedger, proof: Proof) -> None:
    metadata, digest = ledger.metadata, stored_digest(ledger)
    by_bookie: dict[BookieId, list[EntryId]] = defaultdict(list)
    for entry_id in map(EntryId, range(len(known.hashes))):
        members = metadata.fragments[metadata.fragment_index(entry_id)].members
        for position in metadata.stripe.write_set(entry_id):
            by_bookie[members[position]].append(entry_id)
    answers = await asyncio.gather(*(_ask(client, ledger, bookie, ids) for bookie, ids in by_bookie.items()))
    for bookie, results in zip(by_bookie, answers, strict=True):
        for result in results:
            where = f"ledger {ledger.ledger_id} entry {result.entry_id} on {bookie}"
            try:
                entry = unpack(digest, result.packet, ledger.ledger_id, result.entry_id)
            except DamagedEntry as damage:
                raise ProofFailedError(f"{where}: {damage}") from damage
            if payload_hash(entry.payload) != known.hashes[result.entry_id]:
                raise ProofFailedError(f"{where}: not the bytes that were written")
            proof.copies += 1
            proof.copied_bytes += len(result.packet)


async def _ask(client: BookKeeper, ledger: Versioned, bookie: BookieId, ids: list[EntryId]) -> list[EntryResult]:
    results: list[EntryResult] = []
    while len(results) < len(ids):
        rest = ids[len(results) : len(results) + READ_ENTRIES_MAX]
        reply = await client.ports.transport.ask(bookie, Read(ledger.ledger_id, rest), _READ_TIMEOUT_S)
        bad = next((result for result in reply.results if result.status is not Status.OK), None)
        if reply.status is not Status.OK or not reply.results or bad is not None:
            status = bad.status if bad else reply.status
            entry_id = bad.entry_id if bad else rest[0]
            raise ProofFailedError(
                f"{bookie} does not return ledger {ledger.ledger_id} entry {entry_id}: {status.name}"
            )
        results.extend(reply.results)
    return results


async def _read(client: BookKeeper, written: Sequence[WrittenLedger]) -> list[Versioned]:
    found = await client.ports.ledgers.read_many([known.ledger_id for known in written])
    for ledger, known in zip(found, written, strict=True):
        if not isinstance(ledger, Versioned):
            raise ProofFailedError(f"metadata of ledger {known.ledger_id} cannot be read: {ledger}")
    return [ledger for ledger in found if isinstance(ledger, Versioned)]
