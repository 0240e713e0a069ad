"""The second look at differing ledgers: read metadata, then registrations, then tasks. It changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.first_seen_down import Down, FirstSeenDown, unaudited
from bookie.metadata.bookies.marking_policy import MarkingPolicies, MarkingRules
from bookie.metadata.bookies.rack_outage import Losses
from bookie.metadata.bookies.registration import Bookies, BookieState, Registrations
from bookie.metadata.layout import bookie_path, tasks_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import NoNodeError
from bookie.metadata.runs.election import current_auditor
from bookie.metadata.tasks.decisions import Decisions
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.metadata.uri import MetadataUri
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunKind
from bookie.runtime.clock import Clock
from spark_jobs.connect import Connection, connected
from spark_jobs.report.history import is_whole
from spark_jobs.report.summary import RunSummary
from spark_jobs.runs.marking.lost_bookies import LostBookies
from spark_jobs.shadow.reasons import ClusterAtSecondLook, LedgerAtSecondLook

REPORTS_MAX: Final = 100
"""Number of earlier reports that are searched for the time when a bookie went down."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What earlier runs reported of a lost bookie, epoch milliseconds; None: no run did."""

    since_ms: int | None = None
    """The end of the first of the consecutive runs that found it lost."""
    seen_ms: int | None = None
    """The start of the last run that found it registered: it was lost after that."""


def losses(newest_first: Iterable[RunSummary], instance_id: str) -> Mapping[BookieId, Loss]:
    """Return the history, from the reports, of each bookie that the newest report shows as lost. Pure.

    A dry run does not record when a bookie was first seen down, so the reports of earlier runs are used instead.
    """
    found: dict[BookieId, Loss] = {}
    open_still: set[BookieId] | None = None
    for run in islice(newest_first, REPORTS_MAX):
        if (
            run.kind not in (RunKind.BOOKIES, RunKind.EVERYTHING)
            or not is_whole(run)
            or run.cluster.instance_id != instance_id
        ):
            continue
        lost = {BookieId(each.bookie_id) for each in run.bookies if each.state is BookieState.UNREGISTERED}
        if open_still is None:
            open_still = lost
        for bookie in open_still & lost:
            found[bookie] = Loss(run.finished_ms)
        for bookie in open_still - lost:
            found[bookie] = replace(found[bookie], seen_ms=run.started_ms)
        open_still &= lost
        if not open_still:
            break
    return found


