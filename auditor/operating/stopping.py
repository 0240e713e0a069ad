"""Checks whether bookies may be stopped now, all at once. It reads all metadata once and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from auditor.operating.client import ClusterClient, Document, check_names_or_in_ledgers
from auditor.operating.doubted import doubts
from auditor.operating.owners import owner_text, with_owners
from auditor.safety.scan import Advance, LedgerScanResult, count, scan
from auditor.safety.stopping import Risk, Worst, room_problems, worst_fragment_risk
from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.runtime.human import counted, printable

WORST_DEFAULT: Final = 10

Counting = Callable[[int], AbstractContextManager[Advance]]
"""Shows progress for a number of ledgers."""


def silent(total: int) -> AbstractContextManager[Advance]:
    """Show no progress."""
    return nullcontext(lambda done: None)


async def stop_verdict(
    client: ClusterClient,
    bookies: Sequence[BookieId],
    *,
    is_strict: bool = False,
    worst_max: int = WORST_DEFAULT,
    counting: Counting = silent,
) -> Document:
    """Return the verdict: ``ok``, and all reasons against a stop.

    It is positive if every written entry keeps a live copy elsewhere (``is_strict``: an ack quorum of copies), in every
    past and present ensemble of each ledger, and enough bookies are left for the widest ensemble of unclosed ledgers.

    Raises:
        NoSuchObjectError: a name is not a bookie, and no ledger names it.
        StoreUnavailableError, NotAClusterError: see ``scan``.
    """
    ports, stopping = client.ports, frozenset(bookies)
    before = await ports.registrations.list()
    await check_names_or_in_ledgers(client, bookies, counting)
    worst, scanned = await _risks(client, stopping, before, is_strict, worst_max, counting)
    registered = await ports.registrations.list()
    problems = room_problems(scanned.unclosed, registered, bookies, ports.placement)
    if gone := sorted(before.registered - registered.registered - stopping):
        problems.append(f"{', '.join(gone)} lost the registration while ledgers were read: run the command again")
    return {
        "ok": not worst.count and not problems and scanned.is_complete,
        "bookies": list(bookies),
        "strict": is_strict,
        "ledgers": scanned.ledgers,
        "unreadable_ledgers": scanned.unreadable_count,
        "ledgers_at_risk": worst.count,
        "worst": await with_owners(ports.ledgers, [_row(risk) for risk in worst.risks]),
        "placement_problems": problems,
        "not_registered": sorted(stopping - registered.registered),
    }


async def _risks(
    client: ClusterClient,
    stopping: frozenset[BookieId],
    before: Bookies,
    is_strict: bool,
    worst_max: int,
    counting: Counting,
) -> tuple[Worst, LedgerScanResult]:
    worst, ports = Worst(worst_max), client.ports
    doubted = await doubts(client)

    def visit(ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        risk = worst_fragment_risk(
            ledger_id,
            metadata,
            before.registered,
            stopping,
            is_strict=is_strict,
            doubted=doubted.of(ledger_id, metadata),
        )
        if risk is not None:
            worst.add(risk)

    with counting(await count(ports.ledgers)) as advance:
        return worst, await scan(ports.ledgers, stopping, visit, advance)


def _row(risk: Risk) -> Document:
    return {
        "ledger_id": risk.ledger_id,
        "fragment_first_entry_id": risk.first_entry_id,
        "copies_left": risk.copies_left,
        "copies_needed": risk.copies_needed,
        "growing": risk.is_growing,
        "bookies": list(risk.members),
    }


def _topic_suffix(risk: Document) -> str:
    return "" if risk.get("topic") is None else f", {printable(owner_text(risk))}"


def stop_lines(document: Document) -> list[str]:
    """Return the verdict as text."""
    names = ", ".join(document["bookies"])
    verdict = f"yes: {names} may be stopped" if document["ok"] else f"no: do not stop {names} now"
    return [f"{verdict} ({counted(document['ledgers'], 'ledger')} looked at)", *reasons(document)]


def reasons(document: Document) -> list[str]:
    """Return the reasons against a stop, and the notes, as lines."""
    lines = [f"  {name} is not running: its stop changes nothing" for name in document["not_registered"]]
    if document["ledgers_at_risk"]:
        lines.append(
            f"  {counted(document['ledgers_at_risk'], 'ledger')} would be left with too few copies, the worst:"
        )
    for risk in document["worst"]:
        growing = ", still written to" if risk["growing"] else ""
        lines.append(
            f"    ledger {risk['ledger_id']} from entry {risk['fragment_first_entry_id']}: "
            f"{counted(risk['copies_left'], 'copy')} left, {risk['copies_needed']} needed{growing}{_topic_suffix(risk)}"
        )
    lines += [f"  {problem}" for problem in document["placement_problems"]]
    if document["unreadable_ledgers"]:
        lines.append(
            f"  the metadata of {counted(document['unreadable_ledgers'], 'ledger')} cannot be read: `bkheal audit run` "
            "names them"
        )
    return lines
