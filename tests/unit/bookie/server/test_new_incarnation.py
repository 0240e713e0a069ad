"""Empty disks with a known bookie id: ledgers of the former disks are in limbo and marked before the bookie serves."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from bookie.metadata.bookies.cookies import CookieStore
from bookie.metadata.bookies.incarnations import Incarnations
from bookie.metadata.bookies.registration import BookieIdInUseError, DisksReplacedError, Registrations
from bookie.metadata.bookies.service_info import Endpoint, ServiceInfo
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.server.joining.admission import AdmittedBookie, RoleDirectory, admit
from bookie.server.joining.directories import DirectoryRole
from bookie.server.joining.identity import IdentityError, JoinRefusal
from bookie.server.joining.limbo import finish_start
from bookie.server.joining.succession import succeed
from bookie.server.upkeep.registration_keeper import RegistrationKeeper, service_info
from bookie.storage.disks.memory import MemoryIndex, Operation, yield_control
from bookie.storage.rebuilding import rebuild
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.worlds.cluster import MemoryCluster
from tests.worlds.machine import SMALL, Machine, PowerSwitch, entry
from tests.worlds.virtual_time import in_virtual_time

US, BK1 = BookieId("us:3181"), BookieId("bk1:3181")
OPEN = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), (US, BK1)),))
LATER = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), (BK1, BookieId("b:1"))), Fragment(EntryId(5), (BK1, US))))
OTHERS = LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (BK1,)),))
NAMED = {LedgerId(1): OPEN, LedgerId(2): OPEN.closed(EntryId(9), 10), LedgerId(12_345): LATER}
FREE = LedgerId(3)


class IncarnationWorld(MemoryCluster):
    """A cluster and the machine of one bookie, which can be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = self.joined = Machine()
        """The current disks, and those on which the bookie joined."""
        self.seeds = random.Random(1)

    async def prepare(self) -> IncarnationWorld:
        """Let the bookie join and create its ledgers, then lose its disks."""
        await self.found()
        await self.start()
        await self.ledgers.create_many([*NAMED.items(), (FREE, OTHERS)])
        self.machine = Machine()
        return self

    async def start(self, *, is_new: bool = False) -> tuple[AdmittedBookie, LedgerStorage]:
        """Run the steps of a process before its registration."""
        journal, ledgers = self.machine.journal, self.machine.ledgers
        places = (
            RoleDirectory(DirectoryRole.JOURNAL, Path("/j"), journal),
            RoleDirectory(DirectoryRole.LEDGERS, Path("/l"), ledgers),
        )
        store, clock = self.store, self.clock
        admitted = await admit(
            store,
            self.cluster,
            places,
            US,
            "",
            clock,
            self.seeds,
            takeover_deadline_s=60,
            may_be_new_incarnation=is_new,
        )
        storage = await LedgerStorage.open(journal, ledgers, self.machine.index, SMALL, clock)
        rng = random.Random(3)
        await finish_start(store, self.cluster, places, admitted, storage, clock, rng, takeover_deadline_s=60)
        return admitted, storage

    async def restart(self, *, is_new: bool = False) -> tuple[AdmittedBookie, LedgerStorage]:
        self.machine = self.machine.after_kill()
        return await self.start(is_new=is_new)

    async def check(self, admitted: AdmittedBookie, storage: LedgerStorage) -> None:
        """Check the state of a bookie that is ready to serve."""
        for ledger_id in NAMED:
            reply = await storage.list_entries(ledger_id)
            assert reply.status is Status.LIMBO
            read = await storage.read(ledger_id, [EntryId(0)])
            assert read.results[0].status is Status.LIMBO
            added = await storage.add(AddBatch(ledger_id, b"key", [entry(ledger_id, 0, b"")]))
            assert added.status is Status.LIMBO
        assert (await storage.list_entries(FREE)).status is Status.NO_LEDGER
        tasks = await self.tasks.list()
        assert {task.ledger_id: task.missing for task in tasks} == dict.fromkeys(NAMED, (US,))
        history = [item.uuid for item in await Incarnations(self.store, self.cluster.root).read(US)]
        assert history[-1] == admitted.incarnation
        assert len(history) >= 2


