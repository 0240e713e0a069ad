"""A small cluster whose metadata changes at random: bookies, ledgers, workers, operators and backups, in memory.

Every change is one that a real cluster can make. Workers are modelled by their writes: the lock, the change of the
ensemble, the completed mark.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from auditor.safety.lost_entries import lost_fragments
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.topology import TopologyStore
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind, bookie_path, cookie_path, lost_bookie_delay_path, task_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode, encode
from bookie.metadata.nodes import ensure_path, find, put
from bookie.metadata.port import ANY_VERSION, AccessDeniedError, Check
from bookie.metadata.runs.check_times import CheckKind, CheckTimes
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell, _copy
from bookie.metadata.tasks.decisions import Decision, DecisionKind, Decisions, LostFragment
from bookie.metadata.tasks.locks import HeldTask, Task
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.availability import EntryRuns
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.wire.port import Status
from tests.simulation.audits.holding import ENTRIES, HeldEntries
from tests.simulation.audits.judging import Lacking, lacking
from tests.simulation.audits.placing import POLICY_KEY, Places, policy_data
from tests.worlds import snapshots
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import ROOT, formatted

BOOKIES_AT_START: Final = 6
BOOKIES_MAX: Final = 8
LIVE_MIN: Final = 3
LEDGERS_AT_START: Final = 12
LEDGERS_MIN: Final = 4
DAMAGED_MAX: Final = 3
LAST: Final = 20
"""The last entry of a closed ledger."""
_ID_STEPS: Final = (1, 1, 1, 1, 9_999, 20_000_000, 2**31)
"""Distances between new ids: most ledgers are under one node, and some are in other parts of the tree."""


class BackedUpCell(MemoryCell):
    """A store that can be set back to a backup, like a ZooKeeper whose data directory is restored."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self._backup: tuple[dict[str, object], int] | None = None

    def save(self) -> None:
        """Make a backup. It has no ephemeral nodes, whose sessions end before a restored server starts."""
        gone = {path for path, node in self._nodes.items() if node.ephemeral_owner}
        nodes = {path: _copy(node) for path, node in self._nodes.items() if path not in gone}
        for path in gone:
            parent, _, name = path.rpartition("/")
            node = nodes[parent]
            assert node is not None
            node.children.discard(name)
        self._backup = dict(nodes), self._zxid

    @property
    def has_backup(self) -> bool:
        return self._backup is not None

    def restore(self, zxid_ahead: int) -> None:
        """Set the store back, and continue with transactions that are this far ahead."""
        assert self._backup is not None
        nodes, zxid = self._backup
        self._nodes = {path: _copy(node) for path, node in nodes.items()}  # type: ignore[arg-type, misc]
        self._zxid = zxid + zxid_ahead


@dataclass(slots=True, eq=False)
class Repair:
    """The repair of one position, by a worker of bkheal or of Apache."""

    store: MemoryStore
    tasks: UnderReplication
    held: HeldTask
    fragment: int
    position: int
    target: BookieId
    version: int
    is_apache: bool
    is_installed: bool = False

    @property
    def ledger_id(self) -> LedgerId:
        return self.held.task.ledger_id


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A snapshot of the store, and the ledgers in it."""

    file: Path
    ledgers: Mapping[LedgerId, LedgerMetadata]
    """For each readable ledger, its metadata."""

    def closed(self) -> Iterator[tuple[LedgerId, LedgerMetadata]]:
        """Yield the closed ledgers."""
        return ((each, metadata) for each, metadata in self.ledgers.items() if metadata.is_closed)


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a cluster at one time."""

    ledgers: Mapping[LedgerId, LedgerMetadata | None]
    """None: the metadata cannot be read."""
    registered: AbstractSet[BookieId]
    draining: AbstractSet[BookieId]
    marks: Mapping[LedgerId, AbstractSet[BookieId]]
    accepted: Mapping[LedgerId, Decision]
    locked: AbstractSet[LedgerId]
    lost: AbstractSet[BookieId]
    """The bookies that are not registered and have a cookie."""
    audited: AbstractSet[BookieId]
    """Those of them whose loss an audit has covered."""
    unreadable_marks: AbstractSet[LedgerId]
    """Marked ledgers, as the others, whose task cannot be read."""
    is_disabled: bool
    """Whether an operator has disabled auto-recovery."""
    cookies: AbstractSet[BookieId]
    writable: AbstractSet[BookieId]
    places: Places | None
    """The topology in use; None: it is invalid, or may not be read."""
    check_times: Mapping[CheckKind, int]
    """When each check was last recorded as complete."""

    def is_closed(self, ledger_id: LedgerId) -> bool:
        metadata = self.ledgers[ledger_id]
        return metadata is not None and metadata.is_closed

    @property
    def staying(self) -> AbstractSet[BookieId]:
        return self.registered - self.draining

    def lacking(self) -> Mapping[LedgerId, Lacking]:
        """Return what each readable ledger lacks."""
        standing = {
            ledger_id: decision for ledger_id, decision in self.accepted.items() if decision.is_valid(self.registered)
        }
        found = {
            ledger_id: lacking(metadata, self.registered, self.draining, standing.get(ledger_id))
            for ledger_id, metadata in self.ledgers.items()
            if metadata is not None
        }
        return {ledger_id: each for ledger_id, each in found.items() if each is not None}


