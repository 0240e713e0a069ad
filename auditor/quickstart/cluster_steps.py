"""Steps 2 and 3: write ledgers of every shape, then kill a bookie while writers run."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from auditor.progress import Display, ProgressStep
from auditor.quickstart import workload_plan as plan
from auditor.quickstart.proof import ProofFailedError, prove_readable
from auditor.quickstart.workload import LiveLedger, WrittenLedger, write_and_close
from bookie.embedded.cluster import EmbeddedBookie
from bookie.model.ids import BookieId
from bookie.runtime.human import agreeing, counted

if TYPE_CHECKING:
    from auditor.quickstart.tour import Tour

_FIRST_HALF_ENTRIES: Final = 80
_ACKNOWLEDGED: Final = 120
"""Entries of the dying writer that are certainly acknowledged; the others are under way when it dies."""
_KILL_AFTER: Final = 40
"""Acknowledged entries per live writer before the kill; each has ten times as many entries to write."""
_REGISTRATION_DEADLINE_S: Final = 60.0


async def write_ledgers(tour: Tour, display: Display) -> None:
    """Write and close the settled ledgers, and those during whose writing a bookie is stopped."""
    settled, fragmented = plan.settled_ledgers(tour.rng), plan.fragmented_ledgers(tour.rng)
    with display.step("write ledgers of every kind") as step:
        step.total(len(settled) + len(fragmented))
        tour.written += await write_and_close(tour.client, settled, lambda _: step.advance())
        ledgers = [await LiveLedger.create(tour.client, spec) for spec in fragmented]
        await asyncio.gather(*(ledger.write(_FIRST_HALF_ENTRIES) for ledger in ledgers))
        await asyncio.gather(*(ledger.writer.settle() for ledger in ledgers))
        stopped = _most_used(tour, ledgers)
        await stopped.stop()
        step.note(f"stopped bookie {stopped.bookie_id} during {len(ledgers)} writes: ensembles change")
        await asyncio.gather(*(ledger.write() for ledger in ledgers))
        await _close(ledgers, step)
        await stopped.start()
        tour.written += [ledger.written for ledger in ledgers]
        changed = sum(len(ledger.writer.metadata.fragments) > 1 for ledger in ledgers)
        if not changed:
            raise ProofFailedError("no writer changed its ensemble although one of its bookies was stopped")
        have = agreeing(changed, "has", "have")
        step.note(f"{counted(changed, 'ledger')} {have} several fragments; the bookie is registered again")
        _sum_up(step, tour.written)


async def kill_bookie_under_load(tour: Tour, display: Display) -> None:
    """Kill a bookie while writers run; they continue and close. One writer dies with it, so its ledger stays open."""
    with display.step("kill -9 a bookie during writes") as step:
        live = [await LiveLedger.create(tour.client, spec) for spec in plan.live_ledgers(tour.rng)]
        left_open = await LiveLedger.create(tour.client, plan.left_open_ledger(tour.rng))
        await left_open.write(_ACKNOWLEDGED)
        victim = tour.victim = await _choose_victim(tour, left_open)
        step.total(sum(ledger.remaining for ledger in live))
        await _write_while_killing(live, left_open, victim, step)
        replaced = sum(len(ledger.writer.metadata.fragments) > 1 for ledger in live)
        if not replaced:
            raise ProofFailedError("no writer replaced the killed bookie")
        step.note(f"killed bookie {victim.bookie_id}; {len(live)} writers continued, {replaced} of them replaced it")
        await _close(live, None)
        left = left_open.written
        step.note(
            f"the writer of ledger {left.ledger_id} ended with it: {counted(len(left.hashes), 'entry')} acknowledged, "
            f"{len(left.under_way)} in flight, never closed"
        )
        written = [ledger.written for ledger in live]
        tour.written += written
        tour.left_open = left
        await _wait_unregistered(tour, victim.bookie_id)
        guarded = [known for known in tour.written if known.spec.options.ack_quorum >= 2 and known.hashes]
        count = await prove_readable(tour.client, guarded)
        were = agreeing(count, "was", "were")
        step.note(f"{counted(count, 'entry')} with two or more acknowledged copies {were} read back, all intact")
        _sum_up(step, written)


async def _write_while_killing(
    live: list[LiveLedger], left_open: LiveLedger, victim: EmbeddedBookie, step: ProgressStep
) -> None:
    """Kill when every writer has acknowledged entries; each still has most of its entries to write."""
    acked: Counter[int] = Counter()
    may_kill = asyncio.Event()

    def on_ack(writer: int) -> None:
        acked[writer] += 1
        step.advance()
        if len(acked) == len(live) and min(acked.values()) >= _KILL_AFTER:
            may_kill.set()

    async def kill() -> None:
        await may_kill.wait()
        await left_open.submit_rest()
        victim.running.kill9()
        await left_open.abandon()  # before the bookie's process has ended: this writer must not replace the bookie
        await victim.kill9()

    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        for index, ledger in enumerate(live):
            group.create_task(ledger.write_one_by_one(lambda index=index: on_ack(index)))  # type: ignore[misc]


async def _choose_victim(tour: Tour, left_open: LiveLedger) -> EmbeddedBookie:
    """Return the member of the open ledger with the most single-copy ledgers, so that every outcome occurs."""
    singles = [known.ledger_id for known in tour.written if known.spec.options.write_quorum == 1 and known.hashes]
    holders: Counter[BookieId] = Counter()
    for ledger in await tour.client.ports.ledgers.read_many(singles):
        holders.update(getattr(ledger, "metadata").members())  # noqa: B009
    chosen = max(left_open.members, key=lambda member: (holders[member], member))
    return _process_of(tour, chosen)


def _most_used(tour: Tour, ledgers: list[LiveLedger]) -> EmbeddedBookie:
    uses = Counter(member for ledger in ledgers for member in ledger.members)
    return _process_of(tour, uses.most_common(1)[0][0])


def _process_of(tour: Tour, bookie: BookieId) -> EmbeddedBookie:
    return next(process for process in tour.cluster.bookies if process.bookie_id == bookie)


async def _close(ledgers: list[LiveLedger], step: ProgressStep | None) -> None:
    for ledger in ledgers:
        await ledger.writer.close()
        if step is not None:
            step.advance()


async def _wait_unregistered(tour: Tour, bookie: BookieId) -> None:
    registrations = tour.client.ports.registrations
    try:
        async with asyncio.timeout(_REGISTRATION_DEADLINE_S):
            seen = await registrations.list()
            while bookie in seen.registered:
                seen = await registrations.wait_changed(seen)
    except TimeoutError:
        deadline = f"{_REGISTRATION_DEADLINE_S:g} s"
        raise ProofFailedError(f"the killed bookie {bookie} is still registered after {deadline}") from None


def _sum_up(step: ProgressStep, written: list[WrittenLedger]) -> None:
    entries = sum(len(known.hashes) for known in written)
    step.result.count = f"{counted(len(written), 'ledger')}, {counted(entries, 'entry')}"
    step.result.size_bytes = sum(known.payload_bytes for known in written)
