"""Moving bkheal's own state of one cluster to another state root (R98, docs/decisions/0071).

No process of bkheal may run during the move. Until its end, the cluster's record names both roots, and no process may
open the cluster. An ephemeral node below the record keeps out a second mover. The order makes every interruption
harmless:

1. the record names the new root, and the old one as the source;
2. every node is copied; nothing below the old root has changed;
3. the nodes below the old root are deleted;
4. the record names only the new root.

A repeated call continues from any step. The old root is complete before step 3, the new one from step 3 on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bookie.metadata.access import DEFAULT_STATE_ROOT, ZooKeeperAccess
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import locks_path
from bookie.metadata.nodes import change, child_names, create_with_parents, parent_of, put, remove
from bookie.metadata.own_state import (
    KINDS,
    StateRecord,
    StateRootError,
    decode_state_record,
    overlaps,
    record_path,
    state_path,
)
from bookie.metadata.port import (
    ANY_VERSION,
    Delete,
    MetadataStore,
    MultiFailedError,
    NodeExistsError,
    NotEmptyError,
    Operation,
    SetData,
    WriteOutcomeUnknownError,
)
from bookie.metadata.runs.election import candidates
from bookie.metadata.tasks.locks import LOCK_VERSION
from bookie.model.errors import BkhealError
from bookie.model.records import encode_record

_MOVER: Final = "mover"
_AT_ONCE: Final = 200
"""Nodes copied or deleted at a time."""
_LOCKS_MAX: Final = 10_000
"""Maximum number of locks that are read; there is one for each ledger under repair."""
_NAMED_MAX: Final = 5


async def move_state(
    store: MetadataStore,
    cluster: Cluster,
    source: str,
    target: str,
    begin: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Move the state of ``cluster`` to another state root, or continue the move; return the number of copied nodes.

    ``begin`` is awaited after the checks and before the first change. It is not called if a move is continued.

    Raises:
        StateRootError: the state is not below ``source``, the target cannot be one or contains state of this cluster,
            or a process of bkheal runs; nothing was moved.
        ConfigurationError: ``target`` is not a path of a state root; nothing was moved.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer. Call again to continue.
    """
    path = record_path(cluster.root)
    is_new, data = await check_move(store, cluster, source, target)
    if is_new:
        if begin is not None:
            await begin()
        moving = encode_record(StateRecord(target, source))
        await change(store, path, lambda present: _begun(present, data, moving))
    try:
        await store.create(f"{path}/{_MOVER}", is_ephemeral=True)
    except NodeExistsError as error:
        raise StateRootError(f"another process moves the state: {path}/{_MOVER} exists") from error
    try:
        return await _move(store, cluster, source, target, is_new=is_new)
    finally:
        with contextlib.suppress(BkhealError):  # otherwise the node ends with the session
            await remove(store, f"{path}/{_MOVER}")


async def check_move(store: MetadataStore, cluster: Cluster, source: str, target: str) -> tuple[bool, bytes | None]:
    """Check that the move can begin or continue; return whether it would begin, and the record of the state root.

    Nothing is changed. ``move_state`` checks the same again.

    Raises:
        StateRootError, ConfigurationError: ``move_state`` would refuse.
        StoreUnavailableError: no answer.
    """
    path = record_path(cluster.root)
    await store.sync(path)
    [data] = await store.get_many_data([path])
    is_new = not _is_under_way(cluster, data, source, target)
    if is_new:
        await _check_target(store, cluster, source, target)
        await _check_idle(store, cluster, source)
    return is_new, data


def _begun(present: bytes | None, seen: bytes | None, moving: bytes) -> bytes:
    if present not in (seen, moving):
        raise StateRootError(f"another process changed the record of the state root: {present!r}")
    return moving


async def _move(store: MetadataStore, cluster: Cluster, source: str, target: str, *, is_new: bool) -> int:
    try:
        await _check_idle(store, cluster, source)  # again: a process may have started before the record was written
    except StateRootError:
        if is_new:
            await _finish(store, cluster, source)
        raise
    copied = 0
    for kind in KINDS:
        copied += await _copy(store, *(state_path(root, kind, cluster.root) for root in (source, target)))
    for kind in KINDS:
        await _delete(store, state_path(source, kind, cluster.root))
    await _finish(store, cluster, target)
    for kind in KINDS:
        await _delete_if_empty(store, parent_of(state_path(source, kind, cluster.root)))
    await _delete_if_empty(store, source)
    return copied


def _is_under_way(cluster: Cluster, data: bytes | None, source: str, target: str) -> bool:
    """Whether this move was begun before."""
    record = decode_state_record(cluster.root, data)
    if record == StateRecord(target, source):
        return True
    if record.moving_from:
        raise StateRootError(
            f"the state is being moved from {record.moving_from} to {record.state_root}: finish that with "
            f"`bkheal --state-root {record.moving_from} cluster move-state {record.state_root}`"
        )
    if record.state_root != source:
        raise StateRootError(f"bkheal's state about the cluster at {cluster.root} is below {record.state_root}")
    return False


