"""The faults of a history: their effects, their times, and how they end before the cluster heals."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from bookie.metadata.layout import lock_path
from bookie.metadata.port import SessionState
from bookie.metadata.tasks.copy_limits import CopyLimits
from bookie.model.ids import LedgerId
from bookie.model.metadata import LedgerMetadata
from tests.simulation import apps
from tests.simulation.nodes import SimBookie, SimClient
from tests.simulation.profiles import Profile
from tests.simulation.world import SimWorld

LONGEST_S: Final = 6.0
DOWN_MAX: Final = 2
"""The most bookies that single faults stop at a time. ``kill most bookies`` and power loss stop more."""
_STRETCH_MAX: Final = 3.0
"""The largest factor of a stretch with default settings: adds must arrive before their writer fails."""
INTERRUPTION_S: Final = 50.0
"""The length of an interruption: longer than a collector tries to release a lock."""
CLOCK_JUMP_MIN_MS: Final = 60_000
CLOCK_JUMP_MAX_MS: Final = 3 * 86_400_000
_LOCKS: Final = "/ledgers/underreplication/locks"


class Nemesis:
    """Injects faults at random times and at events. The seed selects the faults from its profile."""

    def __init__(self, world: SimWorld, profile: Profile, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._profile = profile
        names = sorted(profile.rates)
        chosen = [name for name in names if rng.random() < 0.7] or names
        self._scale = world.variation.scale
        self._rates = {name: profile.rates[name] / self._scale for name in chosen}
        self._wipes = 0
        self._lost = 0
        self._joined = 0
        self._recoverers = 0
        self._target_ledger: LedgerId | None = None
        """The ledger of the event at which a fault strikes."""
        self._where = ""
        self.targets: list[SimClient] = []
        """The applications. The world has the services as well."""
        self._faults: dict[str, Callable[[], bool]] = {
            "kill bookie": lambda: self._crash(is_power_lost=False),
            "power loss of one": lambda: self._crash(is_power_lost=True),
            "power loss here": self._power_loss_here,
            "power loss of all": self._power_loss_of_all,
            "kill most bookies": self._kill_most,
            "wipe bookie": self._wipe,
            "damage journal": self._damage_journal,
            "fail directory": self._fail_directory,
            "hang directory": self._hang_directory,
            "miss directory": self._miss_directory,
            "lose directory": self._lose_directory,
            "cut link": lambda: self._cut(is_both_ways=True),
            "cut one way": lambda: self._cut(is_both_ways=False),
            "slow link": self._slow_link,
            "slow bookie": self._slow_bookie,
            "delay adds": self._delay_adds,
            "lose fences": self._lose_fences,
            "stretch and recover": self._stretch,
            "freeze client": lambda: self._freeze(rng.choice(self._living_clients())),
            "freeze bookie": self._freeze_bookie,
            "kill client": self._kill_client,
            "lose session": self._lose_session,
            "interrupt session": self._interrupt_session,
            "lose all sessions": self._lose_all_sessions,
            "lose store answers": lambda: self._store_faults(lose_share=0.15),
            "slow store": lambda: self._store_faults(slow_share=0.3),
            "slow workers": self._slow_workers,
            "slow collector": self._slow_collector,
            "unlock soon": self._unlock_soon,
            "wipe soon": self._wipe_soon,
            "lag store": lambda: self._store_faults(lag_s=2.0 * rng.random() * self._scale),
            "delete lock": self._delete_lock,
            "stall disk": self._stall_disk,
            "fill disk": self._fill_disk,
            "rot": self._flip_bit,
            "rot and recover": self._rot_and_recover,
            "jump clock": self._jump_clock,
            "wipe one and lose another": self._wipe_one_and_lose_another,
            "wipe another": self._wipe_another,
            "lose for good": self._stop_until_repair,
            "destroy bookies": self._destroy,
            "kill rack": self._kill_rack,
            "join": self._join,
            "interrupt collector": self._interrupt_collector,
            "busy bookie": self._busy_bookie,
            "cut worker": self._cut_worker,
            "refuse everywhere": self._refuse_everywhere,
            "read-only bookie": self._read_only_bookie,
            "drain": self._drain,
            "disable": self._disable,
            "limit copies": self._limit_copies,
            "lose a worker's session": self._lose_worker_session,
            "stop store": self._stop_store,
            "lose an ensemble change": self._lose_ensemble_change,
            "lose a worker's write": self._lose_worker_write,
        }

    async def run(self) -> None:
        """Inject faults until the world starts to heal."""
        rate = sum(self._rates.values())
        names, weights = list(self._rates), list(self._rates.values())
        while not self._world.is_healing:
            await asyncio.sleep(self._rng.expovariate(rate))
            if not self._world.is_healing:
                self.inject(self._rng.choices(names, weights)[0])

    def on_event(self, kind: str, ledger_id: LedgerId | None, where: str) -> None:
        """Handle an event, at which a fault may strike; ``where`` names the bookie of the event, if any."""
        for name, chance in self._profile.triggers.get(kind, ()):
            if self._rng.random() < chance:
                self.inject(name, ledger_id, where)

    def inject(self, name: str, ledger_id: LedgerId | None = None, where: str = "") -> None:
        """Inject one fault, if it has a target."""
        world = self._world
        self._target_ledger, self._where = ledger_id, where
        is_done = self._interfere(name, ledger_id) if name in ("recover", "delete") else self._faults[name]()
        if is_done:
            world.note_fault(name)

    def _interfere(self, name: str, ledger_id: LedgerId | None) -> bool:
        world = self._world
        if not world.open_ledgers or self._recoverers >= 6:
            return False
        chosen = ledger_id if ledger_id is not None else self._rng.choice(world.open_ledgers)
        self._recoverers += 1
        client = world.client(f"meddler{self._recoverers}")
        work = apps.recover if name == "recover" else apps.delete
        client.process.run(name, work(world, client, chosen))
        return True

    def _crash(self, *, is_power_lost: bool) -> bool:
        world = self._world
        living = world.living_bookies()
        if len(living) <= len(world.bookies) - DOWN_MAX:
            return False
        node = self._rng.choice(living)
        node.crash(is_power_lost=is_power_lost)
        world.start_later(node, self._down_s())
        return True

    def _power_loss_here(self) -> bool:
        """Let the power of a bookie fail just before it makes data durable."""
        world = self._world
        node = world.bookies[self._where]
        if not node.process.is_alive or len(world.living_bookies()) <= len(world.bookies) - DOWN_MAX:
            return False

        def inject() -> None:
            if node.process.is_alive:
                node.crash(is_power_lost=True)
                world.start_later(node, self._down_s())

        node.process.held_until_s = max(node.process.held_until_s, world.loop.time() + 0.002)
        world.loop.call_later(0.001, inject)
        return True

    def _power_loss_of_all(self) -> bool:
        world = self._world
        for node in world.living_bookies():
            node.crash(is_power_lost=True)
            world.start_later(node, (0.2 + self._rng.random()) * self._scale)
        return True

    def _kill_most(self) -> bool:
        world = self._world
        living = world.living_bookies()
        for node in self._rng.sample(living, len(living) * 3 // 4):
            node.crash(is_power_lost=False)
            world.start_later(node, 3.0 * self._scale + self._down_s())
        return True

    def _kill_rack(self) -> bool:
        """Stop all bookies of the smallest rack, so long that their ledgers are repaired on others."""
        world = self._world
        living = world.living_bookies()
        if len(living) < len(world.bookies):
            return False
        racks = Counter(world.topology.location_of(node.bookie) for node in living)
        rack = min(sorted(racks), key=lambda name: racks[name])
        down_s = 10.0 * self._scale + 2 * self._down_s()
        self._note(f"rack {rack} is gone")
        for node in living:
            if world.topology.location_of(node.bookie) == rack:
                node.crash(is_power_lost=False)
                world.start_later(node, down_s)
        return True

    def _join(self) -> bool:
        """Let a new bookie join. Its rack is in the topology from the beginning."""
        world = self._world
        if self._joined >= self._profile.joins_max:
            return False
        self._joined += 1
        name = f"b{len(world.bookies)}"
        self._note(f"{name} joins")
        world.process.run("join", world.join(name))
        return True

    def _wipe(self) -> bool:
        world = self._world
        living = world.living_bookies()
        if self._wipes >= self._profile.wipes_max or not living:
            return False
        self._wipes += 1
        metadata = None if self._target_ledger is None else world.truth.metadata.get(self._target_ledger)
        named = [] if metadata is None else [node for node in living if node.bookie in metadata.last_fragment.members]
        here = [node for node in living if node.process.name == self._where and self._rng.random() < 0.5]
        node = self._rng.choice(here or named or living)
        node.crash(is_power_lost=False)
        node.wipe()
        if self._profile.is_beyond_quorum:
            world.truth.doom()
        world.start_later(node, 1.5 * self._down_s())  # long enough to move its ledgers to others
        return True

    def _damage_journal(self) -> bool:
        """Kill one of our bookies and damage its journal, so that it has lost copies, as after ``wipe bookie``."""
        world = self._world
        living = [node for node in world.living_bookies() if not (node.is_apache or node.missing_directory)]
        if self._wipes >= self._profile.wipes_max or not living:
            return False
        self._wipes += 1
        here = [node for node in living if node.process.name == self._where]
        node = self._rng.choice(here or living)
        node.crash(is_power_lost=False)
        node.is_journal_to_be_damaged = True
        world.start_later(node, 1.5 * self._down_s())
        return True

    def _fail_directory(self) -> bool:
        """Let writes to a ledger directory fail for a while. The bookie does not use it until its restart."""
        node = self._spread_bookie()
        if node is None or node.faults.failing_directory:
            return False
        node.faults.failing_directory = self._rng.randrange(1, len(node.ledger_disks))
        self._note(f"ledger directory {node.faults.failing_directory} of {node.process.name} fails")
        self._undo(lambda: setattr(node.faults, "failing_directory", 0))
        return True

    def _hang_directory(self) -> bool:
        """Let the disk of a ledger directory hang for a while. After a long hang, its entries count as damaged."""
        node = self._spread_bookie()
        rotten = self._world.truth.rotten
        if node is None or node.faults.hanging_directory or (rotten and node.bookie not in rotten):
            return False
        rotten.add(node.bookie)
        node.faults.hanging_directory = self._rng.randrange(1, len(node.ledger_disks))
        self._note(f"ledger directory {node.faults.hanging_directory} of {node.process.name} hangs")
        hangs_s = 1.5 * self._world.variation.silent_s * self._rng.random()
        self._world.loop.call_later(hangs_s, node.faults.end_hang)
        return True

    def _miss_directory(self) -> bool:
        """Restart a bookie without one of its ledger directories, whose entries count as damaged until it is back."""
        node = self._spread_bookie_to_rot()
        if node is None:
            return False
        node.missing_directory = self._rng.randrange(1, len(node.ledger_disks))
        self._note(f"ledger directory {node.missing_directory} of {node.process.name} is not mounted")
        return True

    def _lose_directory(self) -> bool:
        """Restart a bookie with an empty disk in place of the fullest of its later ledger directories."""
        node = self._spread_bookie_to_rot()
        if node is None:
            return False
        node.lose_directory(max(range(1, len(node.ledger_disks)), key=lambda n: node.ledger_disks[n].used_bytes()))
        return True

    def _spread_bookie_to_rot(self) -> SimBookie | None:
        """Stop a bookie with several ledger directories for a short time. All damage of a history is on one bookie."""
        world = self._world
        node = self._spread_bookie()
        if node is None or (world.truth.rotten and node.bookie not in world.truth.rotten):
            return None
        world.truth.rotten.add(node.bookie)
        node.crash(is_power_lost=False)
        world.start_later(node, self._down_s())
        return node

    def _spread_bookie(self) -> SimBookie | None:
        """Return a running bookie with several ledger directories and an intact journal; a salvage needs them all."""
        living = [
            node
            for node in self._world.living_bookies()
            if len(node.ledger_disks) > 1 and not node.is_journal_to_be_damaged
        ]
        here = [node for node in living if node.process.name == self._where]
        return self._rng.choice(here or living) if living else None

    def _wipe_soon(self) -> bool:
        """Wipe a bookie as ``wipe bookie`` does, shortly after it has answered the request of the event."""
        if self._wipes >= self._profile.wipes_max:
            return False
        self._world.loop.call_later(
            0.6 * self._rng.random() * self._scale, self.inject, "wipe bookie", self._target_ledger, self._where
        )
        return True

    def _cut(self, *, is_both_ways: bool) -> bool:
        client, node = self._rng.choice(self._living_clients()), self._any_bookie()
        link = self._world.network.link(client.process.name, node.process.name)
        which = self._rng.random()
        if is_both_ways or which < 0.5:
            link.loss[""] = 1.0
        if is_both_ways or which >= 0.5:
            link.answer_loss[""] = 1.0
        self._note(f"{client.process.name} and {node.process.name} are cut")
        self._undo(lambda: (link.loss.pop("", None), link.answer_loss.pop("", None)))
        return True

    def _slow_link(self) -> bool:
        client, node = self._rng.choice(self._living_clients()), self._any_bookie()
        link = self._world.network.link(client.process.name, node.process.name)
        link.late_share, link.late_s = 0.5, 1.5 * self._scale
        self._undo(lambda: setattr(link, "late_share", 0.0))
        return True

    def _slow_bookie(self) -> bool:
        node = self._any_bookie()
        delay_s = (0.2 + self._rng.random()) * self._scale
        for client in self._living_clients():
            link = self._world.network.link(client.process.name, node.process.name)
            link.extra_delay_s = delay_s
            self._undo(partial(setattr, link, "extra_delay_s", 0.0))
        self._note(f"{node.process.name} is slow by {delay_s:.3f} s")
        return True

    def _delay_adds(self) -> bool:
        """Delay a writer's messages to a bookie by seconds, so that adds arrive long after the writer was fenced."""
        client, node = self._rng.choice(self.targets), self._any_bookie()
        link = self._world.network.link(client.process.name, node.process.name)
        link.extra_delay_s = (0.5 + 4.0 * self._rng.random()) * self._scale
        self._note(f"{client.process.name} to {node.process.name} takes {link.extra_delay_s:.3f} s")
        self._undo(lambda: setattr(link, "extra_delay_s", 0.0))
        return True

    def _lose_fences(self) -> bool:
        """Lose all fences to one bookie, from every sender, but no other message."""
        node = self._any_bookie()
        self._world.lose_kind(node.process.name, "fence", self._down_s())
        self._note(f"fences to {node.process.name} are lost")
        return True

    def _stretch(self) -> bool:
        """Delay a writer's adds differently per member, lose the fence to one, and let a reader recover the ledger.

        The members' copies of the last entries then differ as much as possible.
        """
        world = self._world
        metadata = None if self._target_ledger is None else world.truth.metadata.get(self._target_ledger)
        if metadata is None or metadata.is_closed:
            return False
        members = self._rng.sample(metadata.last_fragment.members, len(metadata.last_fragment.members))
        scale = min(self._scale, _STRETCH_MAX)
        delays_s = [d * scale for d in (0.8 + 1.5 * self._rng.random(), 3.0 + 2.0 * self._rng.random())]
        for member, delay_s in zip(members, delays_s, strict=False):
            for client in self.targets:
                link = world.network.link(client.process.name, member)
                link.extra_delay_s = delay_s
                world.loop.call_later(LONGEST_S, setattr, link, "extra_delay_s", 0.0)
        world.lose_kind(members[0], "fence", 3.0 * scale)
        self._note(f"{members[:2]} hear writers late, {members[0]} no fences")
        world.loop.call_later(0.02 + 0.4 * self._rng.random(), self._interfere, "recover", self._target_ledger)
        return True

    def _freeze(self, client: SimClient) -> bool:
        client.freeze(self._down_s())
        return True

    def _freeze_bookie(self) -> bool:
        node = self._any_bookie()
        node.process.held_until_s = self._world.loop.time() + self._down_s()
        if node.is_listening:
            node.store.hold(node.process.held_until_s)
        self._note(f"{node.process.name} is frozen")
        return True

    def _kill_client(self) -> bool:
        living = [client for client in self.targets if client.process.is_alive]
        if len(living) < 2:
            return False
        self._rng.choice(living).kill()
        return True

    def _lose_session(self) -> bool:
        if self._rng.random() < 0.4 and self._world.living_bookies():
            node = self._rng.choice(self._world.living_bookies())
            if not node.is_listening:
                return False
            self._note(f"{node.process.name} loses its session")
            node.store.expire()
            self._world.loop.call_later(self._down_s(), node.resume_session)
        else:
            self._rng.choice(self._living_clients()).lose_session(self._down_s())
        return True

    def _interrupt_session(self) -> bool:
        self._rng.choice(self._living_clients()).interrupt_session(self._down_s())
        return True

    def _lose_all_sessions(self) -> bool:
        for node in self._world.living_bookies():
            if node.is_listening:
                node.store.expire()
                self._world.loop.call_later(self._down_s(), node.resume_session)
        for client in self._living_clients():
            client.lose_session(self._down_s())
        return True

    def _stop_store(self) -> bool:
        """Let the store lose its quorum for a while: no process has a connection, and all sessions survive."""
        world = self._world
        seconds = 0.9 * world.session_s * self._rng.random()
        self._note(f"the store has no quorum for {seconds:.3f} s")
        for node in world.living_bookies():
            if node.is_listening and node.store.session.state is SessionState.CONNECTED:
                node.store.suspend()
                world.loop.call_later(seconds * (1 + 0.1 * self._rng.random()), node.resume_session)
        for client in self._living_clients():
            if client.store.session.state is SessionState.CONNECTED:
                client.interrupt_session(seconds * (1 + 0.1 * self._rng.random()))
        return True

    def _store_faults(self, *, lose_share: float = 0.0, slow_share: float = 0.0, lag_s: float = 0.0) -> bool:
        nodes = [node for node in self._world.living_bookies() if node.is_listening]
        if lag_s and nodes and self._rng.random() < 0.6:
            node = self._rng.choice(nodes)
            faults = node.store.faults
            self._note(f"{node.process.name} reads from a server {lag_s:.3f} s behind")
        else:
            client = self._rng.choice(self._living_clients())
            faults = client.faults
            self._note(f"{client.process.name} and the store: lost {lose_share} slow {slow_share} lag {lag_s:.3f}")
        faults.lose_share, faults.slow_share, faults.lag_s = lose_share, slow_share, lag_s
        faults.fail_share = lose_share / 2

        def end_faults() -> None:
            faults.lose_share = faults.slow_share = faults.lag_s = faults.fail_share = 0.0

        self._undo(end_faults)
        return True

    def _slow_workers(self) -> bool:
        """Delay the store requests of the replication workers by a second or two, for a while."""
        for client in self._living_clients():
            if client.process.name.startswith("worker"):
                client.faults.slow_share, client.faults.slow_s = 0.5, 2.0 * self._scale
                self._undo(partial(setattr, client.faults, "slow_share", 0.0))
        return True

    def _slow_collector(self) -> bool:
        """Delay the bookie's own requests to the store by a second or two, for a while."""
        node = self._world.bookies.get(self._where)
        if node is None or not node.is_listening:
            return False
        faults = node.store.faults
        faults.slow_share, faults.slow_s = 0.4, 6.0 * self._scale
        self._undo(partial(setattr, faults, "slow_share", 0.0))
        return True

    def _delete_lock(self) -> bool:
        cell = self._world.cell
        names = cell.children(_LOCKS).names
        if not names:
            return False
        cell.delete(f"{_LOCKS}/{self._rng.choice(sorted(names))}", -1)
        return True

    def _unlock_soon(self) -> bool:
        """Delete the lock of the event's ledger a little later."""
        if self._target_ledger is None:
            return False
        path = lock_path("/ledgers", self._target_ledger)
        self._world.loop.call_later(0.8 * self._rng.random() * self._scale, self._world.remove, path)
        return True

    def _stall_disk(self) -> bool:
        node = self._any_bookie()
        node.faults.stall_share = 0.3
        self._undo(lambda: setattr(node.faults, "stall_share", 0.0))
        return True

    def _fill_disk(self) -> bool:
        node = self._any_bookie()
        disk = self._rng.choice(node.disks)
        disk.capacity_bytes = disk.used_bytes() + self._rng.randrange(3000)
        self._note(f"{node.process.name} has a full disk")
        self._undo(lambda: node.free_space())
        return True

    def _flip_bit(self) -> bool:
        """Change a bit of an entry log. All damage of a history is on one bookie."""
        world = self._world
        name = next(iter(sorted(world.truth.rotten)), None)
        node = world.bookies[name] if name is not None else self._any_bookie()
        disk = node.ledgers if len(node.ledger_disks) == 1 else self._rng.choice(node.ledger_disks)
        logs = [path for path in disk.paths() if path.startswith("entries/") and len(disk.content(path)) > 64]
        if not logs:
            return False
        path = self._rng.choice(logs)
        disk.flip_bit(path, self._rng.randrange(32 * 8, len(disk.content(path)) * 8))
        world.truth.rotten.add(node.bookie)
        self._note(f"rot in {path} of {node.process.name}")
        return True

    def _rot_and_recover(self) -> bool:
        """Restart a bookie of the event's open ledger, which empties its cache; see ``_rot_the_end``."""
        metadata = None if self._target_ledger is None else self._world.truth.metadata.get(self._target_ledger)
        if metadata is None or metadata.is_closed:
            return False
        rotten = self._world.truth.rotten
        members = [name for name in metadata.last_fragment.members if not rotten or name in rotten]
        if not members:
            return False
        node = self._world.bookies[self._rng.choice(members)]
        if node.process.is_alive:
            node.crash(is_power_lost=False)
            self._world.start_later(node, 0.3 * self._rng.random() * self._scale)
        self._world.loop.call_later(0.8 + self._rng.random(), self._rot_the_end, self._target_ledger, node)
        return True

    def _rot_the_end(self, ledger_id: LedgerId, node: SimBookie) -> None:
        """Change a bit of one of the ledger's last acknowledged entries on one bookie, and recover the ledger."""
        world = self._world
        ledger = world.truth.of(ledger_id)
        if world.is_healing or not ledger.acked or (world.truth.rotten and node.bookie not in world.truth.rotten):
            return
        packet = ledger.packets[self._rng.choice(sorted(ledger.acked)[-2:])]
        for disk, path in [(each, path) for each in node.ledger_disks for path in each.paths()]:
            at = disk.content(path).find(packet) if path.startswith("entries/") else -1
            if at >= 0:
                disk.flip_bit(path, at * 8 + self._rng.randrange(len(packet) * 8))
                world.truth.rotten.add(node.bookie)
                self._note(f"an entry of {ledger_id} rots on {node.process.name}")
                self._interfere("recover", ledger_id)
                return

    def _jump_clock(self) -> bool:
        """Let the clock of one machine jump by minutes to days, forward or back. Its monotonic time does not jump."""
        bookies = [self._world.bookies[name] for name in sorted(self._world.bookies)]
        machines: list[SimBookie | SimClient] = [*bookies, *self._living_clients()]
        machine = self._rng.choice(machines)
        jump_ms = int(CLOCK_JUMP_MIN_MS * (CLOCK_JUMP_MAX_MS / CLOCK_JUMP_MIN_MS) ** self._rng.random())
        machine.clock.skew_ms += self._rng.choice((-jump_ms, jump_ms))
        self._note(f"the clock of {machine.process.name} is wrong by {machine.clock.skew_ms} ms")
        return True

    def _wipe_one_and_lose_another(self) -> bool:
        """Give a member of an open ledger new disks, and stop another one for longer than the grace period."""
        world, metadata = self._world, self._open_metadata()
        if metadata is None or self._wipes >= self._profile.wipes_max:
            return False
        members = [world.bookies[name] for name in metadata.last_fragment.members]
        if len(members) < 3 or not all(node.process.is_alive for node in members):
            return False
        self._wipes += 1
        first, second = self._rng.sample(members, 2)
        until_grace_ends_s = 2.5 if self._rng.random() < 0.5 else 0.0
        first_down_s = 0.3 + 0.5 * self._rng.random() + until_grace_ends_s * self._rng.random()
        for node, down_s in ((first, first_down_s), (second, 6.0 + 4.0 * self._rng.random())):
            node.crash(is_power_lost=False)
            world.start_later(node, down_s * self._scale)
        first.wipe()
        self._kill_writers()
        return True

    def _wipe_another(self) -> bool:
        """Give a member of an open ledger new disks, after every earlier loss was repaired."""
        world, metadata = self._world, self._open_metadata()
        if metadata is None or world.truth.tasks or world.truth.has_unknown_losses():
            return False
        if self._wipes >= self._profile.wipes_max or not all(node.is_serving for node in world.bookies.values()):
            return False
        self._wipes += 1
        node = world.bookies[self._rng.choice(metadata.last_fragment.members)]
        node.crash(is_power_lost=False)
        node.wipe()
        world.start_later(node, (0.1 + 0.5 * self._rng.random()) * self._scale)
        return True

    def _kill_writers(self) -> None:
        """Kill the writers, so that none replaces the lost bookies."""
        for client in self.targets:
            if client.process.name.startswith("writer"):
                client.kill()

    def _open_metadata(self) -> LedgerMetadata | None:
        metadata = None if self._target_ledger is None else self._world.truth.metadata.get(self._target_ledger)
        return None if metadata is None or metadata.is_closed else metadata

    def _stop_until_repair(self) -> bool:
        """Stop a bookie until the cluster heals."""
        world = self._world
        living = world.living_bookies()
        if self._lost >= self._profile.lost_max or len(living) <= len(world.bookies) - self._profile.lost_max:
            return False
        self._lost += 1
        self._rng.choice(living).crash(is_power_lost=False)
        return True

    def _destroy(self) -> bool:
        """Destroy two bookies with all copies of some entries of a closed ledger."""
        world, truth = self._world, self._world.truth
        closed = [found for _, found in sorted(truth.metadata.items()) if found.is_closed and not found.is_empty]
        is_open = any(not found.is_closed for found in truth.metadata.values())
        if self._lost >= self._profile.lost_max or not closed or is_open:
            return False
        if any(not node.is_serving for node in world.bookies.values()):
            return False
        self._lost += 1
        members = self._rng.choice(self._rng.choice(closed).fragments).members
        first = self._rng.randrange(len(members))
        for bookie in (members[first], members[(first + 1) % len(members)]):
            node = world.bookies[bookie]
            self._note(f"{node.process.name} is destroyed")
            node.is_retired = True
            node.crash(is_power_lost=False)
            truth.destroy(bookie)
        return True

    def _interrupt_collector(self) -> bool:
        """Cut a bookie off from the store for longer than its collector tries to release a lock."""
        node = self._world.bookies.get(self._where)
        if node is None or not node.is_listening or node.store.session.state is not SessionState.CONNECTED:
            return False
        store, loop = node.store, self._world.loop
        node.interrupted_until_s = loop.time() + INTERRUPTION_S
        loop.call_later(0.05 * self._rng.random(), store.suspend)
        loop.call_later(INTERRUPTION_S + 1.0, node.resume_session)
        return True

    def _refuse_everywhere(self) -> bool:
        """Let every bookie refuse copies for a moment, so that only the first repairs fail."""
        for node in self._world.bookies.values():
            node.faults.refuses_copies = True
            self._world.loop.call_later(0.3, setattr, node.faults, "refuses_copies", False)
        return True

    def _cut_worker(self) -> bool:
        """Cut the connection between a worker and a bookie for some time."""
        world = self._world
        workers = [client for client in self._living_clients() if client.process.name.startswith("worker")]
        client, node = self._rng.choice(workers), self._any_bookie()
        link = world.network.link(client.process.name, node.process.name)
        link.loss[""] = 1.0
        self._note(f"{client.process.name} and {node.process.name} are cut")
        world.loop.call_later(8.0 + 8.0 * self._rng.random(), link.loss.pop, "", None)
        return True

    def _busy_bookie(self) -> bool:
        """Let a bookie refuse adds as too busy for some time."""
        node = self._world.bookies.get(self._where) or self._any_bookie()
        node.faults.busy_until_s = self._world.loop.time() + 5.0 + 20.0 * self._rng.random()
        self._note(f"{node.process.name} is busy")
        return True

    def _read_only_bookie(self) -> bool:
        """Make a bookie read-only for some time: it refuses new entries with this status."""
        world = self._world
        nodes = [node for node in world.living_bookies() if node.is_listening]
        if not nodes or world.read_only_since_s:
            return False
        node = self._rng.choice(nodes)
        self._operate("read-only", world.set_read_only(node, is_read_only=True))
        world.loop.call_later(
            self._down_s() + 10.0 * self._scale,
            lambda: self._operate("writable", world.set_read_only(node, is_read_only=False)),
        )
        return True

    def _drain(self) -> bool:
        world = self._world
        if world.drained:
            return False
        node = self._any_bookie()
        world.drained = frozenset({node.bookie})
        client = world.operator()
        self._operate("drain", apps.drain(world, client, node.bookie))
        if self._rng.random() < 0.4:
            world.loop.call_later(
                self._down_s(), lambda: self._operate("undrain", apps.end_drain(world, client, node.bookie))
            )
        return True

    def _disable(self) -> bool:
        """Let an operator disable repair for some time."""
        world = self._world
        client = world.operator()
        self._operate("disable", apps.switch(world, client, is_on=False))
        seconds = 30.0 + self._down_s()
        world.loop.call_later(seconds, lambda: self._operate("enable", apps.switch(world, client, is_on=True)))
        return True

    def _limit_copies(self) -> bool:
        """Let an operator limit all copies for some time. The limit for ledgers with one copy left is much higher."""
        world, rng = self._world, self._rng
        if world.limits is not None:
            return False
        limits = CopyLimits(rng.choice((60, 200, 600)), critical_bytes_per_second=rng.choice((3000, 12_000)))
        self._operate("limit copies", apps.limit_copies(world, world.operator(), limits))
        seconds = (20.0 + 20.0 * rng.random()) * self._scale
        world.loop.call_later(
            seconds, lambda: self._operate("lift limits", apps.limit_copies(world, world.operator(), None))
        )
        return True

    def _lose_worker_session(self) -> bool:
        workers = [client for client in self._living_clients() if client.process.name.startswith("worker")]
        self._rng.choice(workers).lose_session(0.2 + self._rng.random())
        return True

    def _lose_ensemble_change(self) -> bool:
        """Kill a member of the event's open ledger, and lose the next change of metadata of each application."""
        world, metadata = self._world, self._open_metadata()
        if metadata is None or len(world.living_bookies()) <= len(world.bookies) - DOWN_MAX:
            return False
        node = world.bookies[self._rng.choice(metadata.last_fragment.members)]
        if not node.process.is_alive:
            return False
        node.crash(is_power_lost=False)
        world.start_later(node, 2.0 * self._scale + self._down_s())
        for client in self.targets:
            client.faults.lost_next.add("set")
        return True

    def _lose_worker_write(self) -> bool:
        """Lose the next write of some kinds of a worker."""
        workers = [client for client in self._living_clients() if client.process.name.startswith("worker")]
        writes = [each for each in ("create", "set", "delete", "multi") if self._rng.random() < 0.5]
        self._rng.choice(workers).faults.lost_next.update(writes)
        return bool(writes)

    def _operate(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._world.operator().process.run(name, work)

    def _any_bookie(self) -> SimBookie:
        return self._rng.choice([self._world.bookies[name] for name in sorted(self._world.bookies)])

    def _living_clients(self) -> list[SimClient]:
        return [client for client in self._world.clients if client.process.is_alive]

    def _down_s(self) -> float:
        return (0.2 + self._rng.random() ** 2 * LONGEST_S) * self._scale

    def _undo(self, end_faults: Callable[[], object]) -> None:
        self._world.loop.call_later(self._down_s(), end_faults)

    def _note(self, text: str) -> None:
        self._world.trace.event("NEMESIS", text)
