"""The conditions under which a verdict on a ledger is still valid when its task is deleted (I18).

R rules are defined in docs/failure-model.md, I rules in docs/invariants.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.layout import bookie_path
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.own_state import own_path
from bookie.metadata.port import ANY_VERSION, Check, Operation
from bookie.metadata.tasks.locks import SeenNode, Task
from replicator.ports import RepairPorts


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions under which the verdict on a ledger is still valid, so that its task may be deleted (I18)."""

    checks: tuple[Operation, ...] = ()
    """Conditions that the transaction checks which deletes the task."""
    seen: tuple[SeenNode, ...] = ()
    """Nodes to compare right before this transaction, which cannot check that they are the same: the ledger (R170) and
    the registrations."""


async def verdict_conditions(ports: RepairPorts, ledger: Versioned, task: Task, bookies: Bookies) -> Conditions:
    """Return the conditions of a verdict. Call this before the bookies are asked for their entries.

    The answer of a bookie is valid only for its current registration. After it has registered again, it may have other
    disks, and Apache's bookies record no incarnation (R136). Draining bookies need no condition, because the task is
    not done while a member is draining.

    Args:
        ports: the ports of repair.
        ledger: the metadata for the verdict.
        task: the task as read under the lock.
        bookies: the bookies, listed after the ledger was read.

    Raises:
        StoreUnavailableError: the store does not answer.
    """
    root = ports.cluster.root
    path = ports.ledgers.path(ledger.ledger_id)
    checks = [Check(path, ledger.version)]
    seen = [] if ledger.czxid is None else [SeenNode(path, ledger.czxid)]  # R170
    named = sorted(set(task.missing) & ledger.metadata.members() & bookies.staying)
    if not named:
        return Conditions(tuple(checks), tuple(seen))
    histories = [f"{own_path('incarnations', root)}/{bookie}" for bookie in named]
    paths = [bookie_path(root, bookie, is_read_only=bookie in bookies.read_only) for bookie in named]
    nodes = await ports.store.get_many([*histories, *paths])
    for path, node in zip(histories, nodes, strict=False):
        if node is not None:  # Apache's bookies record no incarnations
            checks.append(Check(path, node.stat.version))
    for path, node in zip(paths, nodes[len(histories) :], strict=True):
        checks.append(Check(path, ANY_VERSION))
        seen.append(SeenNode(path, None if node is None else node.stat.czxid))
    return Conditions(tuple(checks), tuple(seen))
