"""Put the ledgers of earlier disks in limbo before a bookie on new disks serves: "unknown", not "never written".

Earlier disks under the same bookie id may have held any entry, and given any fencing promise, of each ledger whose
metadata names the bookie (apache/bookkeeper #4812, BP-46). So each of them is fenced and put into limbo here, durably,
and marked for repair, which copies the missing entries to the bookie; the collector clears the limbo of a complete
ledger.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Final

from bookie.metadata.bookies.registration import BookieIdInUseError, Registrations
from bookie.metadata.cluster import Cluster
from bookie.metadata.ledgers.ledgers import LedgerStore, Unreadable
from bookie.metadata.port import MetadataStore, StoreUnavailableError
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.clock import Clock
from bookie.server.joining.admission import Admission, RoleDirectory, stamp
from bookie.storage.store import LedgerStorage

_log = logging.getLogger(__name__)

_PAGE: Final = 1000
"""Ledgers looked at together."""
_LOOK_S: Final = 1.0
"""Between two checks for the end of the earlier registration."""


async def finish_start(
    store: MetadataStore,
    cluster: Cluster,
    directories: Sequence[RoleDirectory],
    admitted: Admission,
    storage: LedgerStorage,
    clock: Clock,
    rng: random.Random,
    *,
    takeover_deadline_s: float,
) -> None:
    """The steps before the bookie serves: limbo if other disks preceded these, and then the stamp.

    Raises:
        BkhealError: not done (see ``enter_limbo`` and ``stamp``); the bookie must not serve.
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
    """Put every ledger that names ``bookie`` in limbo and mark it for repair; return their number. Idempotent.

    The result is complete, or an error is raised; then nothing may be served.

    Args:
        store: session with the cluster's ZooKeeper.
        cluster: the bookie's cluster.
        storage: on the new disks.
        bookie: the id with other disks before.
        clock: time.
        rng: for the ledger store.
        takeover_deadline_s: deadline for the end of the registration of a process on the earlier disks.

    Raises:
        BookieIdInUseError: the earlier disks still serve.
        StoreUnavailableError, WriteOutcomeUnknownError, ConflictError: not complete; begin again.
        FatalError, JournalBusyError: the storage failed.
    """
    await _wait_predecessor_gone(store, cluster, bookie, clock, takeover_deadline_s)
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
    if store.session.epoch != session.epoch:  # another server may be older than the one at the start of the scan
        raise StoreUnavailableError("the session was lost while the ledgers were read: start again")
    _log.warning("ledgers of earlier disks put in limbo", extra={"bookie_id": bookie, "ledgers": count})
    return count


async def _wait_predecessor_gone(
    store: MetadataStore, cluster: Cluster, bookie: BookieId, clock: Clock, deadline_s: float
) -> None:
    registrations = Registrations(store, cluster)
    give_up_s = clock.monotonic_s() + deadline_s
    while bookie in (await registrations.list()).registered:
        if clock.monotonic_s() > give_up_s:
            raise BookieIdInUseError(
                f"bookie {bookie} is registered by another session, and still was after {deadline_s:g} s: its disks "
                "are not lost. Stop the other process, or give this one another bookie id"
            )
        await clock.sleep(_LOOK_S)


async def _enter(
    page: list[LedgerId], ledgers: LedgerStore, tasks: UnderReplication, storage: LedgerStorage, bookie: BookieId
) -> int:
    """Limbo first: a task may be repaired by others at once."""
    found = await ledgers.read_many_metadata(page)
    unreadable = [item.ledger_id for item in found if isinstance(item, Unreadable)]  # may name any bookie
    named = [
        ledger_id
        for ledger_id, item in zip(page, found, strict=True)
        if item is not None and not isinstance(item, Unreadable) and bookie in item.members()
    ]
    await storage.set_limbo(named + unreadable)
    await tasks.marking.mark_many([(ledger_id, [bookie]) for ledger_id in named])
    return len(named) + len(unreadable)
