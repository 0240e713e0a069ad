"""Admission of a bookie: gathers the evidence for ``identity``, and records a new bookie in a safe order.

The invariant: a process serves under a bookie id only on the disks that ZooKeeper and all its directories record for
this id, and answers "unknown" for everything that earlier disks of the id may have held (S6, S17).

A start on known disks writes nothing, except a longer list of ledger directories. If the id had other disks before,
nothing is written while a process is registered under it: its disks are not lost, and it could not start on them again
(R159). New disks are recorded in these steps, and the bookie serves after the last one:

1. the file ``limbo-pending`` in each directory, if the id had other disks before;
2. the incarnation in each directory;
3. the incarnation in the history in ZooKeeper;
4. limbo for every ledger that names the bookie, if the id had other disks before (``limbo``);
5. the cookie in ZooKeeper;
6. the file ``VERSION`` in each directory;
7. the removal of ``limbo-pending``.

The history is written before the search for ledgers. A repair or recovery that names the bookie because of its earlier
disks checks the history in the same transaction. So the search finds its write, or the write is refused (R30). The
cookie and ``VERSION`` are late, because they declare the start complete.

Of two concurrent first starts under one id, only one proceeds. A start is recorded only if the history still has the
version on which its admission was based, and the transaction with the cookie changes this version. The refused start
changes neither of them, so the other one finds its own disks at its next start.

After a crash between two steps, the next start continues, and every step may already be done. Without
``limbo-pending``, directories without data and without ``VERSION`` show an interrupted first start, which continues
with their incarnation, if any. With ``limbo-pending``, the start begins again with the limbo. Every other combination
is refused, and an operator decides (``identity.decide``).

Source: docs/failure-model.md#identity-of-a-bookie; S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bookie.metadata.bookies.cookies import (
    Cookie,
    CookieConflictError,
    CookieStore,
    ForeignClusterError,
    InvalidCookieError,
    StoredCookie,
    check_no_apache_bookies,
    decode_cookie,
    encode_cookie,
    some,
)
from bookie.metadata.bookies.incarnations import IncarnationHistory, Incarnations, OtherDisksError
from bookie.metadata.bookies.registration import BookieIdInUseError, Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import cookie_path
from bookie.metadata.nodes import ensure_path, parent_of
from bookie.metadata.port import Create, MetadataStore, MultiFailedError, NoNodeError, Operation, SetData
from bookie.model.errors import ConflictError
from bookie.model.ids import BookieId, bookie_id
from bookie.runtime.clock import Clock
from bookie.server.joining.directories import (
    INCARNATION_FILE,
    LIMBO_FILE,
    REBUILT_FILE,
    VERSION_FILE,
    DirectoryRole,
    LocalDirectory,
    read_directory,
)
from bookie.server.joining.identity import Evidence, IdentityError, JoinRefusal, KnownBookie, NewIncarnation, decide
from bookie.storage.port import Disk, DiskError, DiskFullError

_log = logging.getLogger(__name__)

_POLL_S: Final = 1.0
"""The interval of checks whether the earlier registration has ended."""


@dataclass(frozen=True, slots=True)
class RoleDirectory:
    """A directory of this bookie, and the disk for its ``current``.

    Only a ledger directory other than the first may have no disk; ``problem`` is then the reason.
    """

    role: DirectoryRole
    path: Path
    disk: Disk | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AdmittedBookie:
    """The identity of this process."""

    bookie_id: BookieId
    incarnation: str
    is_stamped: bool = True
    """If False, first put the possible content of earlier disks in limbo (``limbo``), then call ``stamp``."""
    out_of_use: Mapping[str, str] = field(default_factory=dict)
    """The paths of the ledger directories to start without, with the reasons."""


async def admit(
    store: MetadataStore,
    cluster: Cluster,
    directories: Sequence[RoleDirectory],
    wanted_id: str,
    default_id: str,
    clock: Clock,
    rng: random.Random,
    *,
    takeover_deadline_s: float,
    may_be_new_incarnation: bool = False,
    speaks_apache: bool = False,
) -> AdmittedBookie:
    """Determine the identity of this process, record it in ZooKeeper and in the directories, and return it.

    If there were other disks under this bookie id before, the new ones are not stamped yet; see ``AdmittedBookie``.

    Args:
        store: a session with the cluster's ZooKeeper.
        cluster: the cluster to join.
        directories: all directories of the bookie.
        wanted_id: the requested bookie id; empty for none.
        default_id: the bookie id if none was requested and the directories have none.
        clock: time.
        rng: makes the UUID of a new incarnation.
        takeover_deadline_s: deadline for the end of the registration of a process on earlier disks.
        may_be_new_incarnation: whether empty disks under a known bookie id are intended.
        speaks_apache: whether this bookie serves Apache's clients as well.

    Raises:
        BookieIdInUseError: there were other disks before, and they still serve. Nothing was changed.
        IdentityError: this process must not be this bookie.
        ForeignClusterError: Apache's clients use the cluster, and this bookie does not support them. A bookie that
            joined before any of Apache's bookies is admitted with a warning: other clients need its data.
        InvalidIdError: not a bookie id.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer from ZooKeeper; starting again is safe.
        DiskError: a directory cannot be read or written. A known ledger directory other than the first may be
            unreadable.
    """
    with_both_protocols = frozenset() if speaks_apache else await check_no_apache_bookies(store, cluster)
    first = next(directory for directory in directories if directory.role is DirectoryRole.LEDGERS)
    contents = [
        await _read_directory(directory, is_needed=directory.role is DirectoryRole.JOURNAL or directory is first)
        for directory in directories
    ]
    bookie = bookie_id(wanted_id or _bookie_id_in(contents) or default_id)
    expected = _cookie(directories, bookie, cluster)
    incarnations = Incarnations(store, cluster.root)
    found = await incarnations.history(bookie)
    history = [incarnation.uuid for incarnation in found.incarnations]
    stored = await _stored_cookie(store, cluster, bookie)
    cookie = None if stored is None else stored.cookie
    decision = decide(Evidence(expected, cookie, history, contents, may_be_new_incarnation))
    if with_both_protocols - {bookie}:
        was_rebuilt = any(content.rebuilt_from in history for content in contents)
        is_known = isinstance(decision, KnownBookie) or was_rebuilt
        _check_protocol_known_to_clients(bookie, with_both_protocols - {bookie}, is_known=is_known)
    if isinstance(decision, KnownBookie):
        if decision.is_rewritten:
            await _record_directories(store, cluster, directories, expected, decision, stored)
        return AdmittedBookie(bookie, decision.incarnation, out_of_use=dict(decision.out_of_use))
    incarnation = decision.incarnation or str(uuid.UUID(int=rng.getrandbits(128), version=4))
    has_predecessors = isinstance(decision, NewIncarnation) or any(other != incarnation for other in history)
    if has_predecessors:
        await wait_predecessor_gone(store, cluster, bookie, clock, takeover_deadline_s)
        for disk in _disks(directories):
            await disk.replace(LIMBO_FILE, incarnation.encode())
    for disk in _disks(directories):
        await disk.replace(INCARNATION_FILE, incarnation.encode())
    try:
        await incarnations.record(bookie, incarnation, clock.epoch_ms(), found)
    except OtherDisksError as error:
        raise _just_joined_error(bookie) from error
    _log.info("new disks", extra={"bookie_id": bookie, "incarnation": incarnation, "is_known": has_predecessors})
    admitted = AdmittedBookie(bookie, incarnation, is_stamped=False)
    return admitted if has_predecessors else await stamp(store, cluster, directories, admitted)


async def wait_predecessor_gone(
    store: MetadataStore, cluster: Cluster, bookie: BookieId, clock: Clock, deadline_s: float
) -> None:
    """Wait until no process is registered under the id.

    Raises:
        BookieIdInUseError: one still is at the deadline.
        StoreUnavailableError: no answer from ZooKeeper.
    """
    registrations = Registrations(store, cluster)
    give_up_s = clock.monotonic_s() + deadline_s
    while bookie in (await registrations.list()).registered:
        if clock.monotonic_s() > give_up_s:
            raise BookieIdInUseError(
                f"bookie {bookie} is registered by another session, and still was after {deadline_s:g} s: its disks "
                "are not lost. Stop the other process, or give this one another bookie id"
            )
        await clock.sleep(_POLL_S)


async def _read_directory(directory: RoleDirectory, *, is_needed: bool) -> LocalDirectory:
    path = str(directory.path.resolve())
    if directory.disk is None:
        return LocalDirectory(directory.role, path, problem=directory.problem)
    try:
        return await read_directory(directory.role, path, directory.disk)
    except DiskError as error:
        if is_needed:
            raise
        return LocalDirectory(directory.role, path, problem=str(error))


def _disks(directories: Sequence[RoleDirectory]) -> list[Disk]:
    return [directory.disk for directory in directories if directory.disk is not None]


async def _record_directories(
    store: MetadataStore,
    cluster: Cluster,
    directories: Sequence[RoleDirectory],
    cookie: Cookie,
    known: KnownBookie,
    stored: StoredCookie | None,
) -> None:
    """Record the longer list of ledger directories. Every step may already be done.

    ``stored`` is the cookie on which the admission was based. If it was changed since then, it is not replaced.

    A directory that is full, or a ledger directory other than the first that cannot be written, keeps the shorter list
    until a later start: a directory is often added because another one is full or fails.
    """
    out_of_use = dict(known.out_of_use)
    in_use = [directory for directory in directories if str(directory.path.resolve()) not in out_of_use]
    for disk in _disks([directory for directory in in_use if str(directory.path.resolve()) in known.added]):
        await disk.replace(INCARNATION_FILE, known.incarnation.encode())
    if stored is None or stored.cookie != cookie:
        try:
            await CookieStore(store, cluster).replace(cookie, 0 if stored is None else stored.version)
        except CookieConflictError as error:
            raise IdentityError(
                JoinRefusal.OTHER_DIRECTORIES,
                f"the cookie of {cookie.bookie_id} was changed during the start: start again",
            ) from error
    others = [directory for directory in in_use if directory.role is DirectoryRole.LEDGERS][1:]
    for directory in in_use:
        assert directory.disk is not None, "a directory without a disk is out of use"
        try:
            await directory.disk.replace(VERSION_FILE, encode_cookie(cookie))
        except DiskError as error:
            is_added = str(directory.path.resolve()) in known.added
            if is_added or not (isinstance(error, DiskFullError) or directory in others):
                raise
            _log.warning("VERSION keeps the shorter list of directories", extra={"error": str(error)})
    _log.warning("ledger directories added", extra={"bookie_id": cookie.bookie_id, "added": ", ".join(known.added)})


def _check_protocol_known_to_clients(
    bookie: BookieId, with_both_protocols: frozenset[BookieId], *, is_known: bool
) -> None:
    """Refuse, or warn about, a bookie that Apache's clients of the cluster would choose and cannot use."""
    problem = (
        f"other bookies of the cluster speak Apache's protocol ({some(with_both_protocols)}) and {bookie} "
        "does not, so that "
        "Apache's clients that pick it cannot write: start it with --apache-port"
    )
    if not is_known:
        raise ForeignClusterError(problem)
    _log.warning(problem)


