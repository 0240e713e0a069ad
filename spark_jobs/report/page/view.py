"""The values on the page of a run; the template only places them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.metadata_faults import MetadataFault
from bookie.model.run import RunKind
from bookie.model.times import utc_text
from bookie.model.topology import Topology
from bookie.runtime.human import agreeing, duration, size
from spark_jobs.report.console import damage_marked_text, published_text, repaired_early_text
from spark_jobs.report.counts import (
    LISTED,
    InventoryBookie,
    InventoryCounts,
    LintCounts,
    PlacementCounts,
    PublishOutcome,
    ReferenceCounts,
    ReplicaCounts,
    WaitingBookie,
)
from spark_jobs.report.diff import ReportDiff, diff, has_checked
from spark_jobs.report.held import held_ledgers, why_waiting, withdrawn_marks
from spark_jobs.report.page.advice import Step, environment, next_steps
from spark_jobs.report.page.bookies import (
    SHOWN_MAX,
    BookieRow,
    RackRow,
    bookie_rows,
    has_holdings,
    listed,
    marks,
    rack_rows,
    shown_racks,
)
from spark_jobs.report.page.plots import LineChart, line_chart
from spark_jobs.report.page.severities import Segment, SeverityRow, ledgers_found, segments, severity_rows, share_text
from spark_jobs.report.page.words import KIND_MEANINGS, KIND_NAMES, Headline, headline, ledgers
from spark_jobs.report.summary import RunSummary
from spark_jobs.report.tables.run_tables import TrendPoint
from spark_jobs.report.text import number, numbered, percent, scope_text, some

_FACTS_LINES: Final = 16
"""Approximate number of lines that the facts of a run take in a column."""

_TOPICS_SHOWN: Final = 25
_PAIRS_SHOWN: Final = 45
_BOOKIES_SHOWN: Final = 50
"""Largest number of bookies in a table. ``_PAIRS_SHOWN`` is enough for all pairs of nine racks."""
_BOOKIES_WITHOUT_RACKS_MAX: Final = 12
"""A table of up to this many bookies is easy to read without the racks."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One of the large numbers."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class PageView:
    """The content of the report page."""

    title: str
    kind: str
    headline: Headline
    reasons: tuple[str, ...]
    tiles: tuple[Tile, ...]
    steps: tuple[Step, ...]
    environment: str
    has_commands: bool
    diff: ReportDiff | None
    since: str
    bookie_changes: tuple[tuple[str, str, tuple[str, ...]], ...]
    is_checked: bool
    severities: tuple[SeverityRow, ...]
    segments: tuple[Segment, ...]
    share_text: str
    trend: tuple[TrendPoint, ...]
    trend_text: str
    has_partial: bool
    chart: LineChart | None
    details: tuple[Detail, ...]
    bookies: tuple[BookieRow, ...]
    bookies_hidden: int
    bookies_intro: str
    has_holdings: bool
    shown_max: int
    marks: tuple[tuple[str, str], ...]
    racks: tuple[RackRow, ...]
    racks_hidden: int
    has_topology: bool
    has_missing: bool
    facts_in: str
    """``left`` or ``right``: the column that is much shorter without the facts; otherwise ``below`` both columns."""
    facts: tuple[tuple[str, str], ...]
    has_findings_table: bool
    topics_max: int
    """Largest number of rows of namespaces, and of topics, on the page."""


