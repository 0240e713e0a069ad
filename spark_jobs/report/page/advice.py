"""The next steps after a run, with the exact commands. Pure.

Commands do not name the cluster; ``environment`` names it once for all of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.bookies.registration import BookieState
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from bookie.runtime.human import agreeing
from spark_jobs.report.counts import PublishOutcome
from spark_jobs.report.page.words import ledgers
from spark_jobs.report.summary import RunSummary
from spark_jobs.report.text import some

_NAMED_MAX: Final = 5
_SHOWN_MAX: Final = 3
AUDIT: Final = "bkheal audit run"


@dataclass(frozen=True, slots=True)
class Step:
    """One step for the operator."""

    text: str
    commands: tuple[str, ...] = ()
    """Lines of shell commands."""


def environment(summary: RunSummary) -> str:
    """Return the shell line that sets the run's cluster for all following commands."""
    return f"export BKHEAL_METADATA_URI={shlex.quote(summary.cluster.metadata_uri)}"


def next_steps(summary: RunSummary) -> tuple[Step, ...]:
    """Return the next steps, in order; empty: there is nothing to do."""
    if summary.held_because is not None:
        return tuple(_after_brake(summary))
    return (
        *_after_loss(summary),
        *_after_publishing(summary),
        *_after_misplacing(summary),
        *_after_waiting(summary),
        *_after_unreadable(summary),
        *_after_unknown(summary),
        *_after_incomplete(summary),
        *_preventive_steps(summary),
    )


def audit_command(summary: RunSummary, *options: str) -> str:
    """Return the command to repeat the run."""
    kind = () if summary.kind is RunKind.BOOKIES else ("--kind", summary.kind.value)
    return shlex.join([*AUDIT.split(), *kind, *options])


def _after_brake(summary: RunSummary) -> Iterator[Step]:
    yield Step("Check which bookies are registered, and ZooKeeper itself.", ("bkheal bookies", "bkheal status"))
    lost = _missing(summary)
    if lost:
        yield Step(
            f"Bring the missing bookies back: {_some(lost)}. Then run the audit again.", (audit_command(summary),)
        )
        yield Step(
            "Only if they are lost permanently: preview what the audit would mark without the brake, then mark it.",
            (
                audit_command(summary, "--missing-share-max", "1.0", "--dry-run"),
                audit_command(summary, "--missing-share-max", "1.0"),
            ),
        )
    else:
        yield Step("Check that the metadata root is the right one. Then run again.", (audit_command(summary),))


def _after_loss(summary: RunSummary) -> Iterator[Step]:
    if _ledgers(summary, Severity.LOST):
        yield Step(
            "Restore what is lost from a copy outside the cluster. No bookie has it. See what a ledger held:",
            _shown(summary, Severity.LOST),
        )
    if _ledgers(summary, Severity.NO_LIVE_COPY):
        named = sorted({b for w in summary.worst_ledgers if w.severity is Severity.NO_LIVE_COPY for b in w.missing})
        yield Step(
            f"Bring back a bookie that holds the only copies: {_some(named or _missing(summary))}. "
            "Start it with its old disks and its old id. Do not wipe the disks of any of these.",
            ("bkheal bookies", *_shown(summary, Severity.NO_LIVE_COPY)),
        )


def _after_publishing(summary: RunSummary) -> Iterator[Step]:
    match summary.published.outcome:
        case PublishOutcome.PUBLISHED:
            yield Step(
                f"{ledgers(summary.published.ledgers)} marked for repair. Check that replicators repair "
                f"{agreeing(summary.published.ledgers, 'it', 'them')}.",
                ("bkheal status", "bkheal underreplicated list"),
            )
            yield Step("If none is running, start at least one. More of them repair faster.", ("bkheal replicator",))
        case PublishOutcome.DRY_RUN if summary.severities:
            yield Step(
                "This was a dry run. To mark the ledgers for repair, run it for real.", (audit_command(summary),)
            )
        case PublishOutcome.DISABLED:
            yield Step(
                "Repair is disabled for the whole cluster, so not everything was marked. When the maintenance "
                "is done, enable it and run again.",
                ("bkheal recovery status", "bkheal recovery enable", audit_command(summary)),
            )
        case PublishOutcome.INTERRUPTED:
            yield Step(
                "ZooKeeper stopped answering while ledgers were marked. What was marked stays. Run again.",
                (audit_command(summary),),
            )


