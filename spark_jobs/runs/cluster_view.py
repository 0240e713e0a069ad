"""The driver's requests to a cluster between its Spark jobs, as plain calls on one ZooKeeper session."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from bookie.metadata.bookies.attendance import Attendance, attendance, read_parents, who_left
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.first_seen_down import Down, FirstSeenDown, unaudited
from bookie.metadata.bookies.marking_policy import MarkingPolicies, MarkingRules
from bookie.metadata.bookies.marking_times import MarkingPolicy
from bookie.metadata.bookies.rack_outage import Losses
from bookie.metadata.bookies.registration import Bookies, Registrations
from bookie.metadata.bookies.topology import TopologyStore, parse_topology, topology_text
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import available_path, ledger_ids_under, ledger_path, locks_path, tasks_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.ledgers.tree import LedgerTree
from bookie.metadata.migration import read_migration
from bookie.metadata.own_state import own_path
from bookie.metadata.port import AccessDeniedError, NoNodeError, Stat, StoreUnavailableError
from bookie.metadata.pulsar.tree import PulsarTree
from bookie.metadata.runs.check_times import CheckKind, CheckTimes
from bookie.metadata.runs.notes import RunNotes
from bookie.metadata.tasks.damage_notes import DamageNotes
from bookie.metadata.tasks.decisions import Decision, Decisions
from bookie.metadata.tasks.underreplication import UnderReplication, UnreadableTask
from bookie.metadata.uri import MetadataUri
from bookie.model.ids import BookieId, LedgerId
from bookie.model.topology import Topology
from bookie.runtime.clock import Clock
from spark_jobs.connect import PacedConnection, connected_as_reader
from spark_jobs.datasource.ledgers import leaf_parents, leaf_stat
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.datasource.scan import read_metadata
from spark_jobs.image.leaves import LeafStat, creates_of
from spark_jobs.pacing.budget import Budget
from spark_jobs.runs.marking.noted_damage import mark_recorded_damage
from spark_jobs.runs.marking.publish import Marking, Publisher
from spark_jobs.runs.marking.withdrawal import Withdrawal, WithdrawalStep
from spark_jobs.runs.reading.completeness import ScanTotals, incomplete_parents, planned_remaining
from spark_jobs.settings import CONNECT_TIMEOUT_S

_STATS_AT_ONCE: Final = 100
_NODES_AT_ONCE: Final = 1_000


class ClusterView:
    """Blocking calls; use it from one thread. Every call may raise StoreUnavailableError."""

    def __init__(self, runner: asyncio.Runner, connection: PacedConnection, clock: Clock, budget: Budget) -> None:
        self._runner = runner
        self._budget = budget
        self._connection = connection
        self._registrations = Registrations(connection.store, connection.cluster)
        self._tasks = UnderReplication(connection.store, connection.cluster, clock)
        self._publisher = Publisher(self._tasks)
        self._down = FirstSeenDown(connection.store, connection.cluster.root)
        self._drains = Drains(connection.store, connection.cluster.root)
        self._decisions = Decisions(connection.store, connection.cluster.root)
        self._notes = RunNotes(connection.store, connection.cluster.root)
        self._damage_notes = DamageNotes(connection.store, connection.cluster.root)
        self._ledgers = LedgerStore(connection.store, connection.cluster, random.SystemRandom())
        self._withdrawal = Withdrawal(connection.store, connection.cluster, self._tasks, self._staying)

    @property
    def cluster(self) -> Cluster:
        """The cluster's root, layout and instance id."""
        return self._connection.cluster

    @property
    def budget(self) -> Budget:
        """The ZooKeeper budget of the run's tasks, which it shares with the other runs found at the last count."""
        return replace(self._budget, instance_id=self.cluster.instance_id, readers=self._connection.store.readers)

    def leaf_parents(self) -> tuple[LeafParent, ...]:
        """Return the nodes with ledgers, and the number of ledgers in each."""
        return self._runner.run(leaf_parents(self._connection))

    def leaf_nodes(self) -> Sequence[tuple[str, Stat]]:
        """Return the same nodes as ``leaf_parents``, with their stats."""
        return self._runner.run(LedgerTree(self._connection.store, self.cluster).leaf_nodes())

    def newest_zxid(self) -> int:
        """Return the newest transaction of some frequently changed nodes, which the cluster has certainly reached."""
        return self._runner.run(self._newest_zxid())

    def count_planned(self, plan: Sequence[LeafParent], totals: ScanTotals) -> Mapping[str, int]:
        """Return the number of planned ledgers that still exist, for each node that listed fewer than planned.

        The result is exact for nodes that may have more planned ledgers than they listed; it is an upper limit for the
        others. Memory does not depend on the number of ledgers.

        Args:
            plan: the nodes of a scan, as they were before it.
            totals: the counts of the scan.
        """
        return self._runner.run(self._count_planned(plan, totals))

    def ledgers_under(self, paths: Sequence[str]) -> Sequence[Sequence[LedgerId]]:
        """Return the current ledgers directly under each of ``paths``."""
        return self._runner.run(LedgerTree(self._connection.store, self.cluster).ids_under_many(paths))

    def ledger_data(self, ids: Sequence[LedgerId]) -> Sequence[bytes | str | None]:
        """Return the current metadata of ledgers; see ``read_metadata``."""
        return self._runner.run(read_metadata(self._connection.store, self.cluster, ids))

    def changed_ms(self, ids: Sequence[LedgerId]) -> Mapping[LedgerId, int]:
        """Return when the metadata of ledgers was last changed, epoch milliseconds by ZooKeeper's clock.

        The result lacks deleted ledgers, and ledgers whose node this client may not read.
        """
        return self._runner.run(self._changed_ms(ids))

    def zxid_before(self, ids: Sequence[LedgerId], before_ms: int) -> int:
        """Return the newest transaction up to a time, according to the nodes of these ledgers; 0: they show none.

        Args:
            ids: ids of ledgers, some of which may be deleted.
            before_ms: the time, epoch milliseconds by ZooKeeper's clock.
        """
        return self._runner.run(self._zxid_before(ids, before_ms))

    def bookies(self) -> Bookies:
        """Return the registered bookies, and which of them are draining. The list is not older than this call."""
        return self._runner.run(self._bookies())

    def attendance(self) -> Attendance:
        """Return the current registrations, for a comparison with later ones."""
        return self._runner.run(attendance(self._connection.store, self.cluster))

    def who_left(self, then: Attendance) -> str:
        """Return why a bookie now lost or draining may have received copies since ``then``; empty: none can have."""
        return self._runner.run(self._who_left(then))

    def note_image(self, run_id: str, *, is_read: bool) -> None:
        """Record that a run begins to read for an image, or that it has read everything; see ``RunNotes.note_image``.

        Raises:
            WriteOutcomeUnknownError: every answer was lost.
            AccessDeniedError: this identity may not write the record.
        """
        self._runner.run(self._notes.note_image(run_id, is_read=is_read))

    def has_image_note(self, run_id: str, *, is_read: bool) -> bool:
        """Return whether ``note_image`` recorded this, and ZooKeeper was not set back to a time before."""
        noted = self._runner.run(self._notes.images())
        return run_id in (noted.read if is_read else noted.begun)

    def bookies_with_cookies(self) -> frozenset[BookieId]:
        """Return every bookie with a cookie: all that ever joined."""
        return self._runner.run(self._registrations.known())

    def is_disabled(self) -> bool:
        """Return whether auto-recovery is disabled cluster-wide."""
        return self._runner.run(self._publisher.is_disabled())

    def mark(self, batch: Sequence[Marking]) -> int | None:
        """Mark a batch of ledgers; see ``Publisher.mark``.

        Raises:
            StoreUnavailableError: the metadata is being migrated away from ZooKeeper (R88).
        """
        return self._runner.run(self._mark(batch))

    def marked_ledgers(self, count_max: int) -> Sequence[LedgerId]:
        """Return the first ``count_max`` marked ledgers, ascending; some may have been unmarked recently.

        The list is not older than this call.
        """
        return self._runner.run(self._tasks.places(count_max))

    def are_marked(self, batch: Sequence[Marking]) -> Sequence[bool]:
        """Return whether each ledger is marked with all of its bookies.

        True for an unreadable task, which is never changed.
        """
        tasks = self._runner.run(self._tasks.read_many([ledger_id for ledger_id, _ in batch]))
        return [
            isinstance(task, UnreadableTask) or (task is not None and set(missing) <= set(task.missing))
            for task, (_, missing) in zip(tasks, batch, strict=True)
        ]

    def withdraw_step(self, after: LedgerId | None, count_max: int, found: Container[LedgerId]) -> WithdrawalStep:
        """Withdraw marks whose reason has ended; see ``Withdrawal.step``.

        Raises:
            StoreUnavailableError: the metadata is being migrated away from ZooKeeper (R88).
        """
        return self._runner.run(self._withdraw_step(after, count_max, found))

    def mark_noted_damage(self) -> Sequence[Marking]:
        """Mark the closed ledgers of which a worker recorded damage, and return them; see ``mark_recorded_damage``.

        Raises:
            StoreUnavailableError: the metadata is being migrated away from ZooKeeper (R88).
        """
        return self._runner.run(mark_recorded_damage(self._damage_notes, self._ledgers, self._mark))

    def marking_policy(self, rules: MarkingRules, losses: Losses, now_ms: int, *, is_noted: bool) -> MarkingPolicy:
        """Return the current rules for the ledgers of lost bookies; note held-back ones for workers if ``is_noted``.

        Raises:
            InvalidDelayError: the stored lost-bookie delay is not a number of seconds.
        """
        connection = self._connection
        policies = MarkingPolicies(connection.store, connection.cluster, self._tasks, rules)
        policy = self._runner.run(policies.read(now_ms, losses))
        if is_noted:
            self._runner.run(self._down.record_holds(losses.noted, policy.held_until_ms))
        return policy

    def lost_since(
        self, cookies: AbstractSet[BookieId], registered: AbstractSet[BookieId], now_ms: int, *, is_noted: bool
    ) -> Mapping[BookieId, Down]:
        """Return since when bookies are down; record this in the store, for the next run, if ``is_noted``.

        The bookies are those with a cookie, and those with a recorded loss that no audit has covered (R142).
        """
        lost = cookies - registered
        if is_noted:
            return self._runner.run(self._down.reconcile(lost, now_ms, registered=registered))
        noted = self._runner.run(self._down.read())
        return {bookie: noted.get(bookie, Down(now_ms)) for bookie in lost | (unaudited(noted) - registered)}

    def note_audited(self, lost: Mapping[BookieId, Down], audited_ms: int) -> None:
        """Record a complete audit of the loss of these bookies."""
        for bookie, down in lost.items():
            self._runner.run(self._down.note_audited(bookie, down.since_ms, audited_ms))

    def note_critical_audited(self, lost: Mapping[BookieId, Down], audited_ms: int) -> None:
        """Record a complete audit of the critical ledgers of these bookies."""
        for bookie, down in lost.items():
            self._runner.run(self._down.note_critical_audited(bookie, down.since_ms, audited_ms))

    def accepted_losses(self) -> Sequence[Decision]:
        """Return the losses that operators accepted. Their number is bounded, and they are read in a few requests."""
        return self._runner.run(self._decisions.accepted())

    def withdraw_accepted(self, decisions: Sequence[Decision]) -> None:
        """Remove invalid accepted losses, except those replaced in the meantime."""
        for decision in decisions:
            self._runner.run(self._decisions.withdraw(decision))

    def topology(self, file: Path | None) -> tuple[Topology, str]:
        """Return the locations of bookies, from ``file`` or else from the metadata store, and the name of the source.

        Raises:
            InvalidTopologyError: the topology cannot be read.
        """
        if (text := topology_text(file)) is not None:
            return parse_topology(text), str(file)
        stored = self._runner.run(TopologyStore(self._connection.store, self.cluster).read())
        return stored.topology, stored.path or ""

    def roots_without_pulsar(self, roots: Sequence[str]) -> Sequence[str]:
        """Return those of ``roots`` below which there are no managed ledgers of Pulsar."""
        store = self._connection.store
        return [root for root in roots if not self._runner.run(PulsarTree(store, root).exists())]

    def write_check_time(self, kind: CheckKind, time_ms: int) -> None:
        """Record a completed check for Apache's auditor."""
        self._runner.run(CheckTimes(self._connection.store, self.cluster).write(kind, time_ms))

    async def _mark(self, batch: Sequence[Marking]) -> int | None:
        await self._refuse_during_migration()
        return await self._publisher.mark(batch)

    async def _withdraw_step(
        self, after: LedgerId | None, count_max: int, found: Container[LedgerId]
    ) -> WithdrawalStep:
        await self._refuse_during_migration()
        return await self._withdrawal.step(after, count_max, found)

    async def _refuse_during_migration(self) -> None:
        if why := (await read_migration(self._connection.store, self.cluster.root)).refusal:
            raise StoreUnavailableError(why)

    async def _newest_zxid(self) -> int:
        root, store = self.cluster.root, self._connection.store
        await store.sync(root)
        places = [available_path(root, is_read_only=is_read_only) for is_read_only in (False, True)]
        places += [root, tasks_path(root), locks_path(root), f"{own_path('runs', root)}/locks"]
        found = [await store.stat(path) for path in places]
        return max((max(stat.czxid, stat.mzxid, stat.children_zxid) for stat in found if stat is not None), default=0)

    async def _bookies(self) -> Bookies:
        registered = await self._registrations.list()
        return registered.with_draining((await self._drains.draining()).bookies)

    async def _who_left(self, then: Attendance) -> str:
        draining = await self._drains.begun((await self._bookies()).draining)
        return who_left(then, await read_parents(self._connection.store, self.cluster), draining)

    async def _changed_ms(self, ids: Sequence[LedgerId]) -> Mapping[LedgerId, int]:
        return {each: stat.mtime_ms for each, stat in zip(ids, await self._stats(ids), strict=True) if stat is not None}

    async def _zxid_before(self, ids: Sequence[LedgerId], before_ms: int) -> int:
        stats = [stat for stat in await self._stats(ids) if stat is not None]
        made = [stat.czxid for stat in stats if stat.ctime_ms <= before_ms]
        changed = [stat.mzxid for stat in stats if stat.mtime_ms <= before_ms]
        return max((*made, *changed), default=0)

    async def _stats(self, ids: Sequence[LedgerId]) -> list[Stat | None]:
        stats: list[Stat | None] = []
        for start in range(0, len(ids), _STATS_AT_ONCE):
            stats += await asyncio.gather(*map(self._stat, ids[start : start + _STATS_AT_ONCE]))
        return stats

    async def _stat(self, ledger_id: LedgerId) -> Stat | None:
        cluster = self.cluster
        try:
            return await self._connection.store.stat(ledger_path(cluster.kind, cluster.root, ledger_id))
        except AccessDeniedError:
            return None

    async def _staying(self) -> AbstractSet[BookieId]:
        return (await self._bookies()).staying

    async def _count_planned(self, plan: Sequence[LeafParent], totals: ScanTotals) -> Mapping[str, int]:
        store, short = self._connection.store, incomplete_parents(plan, totals)
        found: dict[str, int] = {}
        if short:
            await store.sync(self.cluster.root)  # this server may lag behind those of the tasks
        for start in range(0, len(short), _NODES_AT_ONCE):
            some = short[start : start + _NODES_AT_ONCE]
            for parent, node in zip(some, await store.get_many([each.path for each in some]), strict=True):
                found[parent.path] = 0 if node is None else _planned_remaining(parent, leaf_stat(node.stat))
        for parent in short:
            if found[parent.path] > sum(totals.listed.get(parent.path, ())):
                found[parent.path] = await self._list_planned(parent)  # not each child may be a ledger
        return found

    async def _list_planned(self, parent: LeafParent) -> int:
        try:
            listing = await self._connection.store.children(parent.path)
        except NoNodeError:
            return 0
        ledgers = ledger_ids_under(self.cluster.kind, self.cluster.root, parent.path, listing.names)
        creates = creates_of(listing.version, len(listing.names))
        return planned_remaining(parent, len(ledgers), listing.czxid, creates)


def _planned_remaining(parent: LeafParent, now: LeafStat) -> int:
    return planned_remaining(parent, now.children, now.czxid, now.creates)


@contextmanager
def opened_cluster(
    uri: MetadataUri, clock: Clock, budget: Budget, connect_timeout_s: float = CONNECT_TIMEOUT_S
) -> Iterator[ClusterView]:
    """Connect to the cluster as the driver of a run, and disconnect at the end.

    Args:
        uri: the metadata URI of the cluster.
        clock: the machine's clock, or a clock for tests.
        budget: the budget of the run, with the run's id.
        connect_timeout_s: how long to try.

    Raises:
        StoreUnavailableError: no answer from the hosts.
        NotAClusterError: there is no cluster at the root.
    """
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            opening = connected_as_reader(uri, connect_timeout_s, clock, budget.whole)
            yield ClusterView(runner, runner.run(stack.enter_async_context(opening)), clock, budget)
        finally:
            runner.run(stack.aclose())
