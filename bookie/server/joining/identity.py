"""The decision whether a process may be a bookie, made only from the contents of ZooKeeper and the directories.

Rules: docs/failure-model.md#identity-of-a-bookie. The danger is a bookie that has lost its entries, looks healthy, and
answers "no such entry". So a bookie id belongs to one set of disks: its cookie in ZooKeeper and in each directory, and
an incarnation UUID in each directory, recorded in the history under ``/bkheal/incarnations``. Every mismatch is
refused, and an operator decides.

A new bookie is recorded in this order: its incarnation in the directories, then in the history, then the cookie in
ZooKeeper, then ``VERSION`` in the directories, then the first data. A start that was interrupted at any point is
distinguished from lost disks by the incarnation file and by the absence of data, and continues from there.

A new incarnation (empty disks under a known bookie id) is stamped last (BP-46). First ``limbo-pending`` and the
incarnation are written to the directories, then the history. Then every ledger that names this bookie is put into limbo
and marked for repair. Only then are the cookie and ``VERSION`` written, and finally ``limbo-pending`` is removed. While
it exists, a start begins again with the limbo, and nothing is served.

Disks whose index was rebuilt (``rebuilt``), or whose journal was salvaged (``salvaged``), have data and become a new
incarnation as well. ``rebuilt-from`` proves that they were the last disks of the bookie id: it has the last incarnation
of the history.

Ledger directories other than the first contain only entry logs. An unreadable or empty one is out of use: the bookie
starts without it, and never reports its entries as absent (R114). Empty directories may be added at the end of the
list. They are recorded in this order: the incarnation in each of them, then the cookie in ZooKeeper, then ``VERSION``
in each directory. An interrupted start leaves a ``VERSION`` with a shorter list, which is accepted. The first start
after a rebuild or a salvage may add directories too: they are part of the new incarnation.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bookie.metadata.bookies.cookies import Cookie, InvalidCookieError, decode_cookie
from bookie.model.errors import PermanentError
from bookie.server.joining.directories import DirectoryRole, LocalDirectory


class JoinRefusal(enum.Enum):
    """The reasons why a bookie must not start."""

    DAMAGED_COOKIE = "a VERSION file cannot be read"
    OTHER_BOOKIE = "the disks of another bookie"
    OTHER_CLUSTER = "another cluster"
    COOKIE_GONE = "the disks have a cookie, ZooKeeper has none"
    UNMARKED_DATA = "data without a VERSION file"
    NOT_OURS = "the bookie id belongs to other software"
    EMPTY_DISKS = "a known bookie id on empty disks"
    EMPTY_JOURNAL = "the journal disk is empty"
    EMPTY_LEDGERS = "the ledger disk is empty"
    OTHER_DIRECTORIES = "the directories moved"
    NOT_EMPTY = "a directory to add is not empty"
    UNUSABLE = "a directory of a new bookie or a new incarnation cannot be opened"
    OTHER_INCARNATION = "the disks of another incarnation"


class IdentityError(PermanentError):
    """This process must not be this bookie. ``refusal`` is the rule that forbids it."""

    def __init__(self, refusal: JoinRefusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Evidence:
    """The complete input of the decision."""

    expected: Cookie
    """The cookie that this start would write."""
    stored: Cookie | None
    """The cookie in ZooKeeper."""
    history: Sequence[str]
    """The incarnations of this bookie id in ZooKeeper, oldest first."""
    directories: Sequence[LocalDirectory]
    may_be_new_incarnation: bool = False
    """Whether empty disks under a known bookie id are intended."""


@dataclass(frozen=True, slots=True)
class NewBookie:
    """Record everything, then start. ``incarnation`` is that of an interrupted first start, or None."""

    incarnation: str | None


@dataclass(frozen=True, slots=True)
class KnownBookie:
    """Start on these disks.

    Attributes:
        incarnation: the incarnation of the disks.
        out_of_use: the paths of ledger directories to start without, with the reasons.
        added: the paths of empty directories to add.
        is_rewritten: whether the cookie must be written again, because the list of directories grew.
    """

    incarnation: str
    out_of_use: tuple[tuple[str, str], ...] = ()
    added: tuple[str, ...] = ()
    is_rewritten: bool = False


@dataclass(frozen=True, slots=True)
class NewIncarnation:
    """Begin or continue a new incarnation: nothing is stamped or served before the limbo is complete.

    ``incarnation`` is that of an interrupted start, or None. All ledgers of which earlier disks may have held entries
    must be in limbo first.
    """

    incarnation: str | None


Decision = NewBookie | KnownBookie | NewIncarnation


def decide(evidence: Evidence) -> Decision:
    """Return how this process must start.

    Raises:
        IdentityError: the bookie must not start. The text has the reason and the remedy.
    """
    for directory in evidence.directories:
        if directory.version is not None:
            _check_cookie(_decoded(directory), directory, evidence.expected)
    if any(directory.pending is not None for directory in evidence.directories):
        decision = _decide_pending(evidence)
    elif evidence.stored is None:
        decision = _decide_without_cookie(evidence)
    else:
        decision = _decide_with_cookie(evidence, evidence.stored)
    unusable = next((directory for directory in evidence.directories if directory.problem), None)
    if unusable is not None and not isinstance(decision, KnownBookie):
        raise IdentityError(
            JoinRefusal.UNUSABLE,
            f"the {unusable.role.value} directory {unusable.path} cannot be used ({unusable.problem}): a new "
            "bookie, and new disks, need all of their directories",
        )
    return decision


def _decoded(directory: LocalDirectory) -> Cookie:
    assert directory.version is not None
    try:
        return decode_cookie(directory.version)
    except InvalidCookieError as error:
        raise IdentityError(
            JoinRefusal.DAMAGED_COOKIE,
            f"the file VERSION in {directory.path}/current is damaged ({error}): restore it from the other "
            "directory's if that one is intact, after checking that both disks belong to this bookie",
        ) from error


def _check_cookie(cookie: Cookie, directory: LocalDirectory, expected: Cookie) -> None:
    if cookie.bookie_id != expected.bookie_id:
        raise IdentityError(
            JoinRefusal.OTHER_BOOKIE,
            f"the {directory.role.value} directory {directory.path} belongs to bookie {cookie.bookie_id}, not to "
            f"{expected.bookie_id}: mount the right disk, or start with that bookie id",
        )
    if (cookie.instance_id or "") != (expected.instance_id or ""):
        raise _other_cluster_error(f"the {directory.role.value} directory {directory.path}", cookie, expected)


def _other_cluster_error(what: str, cookie: Cookie, expected: Cookie) -> IdentityError:
    return IdentityError(
        JoinRefusal.OTHER_CLUSTER,
        f"{what} belongs to the cluster with instance id {cookie.instance_id or '(none)'}, the metadata URI names the "
        f"one with {expected.instance_id or '(none)'}: correct the metadata URI, or mount the right disk",
    )


def _decide_without_cookie(evidence: Evidence) -> NewBookie:
    for directory in evidence.directories:
        if directory.version is not None:
            raise IdentityError(
                JoinRefusal.COOKIE_GONE,
                f"the {directory.role.value} directory {directory.path} has a cookie and ZooKeeper has none for bookie "
                f"{evidence.expected.bookie_id}: the metadata was formatted, or the bookie decommissioned; restore the "
                "metadata, or start with empty directories, which abandons the data in these",
            )
        if directory.has_data:
            raise IdentityError(
                JoinRefusal.UNMARKED_DATA,
                f"the {directory.role.value} directory {directory.path} holds data but no file VERSION: "
                "give an empty directory, or restore that file",
            )
    incarnations = {directory.incarnation for directory in evidence.directories}
    return NewBookie(incarnations.pop() if len(incarnations) == 1 else None)


def _decide_pending(evidence: Evidence) -> Decision:
    """Decide for a new incarnation whose start was interrupted, or for disks whose index was rebuilt."""
    directories = evidence.directories
    rebuilt = {directory.rebuilt_from for directory in directories if directory.rebuilt_from is not None}
    if rebuilt and evidence.stored is None:
        return _decide_without_cookie(evidence)
    if evidence.stored is not None:
        _check_stored(evidence, evidence.stored)
    pending = sorted({directory.pending for directory in directories if directory.pending is not None})
    has_data = any(directory.has_data for directory in directories)
    current = evidence.history[-1] if evidence.history else None
    is_recorded = pending[0] in evidence.history
    is_last = current == pending[0] or (len(rebuilt) == 1 and current in rebuilt and not is_recorded)
    is_replaced = len(pending) > 1 or (not is_last and (has_data or is_recorded))
    ours = {pending[0], *rebuilt}
    has_others = any(directory.has_data and directory.incarnation not in ours for directory in directories)
    if is_replaced or has_others:
        raise _other_incarnation(evidence, current or "(none)")
    blank = [d for d in directories if d.incarnation is None and d.pending is None and d.version is None]
    lost = [directory for directory in blank if not _is_addition(evidence, directory)]
    if lost and has_data:
        raise _lost_disk(evidence.expected.bookie_id, lost, False)
    if rebuilt and evidence.stored is not None and not is_extended_by(evidence.stored, evidence.expected):
        raise _other_directories_error(evidence.stored, evidence.expected)
    return NewIncarnation(pending[0])


def _check_stored(evidence: Evidence, stored: Cookie) -> None:
    """Check the conditions that apply to every bookie with a cookie."""
    expected = evidence.expected
    if not evidence.history:
        raise IdentityError(
            JoinRefusal.NOT_OURS,
            f"bookie {expected.bookie_id} has a cookie in ZooKeeper that this software did not write: it is a bookie "
            "of Apache BookKeeper; give another bookie id and empty directories",
        )
    if (stored.instance_id or "") != (expected.instance_id or ""):
        raise _other_cluster_error(f"the cookie of bookie {expected.bookie_id} in ZooKeeper", stored, expected)


def _decide_with_cookie(evidence: Evidence, stored: Cookie) -> Decision:
    expected, directories = evidence.expected, evidence.directories
    _check_stored(evidence, stored)
    current = evidence.history[-1]
    is_current = all(directory.incarnation == current for directory in directories)
    empty = [directory for directory in directories if directory.version is None]
    has_data = any(directory.has_data for directory in directories)
    if is_current and empty and not has_data:
        return NewBookie(current)
    if len(empty) == len(directories) and not has_data and evidence.may_be_new_incarnation:
        return NewIncarnation(None)
    if len(stored.journal_dirs) != len(expected.journal_dirs):
        raise _other_directories_error(stored, expected)
    added = _added(evidence, stored)
    out_of_use = _directories_out_of_use(evidence, stored, added)
    left_out = {*added, *(path for path, _ in out_of_use)}
    in_use = [directory for directory in directories if directory.path not in left_out]
    empty = [directory for directory in in_use if directory.version is None]
    if empty:
        raise _lost_disk(expected.bookie_id, empty, len(empty) == len(in_use))
    cookies = [_decoded(directory) for directory in in_use]
    if not is_extended_by(stored, expected) or not all(is_extended_by(cookie, stored) for cookie in cookies):
        raise _other_directories_error(stored, expected)
    if any(directory.incarnation != current for directory in in_use):
        raise _other_incarnation(evidence, current)
    is_rewritten = bool(added) or any(cookie != expected for cookie in (stored, *cookies))
    return KnownBookie(current, out_of_use, added, is_rewritten)


def _other_directories_error(stored: Cookie, expected: Cookie) -> IdentityError:
    return IdentityError(
        JoinRefusal.OTHER_DIRECTORIES,
        f"bookie {expected.bookie_id} was made with {_places(stored)} and is started with {_places(expected)}: "
        "start it with the directories it was made with. Empty ledger directories can be added at the end",
    )


def is_extended_by(earlier: Cookie, later: Cookie) -> bool:
    """Return whether two cookies differ at most by ledger directories that ``later`` has at the end."""
    kept = later.ledger_dirs[: len(earlier.ledger_dirs)]
    return kept == earlier.ledger_dirs and replace(earlier, ledger_dirs=later.ledger_dirs) == later


def _others(directories: Sequence[LocalDirectory]) -> Sequence[LocalDirectory]:
    """Return the ledger directories other than the first."""
    return [directory for directory in directories if directory.role is DirectoryRole.LEDGERS][1:]


def _is_addition(evidence: Evidence, directory: LocalDirectory) -> bool:
    """Return whether an empty directory is at the end of the list, and no cookie has it yet."""
    stored = evidence.stored
    if stored is None or directory.path in stored.ledger_dirs or not is_extended_by(stored, evidence.expected):
        return False
    return directory in _others(evidence.directories) and not directory.has_data and not directory.problem


def _added(evidence: Evidence, stored: Cookie) -> tuple[str, ...]:
    """Return the directories that this start adds, or that an earlier interrupted one was adding."""
    current, added = evidence.history[-1], []
    for directory in _others(evidence.directories):
        is_empty = directory.version is None and not directory.has_data and not directory.problem
        if directory.path in stored.ledger_dirs:
            if is_empty and directory.incarnation == current:
                added.append(directory.path)
        elif not is_extended_by(stored, evidence.expected):
            continue  # the caller refuses this, with both lists
        elif not is_empty or directory.incarnation not in (None, current):
            raise IdentityError(
                JoinRefusal.NOT_EMPTY,
                f"the ledger directory {directory.path} is to be added to bookie {stored.bookie_id}, and "
                f"{directory.problem or 'is not empty'}: give an empty directory",
            )
        else:
            added.append(directory.path)
    return tuple(added)


def _directories_out_of_use(evidence: Evidence, stored: Cookie, added: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the known directories without files of this bookie, with the reasons."""
    return tuple(
        (directory.path, directory.problem or "it has no file VERSION: is its disk mounted?")
        for directory in _others(evidence.directories)
        if directory.path in stored.ledger_dirs and directory.path not in added and directory.version is None
    )


