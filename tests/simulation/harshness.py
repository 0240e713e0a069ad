"""Behaviour of real servers, networks and disks that histories of smaller seeds do not have.

Each history has some of it, by its own random numbers. So the histories of smaller seeds do not change.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.simulation.nodes import SimBookie
    from tests.simulation.world import SimWorld

_SHARE: Final = 0.6
"""The share of histories with each kind of behaviour."""
_PAUSE_S: Final = 1.5
"""The mean pause between two faults of this module."""
_LONGEST_S: Final = 3.0
_LONGEST_JUMP_DIGITS: Final = 6.0
"""The clock of the store jumps by at most a million seconds, which is more than a week."""
_OPERATED_SHARE: Final = 0.25
_OPERATIONS: Final = 2
_OPERATION_PAUSE_S: Final = 4.0
_PARTS: Final = (1, 1, 2, 3, 8)


class Harshness:
    """The behaviour of one history.

    Attributes:
        rng: the random numbers of all this behaviour.
        ends_sessions: the store ends the session of a process that was frozen, or had no connection, for too long. The
            process learns of it later.
        loses_writes: a write whose outcome is unknown may not have been carried out.
        splits_reads: a read of many nodes is several requests, between which other clients change the nodes.
        delays_watches: the end of a wait for a change arrives later than the change.
        breaks_connections: a killed bookie, or a broken connection, ends its calls with UNREACHABLE, whether or not
            they took effect.
        cuts_answers: a read returns a part of its results, and the status of a broken connection.
        refuses_reads: a busy bookie also refuses reads and fences.
        fails_adds: an add fails with an I/O error, perhaps after its entries were stored.
        fails_syncs: a sync fails, with an I/O error or because the disk is full.
        leaves_holes: a power loss leaves zeros inside an unsynced append of which a later part was kept.
        fails_replaces: the disk is full after a file was replaced and renamed, and before the name is durable.
        jumps_store_clock: the clock of the store's server jumps.
        operates: an operator disables repair, or limits all copies, for a while.
    """

    def __init__(self, seed: int, *, has_more: bool = False) -> None:
        self.rng = rng = random.Random(f"harshness {seed}")
        self.ends_sessions = rng.random() < _SHARE
        self.loses_writes = rng.random() < _SHARE
        self.splits_reads = rng.random() < _SHARE
        self.delays_watches = rng.random() < _SHARE
        self.breaks_connections = rng.random() < _SHARE
        self.cuts_answers = rng.random() < _SHARE
        self.refuses_reads = rng.random() < _SHARE
        self.fails_adds = rng.random() < _SHARE
        self.fails_syncs = rng.random() < _SHARE
        more = random.Random(f"more harshness {seed}")
        self.leaves_holes = has_more and more.random() < _SHARE
        self.fails_replaces = has_more and more.random() < _SHARE
        self.jumps_store_clock = has_more and more.random() < _SHARE
        self.operates = has_more and more.random() < _OPERATED_SHARE

    def part_size(self) -> int:
        """Return the number of nodes in the next request of a read of many."""
        return self.rng.choice(_PARTS)

    async def trouble(self, world: SimWorld) -> None:
        """Cause faults until the world starts to heal."""
        faults: list[Callable[[SimWorld], bool]] = []
        if self.ends_sessions:
            faults += [self._freeze_long, self._cut_off_long]
        if self.breaks_connections:
            faults.append(self._break_connection)
        if self.refuses_reads:
            faults.append(self._refuse_reads)
        if self.fails_adds:
            faults.append(self._fail_adds)
        if self.fails_syncs:
            faults.append(self._fail_sync)
        if self.fails_replaces:
            faults.append(self._fail_replace)
        if self.jumps_store_clock:
            faults.append(self._jump_store_clock)
        while faults and not world.is_healing:
            await asyncio.sleep(self.rng.expovariate(1 / (_PAUSE_S * world.variation.scale)))
            fault = self.rng.choice(faults)
            if not world.is_healing and fault(world):
                world.note_fault(fault.__name__.strip("_").replace("_", " "))

    async def operate(self, world: SimWorld, inject: Callable[[str], None]) -> None:
        """Let an operator change what workers may do, a few times until the world starts to heal."""
        for _ in range(_OPERATIONS):
            await asyncio.sleep(self.rng.expovariate(1 / (_OPERATION_PAUSE_S * world.variation.scale)))
            if world.is_healing:
                return
            inject(self.rng.choice(("disable", "limit copies")))

    def _freeze_long(self, world: SimWorld) -> bool:
        node, client = self._bookie(world), self.rng.choice(world.clients)
        seconds = self._session_length_s(world)
        if self.rng.random() < 0.4 and node.is_serving:
            node.process.held_until_s = world.loop.time() + seconds
            node.store.hold(node.process.held_until_s)
            world.trace.event("HARSH", f"{node.process.name} is frozen for {seconds:.3f} s")
            return True
        if client.process.is_alive:
            client.freeze(seconds)
        return client.process.is_alive

    def _cut_off_long(self, world: SimWorld) -> bool:
        node, client = self._bookie(world), self.rng.choice(world.clients)
        seconds = self._session_length_s(world)
        if self.rng.random() < 0.4 and node.is_serving:
            node.store.suspend()
            world.loop.call_later(seconds, node.resume_session)
            world.trace.event("HARSH", f"{node.process.name} has no connection to the store for {seconds:.3f} s")
            return True
        if client.process.is_alive:
            client.interrupt_session(seconds)
        return client.process.is_alive

    def _session_length_s(self, world: SimWorld) -> float:
        """Return about the time after which the store ends a session."""
        return world.session_s * (0.7 + 0.8 * self.rng.random())

    def _break_connection(self, world: SimWorld) -> bool:
        links = world.network.busy_links()
        if not links:
            return False
        sender, host = self.rng.choice(links)
        world.trace.event("HARSH", f"the connection of {sender} and {host} breaks")
        world.network.break_connections(host, sender)
        return True

    def _refuse_reads(self, world: SimWorld) -> bool:
        node = self._bookie(world)
        node.faults.reads_refused_until_s = world.loop.time() + self._duration_s(world)
        world.trace.event("HARSH", f"{node.process.name} refuses reads")
        return True

    def _fail_adds(self, world: SimWorld) -> bool:
        node = self._bookie(world)
        node.faults.adds_fail_until_s = world.loop.time() + self._duration_s(world)
        world.trace.event("HARSH", f"adds of {node.process.name} fail")
        return True

    def _fail_sync(self, world: SimWorld) -> bool:
        node = self._bookie(world)
        if not node.is_serving or len(world.living_bookies()) < len(world.bookies):
            return False
        if self.rng.random() < 0.5:
            node.faults.sync_fails = 1
        else:
            node.faults.sync_is_full = 1
        return True

    def _fail_replace(self, world: SimWorld) -> bool:
        node = self._bookie(world)
        node.faults.replace_is_full = 1
        return node.is_serving

    def _jump_store_clock(self, world: SimWorld) -> bool:
        seconds = self.rng.choice((-1, 1)) * 10 ** self.rng.uniform(1, _LONGEST_JUMP_DIGITS)
        world.cell.offset_s += seconds
        world.trace.event("HARSH", f"the clock of the store jumps by {seconds:.0f} s")
        return True

    def _bookie(self, world: SimWorld) -> SimBookie:
        return self.rng.choice([world.bookies[name] for name in sorted(world.bookies)])

    def _duration_s(self, world: SimWorld) -> float:
        return (0.2 + self.rng.random() ** 2 * _LONGEST_S) * world.variation.scale
