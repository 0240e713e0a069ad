"""Why our findings and the existing tasks differ on one ledger, according to a second look at it.

Pure. R rules are defined in docs/failure-model.md.

Findings and marks were read at different times. So a difference is judged by the current state, and counts only if it
persists. A reason is *explained* if it is normal in a running cluster. Every other reason needs a person, and makes the
comparison fail.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.metadata.tasks.decisions import Copies, Decision, accepted_in
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.underreplication import UnreadableTask
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata


class Agreement(enum.Enum):
    """Whether the two sides agree on one ledger, and if not, how they differ."""

    AGREE = "agree"
    """A task exists, and names at least the bookies that we found lost."""
    ONLY_HERE = "only here"
    """We found the ledger, but it is not marked."""
    ONLY_THERE = "only there"
    """The ledger is marked, but we found nothing."""
    DIFFER = "differ"
    """The ledger is found and marked, but we found a lost bookie that the task does not name."""


class Reason(enum.Enum):
    """The reason for a difference: its name, whether it is explained, and a sentence for people."""

    WITHIN_DELAY = "within the delay", True, "the delay for lost bookies has not passed: marking has to wait"
    DISABLED = "disabled", True, "auto-recovery is disabled: no auditor marks"
    NO_AUDITOR = "no auditor", True, "no auditor leads, so none has run since the loss"
    NEW_LOSS = (
        "new loss",
        True,
        "earlier runs saw the bookie, and none found it lost for long: the auditor may not have finished yet",
    )
    DRAIN = "drain", True, "the bookie is being drained by bkheal, which Apache's auditor does not know"
    NOT_MARKED = "not marked", False, "an auditor leads and the delay has passed, but the ledger is not marked for it"
    LEDGER_DELETED = "ledger deleted", True, "the ledger was deleted; a worker will delete the task"
    BOOKIE_RETURNED = "bookie returned", True, "the named bookies were registered again after the mark"
    PLACEMENT_MARK = "placement mark", True, "the task names no bookie: a placement check asks to move copies"
    MISSING_ENTRIES = (
        "missing entries",
        True,
        (
            "the named bookies were registered when it was marked: a check that asks bookies marked "
            "it; ours is --kind replicas"
        ),
    )
    LOSS_ACCEPTED = (
        "loss accepted",
        True,
        "an operator accepted the loss: bkheal does not mark the ledger, and Apache's auditor does not know it",
    )
    HEALED = "healed", True, "the metadata names none of these bookies any more; a worker will delete the task"
    OVERLOOKED = (
        "overlooked",
        False,
        "the run did not find it, although a bookie that it names was not registered during the run",
    )
    UNREADABLE_METADATA = "unreadable metadata", False, "the bookies of the ledger are unknown"
    UNREADABLE_TASK = "unreadable task", False, "the task cannot be read, so the bookies that it names are unknown"

    def __init__(self, word: str, is_explained: bool, text: str) -> None:
        self.word = word
        self.is_explained = is_explained
        self.text = text


@dataclass(frozen=True, slots=True)
class ClusterAtSecondLook:
    """The cluster at the second look. The bookies were listed after the metadata was read, and before the tasks."""

    bookies: Bookies
    registered_ms: Mapping[BookieId, int] = field(default_factory=dict)
    """Time of each registration, epoch milliseconds."""
    waiting: AbstractSet[BookieId] = frozenset()
    """Lost bookies whose delay may not be over yet."""
    new: AbstractSet[BookieId] = frozenset()
    """Lost bookies that an earlier run saw registered and that have not been lost for long."""
    lost_in_run: AbstractSet[BookieId] = frozenset()
    """The lost bookies of the run; empty: it did not see every ledger."""
    is_disabled: bool = False
    leader: str = ""
    """Name of the leading auditor; empty: there is none."""
    accepted: Mapping[LedgerId, Decision] = field(default_factory=dict)
    """The valid accepted losses, by ledger."""


@dataclass(frozen=True, slots=True)
class LedgerAtSecondLook:
    """One ledger at the second look; None: the ledger or the task does not exist."""

    ledger_id: LedgerId
    ledger: Versioned | Unreadable | None
    task: Task | UnreadableTask | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference that persists."""

    ledger_id: LedgerId
    outcome: Agreement
    reason: Reason
    found: tuple[BookieId, ...] = ()
    """Lost bookies of the ledger, sorted by id; the draining ones if none is lost."""
    marked: tuple[BookieId, ...] | None = None
    """Bookies that the task names, in its order; None: there is no task, or it is unreadable."""
    marked_ms: int | None = None
    """Time of the last mark, epoch milliseconds, if the task has one."""