def _other_incarnation(evidence: Evidence, current: str) -> IdentityError:
    found = ", ".join(
        f"{directory.path} says {directory.pending or directory.incarnation or 'nothing'}"
        for directory in evidence.directories
    )
    return IdentityError(
        JoinRefusal.OTHER_INCARNATION,
        f"ZooKeeper knows the disks of bookie {evidence.expected.bookie_id} as incarnation {current}, and {found}: "
        "mount the disks that this bookie last ran on",
    )


def _lost_disk(bookie: str, empty: Sequence[LocalDirectory], is_everything: bool) -> IdentityError:
    if is_everything:
        return IdentityError(
            JoinRefusal.EMPTY_DISKS,
            f"bookie {bookie} is known to the cluster and its directories are empty: mount its disks. If they are lost "
            "permanently, start once with --new-incarnation, which begins a data-integrity repair: "
            "what the bookie held is unknown, and is copied to it again from the others. Or give another bookie id",
        )
    lost = empty[0]
    remedy = "start on empty disks with another bookie id; what this bookie held is copied from the others"
    if lost.role is DirectoryRole.JOURNAL:
        remedy = (
            "`bkheal bookie salvage-journal --lost` gives up the entries that only the journal held; they are then "
            "unknown, and repair restores them"
        )
    return IdentityError(
        JoinRefusal.EMPTY_JOURNAL if lost.role is DirectoryRole.JOURNAL else JoinRefusal.EMPTY_LEDGERS,
        f"the {lost.role.value} directory {lost.path} of bookie {bookie} has no file VERSION, and other directories of "
        f"this bookie have one: mount the disk that belongs there. If it is lost, {remedy}",
    )


def _places(cookie: Cookie) -> str:
    return f"journal {','.join(cookie.journal_dirs)} and ledgers {','.join(cookie.ledger_dirs)}"
