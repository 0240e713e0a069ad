"""Bookies and racks for the page of a report. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.bookies.registration import BookieState
from bookie.model.ids import BookieId
from bookie.model.topology import Topology
from bookie.runtime.human import duration
from spark_jobs.report.counts import BookieCount
from spark_jobs.report.page.plots import BarPart, parts
from spark_jobs.report.summary import RunSummary
from spark_jobs.report.text import numbered

SHOWN_MAX: Final = 15
"""Number of bookies that the table shows before it is expanded."""
_LISTED_MAX: Final = 1_000
_RACKS_MAX: Final = 60
_CELLS_MAX: Final = 400
_UNKNOWN: Final = "not in the topology"

_STATES: Final = {
    "up": "writable",
    "ro": "read-only",
    "down": "lost",
    "idle": "not registered, holds nothing",
}


@dataclass(frozen=True, slots=True)
class BookieRow:
    """A bookie in the table and in the rack picture."""

    bookie_id: str
    mark: str
    """A key of ``_STATES``."""
    state: str
    note: str
    rack: str
    ledgers: int
    ledgers_found: int
    fragments: int
    fragments_found: int
    parts: tuple[BarPart, ...]
    """Ledgers with findings and other ledgers, relative to the bookie with the most ledgers."""


@dataclass(frozen=True, slots=True)
class RackRow:
    """The bookies of one location."""

    name: str
    bookies: tuple[BookieRow, ...]
    hidden: int
    copies: int
    copies_found: int
    parts: tuple[BarPart, ...]
    text: str

    @property
    def has_loss_or_finding(self) -> bool:
        """Whether a bookie of the rack is lost, or a copy in the rack has a finding."""
        return self.copies_found > 0 or any(bookie.mark == "down" for bookie in self.bookies)


def has_holdings(summary: RunSummary) -> bool:
    """Return whether the run knows what bookies hold. It does not if the brake held before any ledger was read."""
    return summary.held_because is None or summary.counts.ledgers > 0


def _mark(bookie: BookieCount, is_held_known: bool) -> str:
    """Return the mark of a bookie.

    A missing bookie that no metadata names is not shown as lost: nothing depends on it.
    """
    match bookie.state:
        case BookieState.WRITABLE:
            return "up"
        case BookieState.READ_ONLY:
            return "ro"
        case BookieState.UNREGISTERED:
            return "down" if bookie.ledgers or bookie.ledgers_found or not is_held_known else "idle"


def marks(rows: Sequence[BookieRow]) -> tuple[tuple[str, str], ...]:
    """Return the marks that occur, and their meanings."""
    used = {row.mark for row in rows}
    return tuple(
        (mark, f"{name} ({sum(row.mark == mark for row in rows):,})") for mark, name in _STATES.items() if mark in used
    )


def bookie_rows(summary: RunSummary, topology: Topology | None) -> tuple[BookieRow, ...]:
    """Return all bookies: those with findings first, then the lost ones, then the others, by id."""
    fullest = max((bookie.ledgers for bookie in summary.bookies), default=0)
    waiting = {bookie.bookie_id: bookie for bookie in summary.waiting}
    rows = []
    for bookie in summary.bookies:
        mark = _mark(bookie, has_holdings(summary))
        found = min(bookie.ledgers_found, bookie.ledgers)
        note = "" if bookie.has_cookie else "no cookie"
        if bookie.bookie_id in waiting:
            left = max(waiting[bookie.bookie_id].until_ms - summary.finished_ms, 0)
            note = f"waiting, {duration(left)} left"
        rows.append(
            BookieRow(
                bookie_id=bookie.bookie_id,
                mark=mark,
                state=_STATES[mark],
                note=note,
                rack=_rack(bookie.bookie_id, topology),
                ledgers=bookie.ledgers,
                ledgers_found=bookie.ledgers_found,
                fragments=bookie.fragments,
                fragments_found=bookie.fragments_found,
                parts=parts((found, bookie.ledgers - found), fullest),
            )
        )
    order = {"down": 0, "ro": 1, "up": 2, "idle": 3}
    return tuple(sorted(rows, key=lambda row: (-row.ledgers_found, order[row.mark], row.bookie_id)))


def listed(rows: Sequence[BookieRow]) -> tuple[BookieRow, ...]:
    """Return the bookies of the table."""
    return tuple(rows[:_LISTED_MAX])


def rack_rows(rows: Sequence[BookieRow]) -> tuple[RackRow, ...]:
    """Return the bookies by rack, sorted by name. If no rack is known, one row has all bookies."""
    groups: dict[str, list[BookieRow]] = defaultdict(list)
    for row in rows:
        groups[row.rack].append(row)
    most = max((sum(row.fragments for row in group) for group in groups.values()), default=0)
    racks = [_rack_row(name, sorted(group, key=lambda row: row.bookie_id), most) for name, group in groups.items()]
    return tuple(sorted(racks, key=lambda rack: (rack.name == _UNKNOWN, rack.name)))


def shown_racks(racks: Sequence[RackRow]) -> tuple[RackRow, ...]:
    """Return the racks that a page shows.

    Their number is limited; those with lost bookies or findings are preferred.
    """
    if len(racks) <= _RACKS_MAX:
        return tuple(racks)
    chosen = sorted(racks, key=lambda rack: not rack.has_loss_or_finding)[:_RACKS_MAX]
    return tuple(sorted(chosen, key=lambda rack: rack.name))


def _rack(bookie: str, topology: Topology | None) -> str:
    if topology is None or not topology.locations:
        return ""
    return topology.known(BookieId(bookie)) or _UNKNOWN


def _rack_row(name: str, bookies: Sequence[BookieRow], most: int) -> RackRow:
    copies = sum(row.fragments for row in bookies)
    found = min(sum(row.fragments_found for row in bookies), copies)
    states = ", ".join(
        f"{sum(r.mark == mark for r in bookies):,} {text}"
        for mark, text in _STATES.items()
        if any(r.mark == mark for r in bookies)
    )
    return RackRow(
        name,
        tuple(bookies[:_CELLS_MAX]),
        max(len(bookies) - _CELLS_MAX, 0),
        copies,
        found,
        parts((found, copies - found), most),
        f"{numbered(len(bookies), 'bookie')}: {states}",
    )
