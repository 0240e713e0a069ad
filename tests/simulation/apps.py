"""What applications do in a history: write, read, recover, delete. Each checks its answers against the truth."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.options import NO_OPTIONS, WriterOptions
from bookie.client.reader.reader import LedgerReader
from bookie.client.recovery.recovery import recover_ledger
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.tasks.copy_limits import CopyLimits, CopyLimitsStore
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId, LedgerId
from tests.simulation.nodes import SimClient
from tests.simulation.world import SimWorld


@dataclass(frozen=True, slots=True)
class WritePlan:
    """How one writer behaves."""

    options: LedgerOptions
    entries: int
    pace_s: float
    """The mean pause between bursts."""
    burst: int
    """The most entries of one burst."""
    writer: WriterOptions = NO_OPTIONS
    is_left_open: bool = False
    """Whether the application stops without closing the ledger."""
    idles_at: int = -1
    """The number of entries after which the writer pauses for ``idle_s``."""
    idle_s: float = 0.0
    large_from: int | None = None
    """The first entry from which on entries have twenty times the usual size; None: no entry has."""


async def write_ledger(world: SimWorld, client: SimClient, plan: WritePlan) -> None:
    """Create a ledger, append to it and close it, until a step fails."""
    try:
        writer = await client.client.create_ledger(plan.options, password=b"pw", writer_options=plan.writer)
    except BkhealError as error:
        world.trace.event(client.process.name, f"creates no ledger: {type(error).__name__}")
        return
    world.open_ledgers.append(writer.ledger_id)
    try:
        await _append_all(world, client, writer, plan)
        if plan.is_left_open:
            world.trace.event(client.process.name, f"leaves {writer.ledger_id} open")
            return
        await writer.close()
    except (BkhealError, TimeoutError) as error:
        world.trace.event(client.process.name, f"gives up {writer.ledger_id}: {type(error).__name__}")


async def _append_all(world: SimWorld, client: SimClient, writer: LedgerWriter, plan: WritePlan) -> None:
    truth, ledger_id = world.truth, writer.ledger_id
    rng = client.rng
    number = 0
    failed: list[BaseException] = []

    def ended(future: asyncio.Future[EntryId]) -> None:
        if not client.process.is_alive or future.cancelled():
            return
        if future.exception() is None:
            truth.acknowledged(client.process.name, ledger_id, future.result())
            world.happened("acked", ledger_id)
        else:
            failed.append(future.exception() or RuntimeError())

    futures: list[asyncio.Future[EntryId]] = []
    while number < plan.entries and not failed:
        if number >= plan.idles_at >= 0 and plan.idle_s:
            await asyncio.gather(*futures, return_exceptions=True)
            world.happened("idle", ledger_id)
            await asyncio.sleep(plan.idle_s)
            plan = replace(plan, idles_at=-1)
        ids = list(range(number, min(plan.entries, number + 1 + rng.randrange(plan.burst))))
        number = ids[-1] + 1
        if plan.writer.has_own_entry_ids:
            rng.shuffle(ids)
        for entry in ids:
            large = plan.large_from is not None and entry >= plan.large_from
            payload = f"{ledger_id}/{entry}/{client.process.name}".encode() * (1 + entry % 3) * (20 if large else 1)
            truth.offered(ledger_id, EntryId(entry), payload)
            if plan.writer.has_own_entry_ids:
                future = await writer.submit_at(EntryId(entry), payload)
            else:
                future = await writer.submit(payload)
            future.add_done_callback(ended)
            futures.append(future)
        world.happened("sent", ledger_id)
        await asyncio.sleep(rng.random() * 2 * plan.pace_s)
    await asyncio.gather(*futures, return_exceptions=True)


async def recover(world: SimWorld, client: SimClient, ledger_id: LedgerId) -> None:
    """Recover a ledger once, as an application does that replaces a dead writer."""
    world.truth.recovered_by_application(ledger_id)
    try:
        world.trace.event(client.process.name, f"recovers {ledger_id}")
        closed = await recover_ledger(client.ports, ledger_id, b"pw")
    except (BkhealError, TimeoutError) as error:
        world.trace.event(client.process.name, f"recovery of {ledger_id}: {type(error).__name__}")
        return
    stored = world.truth.metadata.get(ledger_id)
    if not closed.metadata.is_closed:
        world.truth.fail("T2", f"{client.process.name} recovered {ledger_id} and it is {closed.metadata.state.name}")
    elif stored is not None and stored.last_entry_id != closed.metadata.last_entry_id:
        world.truth.fail(
            "T2",
            f"{client.process.name} returned that {ledger_id} ends at {closed.metadata.last_entry_id}, "
            f"stored is {stored.last_entry_id}",
        )


async def read_along(world: SimWorld, client: SimClient, ledger_id: LedgerId, rounds: int) -> None:
    """Open a ledger repeatedly, read its end and some entries: bytes stay the same, and the end never decreases."""
    try:
        reader = await client.client.open_ledger(ledger_id, password=b"pw")
    except BkhealError:
        return
    seen = -1
    for _ in range(rounds):
        try:
            last = await _look(client, reader)
            if last < seen and not world.truth.of(ledger_id).is_cut:
                world.truth.fail("I5", f"{client.process.name} read that {ledger_id} ends at {seen}, then at {last}")
            seen = max(seen, last)
            world.truth.may_be_read(client.process.name, ledger_id, last)
            if last >= 0:
                first = client.rng.randrange(last + 1)
                stop = min(last, first + 3)
                async for entry in reader.read_range(EntryId(first), EntryId(stop)):
                    world.truth.was_read(client.process.name, ledger_id, entry.entry_id, entry.payload)
        except (BkhealError, TimeoutError) as error:
            world.trace.event(client.process.name, f"cannot read {ledger_id}: {type(error).__name__}")
        await asyncio.sleep(client.rng.random() * world.variation.scale)


async def _look(client: SimClient, reader: LedgerReader) -> int:
    if client.rng.random() < 0.5:
        return await getattr(reader, "quorum_last_add_confirmed", reader.refresh)()
    return await reader.refresh()


async def tail(world: SimWorld, client: SimClient, ledger_id: LedgerId, seconds: float) -> None:
    """Follow a ledger from its beginning. Every entry appears once, in order, and only after it is confirmed."""
    expected = 0
    try:
        async with asyncio.timeout(seconds):
            reader = await client.client.open_ledger(ledger_id, password=b"pw")
            async for entry in getattr(reader, "tail", lambda first: reader.read_all())(EntryId(0)):
                if entry.entry_id != expected:
                    world.truth.fail("I5", f"{client.process.name} received {entry.entry_id} after {expected - 1}")
                expected = entry.entry_id + 1
                world.truth.was_read(client.process.name, ledger_id, entry.entry_id, entry.payload)
    except (BkhealError, TimeoutError) as error:
        world.trace.event(client.process.name, f"stops tailing {ledger_id}: {type(error).__name__}")


async def delete(world: SimWorld, client: SimClient, ledger_id: LedgerId) -> None:
    """Delete a ledger."""
    world.trace.event(client.process.name, f"deletes {ledger_id}")
    try:
        await client.client.delete_ledger(ledger_id)
    except BkhealError as error:
        world.trace.event(client.process.name, f"does not delete {ledger_id}: {type(error).__name__}")


async def drain(world: SimWorld, client: SimClient, bookie: BookieId) -> None:
    """Start a drain of a bookie. An audit marks its ledgers."""
    world.trace.event(client.process.name, f"drains {bookie}")
    try:
        await Drains(client.store, world.cluster.root).start(Drain(bookie, "operator", client.clock.epoch_ms()))
    except (BkhealError, TimeoutError) as error:
        world.trace.event(client.process.name, f"drain: {type(error).__name__}")


async def end_drain(world: SimWorld, client: SimClient, bookie: BookieId) -> None:
    """Withdraw a drain."""
    world.trace.event(client.process.name, f"drains {bookie} no more")
    try:
        await Drains(client.store, world.cluster.root).stop(bookie)
    except (BkhealError, TimeoutError) as error:
        world.trace.event(client.process.name, f"end of drain: {type(error).__name__}")


async def switch(world: SimWorld, client: SimClient, *, is_on: bool) -> None:
    """Switch auto-recovery off or on."""
    world.trace.event(client.process.name, f"switches repair {'on' if is_on else 'off'}")
    switches = client.ports.tasks.switches
    try:
        await (switches.enable() if is_on else switches.disable())
        world.disabled_since_s = world.loop.time()
    except (BkhealError, TimeoutError) as error:
        world.trace.event(client.process.name, f"switch: {type(error).__name__}")


async def limit_copies(world: SimWorld, client: SimClient, limits: CopyLimits | None) -> None:
    """Set the copy limits of the whole cluster, or remove them (None)."""
    world.trace.event(client.process.name, f"sets limits on copying: {limits}")
    store = CopyLimitsStore(client.store, world.cluster.root)
    try:
        await (store.clear() if limits is None else store.set(limits))
        world.note_limits(limits)
    except (BkhealError, TimeoutError) as error:
        world.trace.event(client.process.name, f"limits: {type(error).__name__}")


async def mark_ledgers_of(world: SimWorld, client: SimClient, bookie: BookieId) -> None:
    """Mark every ledger of a bookie with a new disk, as an operator or the *replicas* check does.

    Raises:
        BkhealError: not all of them are marked.
    """
    named = [ledger_id for ledger_id, found in sorted(world.truth.metadata.items()) if bookie in found.members()]
    world.trace.event(client.process.name, f"has {named} marked, {bookie} has a new disk")
    await client.ports.tasks.marking.mark_many([(ledger_id, (bookie,)) for ledger_id in named])
    world.truth.marked(bookie, named)
