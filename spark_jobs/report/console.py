"""A run's summary as text for people. Uses no Spark, and no terminal codes because the text also appears in logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bookie.metadata.bookies.registration import BookieState
from bookie.model.metadata_faults import MetadataFault
from bookie.model.times import rfc3339
from bookie.runtime.human import agreeing, counted, size
from spark_jobs.report.counts import (
    LISTED,
    InventoryCounts,
    LintCounts,
    PlacementCounts,
    PublishOutcome,
    PublishResult,
    ReferenceCounts,
)
from spark_jobs.report.held import held_ledgers, why_waiting, withdrawn_marks
from spark_jobs.report.impact import Impact
from spark_jobs.report.summary import RunSummary
from spark_jobs.report.text import plain, scope_text, some

_PUBLISHED: Final = {
    PublishOutcome.PUBLISHED: "{ledgers} {are} marked for repair; this run made or changed {marks}",
    PublishOutcome.NOTHING_TO_PUBLISH: "nothing to mark",
    PublishOutcome.DRY_RUN: "dry run: nothing was marked",
    PublishOutcome.DISABLED: "auto-recovery is disabled: {ledgers} marked, no more; enable it and run again",
    PublishOutcome.HELD: "nothing was marked",
    PublishOutcome.INTERRUPTED: "the metadata store stopped answering after {ledgers} {were} marked; run again",
}

_TOPICS_SHOWN: Final = 10
_PAIRS_SHOWN: Final = 20
_BOOKIES_SHOWN: Final = 20


def table(summary: RunSummary) -> str:
    """Return the summary as several lines of text, without a final line feed."""
    return "\n".join(map(plain, _lines(summary)))


def published_text(published: PublishResult) -> str:
    """Return one line about the published marks."""
    return _PUBLISHED[published.outcome].format(
        ledgers=counted(published.ledgers, "ledger"),
        are=agreeing(published.ledgers, "is", "are"),
        were=agreeing(published.ledgers, "was", "were"),
        marks=counted(published.tasks_changed, "mark"),
    )


def repaired_early_text(count: int) -> str:
    """Return one line about the ledgers of the first marks that had no finding when all ledgers were read."""
    were = agreeing(count, "was", "were")
    return f"{counted(count, 'ledger')} {were} marked first, and repaired or deleted before all ledgers were read"


def damage_marked_text(count: int) -> str:
    """Return one line about the ledgers that were marked because of recorded damage."""
    were = agreeing(count, "was", "were")
    return f"{counted(count, 'ledger')} {were} marked because of damage that replicators had recorded"


def _lines(summary: RunSummary) -> Iterator[str]:
    yield from _run(summary)
    yield from _sources(summary)
    yield f"fragments   {summary.counts.fragments}"
    yield f"unreadable  {summary.counts.unreadable}"
    yield from _marks(summary)
    yield from _findings(summary)


def _run(summary: RunSummary) -> Iterator[str]:
    """Yield what was checked, and with which result."""
    counts = summary.counts
    seconds = (summary.finished_ms - summary.started_ms) / 1000
    yield f"verdict     {summary.verdict.value}"
    yield f"check       {summary.kind.value}{', dry run' if summary.is_dry_run else ''}"
    yield f"cluster     {summary.cluster.metadata_uri} ({summary.cluster.instance_id})"
    yield f"run         {summary.run_id}, finished {rfc3339(summary.finished_ms)} after {seconds:.1f} s"
    yield f"ledgers     {counts.ledgers} ({counts.open} open, {counts.in_recovery} in recovery, {counts.closed} closed)"
    if scope := scope_text(summary.replicas):
        yield f"checked     {counted(summary.ledgers_checked, 'ledger')}: {scope}"


def _sources(summary: RunSummary) -> Iterator[str]:
    """Yield the sources of metadata other than the reading of all ledgers, and the marks made before it."""
    if summary.snapshot is not None:
        read = summary.snapshot
        judged = counted(read.ledgers, "ledger")
        yield f"snapshot    {judged} judged by it, {read.read_again + read.read_live} read in ZooKeeper"
    if summary.image.marked:
        were = agreeing(summary.image.marked, "was", "were")
        yield f"image       {counted(summary.image.marked, 'ledger')} {were} marked by it before all ledgers were read"
    if summary.driver_marks.marked:
        marked = summary.driver_marks.marked
        were = agreeing(marked, "was", "were")
        yield f"first marks {counted(marked, 'ledger')} {were} marked before Spark read the ledgers"
    if summary.image.carried:
        since = rfc3339(summary.image.carried_from_ms)
        come = agreeing(summary.image.carried, "comes", "come")
        yield f"carried     {counted(summary.image.carried, 'ledger')} {come} from the image, read {since} or later"
    if summary.image.carried_problem:
        yield f"image       {summary.image.carried_problem}"


def _marks(summary: RunSummary) -> Iterator[str]:
    """Yield the marks, and the reasons for missing ones."""
    yield f"marked      {published_text(summary.published)}"
    if summary.published.repaired_early:
        yield f"repaired    {repaired_early_text(summary.published.repaired_early)}"
    if summary.published.damage_marked:
        yield f"damage      {damage_marked_text(summary.published.damage_marked)}"
    if summary.held_because is not None:
        yield f"brake       {summary.held_because}"
    for problem in summary.incomplete_reasons:
        yield f"incomplete  {problem}"
    for bookie in summary.waiting:
        until = rfc3339(bookie.until_ms)
        held = counted(bookie.ledgers, "ledger")
        yield f"waiting     {bookie.bookie_id}: {held}, {why_waiting(bookie)} until {until}"
    for why, count in held_ledgers(summary):
        yield f"held back   {counted(count, 'ledger')}, {why}: not marked yet"
    for why, count in withdrawn_marks(summary):
        yield f"withdrawn   {counted(count, 'mark')}, {why}"
    if summary.accepted.ledgers:
        accepted = summary.accepted
        lost = f"{counted(accepted.ledgers, 'ledger')}, {counted(accepted.fragments, 'fragment')}"
        yield f"accepted    {lost}: loss accepted, not marked"
    if summary.accepted.ledgers_returned:
        returned = counted(summary.accepted.ledgers_returned, "ledger")
        yield f"returned    {returned} with an accepted loss: a bookie is back"


def _findings(summary: RunSummary) -> Iterator[str]:
    """Yield the tables of findings, each after an empty line."""
    if summary.severities:
        rows = [(c.severity.label, c.ledgers, c.fragments, size(c.bytes_estimate)) for c in summary.severities]
        yield ""
        yield from _grid(("severity", "ledgers", "fragments", "bytes"), rows)
    missing = [b for b in summary.bookies if b.state is BookieState.UNREGISTERED and b.ledgers_found]
    if missing:
        yield ""
        yield from _grid(
            ("lost bookie", "ledgers", "fragments"),
            [(b.bookie_id, b.ledgers_found, b.fragments_found) for b in missing],
        )
    if summary.lint is not None:
        yield from _lint(summary.lint)
    if summary.inventory is not None:
        yield from _inventory(summary.inventory)
    if summary.placement is not None:
        yield from _racks(summary.placement)
    if summary.references is not None:
        yield from _references(summary.references)
    yield from _topics(summary.impact)
    if summary.worst_ledgers:
        worst = [
            (w.ledger_id, w.severity.label, size(w.bytes_estimate), " ".join(w.missing)) for w in summary.worst_ledgers
        ]
        yield ""
        yield from _grid(("worst ledger", "severity", "bytes", "missing"), worst)


def _lint(counts: LintCounts) -> Iterator[str]:
    if counts.faults:
        yield ""
        weights = {fault.label: fault.weight.value for fault in MetadataFault}
        rows = [(name, weights.get(name, ""), number) for name, number in counts.faults.items()]
        yield from _grid(("fault of metadata", "weight", "ledgers"), rows)
    if counts.dangling_cookies:
        yield f"cookies     of bookies that are in no ledger and not registered: {some(counts.dangling_cookies)}"
    if counts.cookies_not_judged:
        yield f"cookies     not judged: {counts.cookies_not_judged}"


def _inventory(counts: InventoryCounts) -> Iterator[str]:
    listed = [bookie for bookie in counts.bookies if bookie.state == LISTED]
    if not counts.bookies:
        return
    yield f"inventory   {len(listed)} of {counted(len(counts.bookies), 'bookie')} listed their ledgers"
    for bookie in counts.unknown[:_BOOKIES_SHOWN]:
        detail = f": {bookie.detail}" if bookie.detail else ""
        yield f"unknown     the ledgers of {bookie.bookie_id}, {bookie.state}{detail}"
    if len(counts.unknown) > _BOOKIES_SHOWN:
        more = counted(len(counts.unknown) - _BOOKIES_SHOWN, "more bookie")
        yield f"unknown     the ledgers of {more}: --output json"
    if listed:
        surplus, its = counted(counts.over_replicated, "ledger"), agreeing(counts.over_replicated, "its", "their")
        yield f"surplus     {surplus} with copies that {its} metadata does not place there"
        do, have = ("does", "has") if counts.unowned == 1 else ("do", "have")
        yield f"unowned     {counted(counts.unowned, 'ledger')} that {do} not exist, and {have} copies on bookies"
        yield f"damaged     {counted(counts.damaged, 'ledger')} with damaged entries known to bookies"
    for reason, count in counts.not_judged.items():
        yield f"not judged  {counted(count, 'ledger')} with copies outside of the metadata: {reason}"
    shown = [each for each in listed if each.over_replicated or each.unowned or each.damaged_entries]
    if shown:
        yield ""
        header = ("bookie", "ledgers", "surplus", "unowned", "damaged entries", "last collection")
        rows = [
            (
                each.bookie_id,
                each.ledgers,
                each.over_replicated,
                each.unowned,
                each.damaged_entries,
                each.collection_finished or "none",
            )
            for each in shown[:_BOOKIES_SHOWN]
        ]
        yield from _grid(header, rows)
        if len(shown) > _BOOKIES_SHOWN:
            yield "... and more bookies: --output json"


def _racks(counts: PlacementCounts) -> Iterator[str]:
    if counts.racks:
        yield ""
        rows = [(each.racks, each.ledgers, each.fragments, size(each.payload_bytes)) for each in counts.rack_numbers]
        yield from _grid(("racks of an ensemble", "ledgers", "fragments", "bytes"), rows)
        yield ""
        pairs = [
            (each.first, each.second, each.ledgers, size(each.payload_bytes)) for each in counts.racks[:_PAIRS_SHOWN]
        ]
        yield from _grid(("rack", "with", "ledgers", "bytes"), pairs)
        if len(counts.racks) > _PAIRS_SHOWN or counts.racks_cut:
            yield "... and more pairs of racks: --output json"


def _references(counts: ReferenceCounts) -> Iterator[str]:
    referenced, offloaded = counted(counts.referenced, "ledger"), counted(counts.offloaded, "ledger")
    yield f"referenced  {referenced}, {counts.offloaded_and_here} of them also offloaded"
    yield f"offloaded   {offloaded} that {agreeing(counts.offloaded, 'is', 'are')} only in another storage"
    stored = size(counts.unreferenced_stored_bytes)
    yield f"orphans     {counted(counts.unreferenced, 'ledger')} that nothing refers to, {stored} on bookies"
    yield f"lost        {counted(counts.lost, 'reference')} to ledgers that do not exist"
    for reason, count in counts.not_judged.items():
        yield f"not judged  {counted(count, 'ledger')}: {reason}"
    if counts.undecodable:
        yield f"undecodable {counted(counts.undecodable, 'node')} of Pulsar"
    for node in counts.undecodable_nodes[:_TOPICS_SHOWN]:
        yield f"            {node.path}: {node.reason}"
    if counts.namespaces:
        yield ""
        rows = [(each.namespace, each.ledgers, size(each.stored_bytes)) for each in counts.namespaces[:_TOPICS_SHOWN]]
        yield from _grid(("namespace", "unreferenced", "bytes on bookies"), rows)


def _topics(impact: Impact) -> Iterator[str]:
    if not impact.rows:
        return
    counts = [(each.severity.label, each.namespaces, each.topics, each.ledgers) for each in impact.severities]
    yield ""
    yield from _grid(("topics of Pulsar", "namespaces", "topics", "ledgers"), counts)
    yield ""
    shown = impact.topics[:_TOPICS_SHOWN]
    rows = [(row.severity.label, row.standing.value, row.ledgers, row.topic, row.meaning) for row in shown]
    yield from _grid(("worst topic", "standing", "ledgers", "topic", "meaning"), rows)
    if impact.rows > len(shown):
        yield f"... and {impact.rows - len(shown)} more: bkheal impact"


def _grid(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    cells = [header, *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