class AuditedCluster:
    """The cluster of one history.

    Attributes:
        clock: the true time, which is that of ZooKeeper.
        changes: the changes so far, for the log of the history.
    """

    def __init__(self, directory: Path, rng: random.Random) -> None:
        """Make the cluster; ``rng`` chooses what never changes during the history."""
        self.clock = ManualClock()
        self.cell = BackedUpCell(self.clock.epoch_ms)
        self.changes: list[str] = []
        self.snapshot: SnapshotFile | None = None
        self._directory = directory
        self._sessions: dict[BookieId, tuple[MemoryStore, bool]] = {}
        self._gone: list[BookieId] = []
        self.held = HeldEntries(apache={BookieId(f"b{number}:1") for number in range(20) if rng.random() < 0.3})
        self._next_id = 1
        self._next_bookie = 0
        self._repairs: list[Repair] = []
        self._deleted: list[LedgerId] = []
        self._damaged: dict[LedgerId, bytes] = {}
        self._denied: set[LedgerId] = set()
        self._damaged_mark: tuple[str, bytes] | None = None
        self._delay_s = rng.choice([0, 0, 0, 900])
        self._layout = rng.choice([LayoutKind.HIERARCHICAL, LayoutKind.HIERARCHICAL, LayoutKind.LONG_HIERARCHICAL])
        self._opened()

    def _opened(self) -> None:
        self._store = MemoryStore(self.cell)
        self._drains = Drains(self._store, ROOT)
        self._decisions = Decisions(self._store, ROOT)
        self._down = FirstSeenDown(self._store, ROOT)

    async def begin(self, rng: random.Random) -> None:
        """Format the cluster, and create its first bookies and ledgers."""
        self.cluster: Cluster = await formatted(self._store, kind=self._layout)
        self._ledgers = LedgerStore(self._store, self.cluster, random.Random(1))
        self._tasks = UnderReplication(self._store, self.cluster, self.clock)
        await self._tasks.initialize()
        await ensure_path(self._store, f"{ROOT}/cookies", ROOT)
        await put(self._store, lost_bookie_delay_path(ROOT), str(self._delay_s).encode())
        for _ in range(BOOKIES_AT_START):
            await self._add_bookie()
        for _ in range(LEDGERS_AT_START):
            await self.create(rng)

    def registered(self) -> frozenset[BookieId]:
        """Return the bookies that run."""
        return frozenset(self._sessions)

    async def seen(self) -> Seen:
        """Return the current state."""
        draining = await self._draining()
        tasks = await self._tasks.list_all()
        marks = {task.ledger_id: frozenset(task.missing) for task in tasks if isinstance(task, Task)}
        return Seen(
            {ledger_id: await self._metadata(ledger_id) for ledger_id in await self._ids()},
            frozenset(self._sessions),
            draining,
            marks,
            {decision.ledger_id: decision for decision in await self._decisions.accepted()},
            frozenset(repair.ledger_id for repair in self._repairs),
            frozenset(self._gone) & await Registrations(self._store, self.cluster).known(),
            frozenset(bookie for bookie, down in (await self._down.read()).items() if down.audited_ms),
            frozenset(task.ledger_id for task in tasks if not isinstance(task, Task)),
            await self._tasks.switches.is_disabled(),
            await Registrations(self._store, self.cluster).known(),
            frozenset(await self._writable()),
            await self._places(),
            {kind: await CheckTimes(self._store, self.cluster).read(kind) for kind in CheckKind},
        )

    async def change(self, name: str, rng: random.Random) -> None:
        """Make one change if it is possible now; one that another process prevents has no effect."""
        act: Callable[[random.Random], Awaitable[object]] = getattr(self, name)
        try:
            done = await act(rng)
        except BkhealError as error:
            done = f"refused: {error}"
        if done is not None:
            self.changes.append(f"{name}: {done}")

    # Ledgers

    async def create(self, rng: random.Random, ledger_id: LedgerId | None = None) -> object:
        writable = await self._writable()
        if len(writable) < 2:
            return None
        size = min(len(writable), rng.choice([2, 2, 3, 4]))
        members = tuple(rng.sample(writable, size))
        ctime_ms = self.clock.epoch_ms() if rng.random() < 0.7 else None
        write_quorum = min(size, rng.choice([2, 2, 3]))
        ack_quorum = rng.randrange(1, write_quorum + 1)
        custom = self._wish(rng)
        metadata = LedgerMetadata(
            size, write_quorum, ack_quorum, (Fragment(EntryId(0), members),), ctime_ms=ctime_ms, custom=custom
        )
        if rng.random() < 0.7:
            metadata = metadata.closed(EntryId(LAST), 100)
        if ledger_id is None:
            ledger_id = LedgerId(self._next_id)
            self._next_id += rng.choice(_ID_STEPS)
        await self._ledgers.create(ledger_id, metadata)
        self.held.restore(ledger_id)
        return f"{ledger_id} on {members}, Qw={write_quorum}, {metadata.state.name}"

    def _wish(self, rng: random.Random) -> tuple[tuple[str, bytes], ...]:
        """Return the custom metadata of a new ledger: some ask for groups, and some in an unreadable way."""
        if rng.random() < 0.6:
            return ()
        primary, secondary = rng.choice([("red", ""), ("red", "blue"), ("red,green", ""), ("*", ""), ("", "blue")])
        data = policy_data(primary, secondary) if rng.random() < 0.9 else b"not JSON"
        return ((POLICY_KEY, data),)

    async def create_again(self, rng: random.Random) -> object:
        """Create a ledger with the id of a deleted one."""
        there = set(await self._ids())
        free = [ledger_id for ledger_id in self._deleted if ledger_id not in there]
        return await self.create(rng, rng.choice(free)) if free else None

    async def close(self, rng: random.Random) -> object:
        chosen = await self._chosen(rng, lambda metadata: not metadata.is_closed)
        if chosen is None:
            return None
        ledger_id, metadata, version = chosen
        await self._ledgers.write(ledger_id, metadata.closed(EntryId(2 * LAST), 100), version)
        return ledger_id

    async def change_ensemble(self, rng: random.Random) -> object:
        chosen = await self._chosen(rng, lambda metadata: not metadata.is_closed)
        if chosen is None:
            return None
        ledger_id, metadata, version = chosen
        last = metadata.last_fragment
        spare = [bookie for bookie in await self._writable() if bookie not in last.members]
        if not spare:
            return None
        members = _with(last.members, rng.randrange(len(last.members)), rng.choice(spare))
        added = Fragment(EntryId(last.first_entry_id + rng.choice([0, 3])), members)
        kept = metadata.fragments if added.first_entry_id > last.first_entry_id else metadata.fragments[:-1]
        await self._ledgers.write(ledger_id, replace(metadata, fragments=(*kept, added)), version)
        return f"{ledger_id} to {members}"

    async def delete(self, rng: random.Random) -> object:
        ids = await self._ids()
        if len(ids) <= LEDGERS_MIN:
            return None
        ledger_id = rng.choice(ids)
        self._allow(ledger_id)
        await self._ledgers.delete(ledger_id)
        self._deleted.append(ledger_id)
        self._damaged.pop(ledger_id, None)
        return ledger_id

    async def damage(self, rng: random.Random) -> object:
        chosen = await self._chosen(rng)
        if chosen is None or len(self._damaged) >= DAMAGED_MAX:
            return None
        ledger_id, metadata, _ = chosen
        self._damaged[ledger_id] = encode(metadata)
        await self._store.set(self._ledgers.path(ledger_id), b"damage", ANY_VERSION)
        return ledger_id

    async def mend(self, rng: random.Random) -> object:
        if not self._damaged:
            return None
        ledger_id = rng.choice(sorted(self._damaged))
        await self._store.set(self._ledgers.path(ledger_id), self._damaged.pop(ledger_id), ANY_VERSION)
        return ledger_id

    async def deny(self, rng: random.Random) -> object:
        """Let no client read a ledger's node."""
        chosen = await self._chosen(rng)
        if chosen is None or self._denied:
            return None
        self._denied.add(chosen[0])
        self.cell.deny(self._ledgers.path(chosen[0]))
        return chosen[0]

    async def allow(self, rng: random.Random) -> object:
        if not self._denied:
            return None
        ledger_id = rng.choice(sorted(self._denied))
        self._allow(ledger_id)
        return ledger_id

    def _allow(self, ledger_id: LedgerId) -> None:
        self._denied.discard(ledger_id)
        self.cell.allow(self._ledgers.path(ledger_id))

    # Bookies

    async def lose(self, rng: random.Random) -> object:
        if len(self._sessions) <= LIVE_MIN:
            return None
        bookie = rng.choice(sorted(self._sessions))
        await self._unregister(bookie)
        return bookie

    async def bring_back(self, rng: random.Random) -> object:
        if not self._gone:
            return None
        bookie = self._gone.pop(rng.randrange(len(self._gone)))
        await self._register(bookie, is_read_only=rng.random() < 0.2)
        return bookie

    async def visit(self, rng: random.Random) -> object:
        """A lost bookie returns, gets copies of workers that have finished, and leaves."""
        if not self._gone:
            return None
        bookie = self._gone.pop(rng.randrange(len(self._gone)))
        await self._register(bookie)
        moved = []
        for _ in range(rng.randrange(3)):
            chosen = await self._chosen(rng, lambda metadata: metadata.is_closed and bookie not in metadata.members())
            if chosen is not None and not self._is_locked(chosen[0]):
                ledger_id, metadata, version = chosen
                position = rng.randrange(metadata.ensemble_size)
                await self._ledgers.write(ledger_id, _moved(metadata, 0, position, bookie), version)
                self.held.restore(ledger_id, bookie)
                moved.append(ledger_id)
        if len(self._sessions) > LIVE_MIN:
            await self._unregister(bookie)
        return f"{bookie} got {moved}"

    async def join(self, rng: random.Random) -> object:
        return await self._add_bookie() if len(self._sessions) < BOOKIES_MAX else None

    async def decommission(self, rng: random.Random) -> object:
        """Remove the cookie of a lost bookie that no ledger names."""
        named = [await self._metadata(ledger_id) for ledger_id in await self._ids()]
        if not self._gone or None in named:
            return None
        members = frozenset().union(*(metadata.members() for metadata in named if metadata is not None))
        unnamed = [bookie for bookie in self._gone if bookie not in members]
        if not unnamed:
            return None
        bookie = rng.choice(unnamed)
        self._gone.remove(bookie)
        await self._store.delete(cookie_path(ROOT, bookie))
        return bookie

    async def flip(self, rng: random.Random) -> object:
        """Make a bookie read-only, or writable again."""
        bookie = rng.choice(sorted(self._sessions))
        store, is_read_only = self._sessions[bookie]
        self._sessions[bookie] = store, not is_read_only
        await store.create(bookie_path(ROOT, bookie, is_read_only=not is_read_only), is_ephemeral=True)
        await store.delete(bookie_path(ROOT, bookie, is_read_only=is_read_only))
        return bookie

    async def drain(self, rng: random.Random) -> object:
        draining = await self._draining()
        bookie = rng.choice([*sorted(self._sessions), *self._gone])
        if len(draining) >= 2 or bookie in draining:
            return None
        await self._drains.start(Drain(bookie, "test", self.clock.epoch_ms()))
        return bookie

    async def end_drain(self, rng: random.Random) -> object:
        draining = sorted(await self._draining())
        if not draining:
            return None
        bookie = rng.choice(draining)
        await self._drains.stop(bookie)
        return bookie

    # Marks, workers and operators

    async def mark(self, rng: random.Random) -> object:
        """Another program marks a ledger: for better placement, or with a member that it misses."""
        chosen = await self._chosen(rng)
        if chosen is None:
            return None
        ledger_id, metadata, _ = chosen
        names = () if rng.random() < 0.6 else (rng.choice(sorted(metadata.members())),)
        await self._tasks.marking.mark(ledger_id, names)
        return f"{ledger_id} {names}"

    async def damage_mark(self, rng: random.Random) -> object:
        """A mark becomes unreadable: its node is damaged, or may not be read."""
        ids = await self._tasks.ids()
        if self._damaged_mark is not None or not ids:
            return None
        path = task_path(ROOT, rng.choice(ids))
        self._damaged_mark = path, (await self._store.get(path)).data
        if rng.random() < 0.5:
            self.cell.deny(path)
        else:
            await self._store.set(path, b"\xff damage", ANY_VERSION)
        return path

    async def mend_mark(self, rng: random.Random) -> object:
        if self._damaged_mark is None:
            return None
        (path, data), self._damaged_mark = self._damaged_mark, None
        self.cell.allow(path)
        await self._store.set(path, data, ANY_VERSION)
        return path

    async def disable(self, rng: random.Random) -> object:
        """An operator disables auto-recovery."""
        await self._tasks.switches.disable()
        return "auto-recovery"

    async def enable(self, rng: random.Random) -> object:
        await self._tasks.switches.enable()
        return "auto-recovery"

    async def begin_repair(self, rng: random.Random) -> object:
        free = [ledger_id for ledger_id in await self._tasks.ids() if not self._is_locked(ledger_id)]
        if not free:
            return None
        store = MemoryStore(self.cell)
        tasks = UnderReplication(store, self.cluster, self.clock)
        held = await tasks.locks.lock(rng.choice(free), "worker")
        if held is None:
            await store.close()
            return None
        ledger_id = held.task.ledger_id
        try:
            found = await self._ledgers.read(ledger_id)
        except UnreadableMetadataError:
            await store.close()
            return None
        except AccessDeniedError:
            await store.close()
            return None
        except BkhealError:
            await tasks.locks.complete(held)
            await store.close()
            return f"{ledger_id} is deleted"
        if not found.metadata.is_closed:
            await store.close()
            return None
        staying = frozenset(self._sessions) - await self._draining()
        bad = [
            (number, position)
            for number, fragment in enumerate(found.metadata.fragments)
            for position, member in enumerate(fragment.members)
            if member not in staying
        ]
        number, position = rng.choice(bad) if bad else (0, 0)
        spare = [each for each in await self._writable() if each not in found.metadata.fragments[number].members]
        if not spare or (not bad and rng.random() < 0.4):
            is_done = False
            if not bad:
                is_done = await tasks.locks.complete(held, [Check(self._ledgers.path(ledger_id), found.version)])
            await store.close()
            return f"{ledger_id} needs nothing" if is_done else None
        target, is_apache = rng.choice(spare), rng.random() < 0.3
        self._repairs.append(Repair(store, tasks, held, number, position, target, found.version, is_apache))
        return f"{ledger_id} fragment {number} position {position} to {target}{' (Apache)' * is_apache}"

    async def install(self, rng: random.Random) -> object:
        copied = [repair for repair in self._repairs if not repair.is_installed]
        if not copied:
            return None
        repair = rng.choice(copied)
        try:
            found = await self._ledgers.read(repair.ledger_id)
        except BkhealError:
            found = None
        is_target_there = repair.is_apache or repair.target in await self._writable()
        if found is None or found.version != repair.version or not is_target_there:
            await self._end(repair)
            return f"{repair.ledger_id} given up"
        moved = _moved(found.metadata, repair.fragment, repair.position, repair.target)
        await self._ledgers.write(repair.ledger_id, moved, found.version)
        self.held.restore(repair.ledger_id, repair.target)
        repair.is_installed = True
        return f"{repair.ledger_id} to {[fragment.members for fragment in moved.fragments]}"

    async def finish_repair(self, rng: random.Random) -> object:
        installed = [repair for repair in self._repairs if repair.is_installed]
        if not installed:
            return None
        repair = rng.choice(installed)
        staying = frozenset(self._sessions) - await self._draining()
        try:
            members = (await self._ledgers.read(repair.ledger_id)).metadata.members()
        except BkhealError:
            members = frozenset()
        is_done = (repair.is_apache or members <= staying) and await repair.tasks.locks.complete(repair.held)
        await self._end(repair)
        return f"{repair.ledger_id}, the mark {'is completed' if is_done else 'stays'}"

    async def accept(self, rng: random.Random) -> object:
        """An operator accepts the loss of entries of which no registered bookie has a copy."""
        registered = frozenset(self._sessions)
        chosen = await self._chosen(
            rng,
            lambda metadata: metadata.is_closed and bool(lost_fragments(metadata, metadata.members() - registered)),
        )
        if chosen is None:
            return None
        ledger_id, metadata, _ = chosen
        lost = lost_fragments(metadata, metadata.members() - registered)
        if rng.random() < 0.5:
            lost = tuple(replace(each, entries=(), shared=()) for each in lost)
        return await self._accept(ledger_id, metadata, lost, rng)

    async def _accept(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, lost: tuple[LostFragment, ...], rng: random.Random
    ) -> str:
        ctime_ms = metadata.ctime_ms if rng.random() < 0.7 else None
        decision = Decision(
            ledger_id,
            DecisionKind.LOSS_ACCEPTED,
            "test",
            self.clock.epoch_ms(),
            "",
            lost=lost,
            ledger_ctime_ms=ctime_ms,
        )
        await self._store.multi([await self._decisions.writing(decision)])
        return f"{ledger_id} created {ctime_ms}: {[(each.positions, each.shared) for each in lost]}"

    async def damage_acceptance(self, rng: random.Random) -> object:
        """The record of an accepted loss may not be read any more, so it accepts nothing."""
        accepted = sorted(decision.ledger_id for decision in await self._decisions.accepted())
        if not accepted:
            return None
        path = self._decisions.path(rng.choice(accepted))
        self.cell.deny(path)
        return path

    # Entries of bookies

    async def lose_entries(self, rng: random.Random) -> object:
        """A registered bookie lacks entries of a ledger: it never got them, or lost a disk without any trace."""
        return await self._take(rng, is_damage=False)

    async def damage_entries(self, rng: random.Random) -> object:
        return await self._take(rng, is_damage=True)

    async def _take(self, rng: random.Random, *, is_damage: bool) -> object:
        chosen = await self._chosen(rng)
        if chosen is None:
            return None
        ledger_id, metadata, _ = chosen
        entries = rng.choice([range(ENTRIES), range(7, 9), [rng.randrange(LAST + 1)], [0], [LAST]])
        members = sorted(metadata.members())
        bookies = rng.sample(members, rng.randrange(1, len(members) + 1))
        for bookie in bookies:
            self.held.take((bookie, ledger_id), frozenset(entries), is_damage=is_damage)
        return f"{ledger_id} on {bookies}: {list(entries)[:5]}"

    async def find_entries(self, rng: random.Random) -> object:
        """The bookies get the entries of a ledger back."""
        lacking = sorted({ledger_id for _, ledger_id in (*self.held.absent, *self.held.damaged)})
        if not lacking:
            return None
        ledger_id = rng.choice(lacking)
        self.held.restore(ledger_id)
        return ledger_id

    async def silence(self, rng: random.Random) -> object:
        """A bookie answers nothing, or that it does not have an answer."""
        if self.held.answers:
            return None
        bookie = rng.choice(sorted(self._sessions))
        self.held.answers[bookie] = rng.choice([Status.LIMBO, Status.IO_ERROR, Status.TIMEOUT, Status.UNREACHABLE])
        return f"{bookie} {self.held.answers[bookie].name}"

    async def hear(self, rng: random.Random) -> object:
        if not self.held.answers:
            return None
        bookie, _ = self.held.answers.popitem()
        return bookie

    async def accept_denied(self, rng: random.Random) -> object:
        """An operator accepts the loss of entries that every bookie denies or that were on lost ones."""
        registered = frozenset(self._sessions)
        everything = EntryRuns.of(range(ENTRIES))
        lacking = {ledger_id for _, ledger_id in self.held.absent}
        for ledger_id in rng.sample(sorted(lacking), len(lacking)):
            metadata = await self._metadata(ledger_id) if ledger_id in await self._ids() else None
            if metadata is None or not metadata.is_closed:
                continue
            listed = {
                bookie: everything.without(EntryRuns.of(sorted(self.held.absent[bookie, ledger_id])))
                for bookie in registered
                if (bookie, ledger_id) in self.held.absent
            }
            lost = lost_fragments(metadata, metadata.members() - registered, listed)
            if lost:
                if rng.random() < 0.3:
                    lost = tuple(replace(each, entries=(), shared=()) for each in lost)
                return await self._accept(ledger_id, metadata, lost, rng)
        return None

    # Places

    async def place(self, rng: random.Random) -> object:
        """An operator writes the topology: of bkheal, or of Pulsar with groups."""
        racks = rng.choice([["/r1", "/r2"], ["/r1", "/r2", "/r3"], ["/eu/r1", "/eu/r2", "/us/r1"], ["/r1"]])
        known = [f"b{number}:1" for number in range(self._next_bookie)]
        if rng.random() < 0.2:
            known.remove(rng.choice(known))
        places = {bookie: rng.choice(racks) for bookie in known}
        if rng.random() < 0.2:
            places = {bookie.split(":")[0]: where for bookie, where in places.items()}
        if rng.random() < 0.4:
            await self._put_topology(places, "own")
            return f"own node: {places}"
        grouped: dict[str, dict[str, object]] = {}
        for bookie, where in places.items():
            grouped.setdefault(rng.choice(["red", "red", "blue", "default", "green"]), {})[bookie] = {"rack": where}
        await self._put_topology(grouped, "pulsar")
        return f"Pulsar's node: {grouped}"

    async def damage_places(self, rng: random.Random) -> object:
        """The topology becomes invalid, or may not be read."""
        if rng.random() < 0.7:
            return None
        content = rng.choice([b"{", {}])
        await self._put_topology(content, "own")
        if rng.random() < 0.5:
            self.cell.deny(TopologyStore(self._store, self.cluster).own_path)
            return "denied"
        return f"{content!r}"

    async def _put_topology(self, content: object, node: str) -> None:
        store = TopologyStore(self._store, self.cluster)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.cell.allow(store.own_path)
        await ensure_path(self._store, "/bkheal/topology", "/")
        await put(self._store, store.own_path, data if node == "own" else b"")
        if node == "pulsar":
            await put(self._store, store.pulsar_path, data)

    async def _places(self) -> Places | None:
        for path in ("/bkheal/topology/ledgers", "/bookies"):
            try:
                node = await find(self._store, path)
            except AccessDeniedError:
                return None
            if node is not None and node.data:
                return Places.read(node.data)
        return Places()

    # ZooKeeper

    async def wait(self, rng: random.Random) -> object:
        seconds = rng.choice([1, 60, 1_000, 3_600, 20_000, 86_400])
        self.clock.now_s += seconds
        return f"{seconds} s"

    async def take_snapshot(self, rng: random.Random) -> object:
        """A server of ZooKeeper writes a snapshot."""
        root = self._tree("/")
        file = self._directory / f"snapshot.{len(self.changes):x}"
        file.write_bytes(snapshots.written(root))
        found = {ledger_id: await self._metadata(ledger_id) for ledger_id in await self._ids()}
        self.snapshot = SnapshotFile(file, {each: metadata for each, metadata in found.items() if metadata is not None})
        return file.name

    async def back_up(self, rng: random.Random) -> object:
        self.cell.save()
        self._saved = self._next_id, list(self._deleted), dict(self._damaged)
        return "made"

    async def restore(self, rng: random.Random) -> object:
        """ZooKeeper is set back to a backup, and every client gets a new session."""
        if not self.cell.has_backup or rng.random() < 0.5:
            return None
        for repair in list(self._repairs):
            await self._end(repair)
        bookies = {bookie: is_read_only for bookie, (_, is_read_only) in self._sessions.items()}
        for store, _ in self._sessions.values():
            await store.close()
        self._sessions.clear()
        if self._damaged_mark is not None:
            self.cell.allow(self._damaged_mark[0])
            self._damaged_mark = None
        self.cell.restore(rng.choice([0, 1_000, 1 << 32]))
        self._next_id, self._deleted, self._damaged = self._saved
        self._deleted, self._damaged = list(self._deleted), dict(self._damaged)
        self._opened()
        self._ledgers = LedgerStore(self._store, self.cluster, random.Random(1))
        self._tasks = UnderReplication(self._store, self.cluster, self.clock)
        for bookie, is_read_only in bookies.items():
            await self._register(bookie, is_read_only=is_read_only)
        for ledger_id in self._denied:
            self.cell.deny(self._ledgers.path(ledger_id))
        self.snapshot = None
        return f"with {sorted(bookies)}"

    # Parts

    def _tree(self, path: str) -> snapshots.Znode:
        stat = self.cell.stat(path)
        assert stat is not None
        denied, self.cell._denied = self.cell._denied, set()
        try:
            node, names = self.cell.get(path), self.cell.children(path).names
        finally:
            self.cell._denied = denied
        creates = (stat.children_version + stat.children_count) // 2
        prefix = "" if path == "/" else path
        children = {name: self._tree(f"{prefix}/{name}") for name in sorted(names)}
        return snapshots.Znode(node.data, stat.czxid, creates, children, stat.children_zxid)

    async def _ids(self) -> list[LedgerId]:
        return [ledger_id async for ledger_id in self._ledgers.ids()]

    async def _metadata(self, ledger_id: LedgerId) -> LedgerMetadata | None:
        try:
            return decode((await self._store.get(self._ledgers.path(ledger_id))).data)
        except (UnreadableMetadataError, AccessDeniedError):
            return None

    async def _chosen(
        self, rng: random.Random, is_suited: Callable[[LedgerMetadata], bool] = lambda metadata: True
    ) -> tuple[LedgerId, LedgerMetadata, int] | None:
        """Return a random ledger with readable metadata, and the version of its node."""
        ids = await self._ids()
        rng.shuffle(ids)
        for ledger_id in ids:
            metadata = await self._metadata(ledger_id)
            if metadata is not None and is_suited(metadata):
                return ledger_id, metadata, (await self._store.get(self._ledgers.path(ledger_id))).stat.version
        return None

    async def _draining(self) -> frozenset[BookieId]:
        return (await self._drains.draining()).bookies

    async def _writable(self) -> list[BookieId]:
        draining = await self._draining()
        registered = sorted(self._sessions.items())
        return [bookie for bookie, (_, is_read_only) in registered if not is_read_only and bookie not in draining]

    async def _add_bookie(self) -> BookieId:
        bookie = BookieId(f"b{self._next_bookie}:1")
        self._next_bookie += 1
        await self._store.create(cookie_path(ROOT, bookie), b"x")
        await self._register(bookie)
        return bookie

    async def _register(self, bookie: BookieId, *, is_read_only: bool = False) -> None:
        store = MemoryStore(self.cell)
        self._sessions[bookie] = store, is_read_only
        await ensure_path(store, f"{ROOT}/available/readonly", ROOT)
        await store.create(bookie_path(ROOT, bookie, is_read_only=is_read_only), is_ephemeral=True)

    async def _unregister(self, bookie: BookieId) -> None:
        store, _ = self._sessions.pop(bookie)
        self._gone.append(bookie)
        await store.close()

    def _is_locked(self, ledger_id: LedgerId) -> bool:
        return any(repair.ledger_id == ledger_id for repair in self._repairs)

    async def _end(self, repair: Repair) -> None:
        """End the session of a worker, and so its lock."""
        self._repairs.remove(repair)
        await repair.store.close()


def _with(members: tuple[BookieId, ...], position: int, bookie: BookieId) -> tuple[BookieId, ...]:
    return (*members[:position], bookie, *members[position + 1 :])


def _moved(metadata: LedgerMetadata, number: int, position: int, bookie: BookieId) -> LedgerMetadata:
    """Return the metadata after a copy of one position of a fragment was moved to a bookie."""
    fragments = list(metadata.fragments)
    fragments[number] = Fragment(fragments[number].first_entry_id, _with(fragments[number].members, position, bookie))
    return replace(metadata, fragments=tuple(fragments))