def page_view(
    run: RunSummary, previous: RunSummary | None, trend: Sequence[TrendPoint], topology: Topology | None
) -> PageView:
    """Arrange a run for its page.

    Args:
        run: the run of the page.
        previous: the run to compare with, of the same check and cluster.
        trend: runs up to and including this one, the oldest first.
        topology: the locations of bookies; None or empty: unknown.
    """
    compared = None if previous is None else diff(previous, run)
    steps = next_steps(run)
    rows = bookie_rows(run, topology)
    racks = rack_rows(rows) if rows and (rows[0].rack or len(rows) > _BOOKIES_WITHOUT_RACKS_MAX) else ()
    shown = shown_racks(racks)
    return PageView(
        title=f"{headline(run).text} {KIND_NAMES[run.kind]}, {utc_text(run.finished_ms)}",
        kind=KIND_NAMES[run.kind],
        headline=headline(run),
        reasons=(*((run.held_because,) if run.held_because else ()), *run.incomplete_reasons),
        tiles=tuple(_tiles(run, rows)),
        steps=steps,
        environment=environment(run),
        has_commands=any(step.commands for step in steps),
        diff=compared,
        since="" if previous is None else duration(max(run.finished_ms - previous.finished_ms, 0)),
        bookie_changes=() if compared is None else tuple(_bookie_changes(compared)),
        is_checked=has_checked(run),
        severities=tuple(severity_rows(run)),
        segments=tuple(segments(run)),
        share_text=share_text(run),
        trend=tuple(trend),
        trend_text=_trend_text(trend),
        has_partial=any(not point.is_complete and not point.is_held for point in trend),
        chart=line_chart(trend),
        details=tuple(details(run)),
        bookies=listed(rows),
        bookies_hidden=len(rows) - len(listed(rows)),
        bookies_intro=_bookies_intro(run, rows),
        has_holdings=has_holdings(run),
        shown_max=SHOWN_MAX,
        marks=marks(rows),
        racks=shown,
        racks_hidden=len(racks) - len(shown),
        has_topology=bool(rows and rows[0].rack),
        has_missing=any(ledger.missing for ledger in run.worst_ledgers),
        facts_in=_facts_position(_right_column_lines(compared, run) - _left_column_lines(steps, trend)),
        facts=tuple(_facts(run)),
        has_findings_table=has_checked(run),
        topics_max=_TOPICS_SHOWN,
    )


def _facts_position(lines_more_right: int) -> str:
    if abs(lines_more_right) < _FACTS_LINES // 2:
        return "below"
    return "left" if lines_more_right > 0 else "right"


def _left_column_lines(steps: Sequence[Step], trend: Sequence[TrendPoint]) -> int:
    """Return the approximate number of lines in the left column without the facts."""
    return 3 + sum(3 + len(step.commands) for step in steps) + (12 if line_chart(trend) else 0)


def _right_column_lines(compared: ReportDiff | None, run: RunSummary) -> int:
    changes = 0 if compared is None else len(compared.severities) + 2 * len(tuple(_bookie_changes(compared))) + 3
    return 4 + changes + sum(3 + len(detail.rows) for detail in details(run))


def _tiles(run: RunSummary, rows: Sequence[BookieRow]) -> Iterator[Tile]:
    counts, found = run.counts, ledgers_found(run)
    states = f"{number(counts.closed)} closed, {number(counts.open)} open, {number(counts.in_recovery)} in recovery"
    if not has_checked(run):
        yield Tile("Ledgers read", number(counts.ledgers), states if counts.ledgers else "none, as the brake held")
    else:
        scope, checked = scope_text(run.replicas), run.ledgers_checked
        limited = f"of {number(counts.ledgers)}; {scope}"
        yield Tile("Ledgers checked", number(checked), limited if scope else states)
        yield Tile(
            "With findings", number(found), f"{percent(found, checked)} of {'these' if scope else 'all'} ledgers"
        )
    if has_checked(run) and run.kind is not RunKind.PLACEMENT:
        to_copy = sum(count.bytes_estimate for count in run.severities)
        yield Tile("To copy", size(to_copy), "estimated, of closed ledgers")
    lost = sum(row.mark == "down" for row in rows)
    up = sum(row.mark in ("up", "ro") for row in rows)
    read_only = sum(row.mark == "ro" for row in rows)
    yield Tile("Bookies", f"{up:,} of {up + lost:,}", f"registered; {lost:,} lost, {read_only:,} read-only")
    yield Tile("Marked for repair", number(run.published.ledgers), _marked(run))


def _marked(run: RunSummary) -> str:
    if run.published.outcome is PublishOutcome.PUBLISHED:
        gone = run.published.repaired_early
        repaired = f", with {number(gone)} repaired since" if gone else ""
        return f"{number(run.published.tasks_changed)} new or changed{repaired}"
    return published_text(run.published)


def _bookie_changes(compared: ReportDiff) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    changes = compared.bookies
    for name, tone, bookies in (
        ("Bookies lost", "worse", changes.lost),
        ("Bookies returned", "better", changes.returned),
        ("Bookies joined", "better", changes.joined),
        ("Turned read-only", "worse", changes.turned_read_only),
        ("Turned writable", "better", changes.turned_writable),
        ("No longer known", "", changes.forgotten),
    ):
        if bookies:
            yield name, tone, bookies


