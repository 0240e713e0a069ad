"""Decide whether a bookie that is not registered now may have been registered at any time since an earlier moment.

If a bookie returned, got copies, and left again, two lists of registrations do not show this. But ZooKeeper counts all
registrations ever created (docs/formats.md#registration). If all registrations created since then still exist, and all
earlier bookies are still registered, no other bookie was registered in the meantime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import available_path
from bookie.metadata.port import MetadataStore, Node, NoNodeError
from bookie.model.ids import BookieId

_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class ChildCounters:
    """ZooKeeper's counters of one of the two parents of registrations; all 0 if it does not exist.

    Attributes:
        czxid: transaction that created the parent.
        newest_zxid: transaction that last created or deleted a registration.
        created: number of registrations ever created.
    """

    czxid: int = 0
    newest_zxid: int = 0
    created: int = 0


@dataclass(frozen=True, slots=True)
class Attendance:
    """The registrations at one moment.

    Attributes:
        writable: counters of the parent of writable registrations.
        read_only: counters of the parent of read-only registrations.
        bookies: registered bookies. One may be missing if it left before the end of the call.
        draining: registered bookies being drained.
        drains_zxid: transaction that last began or ended a drain before this moment; 0: none, or not known.
    """

    writable: ChildCounters = ChildCounters()
    read_only: ChildCounters = ChildCounters()
    bookies: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()
    drains_zxid: int = 0


UNKNOWN_ATTENDANCE: Final = Attendance()


@dataclass(frozen=True, slots=True)
class Parent:
    """A parent of registrations at a later moment, with the transaction that created each registration."""

    czxid: int = 0
    created: int = 0
    registrations: Mapping[str, int] | None = None


async def attendance(store: MetadataStore, cluster: Cluster) -> Attendance:
    """Read the current registrations, for a comparison with those of a later moment.

    Raises:
        NotAClusterError, StoreUnavailableError: see ``Registrations.list``.
    """
    paths = _paths(cluster)
    await store.sync(paths[0])
    writable, read_only = map(_child_counters, await store.get_many(paths))  # read first: a bookie may join afterwards
    drains = Drains(store, cluster.root)
    drains_zxid = await drains.newest_zxid()  # read first: a drain may begin again afterwards
    draining = (await drains.draining()).bookies
    listed = (await Registrations(store, cluster).list()).with_draining(draining)
    return Attendance(
        writable, read_only, tuple(sorted(listed.registered)), tuple(sorted(listed.draining)), drains_zxid
    )


async def read_parents(store: MetadataStore, cluster: Cluster) -> tuple[Parent, Parent]:
    """Read the current parents of writable and of read-only registrations.

    Raises:
        StoreUnavailableError: no answer.
    """
    paths = _paths(cluster)
    await store.sync(paths[0])
    writable, read_only = [await _parent(store, path) for path in paths]
    return writable, read_only


def who_left(then: Attendance, now: tuple[Parent, Parent], draining: Mapping[BookieId, int | None]) -> str:
    """Return why a bookie that is lost or draining now may have received copies since ``then``. Pure.

    The result is empty if no such bookie can have received copies.

    Args:
        then: the earlier moment.
        now: the later moment.
        draining: bookies being drained now, and the transaction that began each drain; None: it just ended.
    """
    if not then.writable.czxid:
        return "it has no list of the registered bookies"
    there = {name for parent in now for name in parent.registrations or ()}
    if gone := sorted(set(then.bookies) - there):
        return f"{_some(gone)} left since it was read"
    was_draining = set(then.draining)
    # A drain that ended and began again is another node: between the two, the bookie may have received copies.
    if drained := sorted(
        bookie
        for bookie, zxid in draining.items()
        if bookie not in was_draining or zxid is None or zxid > then.drains_zxid
    ):
        return f"{_some(drained)} is drained since it was read"
    for was, parent in zip((then.writable, then.read_only), now, strict=True):
        newer = [name for name, czxid in (parent.registrations or {}).items() if czxid > was.newest_zxid]
        if parent.czxid != was.czxid or parent.created - was.created != len(newer):
            return "a bookie joined and left since it was read"
    return ""


async def _parent(store: MetadataStore, path: str) -> Parent:
    stat = await store.stat(path)
    try:
        listing = await store.children(path)
    except NoNodeError:
        return Parent()
    nodes = await store.get_many([f"{path}/{name}" for name in listing.names])
    found = {name: node.stat.czxid for name, node in zip(listing.names, nodes, strict=True) if node is not None}
    return Parent(0 if stat is None else stat.czxid, _created(listing.version, len(listing.names)), found)


def _child_counters(parent: Node | None) -> ChildCounters:
    if parent is None:
        return ChildCounters()
    stat = parent.stat
    return ChildCounters(stat.czxid, stat.children_zxid, _created(stat.children_version, stat.children_count))


def _created(version: int, count: int) -> int:
    """Return how many children were ever created. ZooKeeper's version counts creations and deletions together."""
    return (version + count) // 2


def _paths(cluster: Cluster) -> list[str]:
    return [available_path(cluster.root, is_read_only=is_read_only) for is_read_only in (False, True)]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