def check_paths(ledgers_root: str, source: str, target: str) -> None:
    """Check the paths of a move. Pure.

    Raises:
        ConfigurationError: ``target`` is not a path of a state root.
        StateRootError: two of the roots contain each other.
    """
    ZooKeeperAccess(state_root=target)
    if target == source:
        raise StateRootError(f"the state root is {source} already")
    if overlaps(target, source):
        raise StateRootError(f"the state roots {source} and {target} must not contain each other")
    if overlaps(target, ledgers_root):
        raise StateRootError(f"the state root {target} and the ledgers root {ledgers_root} must not contain each other")


async def _check_target(store: MetadataStore, cluster: Cluster, source: str, target: str) -> None:
    check_paths(cluster.root, source, target)
    paths = [state_path(target, kind, cluster.root) for kind in KINDS]
    for path, data in zip(paths, await store.get_many_data(paths), strict=True):
        if data is not None:
            raise StateRootError(f"{path} exists already: choose another root, or delete it")


async def _check_idle(store: MetadataStore, cluster: Cluster, source: str) -> None:
    """Refuse the move if a process of bkheal is running. Processes started later are refused because of the record."""
    if names := await candidates(store, cluster.root):
        raise _busy("auditors", names)
    registrations = Registrations(store, cluster)
    registered = (await registrations.list()).registered
    if ours := [bookie for bookie, each in (await registrations.incarnations(registered)).items() if each]:
        raise _busy("bookies", ours)
    locks = (await child_names(store, locks_path(cluster.root)))[:_LOCKS_MAX]
    found = await store.get_many([f"{locks_path(cluster.root)}/{name}" for name in locks])
    if held := [name for name, node in zip(locks, found, strict=True) if node and node.stat.version == LOCK_VERSION]:
        raise _busy("replicators, with locks", held)
    for kind in ("standby", "copying"):
        if names := list(await child_names(store, state_path(source, kind, cluster.root))):
            raise _busy(f"replicators, with nodes in {kind}", names)
    if names := list(await child_names(store, f"{state_path(source, 'runs', cluster.root)}/locks")):
        raise _busy("audits", names)


def _busy(what: str, names: Sequence[str]) -> StateRootError:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return StateRootError(f"the state is in use: stop the {what}: {', '.join(sorted(names)[:_NAMED_MAX])}{more}")


async def _finish(store: MetadataStore, cluster: Cluster, root: str) -> None:
    """Replace the record by one that names only ``root``, if this process is still the mover."""
    path = record_path(cluster.root)
    operations: list[Operation] = [Delete(f"{path}/{_MOVER}")]
    if root == DEFAULT_STATE_ROOT:
        operations.append(Delete(path))
    else:
        operations.append(SetData(path, encode_record(StateRecord(root)), ANY_VERSION))
    try:
        await store.multi(operations)
    except MultiFailedError as error:
        raise StateRootError(f"this process is no longer the mover of the state: {error}") from error


async def _copy(store: MetadataStore, source: str, target: str) -> int:
    """Copy the persistent nodes of a tree, parents first."""
    copied, level = 0, [""]
    while level:
        below: list[str] = []
        for start in range(0, len(level), _AT_ONCE):
            names = level[start : start + _AT_ONCE]
            nodes = await store.get_many([f"{source}{name}" for name in names])
            found = [(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]
            if used := [name for name, node in found if node.stat.ephemeral_owner]:
                raise _busy(f"process with the node {source}", used)
            await asyncio.gather(*(_write(store, f"{target}{name}", node.data) for name, node in found))
            copied += len(found)
            with_children = [name for name, node in found if node.stat.children_count]
            children = await store.children_many([f"{source}{name}" for name in with_children])
            for parent, listed in zip(with_children, children, strict=True):
                below += [f"{parent}/{name}" for name in (listed.names if listed else ())]
        level = below
    return copied


async def _write(store: MetadataStore, path: str, data: bytes) -> None:
    try:
        await create_with_parents(store, path, data, "/")
    except (NodeExistsError, WriteOutcomeUnknownError):  # an earlier attempt may have created it
        await put(store, path, data)


async def _delete(store: MetadataStore, path: str) -> None:
    """Delete a tree, children first."""
    levels = [[path]]
    while levels[-1]:
        listed = await store.children_many(levels[-1])
        pairs = zip(levels[-1], listed, strict=True)
        levels.append([f"{parent}/{name}" for parent, each in pairs if each for name in each.names])
    for level in reversed(levels):
        for start in range(0, len(level), _AT_ONCE):
            await asyncio.gather(*(remove(store, each) for each in level[start : start + _AT_ONCE]))


async def _delete_if_empty(store: MetadataStore, path: str) -> None:
    """Delete a node unless it has children, which are the state of other clusters."""
    with contextlib.suppress(NotEmptyError):
        await remove(store, path)