def _trend_text(trend: Sequence[TrendPoint]) -> str:
    numbers = [f"{point.ledgers_found:,}" for point in trend if not point.is_held]
    return f"Ledgers with findings by run, the oldest first: {', '.join(numbers)}."


def _bookies_intro(run: RunSummary, rows: Sequence[BookieRow]) -> str:
    if not has_holdings(run):
        are = agreeing(len(rows), "is", "are")
        known = f"{numbered(len(rows), 'bookie')} {are} known"
        return f"{known}. No ledger was read, so nothing is known of what bookies hold."
    if not any(row.ledgers_found for row in rows):
        return "What each bookie holds by metadata."
    what = "of which it lacks entries" if run.kind is RunKind.REPLICAS else "because it is lost or draining"
    return f"What each bookie holds by metadata. The thick part: ledgers with a finding {what}. Worst first."


def _facts(run: RunSummary) -> Iterator[tuple[str, str]]:
    yield "Run", run.run_id
    yield "Check", f"{KIND_NAMES[run.kind]}: {KIND_MEANINGS[run.kind]}"
    yield "Cluster", f"{run.cluster.metadata_uri} (instance {run.cluster.instance_id})"
    yield "Started", utc_text(run.started_ms)
    yield "Finished", f"{utc_text(run.finished_ms)}, after {duration(max(run.finished_ms - run.started_ms, 0))}"
    scope = scope_text(run.replicas)
    yield "Saw every ledger", f"no, only {scope}" if scope else "yes" if run.is_complete else "no"
    yield "Dry run", "yes: nothing was marked" if run.is_dry_run else "no"
    yield "Marked", published_text(run.published)
    if run.published.repaired_early:
        yield "Repaired during the run", repaired_early_text(run.published.repaired_early)
    if run.published.damage_marked:
        yield "Recorded damage", damage_marked_text(run.published.damage_marked)
    if run.image.marked:
        yield "Marked from the image", f"{ledgers(run.image.marked)}, before all ledgers were read"
    if run.driver_marks.marked:
        yield "Marked by the driver", f"{ledgers(run.driver_marks.marked)}, before Spark read all ledgers"
    yield "Read", f"{ledgers(run.counts.ledgers)}, {numbered(run.counts.fragments, 'fragment')}"
    yield "Deleted while reading", ledgers(run.counts.vanished)
    if run.image.carried:
        yield (
            "Taken from the image",
            f"{ledgers(run.image.carried)}, read {utc_text(run.image.carried_from_ms)} or later",
        )
    if (read := run.snapshot) is not None:
        judged, live = ledgers(read.ledgers), ledgers(read.read_again + read.read_live)
        yield "Snapshot of ZooKeeper", f"{read.file}: {judged} judged by it, {live} read in ZooKeeper"


@dataclass(frozen=True, slots=True)
class Detail:
    """A small table of names and values."""

    title: str
    lead: str
    rows: tuple[tuple[str, str], ...]


def details(run: RunSummary) -> Iterator[Detail]:
    """Yield the tables of a run."""
    if run.waiting:
        rows = tuple(
            (
                bookie.bookie_id,
                "; ".join((ledgers(bookie.ledgers), _from_to(bookie), why_waiting(bookie))),
            )
            for bookie in run.waiting[:20]
        )
        lead = "Because of them, only ledgers with one copy left are marked, after a shorter delay."
        yield Detail("Missing bookies that may still return", lead, rows)
    if run.published.held_back:
        rows = tuple((why, ledgers(count)) for why, count in held_ledgers(run))
        yield Detail("Ledgers that are not marked yet", "They have findings. A later run marks them.", rows)
    if run.published.withdrawn:
        rows = tuple((why, numbered(count, "mark")) for why, count in withdrawn_marks(run))
        yield Detail("Marks that were withdrawn", "Nothing was left to do for them.", rows)
    if run.parts:
        lead = "They used the same reading of the metadata. Each of them can be complete or incomplete."
        rows = tuple((part.check, part.problem or "complete") for part in run.parts)
        yield Detail("Checks of this run", lead, rows)
    if run.placement is not None:
        yield _placement(run.placement)
        yield from _racks(run.placement)
    if run.lint is not None:
        yield _lint(run.lint)
    if run.inventory is not None and run.inventory.bookies:
        yield from _inventory(run.inventory)
    if run.replicas is not None:
        yield _replicas(run.replicas)
    if run.references is not None:
        yield from _references(run.references)


