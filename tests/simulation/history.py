"""One history: a cluster, applications, faults, healing, and the final checks. A seed determines all of it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import random
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.options import WriterOptions
from bookie.client.recovery.recovery import recover_ledger
from bookie.metadata.layout import disable_path
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError, Versioned
from bookie.metadata.tasks.debts import PlacementDebts
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.moves import MOVES_MAX, MovedLedgers
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks, ParkReason
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, LedgerMetadata
from bookie.model.topology import Topology, location
from bookie.runtime.fault_points import inject_faults
from bookie.runtime.tasks import _running as guarded_tasks
from replicator.queue.repayment import ROUND_S
from tests.simulation import apps, services
from tests.simulation.closing import judge_locks, judge_space, watch_locks
from tests.simulation.loop import TURNS_MAX, SimLoop, StuckError
from tests.simulation.nemesis import Nemesis
from tests.simulation.nodes import SimBookie, SimClient
from tests.simulation.profiles import NAMED, Profile, drawn_by
from tests.simulation.scaling import use_small_windows, window_bytes
from tests.simulation.trace import Trace
from tests.simulation.truth import ROOT, Truth, Violation, describe
from tests.simulation.variation import Variation, vary
from tests.simulation.world import SimWorld

COLLECT_EVERY: Final = 32
REFUSAL_S: Final = 900.0
"""How long a bookie may continue to refuse copies: so long that a task fails until it is parked."""
SLOW_BYTES_PER_S: Final = 400
"""A rate of copies at which repairs take half a minute, so that the ledgers of a history wait for each other."""
REPAIR_S: Final = 600.0
"""The longest time for healing, in virtual seconds (I19)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one seed."""

    seed: int
    profile: str
    violations: tuple[Violation, ...]
    digest: int
    events: int
    bookies: int
    clients: int
    acked: int
    faults: dict[str, int]
    fault_points: dict[str, int]
    turns: int
    virtual_s: float
    real_s: float
    lines: tuple[str, ...] = ()

    @property
    def faults_fired(self) -> int:
        """How many faults took effect."""
        return sum(self.faults.values())

    @property
    def is_counted(self) -> bool:
        """Whether enough happened in it to count as a history."""
        return self.bookies >= 5 and self.clients >= 2 and self.faults_fired >= 3


def run_history(
    seed: int,
    profile: str | None = None,
    *,
    is_recording: bool = False,
    planted: Callable[[ExitStack], None] | None = None,
    turns_max: int = TURNS_MAX,
) -> Outcome:
    """Run the history of ``seed``; the same arguments give the same history.

    Args:
        seed: determines everything.
        profile: name of the profile; the seed draws one otherwise.
        is_recording: keep readable lines of the trace.
        planted: plants a defect for the duration, undone by the stack.
        turns_max: a history with more turns counts as endless.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    _collect_garbage()
    try:
        return _run(seed, profile, is_recording=is_recording, planted=planted, turns_max=turns_max)
    finally:
        if was_collecting:
            gc.enable()  # not earlier: the collector would search all objects of the history while it is still in use


def _run(
    seed: int,
    profile: str | None,
    *,
    is_recording: bool,
    planted: Callable[[ExitStack], None] | None,
    turns_max: int,
) -> Outcome:
    rng = random.Random(seed)
    chosen = drawn_by(seed) if profile is None else next(found for found in NAMED if found.name == profile)
    loop = SimLoop(turns_max)
    trace = Trace(loop, is_recording=is_recording)
    started_s = time.perf_counter()
    logging.disable(logging.CRITICAL)
    asyncio.set_event_loop(loop)
    try:
        with ExitStack() as stack:
            points = FaultPoints(
                random.Random(rng.getrandbits(64)), is_on=rng.random() < 0.7 and chosen.has_fault_points
            )
            stack.enter_context(inject_faults(points))
            variation = vary(seed, may_be_apache=not chosen.is_beyond_quorum)
            if chosen.has_directories and variation.directories is None:
                variation = replace(variation, directories=seed)
            if not variation.is_default:
                use_small_windows(stack, has_small_budget=chosen.is_large and rng.random() < 0.5)
            if planted is not None:
                planted(stack)
            trace.event("WORLD", str(variation))
            history = History(loop, rng, trace, chosen, variation)
            history.world.points = points
            loop.set_exception_handler(history.task_failed)
            history.run()
    finally:
        logging.disable(logging.NOTSET)
        turns = loop.turns
        _cancel_rest(loop)
        asyncio.set_event_loop(None)
    world, truth = history.world, history.world.truth
    return Outcome(
        seed,
        chosen.name,
        tuple(truth.violations),
        trace.digest,
        trace.count,
        len(world.bookies),
        len(history.applications),
        truth.acked_count(),
        dict(world.faults_fired),
        dict(points.fired),
        turns,
        loop.time() - 1000.0,
        time.perf_counter() - started_s,
        tuple(trace.lines),
    )


