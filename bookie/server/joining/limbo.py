"""Limbo for the ledgers of earlier disks, before a bookie on new disks serves: "unknown", not "never written".

Earlier disks under the same bookie id may have held any entries and fences of each ledger whose metadata names the
bookie (apache/bookkeeper #4812, BP-46). So each of these ledgers is durably fenced and put into limbo here, and marked
for repair. The repair copies the missing entries to the bookie, and the collector clears the limbo of a complete
ledger.

Disks whose index was rebuilt have ledgers that no metadata places there, because a repair was copying them. Those in
the entry logs are in limbo already, but the replay of the journal may have ended this again, and it adds ledgers that
are only in the journal. So each ledger that the disks have is put in limbo as well.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Final

from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.ledgers import LedgerStore, Unreadable
from bookie.metadata.port import MetadataStore, StoreUnavailableError
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.clock import Clock
from bookie.server.joining.admission import AdmittedBookie, RoleDirectory, stamp, wait_predecessor_gone
from bookie.storage.store import LedgerStorage

_log = logging.getLogger(__name__)

_PAGE: Final = 1000
"""The number of ledgers whose metadata is read together."""


async def finish_start(
    store: MetadataStore,
    cluster: Cluster,
    directories: Sequence[RoleDirectory],
    admitted: AdmittedBookie,
    storage: LedgerStorage,
    clock: Clock,
    rng: random.Random,
    *,
    takeover_deadline_s: float,
) -> None:
    """Run the steps before the bookie serves: limbo if there were other disks before, and then the stamp.

    Raises:
        BkhealError: a step failed (see ``enter_limbo`` and ``stamp``). The bookie must not serve.
    """
    if admitted.is_stamped:
        return
    await enter_limbo(store, cluster, storage, admitted.bookie_id, clock, rng, takeover_deadline_s=takeover_deadline_s)
    await stamp(store, cluster, directories, admitted)


async def enter_limbo(
    store: MetadataStore,
    cluster: Cluster,
    storage: LedgerStorage,
    bookie: BookieId,
    clock: Clock,
    rng: random.Random,
    *,
    takeover_deadline_s: float,
) -> int:
    """Put every ledger that names ``bookie`` in limbo, mark it for repair, and return their number. Idempotent.

    Other ledgers of which there are entries in ``storage`` are put in limbo, too, and not marked.

    If an error is raised, the result is incomplete, and nothing must be served.

    Args:
        store: a session with the cluster's ZooKeeper.
        cluster: the bookie's cluster.
        storage: the storage on the new disks.
        bookie: the id that had other disks before.
        clock: time.
        rng: for the ledger store.
        takeover_deadline_s: deadline for the end of the registration of a process on the earlier disks.

    Raises:
        BookieIdInUseError: the earlier disks still serve.
        StoreUnavailableError, WriteOutcomeUnknownError, ConflictError: incomplete; begin again.
        FatalError, JournalBusyError: the storage failed.
    """
    await wait_predecessor_gone(store, cluster, bookie, clock, takeover_deadline_s)
    session = store.session
    ledgers, tasks = LedgerStore(store, cluster, rng), UnderReplication(store, cluster, clock)
    await tasks.initialize()
    await store.sync(cluster.root)
    count = 0
    page: list[LedgerId] = []
    async for ledger_id in ledgers.ids():
        page.append(ledger_id)
        if len(page) == _PAGE:
            count += await _enter(page, ledgers, tasks, storage, bookie)
            page = []
    count += await _enter(page, ledgers, tasks, storage, bookie)
    await _enter_stored(storage)
    if store.session.epoch != session.epoch:  # a new session may be on a server that is behind the one at the start
        raise StoreUnavailableError("the session was lost while the ledgers were read: start again")
    _log.warning("ledgers of earlier disks put in limbo", extra={"bookie_id": bookie, "ledgers": count})
    return count


async def _enter(
    page: list[LedgerId], ledgers: LedgerStore, tasks: UnderReplication, storage: LedgerStorage, bookie: BookieId
) -> int:
    """Put ledgers in limbo, and then mark them: another process may repair a marked ledger at once."""
    found = await ledgers.read_many_metadata(page)
    unreadable = [item.ledger_id for item in found if isinstance(item, Unreadable)]  # these may name any bookie
    named = [
        ledger_id
        for ledger_id, item in zip(page, found, strict=True)
        if item is not None and not isinstance(item, Unreadable) and bookie in item.members()
    ]
    await storage.set_limbo(named + unreadable)
    await tasks.marking.mark_many([(ledger_id, [bookie]) for ledger_id in named])
    return len(named) + len(unreadable)


async def _enter_stored(storage: LedgerStorage) -> None:
    after = -1
    while stored := await storage.ledger_ids(after, _PAGE):
        known = frozenset(await storage.limbo_ids(after, _PAGE))
        await storage.set_limbo([ledger_id for ledger_id in stored if ledger_id not in known])
        after = stored[-1]
