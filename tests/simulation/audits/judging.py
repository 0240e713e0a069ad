"""The plain reference for a bookie check: what a ledger lacks, by its metadata and the bookies. Pure.

``tests/spark/test_judging_reference.py`` compares it with the check in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from bookie.metadata.tasks.decisions import Decision
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.model.severity import Severity, health_of
from spark_jobs.runs.marking.held_back import LedgerWithFindings


@dataclass(frozen=True, slots=True)
class Lacking:
    """A ledger with members that are lost or being drained."""

    severity: Severity
    missing: frozenset[BookieId]
    critical: frozenset[BookieId] = frozenset()
    """The missing members of its critical fragments."""


def lacking(
    metadata: LedgerMetadata,
    registered: AbstractSet[BookieId],
    draining: AbstractSet[str],
    accepted: Decision | None = None,
) -> Lacking | None:
    """Judge a ledger; None: it lacks nothing, or only copies whose loss was accepted.

    Args:
        metadata: its metadata.
        registered: the registered bookies.
        draining: the bookies being drained.
        accepted: the accepted loss of the ledger, if none of its bookies is registered.
    """
    found = [
        each
        for number, fragment in enumerate(metadata.fragments)
        if (each := _fragment(metadata, number, registered, draining)) is not None
        and not (accepted is not None and _is_accepted(metadata, fragment, registered, draining, accepted))
    ]
    if not found:
        return None
    return Lacking(
        min(each.severity for each in found),
        frozenset().union(*(each.missing for each in found)),
        frozenset().union(*(each.critical for each in found)),
    )


def _fragment(
    metadata: LedgerMetadata, number: int, registered: AbstractSet[BookieId], draining: AbstractSet[str]
) -> Lacking | None:
    members = metadata.fragments[number].members
    missing = frozenset(member for member in members if member not in registered or member in draining)
    if not missing:
        return None
    if missing <= registered:
        return Lacking(Severity.DRAIN, missing)
    severity = health_of(metadata, number, registered).severity
    assert severity is not None  # a member is not registered
    return Lacking(severity, missing, missing if severity is Severity.CRITICAL else frozenset())


def _is_accepted(
    metadata: LedgerMetadata,
    fragment: Fragment,
    registered: AbstractSet[BookieId],
    draining: AbstractSet[str],
    accepted: Decision,
) -> bool:
    gone = {
        (position, member)
        for position, member in enumerate(fragment.members)
        if member not in registered or member in draining
    }
    whole = {
        (position, bookie)
        for loss in accepted.lost
        if loss.first_entry_id == fragment.first_entry_id
        for position, bookie in loss.whole()
    }
    return accepted.is_of(metadata) and gone <= whole and any(member not in registered for _, member in gone)


def metadata_of(row: Mapping[str, Any]) -> LedgerMetadata:
    """Return the metadata in a row of ``bk_ledgers`` without an error."""
    fragments = tuple(
        Fragment(EntryId(each["first_entry_id"]), tuple(map(BookieId, each["members"]))) for each in row["fragments"]
    )
    return LedgerMetadata(
        row["ensemble_size"],
        row["write_quorum"],
        row["ack_quorum"],
        fragments,
        LedgerState[row["state"]],
        row["last_entry_id"],
        row["length"],
        ctime_ms=row["ctime_ms"],
    )


def judged(
    rows: Sequence[Mapping[str, Any]],
    registered: AbstractSet[BookieId],
    draining: AbstractSet[str],
    standing: Sequence[Decision],
) -> Iterator[tuple[LedgerId, Lacking]]:
    """Judge rows of ``bk_ledgers``; ``standing`` are the accepted losses of which no bookie is registered."""
    decisions = {decision.ledger_id: decision for decision in standing}
    for row in rows:
        if row["error"] is None:
            ledger_id = LedgerId(row["ledger_id"])
            found = lacking(metadata_of(row), registered, draining, decisions.get(ledger_id))
            if found is not None:
                yield ledger_id, found


def in_order(found: Mapping[LedgerId, Lacking]) -> list[LedgerWithFindings]:
    """Return the ledgers in the order of marking, without estimates of bytes."""
    ordered = sorted(found.items(), key=lambda each: (each[1].severity, each[0]))
    return [
        LedgerWithFindings(
            ledger_id, tuple(sorted(each.missing)), tuple(sorted(each.critical)), severity_rank=each.severity
        )
        for ledger_id, each in ordered
    ]
