"""Steps 4 to 6: audit with Spark, repair with two replicator processes, verify the result."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as parquet

from auditor.progress import Display, ProgressStep
from auditor.quickstart.proof import ExpectedFinding, ProofFailedError, prove_copies, recount_loss, with_its_end
from auditor.quickstart.settings import OPEN_LEDGER_GRACE_S
from auditor.quickstart.shortfall import LedgerShortfall, recount_shortfalls
from bookie.embedded.process import EmbeddedProcessError, ManagedProcess
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import LedgerId
from bookie.model.severity import Severity
from bookie.runtime.human import agreeing, counted, size

if TYPE_CHECKING:
    from auditor.quickstart.tour import Tour

REPLICATORS: Final = 2
_AUDIT_DEADLINE_S: Final = 300.0
_REPAIR_DEADLINE_S: Final = 300.0
_POLL_S: Final = 0.2


async def audit(tour: Tour, display: Display) -> None:
    """Run the Spark audit, and compare its findings with a simple recount from the metadata.

    It runs in a process of its own, because pyspark forks, and a process with gRPC's threads must not fork.
    """
    with display.step("audit all ledger metadata with Spark") as step:
        known = [*tour.written, *([tour.left_open] if tour.left_open else [])]
        tour.loss = await recount_loss(tour.client, known)
        report = await _run_audit(tour)
        found = _found(report)
        if found != tour.loss.findings:
            raise ProofFailedError(
                f"the audit's findings differ from a plain recount: {len(found - tour.loss.findings)} unexpected, "
                f"{len(tour.loss.findings - found)} missing; see {report}"
            )
        severities = Counter(finding.severity for finding in found)
        for severity in sorted(severities):
            step.note(f"{counted(severities[severity], 'fragment')} {severity.label}")
        if tour.is_kept:
            step.note(f"report: {report}")
        ledgers = counted(len({finding.ledger_id for finding in found}), "ledger")
        step.result.count = f"{ledgers}, {counted(len(found), 'fragment')} found"


async def repair(tour: Tour, display: Display) -> None:
    """Start the replicators and wait until every task is repaired or parked."""
    with display.step(f"repair with {REPLICATORS} replicator processes") as step:
        before = {task.ledger_id for task in await tour.client.ports.tasks.list()}
        shortfalls = await recount_shortfalls(tour.client.ports, tour.written)
        if shortfalls:
            step.note(f"marked by their writers, as the bookie that was stopped lacks copies: {_named(shortfalls)}")
        processes = [_start_replicator(tour, number + 1) for number in range(REPLICATORS)]
        try:
            await _wait_repaired(tour, processes, len(before), step)
        finally:
            await asyncio.gather(*(process.stop() for process in processes))
        await _settle_left_open(tour, step)
        await _settle_parked(tour, step)
        _count_repaired(tour, before - set(tour.parked), shortfalls)
        step.result.size_bytes = tour.repaired_bytes
        step.result.count = f"{counted(len(tour.repaired), 'ledger')} repaired, {len(tour.parked)} parked"


async def prove(tour: Tour, display: Display) -> None:
    """Compare every copy of every repaired ledger with the written entries, and check the parked ledgers."""
    with display.step("verify every copy") as step:
        step.total(len(tour.repaired))
        assert tour.victim is not None
        proof = await prove_copies(tour.client, tour.repaired, tour.victim.bookie_id, step.advance)
        _prove_parked(tour)
        step.result.count = f"{counted(proof.entries, 'entry')}, {counted(proof.copies, 'copy')} compared"
        step.result.size_bytes = proof.copied_bytes


def summarize(tour: Tour, display: Display) -> None:
    """Print the table of steps and the last line."""
    display.line("")
    width = max(len(result.title) for result in display.results)
    for result in display.results:
        volume = size(result.size_bytes) if result.size_bytes is not None else ""
        display.line(f"  {result.title:<{width}}  {result.seconds:6.1f} s  {volume:>10}  {result.count}")
    seconds = sum(result.seconds for result in display.results[3:5])
    display.line("")
    display.line(
        f"repaired: {counted(len(tour.repaired), 'ledger')}, {counted(tour.repaired_fragments, 'fragment')}, "
        f"{tour.repaired_bytes / (1 << 20):.1f} MiB in {seconds:.1f} s"
    )


_PARK_REASON_TEXTS: Final = {
    ParkReason.NO_LIVE_COPY: "no live copy (the only one was on the lost bookie; the task stays)",
}


async def _run_audit(tour: Tour) -> Path:
    """Run the audit to its end, and return the directory of its report."""
    reports = tour.directory / "reports"
    arguments = [sys.executable, "-m", "spark_jobs.audit", "--metadata-uri", tour.cluster.metadata_uri]
    process = ManagedProcess.start(
        "audit", [*arguments, "--report-dir", str(reports)], log_path=tour.directory / "audit" / "log.txt"
    )
    async with process:
        exit_code = await process.wait(_AUDIT_DEADLINE_S)
    if exit_code:
        raise EmbeddedProcessError(
            f"the audit ended with exit code {exit_code}; its log ends with:\n{process.log_tail()}"
        )
    return next(summary.parent for summary in reports.glob("*/summary.json"))


def _found(report: Path) -> set[ExpectedFinding]:
    table = parquet.read_table(
        report / "findings.parquet", columns=["ledger_id", "fragment_first_entry_id", "severity"]
    )
    return {
        ExpectedFinding(row["ledger_id"], row["fragment_first_entry_id"], Severity.of_label(row["severity"]))
        for row in table.to_pylist()
        if row["severity"] is not None
    }


def _start_replicator(tour: Tour, number: int) -> ManagedProcess:
    arguments = [sys.executable, "-m", "replicator", "--metadata-uri", tour.cluster.metadata_uri]
    arguments += ["--open-ledger-grace", str(OPEN_LEDGER_GRACE_S)]
    return ManagedProcess.start(
        f"replicator-{number}", arguments, log_path=tour.directory / f"replicator-{number}" / "log.txt"
    )


async def _wait_repaired(tour: Tour, processes: list[ManagedProcess], total: int, step: ProgressStep) -> None:
    step.total(total)
    try:
        async with asyncio.timeout(_REPAIR_DEADLINE_S):
            while True:
                marked = {task.ledger_id for task in await tour.client.ports.tasks.list()}
                parked = {park.ledger_id for park in await tour.client.parked.list()} & marked
                step.done(total - len(marked) + len(parked))
                if marked == parked and not await tour.client.ports.tasks.locks.locked() & marked:
                    return
                for process in processes:
                    if not process.is_running:
                        raise EmbeddedProcessError(f"{process.name} ended; its log ends with:\n{process.log_tail()}")
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        left = f"{counted(len(marked - parked), 'ledger')} {agreeing(len(marked - parked), 'was', 'were')}"
        raise EmbeddedProcessError(
            f"{left} neither repaired nor parked within {_REPAIR_DEADLINE_S:g} s; see {processes[0].log_path}"
        ) from None


async def _settle_left_open(tour: Tour, step: ProgressStep) -> None:
    """Find the end of the ledger without a writer, so that it can be verified like any other."""
    assert tour.left_open is not None
    acknowledged = len(tour.left_open.hashes)
    tour.left_open = await with_its_end(tour.client, tour.left_open)
    found = len(tour.left_open.hashes)
    step.note(
        f"ledger {tour.left_open.ledger_id} had no writer for {OPEN_LEDGER_GRACE_S:g} s: fenced, recovered and closed "
        f"with {counted(found, 'entry')}, {acknowledged} of them acknowledged"
    )


async def _settle_parked(tour: Tour, step: ProgressStep) -> None:
    parks = await tour.client.parked.list()
    tour.parked = {park.ledger_id: park.reason.value for park in parks}
    for reason, explained in _PARK_REASON_TEXTS.items():
        ids = [park.ledger_id for park in parks if park.reason is reason]
        if ids:
            step.note(f"parked, {explained}: {_named(ids)}")
    marked = {task.ledger_id for task in await tour.client.ports.tasks.list()}
    if marked != set(tour.parked):
        raise ProofFailedError(f"tasks {sorted(marked ^ set(tour.parked))} are neither repaired nor parked")


def _named(ledger_ids: Collection[LedgerId]) -> str:
    return f"{'ledgers' if len(ledger_ids) > 1 else 'ledger'} {', '.join(map(str, sorted(ledger_ids)))}"


def _count_repaired(tour: Tour, done: set[LedgerId], shortfalls: dict[LedgerId, LedgerShortfall]) -> None:
    """Count the ledgers whose task is ``done`` and that lacked copies; a mark alone does not mean a loss."""
    lacking = {(finding.ledger_id, finding.first_entry_id) for finding in tour.loss.findings}
    lacking |= {(ledger_id, first) for ledger_id, short in shortfalls.items() for first in short.first_entry_ids}
    healed = [ledger_id for ledger_id, _ in lacking if ledger_id in done]
    ledgers = set(healed)
    written = [*tour.written, *([tour.left_open] if tour.left_open else [])]
    tour.repaired = [known for known in written if known.ledger_id in ledgers]
    tour.repaired_fragments = len(healed)
    tour.repaired_bytes = sum(tour.loss.payload_bytes[known.ledger_id] for known in tour.repaired)
    tour.repaired_bytes += sum(short.payload_bytes for ledger_id, short in shortfalls.items() if ledger_id in done)


def _prove_parked(tour: Tour) -> None:
    single = {known.ledger_id for known in tour.written if known.spec.options.write_quorum == 1}
    for ledger_id, reason in tour.parked.items():
        if reason != ParkReason.NO_LIVE_COPY.value or ledger_id not in single:
            raise ProofFailedError(f"ledger {ledger_id} is parked without need: {reason}")