def _cookie(directories: Sequence[RoleDirectory], bookie: BookieId, cluster: Cluster) -> Cookie:
    return Cookie(
        bookie,
        tuple(str(directory.path.resolve()) for directory in directories if directory.role is DirectoryRole.JOURNAL),
        tuple(str(directory.path.resolve()) for directory in directories if directory.role is DirectoryRole.LEDGERS),
        cluster.instance_id,
    )


def _bookie_id_in(directories: Sequence[LocalDirectory]) -> str | None:
    """Return the bookie id in the first readable cookie; ``decide`` reports problems of the others."""
    for directory in directories:
        if directory.version is not None:
            try:
                return decode_cookie(directory.version).bookie_id
            except InvalidCookieError:
                continue
    return None


async def _stored_cookie(store: MetadataStore, cluster: Cluster, bookie: BookieId) -> StoredCookie | None:
    try:
        return await CookieStore(store, cluster).read(bookie)
    except InvalidCookieError as error:
        raise IdentityError(
            JoinRefusal.DAMAGED_COOKIE,
            f"the cookie of bookie {bookie} in ZooKeeper is damaged ({error}): replace it by the content of the "
            "file VERSION in its directories, after checking that they belong to this bookie",
        ) from error


def _just_joined_error(bookie: BookieId) -> IdentityError:
    return IdentityError(
        JoinRefusal.EMPTY_DISKS, f"another bookie has just joined as {bookie}: give this one another bookie id"
    )