class SecondLook:
    """Blocking calls for one thread, with a ZooKeeper session of their own. Each may raise StoreUnavailableError."""

    def __init__(
        self,
        runner: asyncio.Runner,
        connection: Connection,
        clock: Clock,
        known: Mapping[BookieId, Loss],
        lost_in_run: AbstractSet[BookieId],
        settle_s: float,
        rules: MarkingRules | None = None,
    ) -> None:
        store, cluster = connection.store, connection.cluster
        self._runner = runner
        self._store = store
        self._root = cluster.root
        self._clock = clock
        self._known = known
        self._lost_in_run = lost_in_run
        self._settle_ms = settle_s * 1000
        self._ledgers = LedgerStore(store, cluster, random.Random(0))  # it only reads, so no random number is used
        self._registrations = Registrations(store, cluster)
        self._tasks = UnderReplication(store, cluster, clock)
        self._drains = Drains(store, cluster.root)
        self._decisions = Decisions(store, cluster.root)
        self._down = FirstSeenDown(store, cluster.root)
        self._policies = MarkingPolicies(store, cluster, self._tasks, rules)

    def cluster_state(self) -> ClusterAtSecondLook:
        """Return the current state of the cluster."""
        return self._runner.run(self._read_cluster_state())

    def check(self) -> None:
        """Read the tree of tasks once before Spark does, because Spark's workers report a refusal less clearly.

        Raises:
            AccessDeniedError: the tree may not be read.
        """
        self._runner.run(self._check())

    def delay_s(self) -> int:
        """Return the delay for lost bookies, seconds.

        Raises:
            InvalidDelayError: the stored value is not a number of seconds.
        """
        return self._runner.run(self._tasks.switches.lost_bookie_delay_s())

    def read_state(self, ledger_ids: Sequence[LedgerId]) -> tuple[list[LedgerAtSecondLook], ClusterAtSecondLook]:
        """Return the ledgers and the cluster. Registrations are read after the metadata, and tasks last."""
        return self._runner.run(self._read_state(ledger_ids))

    async def _check(self) -> None:
        with contextlib.suppress(NoNodeError):
            await self._store.children(tasks_path(self._root))

    async def _read_state(self, ledger_ids: Sequence[LedgerId]) -> tuple[list[LedgerAtSecondLook], ClusterAtSecondLook]:
        await self._store.sync(self._root)
        ledgers = await self._ledgers.read_many_permitted(ledger_ids)
        around = await self._read_cluster_state()
        await self._store.sync(tasks_path(self._root))
        tasks = await self._tasks.read_many(ledger_ids)
        return [LedgerAtSecondLook(*each) for each in zip(ledger_ids, ledgers, tasks, strict=True)], around

    async def _read_cluster_state(self) -> ClusterAtSecondLook:
        known = await self._registrations.known()
        bookies = (await self._registrations.list()).with_draining((await self._drains.draining()).bookies)
        return ClusterAtSecondLook(
            bookies=bookies,
            registered_ms=await self._registered_ms(bookies),
            waiting=await self._waiting(known, bookies.registered),
            new=frozenset(bookie for bookie in known - bookies.registered if self._is_new(bookie)),
            lost_in_run=self._lost_in_run,
            is_disabled=await self._tasks.switches.is_disabled(),
            leader=await current_auditor(self._store, self._root),
            accepted={
                each.ledger_id: each for each in await self._decisions.accepted() if each.is_valid(bookies.registered)
            },
        )

    async def _registered_ms(self, bookies: Bookies) -> dict[BookieId, int]:
        """Return the time of each registration; the later one, if a bookie has both kinds for a moment."""
        names = sorted(bookies.registered)
        found: dict[BookieId, int] = {}
        for is_read_only in (False, True):
            paths = [bookie_path(self._root, bookie, is_read_only=is_read_only) for bookie in names]
            for bookie, node in zip(names, await self._store.get_many(paths), strict=True):
                if node is not None:
                    found[bookie] = max(found.get(bookie, 0), node.stat.ctime_ms)
        return found

    async def _waiting(self, known: AbstractSet[BookieId], registered: AbstractSet[BookieId]) -> AbstractSet[BookieId]:
        """Return lost bookies whose delay may not be over, counted from our auditors' records, or else from reports."""
        now_ms, noted = self._clock.epoch_ms(), await self._down.read()
        lost = (known | unaudited(noted)) - registered
        downs = {bookie: noted.get(bookie) or Down(self._since_ms(bookie, now_ms)) for bookie in lost}
        policy = await self._policies.read(now_ms, Losses(known, registered, downs))
        return LostBookies(downs, policy, now_ms).waiting.keys()

    def _since_ms(self, bookie: BookieId, now_ms: int) -> int:
        since_ms = self._known.get(bookie, Loss()).since_ms
        return now_ms if since_ms is None else min(since_ms, now_ms)

    def _is_new(self, bookie: BookieId) -> bool:
        """Return whether a run saw it registered, and it is not lost for longer than the other auditor may need."""
        loss = self._known.get(bookie, Loss())
        if loss.seen_ms is None or loss.since_ms is None:
            return False
        return loss.since_ms + self._settle_ms > self._clock.epoch_ms()


@contextmanager
def opened_second_look(
    uri: MetadataUri,
    clock: Clock,
    known: Mapping[BookieId, Loss],
    lost_in_run: AbstractSet[BookieId],
    *,
    settle_s: float,
    connect_timeout_s: float,
    rules: MarkingRules | None = None,
) -> Iterator[SecondLook]:
    """Connect to the cluster, and disconnect at the end.

    Args:
        uri: the metadata URI of the cluster.
        clock: measures delays.
        known: see ``losses``.
        lost_in_run: see ``ClusterAtSecondLook``.
        settle_s: how long after a loss the other auditor may need to mark, seconds.
        connect_timeout_s: how long to try.
        rules: the marking rules of our auditor; None: the default.

    Raises:
        StoreUnavailableError: no answer from the hosts.
        NotAClusterError: there is no cluster at the root.
    """
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            connection = runner.run(stack.enter_async_context(connected(uri, connect_timeout_s)))
            yield SecondLook(runner, connection, clock, known, lost_in_run, settle_s, rules)
        finally:
            runner.run(stack.aclose())