class FaultPoints:
    """Decides on unlikely branches: a random half of them is taken, each at its own rate."""

    def __init__(self, rng: random.Random, *, is_on: bool) -> None:
        self._rng = rng
        self.is_on = is_on
        self._rates: dict[str, float] = {}
        self.fired: dict[str, int] = {}

    def __call__(self, name: str) -> bool:
        if not self.is_on:
            return False
        rate = self._rates.get(name)
        if rate is None:
            rate = self._rates[name] = self._rng.choice((0.0, 0.0, 0.02, 0.1, 0.3))
        if not rate or self._rng.random() >= rate:
            return False
        self.fired[name] = self.fired.get(name, 0) + 1
        return True


class History:
    """One history with its cluster, its applications and its faults."""

    def __init__(self, loop: SimLoop, rng: random.Random, trace: Trace, profile: Profile, variation: Variation) -> None:
        self._loop = loop
        self._rng = rng
        self._variation = variation
        self._scale = variation.scale
        self._profile = profile
        self._racks = rng if profile.has_racks else None if variation.racks is None else random.Random(variation.racks)
        """The source of random decisions on racks, if any. The other events of a history do not depend on it."""
        self.applications: list[SimClient] = []
        self._loop.run_until_complete(self._make(rng, trace))
        self.world: SimWorld

    async def _make(self, rng: random.Random, trace: Trace) -> None:
        self.world = SimWorld(self._loop, rng, trace, self._variation)

    def run(self) -> None:
        """Run the history. Its broken rules are in the world's truth."""
        truth = self.world.truth
        try:
            self._loop.run_until_complete(self._until_violated(truth))
        except StuckError as error:
            truth.fail("I19", str(error))

    def task_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record every failure of a task."""
        error = context.get("exception")
        if error is not None and not isinstance(error, asyncio.CancelledError):
            where = "".join(traceback.format_exception(error)[-3:])
            self.world.truth.fail("BUG", f"{context.get('message')}: {error!r} {where}")

    async def _until_violated(self, truth: Truth) -> None:
        life = asyncio.get_running_loop().create_task(self._live())
        await asyncio.wait([life, truth.violated], return_when=asyncio.FIRST_COMPLETED)
        if not truth.violations:
            life.result()

    async def _live(self) -> None:
        world, profile, rng = self.world, self._profile, self._rng
        count = rng.randint(*profile.bookies)
        world.collect_s = profile.collect_s * self._scale
        names = [f"b{number}" for number in range(count)]
        if self._racks is not None:
            self._build_racks([*names, *(f"b{count + number}" for number in range(profile.joins_max))], self._racks)
        await world.found(names)
        nemesis = Nemesis(world, profile, random.Random(rng.getrandbits(64)))
        world.on_event = nemesis.on_event
        world.on_lost_disks = self._mark_later
        world.counts_cost = profile.is_large
        if profile.is_large and rng.random() < 0.4:
            world.bytes_per_second = SLOW_BYTES_PER_S
        world.process.run("watch locks", watch_locks(world))
        works = self._start_applications(nemesis)
        self._start_services()
        trouble = asyncio.get_running_loop().create_task(nemesis.run())
        if world.harshness is not None:
            world.process.run("harsh trouble", world.harshness.trouble(world))
            if world.harshness.operates:
                world.process.run("operate", world.harshness.operate(world, nemesis.inject))
        await asyncio.wait(works, timeout=profile.trouble_s * self._scale)
        world.is_healing = True
        trouble.cancel()
        await self._end_faults()

    def _build_racks(self, names: Sequence[str], rng: random.Random) -> None:
        """Put bookies into a large and a small rack, or into three. Only some auditors check placement."""
        world = self.world
        large = len(names) - 3
        racks = (
            [at % 3 for at in range(len(names))] if rng.random() < 0.4 else [at >= large for at in range(len(names))]
        )
        world.topology = Topology(
            {name: location(f"/rack{int(rack)}") for name, rack in zip(names, racks, strict=True)}
        )
        world.marks_misplaced = rng.random() < 0.5
        if self._profile.has_racks:
            world.flip_share = 0.05
        world.trace.event("WORLD", f"racks: {dict(world.topology.locations)}, marks: {world.marks_misplaced}")

    def _start_applications(self, nemesis: Nemesis) -> list[asyncio.Task[None]]:
        profile, rng = self._profile, self._rng
        works: list[asyncio.Task[None]] = []
        for number in range(rng.randint(*profile.writers)):
            client = self._application(f"writer{number}", nemesis)
            works.append(client.process.run("write", self._write_some(client)))
        for number in range(2):
            client = self._application(f"reader{number}", nemesis)
            works.append(client.process.run("read", self._read_some(client)))
        return works

    def _application(self, name: str, nemesis: Nemesis) -> SimClient:
        client = self.world.client(name)
        client.use(self._variation.client(self._profile.add_timeout_s))
        if self._racks is not None and self._racks.random() < 0.5:
            client.place_by(self.world.placement())
        self.applications.append(client)
        nemesis.targets.append(client)
        return client

    async def _write_some(self, client: SimClient) -> None:
        profile, rng = self._profile, client.rng
        if profile.is_large:
            for number in range(rng.randint(5, 9)):
                plan = replace(self._plan(rng), pace_s=0.0, burst=40, idles_at=-1)
                await apps.write_ledger(self.world, client, _large(plan, rng) if number == 2 else plan)
            await asyncio.sleep(profile.trouble_s * self._scale)
            return
        for _ in range(1 + (rng.random() < 0.4)):
            await asyncio.sleep(rng.random() * 0.5 * self._scale)
            await apps.write_ledger(self.world, client, self._plan(rng))
            if rng.random() < profile.deletes and self.world.open_ledgers:
                await asyncio.sleep(rng.random() * 2 * self._scale)
                await apps.delete(self.world, client, rng.choice(self.world.open_ledgers))

    def _plan(self, rng: random.Random) -> apps.WritePlan:
        profile = self._profile
        size = len(self.world.bookies)
        ensemble, write, ack = rng.choice([quorums for quorums in profile.quorums if quorums[0] <= size - 1])
        digest = rng.choice((DigestType.CRC32C, DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC))
        options = WriterOptions(
            has_own_entry_ids=rng.random() < 0.15,
            is_ensemble_change_delayed=rng.random() < 0.25,
            add_quorum_timeout_s=rng.choice((None, None, 3.0)),
            explicit_lac_interval_s=rng.choice((None, 0.3)),
        )
        entries = rng.randint(*profile.entries)
        return apps.WritePlan(
            LedgerOptions(ensemble, write, ack, digest),
            entries,
            profile.pace_s * (0.3 + rng.random()) * self._scale,
            profile.burst,
            options,
            is_left_open=rng.random() < profile.left_open,
            idles_at=rng.randrange(entries) if profile.is_idle or rng.random() < 0.1 else -1,
            idle_s=(3.0 + (profile.trouble_s - 8.0) * rng.random()) * self._scale,
        )

    async def _read_some(self, client: SimClient) -> None:
        rng, world = client.rng, self.world
        for _ in range(3):
            await asyncio.sleep(rng.random() * self._scale)
            if not world.open_ledgers:
                continue
            ledger_id = rng.choice(world.open_ledgers)
            if rng.random() < 0.4:
                await apps.tail(world, client, ledger_id, 3.0 * self._scale)
            else:
                await apps.read_along(world, client, ledger_id, 3)

    def _start_services(self) -> None:
        world = self.world
        for number in range(self._variation.auditors):
            auditor = world.client(f"auditor{number}")
            auditor.process.run("audit", services.audit_repeatedly(world, auditor))
        for number in range(2):
            self._start_worker(f"worker{number}")
        if self._profile.accepts_losses:
            operator = world.client("manager")
            operator.process.run("accept losses", services.accept_losses(world, operator))

    def _start_worker(self, name: str) -> None:
        client = self.world.client(name)
        client.process.run("repair", services.worker(self.world, client).run())

    # Healing

    async def _end_faults(self) -> None:
        world, loop = self.world, self._loop
        world.trace.event("WORLD", "heals")
        deadline_s = loop.time() + REPAIR_S * (3 if self._variation.is_default else 1) + REFUSAL_S
        if world.topology.locations:  # the next search for debts includes ledgers closed after the last one
            deadline_s += ROUND_S
        was_forgotten = any(node.is_apache and node.was_wiped for node in world.bookies.values())
        recovers_from_s = loop.time() + (60.0 * self._scale if was_forgotten else 0.0)
        for client in world.clients:
            client.end_faults()
        world.network.heal()
        for node in world.bookies.values():
            node.end_faults()
            if node.process.is_alive and (node.missing_directory or node.is_directory_out_of_use):
                node.crash(is_power_lost=False)  # an operator has repaired the disk, and restarts the bookie
            node.missing_directory = 0
            if not node.process.is_alive and not node.is_retired:
                node.begin()
                world.note_return()
        stubborn, stubborn_until_s = self._refusing_bookie(), loop.time() + REFUSAL_S
        doctor = world.client("doctor")
        await self._switch_on(doctor)
        marked: set[BookieId] = set()
        while True:
            if loop.time() > deadline_s:
                await self._report_rest(doctor)
                return
            await asyncio.sleep(0.5 * self._scale)
            if stubborn is not None and await self._is_settled_without(doctor):
                stubborn_until_s = 0.0
            if stubborn is not None and loop.time() > stubborn_until_s:
                stubborn.faults.refuses_copies = False
                stubborn = None
                for node in world.bookies.values():
                    if not node.process.is_alive:
                        node.begin()
                        world.note_return()
            if stubborn is not None:
                await asyncio.sleep(5.0)
                await self._audit_quietly(doctor)
                continue
            if not all(node.is_listening for node in world.bookies.values() if not node.is_retired):
                continue
            if not await self._mark_wiped(doctor, marked):
                continue
            if loop.time() > recovers_from_s:
                await self._recover_all(doctor)
            if await self._is_repaired(doctor):
                break
        if self._profile.has_directories:  # such a profile damages no entries, and all directories are back or replaced
            world.truth.rotten.clear()
        await self._judge(doctor)
        await judge_locks(world)
        world.repairs.judge_effort(self._effort_window())
        await judge_space(world)

    def _refusing_bookie(self) -> SimBookie | None:
        """Choose a bookie that refuses copies long after the end of all other faults, or none. Tasks must be parked."""
        if not self._profile.is_stubborn or self._rng.random() < 0.6:
            return None
        world = self.world
        node = self._rng.choice([world.bookies[name] for name in sorted(world.bookies)])
        world.trace.event(node.process.name, "refuses copies")
        node.faults.refuses_copies = True
        others = [other for other in world.bookies.values() if other is not node and other.process.is_alive]
        for other in self._rng.sample(others, min(1, len(others))):
            other.crash(is_power_lost=False)
            world.start_later(other, REFUSAL_S)
        return node

    def _effort_window(self) -> Callable[[int, int], int] | None:
        """Return how many bytes may be copied again after one fault; None if that is more than any ledger has."""
        return None if self._variation.is_default else window_bytes

    def _mark_later(self, node: SimBookie) -> None:
        client = self.world.operator()
        client.process.run("mark", self._mark(client, node.bookie))

    async def _mark(self, client: SimClient, bookie: BookieId) -> None:
        try:
            await apps.mark_ledgers_of(self.world, client, bookie)
        except (BkhealError, TimeoutError) as error:
            self.world.trace.event(client.process.name, f"marks not all ledgers of {bookie}: {type(error).__name__}")

    async def _mark_wiped(self, doctor: SimClient, marked: set[BookieId]) -> bool:
        """Mark the ledgers of each Apache bookie with new disks, and of each bookie with a lost ledger directory.

        Returns:
            Whether all of them are marked.
        """
        for name in sorted(self.world.bookies):
            node = self.world.bookies[name]
            is_short = node.was_wiped if node.is_apache else bool(node.lost_directories)
            if not is_short or node.bookie in marked:
                continue
            try:
                await apps.mark_ledgers_of(self.world, doctor, node.bookie)
            except BkhealError:
                return False
            marked.add(node.bookie)
        return True

    async def _switch_on(self, doctor: SimClient) -> None:
        """Enable repair again, and withdraw half of the drains."""
        world = self.world
        world.cell.remove_if_there(disable_path(ROOT))
        for node in world.bookies.values():
            if node.is_listening:
                await world.set_read_only(node, is_read_only=False)
        if world.drained and self._rng.random() < 0.5:
            for bookie in sorted(world.drained):
                await apps.end_drain(world, doctor, bookie)

    async def _is_settled_without(self, doctor: SimClient) -> bool:
        """Whether there are tasks, and all of them are parked."""
        parked = await self._parked(doctor)
        return bool(parked) and self.world.truth.tasks.keys() <= parked

    async def _audit_quietly(self, doctor: SimClient) -> None:
        with suppress(BkhealError):
            await services.audit(self.world, doctor)

    async def _recover_all(self, doctor: SimClient) -> None:
        for ledger_id, metadata in sorted(self.world.truth.metadata.items()):
            if not metadata.is_closed:
                try:
                    await recover_ledger(doctor.ports, ledger_id)
                except (BkhealError, TimeoutError) as error:
                    self.world.trace.event("doctor", f"cannot recover {ledger_id}: {error}")

    async def _is_repaired(self, doctor: SimClient) -> bool:
        """Whether every ledger is closed, and an audit with every bookie registered leaves no mark."""
        world = self.world
        metadata = world.truth.metadata
        if not all(found.is_closed for found in metadata.values()) and not world.truth.is_loss_expected:
            return False
        registered = (await doctor.ports.registrations.list()).registered
        if any(node.bookie not in registered for node in world.bookies.values() if not node.is_retired):
            return False
        try:
            marked = await services.audit(world, doctor)
            tasks = await doctor.ports.tasks.list()
        except BkhealError:
            return False
        if world.truth.is_loss_expected:
            parked = await ParkedTasks(doctor.store, world.cluster.root).list()
            return {task.ledger_id for task in tasks} <= {task.ledger_id for task in parked}
        if world.topology.locations:
            return not marked and await self._is_placed(doctor, tasks)
        return not marked and not tasks

    async def _is_placed(self, doctor: SimClient, tasks: Sequence[Task]) -> bool:
        """Whether no repair is left, and no copy can be placed better, except in ledgers with too many moves.

        Without an auditor for placement, this is checked only for ledgers with a debt or a parked task.
        """
        world, root = self.world, self.world.cluster.root
        try:
            parked = {one.ledger_id for one in await self._parked_records(doctor) if one.reason is ParkReason.MISPLACED}
            debts = {debt.ledger_id for debt in await PlacementDebts(doctor.store, root).list()}
            bookies = await doctor.ports.registrations.list()
            if any(task.missing or task.ledger_id not in parked for task in tasks):
                return False
            ids = sorted(world.truth.metadata if world.marks_misplaced else debts | parked)
            moves = MovedLedgers(doctor.store, root)
            for found in await doctor.ports.ledgers.read_many(ids):
                if not isinstance(found, Versioned) or not services.is_movable(world, found, bookies):
                    continue
                if await moves.count(found.ledger_id, doctor.clock.epoch_ms()) < MOVES_MAX:
                    return False
        except BkhealError:
            return False
        return True

    async def _report_rest(self, doctor: SimClient) -> None:
        world = self.world
        tasks = await doctor.ports.tasks.list()
        parked = await ParkedTasks(doctor.store, world.cluster.root).list()
        ledgers = {key: describe(value) for key, value in world.truth.metadata.items()}
        detail = f"tasks {tasks}, parked {[(p.ledger_id, p.reason.name, p.detail) for p in parked]}, {ledgers}"
        world.truth.fail("I19", f"not repaired after {REPAIR_S:g} s: {detail}")

    async def _judge(self, doctor: SimClient) -> None:
        for ledger_id, metadata in sorted(self.world.truth.metadata.items()):
            await self._judge_copies(ledger_id, metadata)
            await self._judge_reading(doctor, ledger_id)

    async def _judge_copies(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        """Check that every member holds every entry of its position, byte for byte."""
        world, truth = self.world, self.world.truth
        if truth.of(ledger_id).is_loss_expected or metadata.last_entry_id is None:
            return
        for index, fragment in enumerate(metadata.fragments):
            last = metadata.fragment_last_entry_id(index)
            assert last is not None
            for position, bookie in enumerate(fragment.members):
                wanted = list(metadata.stripe.entries(position, fragment.first_entry_id, last))
                if not wanted or bookie in truth.rotten:
                    continue
                wanted = [entry_id for entry_id in wanted if entry_id not in truth.accepted_losses(ledger_id)]
                if bookie in truth.destroyed:
                    if wanted:
                        truth.fail("I19", f"{bookie} was destroyed and is still to have {ledger_id} {wanted[:5]}")
                    continue
                reply = await world.bookies[bookie].storage.read(ledger_id, wanted)
                packets = truth.of(ledger_id).packets
                for result in reply.results:
                    if result.packet != packets.get(result.entry_id):
                        truth.fail("I19", f"{bookie} ends with {result.status.name} for {ledger_id}/{result.entry_id}")
                        return

    async def _parked(self, doctor: SimClient) -> set[LedgerId]:
        """Return the ledgers of all parked repairs, and check that each has a reason for the operator."""
        return {parked.ledger_id for parked in await self._parked_records(doctor)}

    async def _parked_records(self, doctor: SimClient) -> Sequence[ParkedTask]:
        return await ParkedTasks(doctor.store, self.world.cluster.root).list()

    async def _judge_reading(self, doctor: SimClient, ledger_id: LedgerId) -> None:
        """Check that every acknowledged entry is readable, and every read entry was written."""
        truth = self.world.truth
        ledger = truth.of(ledger_id)
        if lost := truth.accepted_losses(ledger_id):
            await self._judge_reading_others(doctor, ledger_id, lost)
            return
        try:
            reader = await doctor.client.open_ledger(ledger_id)
            count = 0
            async for entry in reader.read_all():
                truth.was_read("doctor", ledger_id, entry.entry_id, entry.payload)
                count += 1
            if reader.metadata.is_closed and ledger.acked and max(ledger.acked) >= count and not ledger.is_cut:
                truth.fail("I3", f"{ledger_id} was read to {count - 1}, {max(ledger.acked)} was acknowledged")
        except NoSuchLedgerError:
            return
        except BkhealError as error:
            if not ledger.is_loss_expected:
                truth.fail("I19", f"{ledger_id} cannot be read at the end: {error}")
            elif str(ledger_id) not in str(error) or ledger_id not in await self._parked(doctor):
                truth.fail("LOSS", f"{ledger_id} lost entries, and no report names it: {error}")

    async def _judge_reading_others(self, doctor: SimClient, ledger_id: LedgerId, lost: Collection[EntryId]) -> None:
        """Check that every entry except those with an accepted loss is readable, and that these cause an error."""
        truth = self.world.truth
        reader = await doctor.client.open_ledger(ledger_id)
        for number in range((truth.metadata[ledger_id].last_entry_id or 0) + 1):
            entry_id = EntryId(number)
            try:
                truth.was_read("doctor", ledger_id, entry_id, (await reader.read(entry_id)).payload)
            except BkhealError as error:
                if entry_id not in lost:
                    truth.fail("I19", f"{ledger_id}/{entry_id} cannot be read at the end: {error}")
            else:
                if entry_id in lost:
                    truth.fail("I14", f"{ledger_id}/{entry_id} was read although no bookie has it")


def _large(plan: apps.WritePlan, rng: random.Random) -> apps.WritePlan:
    entries = rng.randint(150, 250)
    return replace(plan, entries=entries, large_from=entries - 30 if rng.random() < 0.5 else None)


_histories = itertools.count()


def _collect_garbage() -> None:
    """Collect the garbage of earlier histories, because finalizers within a history would be part of its events."""
    number = next(_histories)
    if number == 0:
        gc.freeze()
    elif number % COLLECT_EVERY == 0:
        gc.collect()


def _cancel_rest(loop: SimLoop) -> None:
    """End the remaining tasks of a history, without calling its oracles."""
    loop.set_exception_handler(lambda _, context: None)
    for _ in range(20):
        tasks = [task for task in loop.tasks if not task.done()]
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        loop.turns = 0
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    guarded_tasks.difference_update(loop.tasks)  # a task that does not end would keep the whole history in memory
    loop.tasks.clear()
