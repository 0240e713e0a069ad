"""Checks whether this process may write to each part of the tree that bkheal writes.

Permissions are tested by transactions that always fail: each begins with the write in question and ends with a check of
a version that the cluster's root never has. ZooKeeper checks the operations in their order and applies none of them, so
the error shows whether the write would be allowed, and nothing is changed.

Each node has an ACL of its own and does not inherit one. So every node with many children is tested separately, and the
tree of tasks is tested along the path to one task.

Source: docs/zookeeper.md#acls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from auditor.operating.checked import Checked, State
from auditor.operating.client import ClusterClient
from bookie.metadata.access import current_access
from bookie.metadata.layout import COOKIES, UNDERREPLICATION, available_path, locks_path, task_level_names, tasks_path
from bookie.metadata.nodes import find, parent_of
from bookie.metadata.own_state import KINDS, own_path
from bookie.metadata.port import (
    AccessDeniedError,
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStore,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
)
from bookie.metadata.runs.election import election_path
from bookie.metadata.runs.readers import readers_path
from bookie.model.errors import BkhealError, PermanentError

_PERMISSION: Final = "permission"
_PROBE: Final = "bkheal-doctor-probe"
_NEVER: Final = (1 << 31) - 1
"""A version that the root of a cluster never reaches."""
_DEPTH_MAX: Final = 5
"""Nodes on the path from the root of the tasks to one task, without the task."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the tree. It gives one check if all of it may be written."""

    name: str
    parents: Sequence[str]
    """Nodes whose children bkheal creates and deletes. For a missing one, its nearest existing ancestor is tested."""
    purpose: str


async def permission_checks(client: ClusterClient) -> list[Checked]:
    """Return one check for each writable part of the tree, else one for each node that refuses a write."""
    store, root = client.store, client.cluster.root
    found: list[Checked] = []
    for part in _parts(root, await _parents_to_first_task(store, root)):
        found += await _part_checks(store, root, part)
    return [*found, await _ledger_permission(client)]


def _parts(root: str, tasks: Sequence[str]) -> list[_Part]:
    top, own = f"{root}/{UNDERREPLICATION}", [*(own_path(kind, root) for kind in KINDS), readers_path()]
    read_write, read_only = (available_path(root, is_read_only=each) for each in (False, True))
    return [
        _Part(
            top,
            (top, *tasks, locks_path(root), election_path(root)),
            "marks, locks and switches: nothing would be marked or repaired",
        ),
        _Part(current_access().state_root, own, "bkheal's own records: neither auditors nor replicators would start"),
        _Part(
            f"{root}/{COOKIES}",
            (f"{root}/{COOKIES}",),
            "records of bookies: `bkheal bookie` and `bkheal decommission` would fail",
        ),
        _Part(read_write, (read_write,), "registrations: `bkheal bookie` would not start"),
        _Part(read_only, (read_only,), "registrations of read-only bookies: drains would fail"),
    ]


async def _parents_to_first_task(store: MetadataStore, root: str) -> list[str]:
    """Return the parents on the path to the first task, as far as this process may list them."""
    way = [tasks_path(root)]
    for _ in range(_DEPTH_MAX - 1):
        try:
            [children] = await store.children_many(way[-1:])
        except AccessDeniedError:
            break
        names = task_level_names(children.names) if children else []
        if not names:
            break
        way.append(f"{way[-1]}/{names[0]}")
    return way


async def _part_checks(store: MetadataStore, root: str, part: _Part) -> list[Checked]:
    checks, tested = [], set()
    for path in part.parents:
        try:
            parent = await _nearest(store, path)
        except AccessDeniedError as error:
            checks.append(_denied(path, part.purpose, error))
            continue
        if parent not in tested:
            tested.add(parent)
            below = f"{parent.rstrip('/')}/"
            probe, target = f"{below}{_PROBE}", part.name if part.name.startswith(below) else parent
            checks.append(await _tried(store, root, target, part.purpose, Create(probe, b""), Delete(probe)))
    bad = [each for each in checks if each.state is not State.OK]
    return bad or [Checked(_PERMISSION, part.name, State.OK, "allowed")]


async def _nearest(store: MetadataStore, path: str) -> str:
    """Return the node itself, or its nearest existing ancestor."""
    while path != "/" and await store.stat(path) is None:
        path = parent_of(path) or "/"
    return path


async def _ledger_permission(client: ClusterClient) -> Checked:
    """Check with one ledger whether this process may change the metadata of ledgers."""
    store, root = client.store, client.cluster.root
    for parent, _ in await client.ports.ledgers.leaf_parents():
        ids = (await client.ports.ledgers.ids_under_many([parent]))[0]
        for ledger_id in ids[:1]:
            path = client.ports.ledgers.path(ledger_id)
            try:
                node = await find(store, path)
            except AccessDeniedError as error:
                return _denied(path, "metadata of ledgers: audits could not read it", error)
            if node is not None:
                write = SetData(path, node.data, node.stat.version)
                return await _tried(store, root, path, "metadata of ledgers: repairs would fail", write)
    return Checked(_PERMISSION, f"{root}/<ledgers>", State.UNKNOWN, "there is no ledger to try it with")


async def _tried(store: MetadataStore, root: str, path: str, purpose: str, *operations: Operation) -> Checked:
    """Test writes in a transaction that always fails."""
    try:
        await store.multi([*operations, Check(root, _NEVER)])
    except MultiFailedError as error:
        return _judged(path, purpose, error.cause, is_last=error.index == len(operations))
    except (AccessDeniedError, PermanentError) as error:
        return _denied(path, purpose, error)
    raise AssertionError("unreachable: the root of a cluster does not have this version")


def _judged(path: str, purpose: str, cause: BkhealError, *, is_last: bool) -> Checked:
    if is_last and isinstance(cause, BadVersionError):
        return Checked(_PERMISSION, path, State.OK, "allowed")
    if isinstance(cause, AccessDeniedError):
        return _denied(path, purpose, cause)
    if isinstance(cause, NodeExistsError | NoNodeError | BadVersionError):
        return Checked(_PERMISSION, path, State.UNKNOWN, f"it changed at the same time: {cause}", "run this again")
    return Checked(_PERMISSION, path, State.FAILED, f"{purpose} ({cause})")


def _denied(path: str, purpose: str, error: BkhealError) -> Checked:
    advice = (
        f"allow this identity to create, read, write and delete below {path} (setAcl; if it does not exist, create it "
        f"once), or use the identity that may"
    )
    return Checked(_PERMISSION, path, State.FAILED, f"{purpose} ({error})", advice)
