"""What the verdict "nothing is missing" rests on: checks in the transaction that deletes the task (I18).

A mark that names a bookie already named changes nothing (another mark would not be noticed), so a loss that is reported
between the verdict and the end of the task would be forgotten with it. Therefore the ledger must be as it was, and each
bookie that the task names must still be registered, with the disks that it had when it was asked what it holds.
"""

from __future__ import annotations

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.layout import bookie_path, own_path
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.port import ANY_VERSION, Check
from bookie.metadata.tasks.underreplication import Task
from replicator.ports import RepairPorts


async def grounds(ports: RepairPorts, ledger: Versioned, task: Task, bookies: Bookies) -> list[Check]:
    """Checks that hold as long as nothing of this has changed. To be called before the bookies are asked.

    Bookies that are being drained need none: as long as a member is, something is left to do.

    Args:
        ports: see ``RepairPorts``.
        ledger: as the verdict sees it.
        task: as seen under the lock.
        bookies: listed after the ledger was read.

    Raises:
        StoreUnavailableError: no answer.
    """
    root = ports.cluster.root
    checks = [Check(ports.ledgers.path(ledger.ledger_id), ledger.version)]
    named = sorted(set(task.missing) & ledger.metadata.members() & bookies.staying)
    if not named:
        return checks
    histories = [f"{own_path('incarnations', root)}/{bookie}" for bookie in named]
    for bookie, path, node in zip(named, histories, await ports.store.get_many(histories), strict=True):
        checks.append(Check(bookie_path(root, bookie, is_read_only=bookie in bookies.read_only), ANY_VERSION))
        if node is not None:  # Apache's bookies have no history
            checks.append(Check(path, node.stat.version))
    return checks