def _from_to(bookie: WaitingBookie) -> str:
    return f"{utc_text(bookie.first_seen_down_ms)} to {utc_text(bookie.until_ms)}"


def _placement(counts: PlacementCounts) -> Detail:
    domains = ((counts.min_racks, "rack"), (counts.min_zones, "zone"), (counts.min_regions, "region"))
    strict = "; strict" if counts.is_strict else ""
    judged = f"{numbered(counts.fragments, 'fragment')} with entries, in {numbered(counts.ensembles, 'ensemble')}"
    misplaced = f"{numbered(counts.misplaced_fragments, 'fragment')} of {ledgers(counts.misplaced_ledgers)}"
    as_good = numbered(counts.as_good_as_possible_fragments, "fragment")
    rows = [
        ("Policy", f"at least {', '.join(numbered(count, noun) for count, noun in domains)}{strict}"),
        ("Topology", counts.topology),
        ("Judged", judged),
        ("Badly spread", misplaced),
        ("As good as possible", f"{as_good}: there are too few domains"),
        (
            "Not judged",
            f"{numbered(counts.unknown_fragments, 'fragment')} with a bookie without a location in the topology",
        ),
    ]
    if counts.outside_groups_fragments:
        rows.append(
            ("Outside their groups", f"{number(counts.outside_groups_fragments)} of the badly spread fragments")
        )
    if counts.unreadable_groups_fragments:
        what = f"{numbered(counts.unreadable_groups_fragments, 'fragment')}, judged only by failure domains"
        rows.append(("Groups unreadable", what))
    if counts.unknown_bookies:
        rows.append(("Place unknown", some(counts.unknown_bookies)))
    return Detail("Placement", "How write quorums spread over failure domains.", tuple(rows))


def _racks(counts: PlacementCounts) -> Iterator[Detail]:
    if not counts.racks and not counts.rack_numbers:
        return
    rows = [
        (numbered(each.racks, "rack"), f"{ledgers(each.ledgers)}, {size(each.payload_bytes)}")
        for each in counts.rack_numbers
    ]
    yield Detail("Racks of ensembles", "Each ledger is counted by its fragment with the fewest racks.", tuple(rows))
    pairs = [
        (
            f"{each.first} twice" if each.first == each.second else f"{each.first} and {each.second}",
            f"{ledgers(each.ledgers)}, {size(each.payload_bytes)}",
        )
        for each in counts.racks[:_PAIRS_SHOWN]
    ]
    if len(counts.racks) > _PAIRS_SHOWN or counts.racks_cut:
        pairs.append(("More", "summary.json lists the other pairs"))
    yield Detail(
        "Racks by pairs",
        "Ledgers with copies in both racks; a rack with itself: in two bookies of that rack.",
        tuple(pairs),
    )


def _lint(counts: LintCounts) -> Detail:
    known = {fault.label: fault for fault in MetadataFault}
    rows = [
        (label, f"{ledgers(number)}: {known[label].meaning}" if label in known else ledgers(number))
        for label, number in counts.faults.items()
    ]
    if counts.dangling_cookies:
        rows.append(("Cookies of bookies in no ledger", some(counts.dangling_cookies)))
    if counts.cookies_not_judged:
        rows.append(("Cookies", f"not judged: {counts.cookies_not_judged}"))
    lead = "Faults of the metadata itself. They are reported, and nothing is marked."
    return Detail("Metadata", lead, tuple(rows or [("Faults", "none")]))