@in_virtual_time
async def test_lost_disks_are_refused_unless_a_new_incarnation_is_requested() -> None:
    world = await IncarnationWorld().prepare()
    with pytest.raises(IdentityError, match="--new-incarnation") as refused:
        await world.start()
    assert refused.value.refusal is JoinRefusal.EMPTY_DISKS
    admitted, storage = await world.start(is_new=True)
    await world.check(admitted, storage)
    await storage.close()


@in_virtual_time
async def test_a_restart_keeps_limbo_and_needs_no_flag() -> None:
    world = await IncarnationWorld().prepare()
    first, storage = await world.start(is_new=True)
    await storage.close()
    for is_new in (False, True):
        again, storage = await world.restart(is_new=is_new)
        assert again.incarnation == first.incarnation
        await world.check(again, storage)
        await storage.close()


@in_virtual_time
async def test_a_bookie_id_that_is_reused_after_decommission_has_limbo_as_well() -> None:
    world = await IncarnationWorld().prepare()
    stored = await CookieStore(world.store, world.cluster).read(US)
    assert stored is not None
    await CookieStore(world.store, world.cluster).delete(US, stored.version)
    admitted, storage = await world.start()
    await world.check(admitted, storage)


@in_virtual_time
async def test_a_ledger_whose_metadata_cannot_be_read_is_in_limbo() -> None:
    world = await IncarnationWorld().prepare()
    await world.store.set(world.ledgers.path(FREE), b"rubbish", -1)
    _, storage = await world.start(is_new=True)
    assert (await storage.list_entries(FREE)).status is Status.LIMBO


@in_virtual_time
async def test_a_ledger_whose_metadata_is_denied_is_in_limbo() -> None:
    world = await IncarnationWorld().prepare()
    world.cell.deny(world.ledgers.path(FREE))
    _, storage = await world.start(is_new=True)
    assert (await storage.list_entries(FREE)).status is Status.LIMBO


@in_virtual_time
async def test_after_a_rebuilt_index_every_ledger_with_entries_is_in_limbo() -> None:
    """Including ledgers that no metadata places here: one in the journal only, and one whose last limbo had ended."""
    world, in_journal = IncarnationWorld(), LedgerId(4)
    await world.found()
    before, storage = await world.start()
    await world.ledgers.create_many([(FREE, OTHERS), (in_journal, OTHERS)])
    await storage.set_limbo([FREE])
    await storage.add(AddBatch(FREE, b"key", [entry(FREE, 0, b"")], is_recovery=True))
    await storage.clear_limbo(FREE)
    await storage.checkpoint()
    await storage.add(AddBatch(in_journal, b"key", [entry(in_journal, 0, b"")]))
    await storage.abort()
    machine = world.machine = world.machine.after_kill()
    machine.index = MemoryIndex()
    await rebuild([machine.journal], machine.ledgers, machine.index)
    await succeed([machine.journal, machine.ledgers], before.incarnation, None, world.seeds)
    for _ in range(2):
        _, storage = await world.restart()
        for ledger_id in (FREE, in_journal):
            results = (await storage.read(ledger_id, [EntryId(0), EntryId(1)])).results
            assert [result.status for result in results] == [Status.OK, Status.LIMBO]
            reply = await storage.add(AddBatch(ledger_id, b"key", [entry(ledger_id, 1, b"")]))
            assert reply.status is Status.LIMBO
        await storage.close()


@in_virtual_time
async def test_a_session_that_is_lost_while_the_ledgers_are_read_aborts_the_start() -> None:
    """Another server may not know a ledger yet that the previous server knew."""
    world = await IncarnationWorld().prepare()
    read: list[str] = []

    async def note(operation: str, path: str) -> Fault | None:
        read.append(path)
        return None

    async def lose_session(operation: Operation, path: str) -> None:
        if world.ledgers.path(LedgerId(1)) in read:  # the ledgers found so far are put in limbo
            read.clear()
            world.store.expire()
            world.store.resume()

    world.store.fault_hook, world.machine.journal.before = note, lose_session
    with pytest.raises(StoreUnavailableError, match="start again"):
        await world.start(is_new=True)
    world.store.fault_hook = None
    admitted, storage = await world.restart()
    await world.check(admitted, storage)