def _after_misplacing(summary: RunSummary) -> Iterator[Step]:
    if _ledgers(summary, Severity.MISPLACED) and summary.published.outcome is PublishOutcome.NOTHING_TO_PUBLISH:
        yield Step(
            "Badly spread ledgers are reported and not marked: they have every copy, and moving copies costs. Check a "
            "few of them, and whether new ledgers are written by clients with the right placement policy.",
            _shown(summary, Severity.MISPLACED),
        )


def _after_waiting(summary: RunSummary) -> Iterator[Step]:
    if summary.waiting:
        names = [bookie.bookie_id for bookie in summary.waiting]
        yield Step(
            f"Missing, and not marked yet: {_some(names)}. If one returns in time, nothing is copied. If not, "
            "an audit marks its "
            "ledgers afterwards, and those with one copy left after a shorter delay.",
            ("bkheal recovery status",),
        )


def _after_unreadable(summary: RunSummary) -> Iterator[Step]:
    if summary.counts.unreadable:
        yield Step(
            f"The table findings.parquet names {ledgers(summary.counts.unreadable)} whose metadata cannot be read, "
            "with the reason (kind UNREADABLE_METADATA). Keep these nodes: they may be from a newer version."
        )


def _after_unknown(summary: RunSummary) -> Iterator[Step]:
    if summary.placement is not None and summary.placement.unknown_bookies:
        yield Step(
            f"Add these bookies to the topology in {summary.placement.topology}: "
            f"{_some(summary.placement.unknown_bookies)}. Fragments on them were not judged."
        )
    if summary.replicas is not None and summary.replicas.unknown:
        named = sorted({answer.bookie_id for answer in summary.replicas.unknown})
        yield Step(
            f"These bookies could not list their entries: {_some(named)}. Fix them, then check again.",
            ("bkheal bookies", audit_command(summary)),
        )


def _after_incomplete(summary: RunSummary) -> Iterator[Step]:
    if summary.problems and summary.published.outcome is not PublishOutcome.INTERRUPTED:
        yield Step("Run again, so that every ledger is seen.", (audit_command(summary),))
    checks = [part.check for part in summary.parts if part.problem]
    if checks and not summary.problems:
        yield Step(
            f"Remove the reason why a check is not complete ({', '.join(checks)}). Then run again.",
            (audit_command(summary),),
        )


def _preventive_steps(summary: RunSummary) -> Iterator[Step]:
    full = [bookie.bookie_id for bookie in summary.bookies if bookie.state is BookieState.READ_ONLY]
    if full:
        yield Step(
            f"Read-only: {_some(full)}. They serve reads but accept no copies; most often a disk is full.",
            ("bkheal bookies",),
        )


def _shown(summary: RunSummary, severity: Severity) -> tuple[str, ...]:
    ids = [ledger.ledger_id for ledger in summary.worst_ledgers if ledger.severity is severity]
    return tuple(f"bkheal ledger show {ledger_id}" for ledger_id in ids[:_SHOWN_MAX])


def _ledgers(summary: RunSummary, severity: Severity) -> int:
    return sum(count.ledgers for count in summary.severities if count.severity is severity)


def _missing(summary: RunSummary) -> list[str]:
    """Return the missing bookies that ledgers name, or all missing bookies if no ledger names any."""
    gone = [bookie for bookie in summary.bookies if bookie.state is BookieState.UNREGISTERED]
    return [bookie.bookie_id for bookie in gone if bookie.ledgers] or [bookie.bookie_id for bookie in gone]


def _some(names: Sequence[str]) -> str:
    return some(names, _NAMED_MAX)
