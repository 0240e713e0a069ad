"""Ledgers by severity for the page of a report. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bookie.model.run import RunKind
from bookie.model.severity import Severity
from bookie.runtime.human import agreeing
from spark_jobs.report.page.plots import BarPart, parts
from spark_jobs.report.page.words import SEVERITY_NAMES, ledgers
from spark_jobs.report.summary import RunSummary
from spark_jobs.report.text import number, percent

_USUAL: Final = {
    RunKind.BOOKIES: (
        Severity.NO_LIVE_COPY,
        Severity.CRITICAL,
        Severity.BELOW_ACK_QUORUM,
        Severity.BELOW_WRITE_QUORUM,
        Severity.METADATA_ONLY,
    ),
    RunKind.PLACEMENT: (Severity.MISPLACED,),
    RunKind.REPLICAS: (Severity.LOST, Severity.CRITICAL, Severity.BELOW_ACK_QUORUM, Severity.BELOW_WRITE_QUORUM),
    RunKind.REFERENCES: (Severity.LOST,),
    RunKind.EVERYTHING: (
        Severity.NO_LIVE_COPY,
        Severity.CRITICAL,
        Severity.BELOW_ACK_QUORUM,
        Severity.BELOW_WRITE_QUORUM,
        Severity.METADATA_ONLY,
        Severity.MISPLACED,
    ),
}
"""The usual severities of each check, which are shown even without findings."""


@dataclass(frozen=True, slots=True)
class SeverityRow:
    """A line of the table of severities."""

    severity: Severity
    ledgers: int
    fragments: int
    bytes_estimate: int
    part: BarPart


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the bar of all ledgers."""

    tone: str
    title: str
    part: BarPart


def ledgers_found(run: RunSummary) -> int:
    """Return the number of ledgers with findings."""
    return sum(count.ledgers for count in run.severities)


def severity_rows(run: RunSummary) -> Iterator[SeverityRow]:
    """Yield the severities that occur, and the usual ones of the check; worst first."""
    found = {count.severity: count for count in run.severities}
    most = max((count.ledgers for count in run.severities), default=0)
    for severity in Severity:
        count = found.get(severity)
        if count is not None:
            part = parts((count.ledgers,), most)[0]
            yield SeverityRow(severity, count.ledgers, count.fragments, count.bytes_estimate, part)
        elif severity in _USUAL[run.kind]:
            yield SeverityRow(severity, 0, 0, 0, BarPart(0, 0))


def segments(run: RunSummary) -> Iterator[Segment]:
    """Yield the parts of a bar of all ledgers, the worst at the left."""
    found, unreadable = ledgers_found(run), run.counts.unreadable
    healthy = max(run.ledgers_checked - found - unreadable, 0)
    shares = [(f"s{count.severity.value}", SEVERITY_NAMES[count.severity], count.ledgers) for count in run.severities]
    shares += [("idle", "Unreadable metadata", unreadable), ("ok", "No finding", healthy)]
    total = sum(count for _, _, count in shares)
    for (tone, name, count), part in zip(shares, parts([count for _, _, count in shares], total), strict=True):
        if count:
            yield Segment(tone, f"{name}: {ledgers(count)}, {percent(count, total)}", part)


def share_text(run: RunSummary) -> str:
    """Return what the bar shows, in words."""
    if not run.counts.ledgers:
        return "No ledger was read."
    found = ledgers_found(run) + run.counts.unreadable
    unknown = " Copies on bookies that did not answer are unknown." if run.replicas and run.replicas.unknown else ""
    if not found:
        checked = ledgers(run.ledgers_checked)
        if unknown or not run.is_every_ledger:
            return f"{checked} checked, no finding.{unknown}"
        return f"All of {checked} without a finding."
    healthy = max(run.ledgers_checked - found, 0)
    have = agreeing(healthy, "has", "have")
    return (
        f"{number(healthy)} of {ledgers(run.ledgers_checked)} {have} no finding "
        f"({percent(healthy, run.ledgers_checked)}); in the bar, the worst are at the left.{unknown}"
    )