@in_virtual_time
async def test_disks_in_use_are_not_lost() -> None:
    world = await IncarnationWorld().prepare()
    old = MemoryStore(world.cell)
    info = ServiceInfo((Endpoint("bookie", "h", 1, "bookie-grpc"),))
    await Registrations(old, world.cluster).register(US, info, is_read_only=False, takeover_deadline_s=5)
    with pytest.raises(BookieIdInUseError, match="Stop the other process"):
        await world.start(is_new=True)
    await old.close()
    empty, world.machine = world.machine, world.joined.after_kill()
    await world.start()  # the start that was refused has changed nothing for the disks in use
    world.machine = empty
    admitted, storage = await world.restart(is_new=True)
    await world.check(admitted, storage)


@in_virtual_time
async def test_a_scan_over_two_sessions_is_not_complete() -> None:
    """The server of the second session may be behind the server on which the scan began."""
    world = await IncarnationWorld().prepare()
    is_scanning = is_lost = False

    async def note_the_scan(operation: str, path: str) -> Fault | None:
        nonlocal is_scanning
        is_scanning = is_scanning or (operation, path) == ("sync", "/ledgers")
        return None

    async def lose_the_session(operation: Operation, path: str) -> None:
        nonlocal is_lost
        if is_scanning and not is_lost:  # there are no requests while the limbo is written
            is_lost = True
            world.store.expire()
            world.store.resume()

    world.store.fault_hook, world.machine.journal.before = note_the_scan, lose_the_session
    with pytest.raises(StoreUnavailableError, match="session was lost"):
        await world.start(is_new=True)
    assert is_lost
    admitted, storage = await world.restart(is_new=True)
    await world.check(admitted, storage)


@in_virtual_time
async def test_of_two_starts_on_new_disks_under_one_id_only_the_last_one_recorded_may_serve() -> None:
    world = await IncarnationWorld().prepare()
    may_scan = asyncio.Event()

    async def hold_the_scan(operation: str, path: str) -> None:
        if (operation, path) == ("sync", "/ledgers"):  # the disks are recorded
            await may_scan.wait()

    world.store.fault_hook = hold_the_scan
    earlier = asyncio.ensure_future(world.start(is_new=True))
    await asyncio.sleep(5)
    world.machine = Machine()
    later = asyncio.ensure_future(world.start(is_new=True))
    await asyncio.sleep(5)
    may_scan.set()
    with pytest.raises(IdentityError, match="another bookie has just joined"):
        await earlier
    await world.check(*await later)


@in_virtual_time
async def test_the_disks_of_the_previous_incarnation_are_refused() -> None:
    world = await IncarnationWorld().prepare()
    _, storage = await world.start(is_new=True)
    await storage.close()
    replaced = world.machine.after_kill()
    world.machine = Machine()
    _, storage = await world.start(is_new=True)
    world.machine = replaced
    with pytest.raises(IdentityError) as refused:
        await world.start(is_new=True)
    assert refused.value.refusal is JoinRefusal.OTHER_INCARNATION


@pytest.mark.parametrize("is_next_registered", [False, True])
@in_virtual_time
async def test_a_process_whose_disks_were_replaced_never_registers_again(is_next_registered: bool) -> None:
    """Otherwise writers would use it for ledgers of which the next process, without limbo for them, denies entries."""
    world = IncarnationWorld()
    await world.found()
    admitted, storage = await world.start()
    earlier = MemoryStore(world.cell)
    keeper = _keeper(world, earlier, admitted)
    await keeper.start(is_read_only=False)
    earlier.expire()  # it is cut off from the store, and not from clients
    await storage.close()
    world.machine = Machine()
    admitted, storage = await world.start(is_new=True)
    next_one = _keeper(world, world.store, admitted)
    if is_next_registered:
        await next_one.start(is_read_only=True)
    earlier.resume()
    assert "must not serve" in str(await keeper.replaced)
    if not is_next_registered:
        assert not (await Registrations(world.store, world.cluster).list()).registered
        await next_one.start(is_read_only=True)
    await keeper.stop(5)
    assert (await Registrations(world.store, world.cluster).list()).read_only == {US}
    await next_one.stop(5)