def present_difference(first: Agreement, second: LedgerAtSecondLook, cluster: ClusterAtSecondLook) -> Difference | None:
    """Return the current difference; None: there is no difference any more.

    Args:
        first: the outcome of the comparison.
        second: the ledger at the second look.
        cluster: the cluster at the second look.
    """
    ledger, task = second.ledger, second.task
    if not isinstance(ledger, Versioned):
        if task is None:
            return None
        reason = Reason.LEDGER_DELETED if ledger is None else Reason.UNREADABLE_METADATA
        return _only_there(second, reason)
    members = ledger.metadata.members()
    gone = members - cluster.bookies.registered
    accepted = accepted_in(cluster.accepted, second.ledger_id, ledger.metadata)
    lost = _bookies_of_unaccepted_losses(ledger.metadata, gone, accepted)
    drained = members & cluster.bookies.draining
    if task is None:
        return _unfinished_repair_difference(second, Agreement.ONLY_HERE, lost, drained, frozenset(), cluster)
    if isinstance(task, UnreadableTask):
        return _only_there(second, Reason.UNREADABLE_TASK, lost)
    named = frozenset(task.missing)
    if lost - named or (drained and not lost and not drained & named and first is not Agreement.ONLY_THERE):
        return _unfinished_repair_difference(second, Agreement.DIFFER, lost, drained, named, cluster)
    if lost:
        is_overlooked = first is Agreement.ONLY_THERE and bool(lost & cluster.lost_in_run)
        return _only_there(second, Reason.OVERLOOKED) if is_overlooked else None
    if drained & named:
        return None
    if gone & named:
        return _only_there(second, Reason.LOSS_ACCEPTED)
    return _only_there(second, _why_marked(task, members, cluster))


def _bookies_of_unaccepted_losses(
    metadata: LedgerMetadata, gone: AbstractSet[BookieId], accepted: Copies
) -> AbstractSet[BookieId]:
    """Return the lost bookies of fragments that have a lost copy whose loss is not accepted, as a run does (R45)."""
    if not accepted:
        return gone
    lost: set[BookieId] = set()
    for fragment in metadata.fragments:
        copies = {(fragment.first_entry_id, place, each) for place, each in enumerate(fragment.members) if each in gone}
        if not copies <= accepted:
            lost.update(gone & set(fragment.members))
    return lost


def _unfinished_repair_difference(
    second: LedgerAtSecondLook,
    outcome: Agreement,
    lost: AbstractSet[BookieId],
    drained: AbstractSet[BookieId],
    named: AbstractSet[BookieId],
    cluster: ClusterAtSecondLook,
) -> Difference | None:
    """Return the difference for a ledger with lost or draining bookies; None: there are none."""
    undone = lost - named
    if not lost and not drained:
        return None
    if cluster.is_disabled:
        reason = Reason.DISABLED
    elif not undone:
        reason = Reason.DRAIN
    elif undone <= cluster.waiting:
        reason = Reason.WITHIN_DELAY
    elif not cluster.leader:
        reason = Reason.NO_AUDITOR
    elif undone <= cluster.waiting | cluster.new:
        reason = Reason.NEW_LOSS
    else:
        reason = Reason.NOT_MARKED
    return _difference(second, outcome, reason, lost or drained)


def _why_marked(task: Task, members: AbstractSet[BookieId], cluster: ClusterAtSecondLook) -> Reason:
    """Return why a task exists although all bookies of its ledger are registered and none in the task is draining."""
    if not task.missing:
        return Reason.PLACEMENT_MARK
    there = members & frozenset(task.missing)
    if not there:
        return Reason.HEALED
    since = [cluster.registered_ms.get(bookie, 0) for bookie in there]
    if task.ctime_ms < 0 or max(since) > task.ctime_ms:
        return Reason.BOOKIE_RETURNED
    return Reason.MISSING_ENTRIES


def _only_there(second: LedgerAtSecondLook, reason: Reason, lost: AbstractSet[BookieId] = frozenset()) -> Difference:
    return _difference(second, Agreement.DIFFER if lost else Agreement.ONLY_THERE, reason, lost)


def _difference(
    second: LedgerAtSecondLook, outcome: Agreement, reason: Reason, found: AbstractSet[BookieId]
) -> Difference:
    task = second.task
    marked = task.missing if isinstance(task, Task) else None
    marked_ms = task.ctime_ms if isinstance(task, Task) and task.ctime_ms >= 0 else None
    return Difference(second.ledger_id, outcome, reason, tuple(sorted(found)), marked, marked_ms)