def _inventory(counts: InventoryCounts) -> Iterator[Detail]:
    rows = [
        ("More copies than the metadata places", f"{ledgers(counts.over_replicated)}"),
        ("Copies of ledgers that do not exist", f"{ledgers(counts.unowned)}"),
        ("Damage known to bookies", f"{ledgers(counts.damaged)}"),
        *[(f"Not judged: {reason}", ledgers(count)) for reason, count in counts.not_judged.items()],
    ]
    lead = "What bookies hold, compared with the metadata. Nothing is marked or deleted: bookies collect by themselves."
    yield Detail("Inventory", lead, tuple(rows))
    shown = [each for each in counts.bookies if each.state != LISTED or each.over_replicated or each.unowned]
    shown += [each for each in counts.bookies if each.damaged_entries and each not in shown]
    rows = [(each.bookie_id, _held(each)) for each in shown[:_BOOKIES_SHOWN]]
    if len(shown) > _BOOKIES_SHOWN:
        rows.append(("More", "summary.json lists the other bookies"))
    if rows:
        yield Detail("Inventory by bookie", "Bookies that are unknown, or have something to report.", tuple(rows))


def _held(bookie: InventoryBookie) -> str:
    if bookie.state != LISTED:
        return f"unknown, {bookie.state}{f': {bookie.detail}' if bookie.detail else ''}"
    collected = f"last collected {bookie.collection_finished}" if bookie.collection_finished else "not collected yet"
    do, damaged = agreeing(bookie.unowned, "does", "do"), numbered(bookie.damaged_entries, "damaged entry")
    return (
        f"{ledgers(bookie.ledgers)}: {number(bookie.over_replicated)} with more copies, {number(bookie.unowned)} that "
        f"{do} not exist, {damaged}; {collected}"
    )


def _references(counts: ReferenceCounts) -> Iterator[Detail]:
    rows = [
        ("Metadata of brokers", some(counts.roots)),
        ("Referred to", f"{ledgers(counts.referenced)}, {number(counts.offloaded_and_here)} of them offloaded as well"),
        (
            "Offloaded",
            f"{ledgers(counts.offloaded)} that {agreeing(counts.offloaded, 'is', 'are')} only in another storage",
        ),
        (
            "Unreferenced",
            f"{ledgers(counts.unreferenced)}, {size(counts.unreferenced_stored_bytes)} on all bookies together",
        ),
        (
            "Lost",
            f"{ledgers(counts.lost)} that Pulsar refers to, and that {agreeing(counts.lost, 'does', 'do')} not exist",
        ),
        *[(f"Not judged: {reason}", ledgers(count)) for reason, count in counts.not_judged.items()],
        *[(node.path, f"cannot be decoded: {node.reason}") for node in counts.undecodable_nodes[:10]],
    ]
    if counts.undecodable > 10:
        rows.append(("More", f"{numbered(counts.undecodable - 10, 'node')} that cannot be decoded"))
    lead = "A ledger is unreferenced only if every node that may refer to it was read and decoded, twice."
    yield Detail("References of Pulsar", lead, tuple(rows))
    if counts.namespaces:
        of = tuple(
            (each.namespace, f"{ledgers(each.ledgers)}, {size(each.stored_bytes)}")
            for each in counts.namespaces[:_TOPICS_SHOWN]
        )
        yield Detail("Unreferenced ledgers by namespace", "Those with the most bytes.", of)


def _replicas(counts: ReplicaCounts) -> Detail:
    asked = agreeing(counts.requests, "list or sample", "lists or samples")
    denied = numbered(counts.absent, "copy")
    rows = [
        (
            "Ledgers requested",
            ", ".join(filter(None, (number(counts.ledgers), scope_text(counts)))),
        ),
        (
            "Questions",
            f"{number(counts.requests)} {asked} asked of bookies",
        ),
        ("Copies expected", number(counts.expected)),
        (
            "Denied",
            f"{denied} ({percent(counts.absent, counts.expected)}), confirmed by a second request",
        ),
        ("A full run", f"about {duration(round(counts.full_run_estimate_s * 1000))} at this pace"),
        *[
            (answer.bookie_id, f"no answer for {ledgers(answer.ledgers)}: {answer.reason}")
            for answer in counts.unknown[:10]
        ],
    ]
    if len(counts.unknown) > 10:
        rows.append(("More", f"{numbered(len(counts.unknown) - 10, 'answer')} like these"))
    rows.extend(
        (sampled.bookie_id, f"{ledgers(sampled.ledgers)} judged by sample: it cannot list its entries")
        for sampled in counts.sampled[:10]
    )
    if len(counts.sampled) > 10:
        rows.append(("More", f"{numbered(len(counts.sampled) - 10, 'bookie')} judged by sample"))
    return Detail("Answers of bookies", "Unknown is never taken for absent.", tuple(rows))