@in_virtual_time
async def test_disks_that_are_replaced_during_the_registration_are_not_registered() -> None:
    world = IncarnationWorld()
    await world.found()
    admitted, _ = await world.start()
    earlier = MemoryStore(world.cell)

    async def replace_disks(operation: str, path: str) -> Fault | None:
        if operation == "multi":
            earlier.fault_hook = None
            await Incarnations(world.store, world.cluster.root).record(US, "next", 0)
        return None

    earlier.fault_hook = replace_disks
    with pytest.raises(DisksReplacedError):
        await _keeper(world, earlier, admitted).start(is_read_only=False)
    assert not (await Registrations(world.store, world.cluster).list()).registered


def _keeper(world: IncarnationWorld, store: MemoryStore, admitted: AdmittedBookie) -> RegistrationKeeper:
    registrations, info = Registrations(store, world.cluster), service_info("h", 1, admitted.incarnation)
    return RegistrationKeeper(store, registrations, US, info, world.clock, takeover_deadline_s=60)


@in_virtual_time
async def test_a_disk_that_is_lost_during_the_start_is_refused() -> None:
    world = await IncarnationWorld().prepare()

    async def fail_scan(operation: str, path: str) -> Fault | None:
        return Fault.FAIL_BEFORE if (operation, path) == ("sync", "/ledgers") else None

    world.store.fault_hook = fail_scan
    with pytest.raises(Exception, match=r"."):
        await world.start(is_new=True)
    world.store.fault_hook = None
    world.machine = world.machine.after_kill()
    world.machine.ledgers = Machine().ledgers
    with pytest.raises(IdentityError):
        await world.start(is_new=True)


@pytest.mark.parametrize("is_power_lost", [False, True])
async def test_a_start_may_be_interrupted_anywhere(is_power_lost: bool) -> None:
    for last in itertools.count():
        world = await IncarnationWorld().prepare()
        switch = PowerSwitch(last)

        async def asked(operation: str, path: str, switch: PowerSwitch = switch) -> Fault | None:
            await switch(Operation.LIST, path)
            return None

        world.store.fault_hook = asked

        async def start(world: IncarnationWorld = world) -> None:
            await world.start(is_new=True)

        is_done = await world.machine.run(start(), switch)
        world.store.fault_hook = None
        if is_power_lost:
            world.machine = world.machine.after_power_loss(last)
        else:
            world.machine = world.machine.after_kill()
        for twin in (world.machine.journal, world.machine.ledgers, world.machine.index):
            twin.before = yield_control
        admitted, storage = await world.start(is_new=True)
        await world.check(admitted, storage)
        await storage.close()
        again, storage = await world.restart()
        assert again.incarnation == admitted.incarnation
        await world.check(again, storage)
        await storage.close()
        if is_done:
            assert last > 30
            return


@pytest.mark.parametrize("fault", Fault)
def test_a_scan_that_is_not_complete_never_serves(fault: Fault) -> None:
    @in_virtual_time
    async def scenario() -> None:
        for at in range(60):
            world = await IncarnationWorld().prepare()
            requests = itertools.count()

            async def fail_one(
                operation: str, path: str, at: int = at, requests: itertools.count[int] = requests
            ) -> Fault | None:
                return fault if next(requests) == at else None

            world.store.fault_hook = fail_one
            try:
                admitted, storage = await world.start(is_new=True)
            except Exception:  # noqa: BLE001 (with any error, it does not serve)
                world.store.fault_hook = None
                admitted, storage = await world.restart(is_new=True)
            world.store.fault_hook = None
            await world.check(admitted, storage)
            await asyncio.wait_for(storage.close(), 60)

    scenario()
