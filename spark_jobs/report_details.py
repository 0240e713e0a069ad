"""What only some checks tell: waiting bookies, the placement policy, the answers of bookies. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_jobs.report.page.words import ledgers
from spark_jobs.report.summary import PlacementCounts, ReplicaCounts, RunSummary
from spark_jobs.report.text import duration, number, percent, some, when


@dataclass(frozen=True, slots=True)
class Detail:
    """A small table of names and values."""

    title: str
    lead: str
    rows: tuple[tuple[str, str], ...]


def details(run: RunSummary) -> Iterator[Detail]:
    """The tables that apply to a run."""
    if run.waiting:
        rows = tuple(
            (
                bookie.bookie_id,
                f"{ledgers(bookie.ledgers)}; since {when(bookie.first_seen_down_ms)}, until {when(bookie.until_ms)}",
            )
            for bookie in run.waiting[:20]
        )
        yield Detail("Bookies within the delay", "Gone for a short time. Nothing is marked because of them yet.", rows)
    if run.placement is not None:
        yield _placement(run.placement)
    if run.replicas is not None:
        yield _replicas(run.replicas)


def _placement(counts: PlacementCounts) -> Detail:
    domains = ((counts.min_racks, "rack"), (counts.min_zones, "zone"), (counts.min_regions, "region"))
    strict = "; strict" if counts.is_strict else ""
    rows = [
        ("Policy", f"at least {', '.join(_many(count, noun) for count, noun in domains)}{strict}"),
        ("Topology", counts.topology),
        ("Judged", f"{number(counts.fragments)} fragments with entries, in {number(counts.ensembles)} ensembles"),
        ("Badly spread", f"{number(counts.misplaced_fragments)} fragments of {ledgers(counts.misplaced_ledgers)}"),
        ("As good as possible", f"{number(counts.as_good_as_possible_fragments)} fragments: there are too few domains"),
        ("Not judged", f"{number(counts.unknown_fragments)} fragments with a bookie of unknown place"),
    ]
    if counts.unknown_bookies:
        rows.append(("Place unknown", some(counts.unknown_bookies)))
    return Detail("Placement", "How write quorums spread over failure domains.", tuple(rows))


def _replicas(counts: ReplicaCounts) -> Detail:
    rows = [
        (
            "Ledgers asked for",
            f"{number(counts.ledgers)}{'' if counts.sample >= 1 else f', a sample of {counts.sample:.0%}'}",
        ),
        ("Questions", f"{number(counts.requests)} lists or samples asked of bookies"),
        ("Copies expected", number(counts.expected)),
        (
            "Denied",
            f"{number(counts.absent)} copies ({percent(counts.absent, counts.expected)}), confirmed by a second look",
        ),
        ("A full run", f"about {duration(round(counts.full_run_estimate_s * 1000))} at this pace"),
        *[
            (answer.bookie_id, f"could not tell for {ledgers(answer.ledgers)}: {answer.reason}")
            for answer in counts.unknown[:10]
        ],
    ]
    if len(counts.unknown) > 10:
        rows.append(("More", f"{len(counts.unknown) - 10:,} answers like these"))
    rows.extend(
        (sampled.bookie_id, f"{ledgers(sampled.ledgers)} judged by sample: it cannot list its entries")
        for sampled in counts.sampled[:10]
    )
    if len(counts.sampled) > 10:
        rows.append(("More", f"{len(counts.sampled) - 10:,} bookies judged by sample"))
    return Detail("What bookies said", "Unknown is never taken for absent.", tuple(rows))


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