async def stamp(
    store: MetadataStore, cluster: Cluster, directories: Sequence[RoleDirectory], admitted: AdmittedBookie
) -> AdmittedBookie:
    """Record the cookie, as the last step of a start on new disks. Every step may already be done.

    Raises:
        IdentityError: other disks have taken this bookie id since the start.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer from ZooKeeper; starting again is safe.
        DiskError: a directory cannot be written.
    """
    cookie = _cookie(directories, admitted.bookie_id, cluster)
    stored = await CookieStore(store, cluster).read(cookie.bookie_id)
    # Read the history after the cookie: disks that replaced the cookie before it was read are then in the history.
    history = await Incarnations(store, cluster.root).history(cookie.bookie_id)
    uuids = [item.uuid for item in history.incarnations]
    path, data = cookie_path(cluster.root, cookie.bookie_id), encode_cookie(cookie)
    operations: list[Operation] = []
    if stored is not None and stored.cookie != cookie and set(uuids) != {admitted.incarnation}:
        operations.append(SetData(path, data, stored.version))
    elif stored is None or stored.cookie != cookie:
        operations.append(Create(path, data))
    if not uuids or uuids[-1] != admitted.incarnation:
        raise _just_joined_error(cookie.bookie_id)
    await _confirm(store, cluster, cookie.bookie_id, history, operations)
    for disk in _disks(directories):
        await disk.replace(VERSION_FILE, encode_cookie(cookie))
    for disk in _disks(directories):
        await disk.unlink(LIMBO_FILE)
        await disk.unlink(REBUILT_FILE)
        await disk.sync_directory("")
    return AdmittedBookie(admitted.bookie_id, admitted.incarnation)


async def _confirm(
    store: MetadataStore,
    cluster: Cluster,
    bookie: BookieId,
    history: IncarnationHistory,
    operations: Sequence[Operation],
) -> None:
    incarnations = Incarnations(store, cluster.root)
    try:
        try:
            await incarnations.confirm(bookie, history, operations)
        except MultiFailedError as error:
            if not isinstance(error.cause, NoNodeError):
                raise
            await ensure_path(store, parent_of(cookie_path(cluster.root, bookie)), cluster.root)  # the first cookie
            await incarnations.confirm(bookie, history, operations)
    except OtherDisksError as error:
        raise _just_joined_error(bookie) from error
    except MultiFailedError as error:
        if not isinstance(error.cause, ConflictError):
            raise
        raise _just_joined_error(bookie) from error
