"""The changes between two runs of one check on one cluster. Pure.

Only counts are compared. So a severity with the same number of ledgers may contain different ledgers; the table of
findings lists them. An incomplete run is compared as well, with a caveat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bookie.metadata.bookies.registration import BookieState
from bookie.model.errors import PermanentError
from bookie.model.severity import Severity
from spark_jobs.report.counts import BookieCount, ReplicaCounts
from spark_jobs.report.summary import RunSummary, Verdict


class DifferentReportsError(PermanentError):
    """Two reports cannot be compared."""


@dataclass(frozen=True, slots=True)
class Change:
    """A number of the earlier run, and the same number of the later run."""

    before: int
    now: int

    @property
    def by(self) -> int:
        """The increase since the earlier run; negative for a decrease."""
        return self.now - self.before


@dataclass(frozen=True, slots=True)
class BookieChanges:
    """Bookies whose state differs, sorted by id."""

    lost: tuple[str, ...] = ()
    """Not registered now, and before either registered or unknown."""
    returned: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    """Registered now, and unknown before."""
    forgotten: tuple[str, ...] = ()
    """Known before; now neither registered, nor named in metadata, nor with a cookie."""
    turned_read_only: tuple[str, ...] = ()
    turned_writable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportDiff:
    """The difference between two runs."""

    old: RunSummary
    new: RunSummary
    caveats: tuple[str, ...]
    ledgers: Change | None
    """None, as with ``unreadable`` and ``severities``, if one of the runs checked nothing."""
    unreadable: Change | None
    severities: Mapping[Severity, Change]
    """Ledgers by worst severity, for each severity that has ledgers in one of the runs; worst first."""
    bookies: BookieChanges
    worst_appeared: tuple[int, ...]
    """Ledgers that are among the worst only in the later run."""

    @property
    def is_empty(self) -> bool:
        """Whether the two runs do not differ."""
        counts = [*self.severities.values(), *(change for change in (self.ledgers, self.unreadable) if change)]
        return (
            self.old.verdict is self.new.verdict
            and not any(change.by for change in counts)
            and self.bookies == BookieChanges()
            and not self.worst_appeared
        )

    def to_json(self) -> dict[str, Any]:
        """Return the difference as plain values."""
        return {
            "old": self.old.run_id,
            "new": self.new.run_id,
            "run_kind": self.new.kind.value,
            "verdict": {"before": self.old.verdict.value, "now": self.new.verdict.value},
            "caveats": list(self.caveats),
            "ledgers": _json(self.ledgers),
            "unreadable": _json(self.unreadable),
            "findings": [{"severity": level.label, **(_json(c) or {})} for level, c in self.severities.items()],
            "bookies": asdict(self.bookies),
            "worst_ledgers_appeared": list(self.worst_appeared),
        }


def diff(old: RunSummary, new: RunSummary) -> ReportDiff:
    """Compare an earlier run with a later one.

    Raises:
        DifferentReportsError: the runs are of different checks or clusters.
    """
    if old.kind is not new.kind:
        raise DifferentReportsError(
            f"{old.run_id} is a {old.kind.value} check and {new.run_id} a {new.kind.value} check; compare two of a kind"
        )
    if old.cluster.instance_id != new.cluster.instance_id:
        raise DifferentReportsError(f"{old.run_id} and {new.run_id} are of different clusters")
    is_checked = has_checked(old) and has_checked(new)
    return ReportDiff(
        old=old,
        new=new,
        caveats=tuple(_caveats(old, new)),
        ledgers=Change(old.counts.ledgers, new.counts.ledgers) if is_checked else None,
        unreadable=Change(old.counts.unreadable, new.counts.unreadable) if is_checked else None,
        severities=_severities(old, new) if is_checked else {},
        bookies=_bookies(old.bookies, new.bookies),
        worst_appeared=_appeared(old, new) if is_checked else (),
    )


def has_checked(summary: RunSummary) -> bool:
    """Return whether the numbers of findings mean anything. If the brake held, nothing was checked."""
    return summary.verdict is not Verdict.HELD


def _caveats(old: RunSummary, new: RunSummary) -> Sequence[str]:
    caveats = []
    for name, summary in (("earlier", old), ("later", new)):
        if not has_checked(summary):
            caveats.append(f"the brake held the {name} run, so only bookies are compared")
        elif not summary.is_complete:
            caveats.append(f"the {name} run did not see every ledger, so its numbers may be too low")
    if old.replicas and new.replicas and _sampling_parameters(old.replicas) != _sampling_parameters(new.replicas):
        caveats.append("the runs checked different ledgers: another range or sample")
    return caveats


def _sampling_parameters(counts: ReplicaCounts) -> object:
    return counts.ledger_min, counts.ledger_max, counts.sample, counts.sample < 1 and counts.sample_seed


def _severities(old: RunSummary, new: RunSummary) -> Mapping[Severity, Change]:
    before = {count.severity: count.ledgers for count in old.severities}
    now = {count.severity: count.ledgers for count in new.severities}
    changes = {level: Change(before.get(level, 0), now.get(level, 0)) for level in sorted(before.keys() | now.keys())}
    return {level: change for level, change in changes.items() if change.before or change.now}


def _bookies(old: Sequence[BookieCount], new: Sequence[BookieCount]) -> BookieChanges:
    before = {bookie.bookie_id: bookie.state for bookie in old}
    now = {bookie.bookie_id: bookie.state for bookie in new}
    pairs = [(bookie, before.get(bookie), now.get(bookie)) for bookie in sorted(before.keys() | now.keys())]
    up = (BookieState.WRITABLE, BookieState.READ_ONLY)
    down = BookieState.UNREGISTERED
    return BookieChanges(
        lost=tuple(b for b, was, is_ in pairs if is_ is down and was is not down),
        returned=tuple(b for b, was, is_ in pairs if was is down and is_ in up),
        joined=tuple(b for b, was, is_ in pairs if was is None and is_ in up),
        forgotten=tuple(b for b, was, is_ in pairs if is_ is None),
        turned_read_only=tuple(b for b, was, is_ in pairs if (was, is_) == up),
        turned_writable=tuple(b for b, was, is_ in pairs if (is_, was) == up),
    )


def _appeared(old: RunSummary, new: RunSummary) -> tuple[int, ...]:
    before = {ledger.ledger_id for ledger in old.worst_ledgers}
    return tuple(ledger.ledger_id for ledger in new.worst_ledgers if ledger.ledger_id not in before)


def _json(change: Change | None) -> dict[str, int] | None:
    return None if change is None else {"before": change.before, "now": change.now, "change": change.by}
