"""Registered bookies that may lack some of their copies according to the metadata: those that a mark names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from auditor.operating.client import ClusterClient
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.underreplication import UnreadableTask
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Doubts:
    """The marks of a cluster, and the drains that may have caused marks."""

    tasks: Mapping[LedgerId, Task | UnreadableTask]
    drained_ms: Mapping[BookieId, int]
    """When each drain began, epoch milliseconds; only bookies whose disks are still the same since then."""

    def of(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> frozenset[BookieId]:
        """Return the bookies that may lack their copies of a ledger; all of its members if its mark is unreadable.

        A drain marks ledgers too, but its bookie has its copies. A mark that is older than the drain has another cause:
        the bookie was lost before, and may have returned with other disks.
        """
        task = self.tasks.get(ledger_id)
        if task is None:
            return frozenset()
        if isinstance(task, UnreadableTask):
            return metadata.members()
        return frozenset(
            bookie
            for bookie in task.missing
            if (since_ms := self.drained_ms.get(bookie)) is None or task.ctime_ms < since_ms
        )


async def doubts(client: ClusterClient) -> Doubts:
    """Read the marks and the drains.

    Raises:
        StoreUnavailableError: no answer.
    """
    tasks = {task.ledger_id: task for task in await client.ports.tasks.list_all()}
    drains = Drains(client.store, client.cluster.root)
    recorded = await drains.read()
    bookies = sorted(recorded)
    begun, disks = await drains.begun(bookies), await client.ports.registrations.disks(bookies)
    return Doubts(
        tasks,
        {
            bookie: recorded[bookie].since_ms
            for bookie in bookies
            if recorded[bookie].since_ms and 0 < disks[bookie] < (begun[bookie] or 0)
        },
    )
