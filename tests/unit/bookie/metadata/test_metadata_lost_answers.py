"""Each change of metadata in several steps, with one fault at every request in turn.

A request may be refused before it is sent, or it may be carried out while its answer is lost. In all cases: a call that
returns has done exactly its work; "unavailable" means that the change was not made; and calling again completes the
work.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest
from typing_extensions import override

from bookie.metadata.bookies.cookies import Cookie, CookieExistsError, CookieStore
from bookie.metadata.bookies.incarnations import Incarnations
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.service_info import Endpoint, ServiceInfo
from bookie.metadata.cluster import Cluster, ClusterExistsError, format_cluster, open_cluster
from bookie.metadata.layout import LayoutKind, lock_path, task_path
from bookie.metadata.ledgers.ledgers import LedgerExistsError, LedgerStore, MetadataConflictError
from bookie.metadata.ledgers.serde import decode
from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX
from bookie.metadata.own_state import own_path
from bookie.metadata.port import ANY_VERSION, Check, Create, StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.store.memory import Fault, MemoryCell, MemoryStore
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks, ParkReason
from bookie.metadata.tasks.reservations import Reservation, Reservations
from bookie.metadata.tasks.switches import AlreadyDisabledError, AlreadyEnabledError
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.errors import OutcomeUnknownError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.clock import SystemClock
from tests.worlds.virtual_time import in_virtual_time

ROOT = "/deep/ledgers"
BK1 = BookieId("bk1:3181")
LEDGER = LedgerId(12_345)
OPEN = LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (BK1,)),))
INFO = ServiceInfo((Endpoint("bookie", "h", 1, "bookie-grpc"),))


@dataclass
class OneFault:
    """A hook that makes one request fail: the one with the number ``at``."""

    at: int
    fault: Fault
    seen: int = 0

    async def __call__(self, operation: str, path: str) -> Fault | None:
        self.seen += 1
        return self.fault if self.seen - 1 == self.at else None


@dataclass
class MetadataWorld:
    """A cluster in memory with all its parts, on a store with the fault."""

    store: MemoryStore = field(default_factory=lambda: MemoryStore(MemoryCell()))
    results: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        cluster = Cluster(ROOT, LayoutKind.HIERARCHICAL, "x")
        self.ledgers = LedgerStore(self.store, cluster, random.Random(1))
        self.tasks = UnderReplication(self.store, cluster, SystemClock())
        self.registrations = Registrations(self.store, cluster)
        self.cookies = CookieStore(self.store, cluster)
        self.incarnations = Incarnations(self.store, ROOT)
        self.parked = ParkedTasks(self.store, ROOT)
        self.reservations = Reservations(self.store, ROOT)

    def data(self, path: str) -> bytes | None:
        """Return the data on the server, without the faults of the store."""
        return None if self.store.cell.stat(path) is None else self.store.cell.get(path).data


Step = Callable[[MetadataWorld], Awaitable[object]]


@dataclass(frozen=True)
class Scenario:
    """A change under test. The fault occurs in ``act``; after an error, the caller calls ``again``."""

    prepare: Step
    act: Step
    again: Step
    is_done: Callable[[MetadataWorld], bool]


async def _formatted(world: MetadataWorld) -> None:
    await format_cluster(world.store, ROOT, rng=random.Random(1))


async def _with_ledger(world: MetadataWorld) -> None:
    await _formatted(world)
    await world.ledgers.create(LEDGER, OPEN)


async def _with_task(world: MetadataWorld) -> None:
    await _formatted(world)
    await world.tasks.initialize()
    await world.tasks.marking.mark(LEDGER, [BK1])


async def _with_lock(world: MetadataWorld) -> None:
    await _with_task(world)
    world.results.append(await world.tasks.locks.lock(LEDGER, "host"))


async def _registered(world: MetadataWorld) -> None:
    await _formatted(world)
    await _register(world)


async def _disabled(world: MetadataWorld) -> None:
    await _formatted(world)
    await world.tasks.switches.disable()


async def _format(world: MetadataWorld) -> None:
    await format_cluster(world.store, ROOT, rng=random.Random(7))


async def _format_again(world: MetadataWorld) -> None:
    with pytest.raises(ClusterExistsError) if world.data(ROOT) is not None else _nothing():
        await _format(world)


async def _create(world: MetadataWorld) -> None:
    created = await world.ledgers.create(LEDGER, OPEN)
    assert (created.metadata, created.version) == (_stored(world), 0)


async def _create_again(world: MetadataWorld) -> None:
    with pytest.raises(LedgerExistsError) if _has_ledger(world) else _nothing():
        await _create(world)


async def _write(world: MetadataWorld) -> None:
    written = await world.ledgers.write(LEDGER, OPEN.closed(EntryId(3), 9), 0)
    assert (written.metadata, written.version) == (_stored(world), 1)


async def _write_again(world: MetadataWorld) -> None:
    read = await world.ledgers.read(LEDGER)
    await world.ledgers.write(LEDGER, OPEN.closed(EntryId(3), 9), read.version)


async def _reserve(world: MetadataWorld) -> None:
    reserved = await world.reservations.reserve(LEDGER, "token", [RESERVATION])
    world.results.append(reserved)
    assert world.data(reserved.path) is not None


async def _reserve_again(world: MetadataWorld) -> None:
    await world.reservations.reserve(LEDGER, "another", [RESERVATION])


async def _with_reservation(world: MetadataWorld) -> None:
    await _with_ledger(world)
    await _reserve(world)


async def _release(world: MetadataWorld) -> None:
    assert await world.reservations.release(world.results[0])  # type: ignore[arg-type]


async def _release_again(world: MetadataWorld) -> None:
    await world.reservations.release(world.results[0])  # type: ignore[arg-type]


async def _write_checked(world: MetadataWorld) -> None:
    path = f"{world.reservations.path(LEDGER)}/token"
    written = await world.ledgers.write(LEDGER, OPEN.closed(EntryId(3), 9), 0, checks=[Check(path, 0)])
    assert (written.metadata, written.version) == (_stored(world), 1)


async def _mark_many(world: MetadataWorld) -> None:
    world.results.append(
        await world.tasks.marking.mark_many([(LedgerId(i), [BK1]) for i in range(3)] + [(LEDGER, [BK1])])
    )


async def _lock(world: MetadataWorld) -> None:
    world.results.append(await world.tasks.locks.lock(LEDGER, "host"))
    assert world.results[-1] is not None


async def _complete(world: MetadataWorld) -> None:
    assert await world.tasks.locks.complete(world.results[0])  # type: ignore[arg-type]


async def _complete_again(world: MetadataWorld) -> None:
    """Complete the task again.

    After an error a worker releases its lock; the task is done or waits for the next worker.
    """
    await world.tasks.locks.release(world.results[0].lock)  # type: ignore[attr-defined]
    held = await world.tasks.locks.lock(LEDGER, "host")
    if held is not None:
        assert await world.tasks.locks.complete(held)


async def _register(world: MetadataWorld) -> None:
    await world.registrations.register(BK1, INFO, is_read_only=False, takeover_deadline_s=5)


async def _turn_read_only(world: MetadataWorld) -> None:
    await world.registrations.register(BK1, INFO, is_read_only=True, takeover_deadline_s=5)


async def _cookie_again(world: MetadataWorld) -> None:
    with pytest.raises(CookieExistsError) if world.data(f"{ROOT}/cookies/{BK1}") is not None else _nothing():
        await _cookie(world)


async def _cookie(world: MetadataWorld) -> None:
    await world.cookies.create(Cookie(BK1, ("/j",), ("/l",)))


async def _recorded(world: MetadataWorld) -> None:
    await _formatted(world)
    await world.incarnations.record(BK1, "u-1", 5)


async def _confirm(world: MetadataWorld) -> None:
    history, path = await world.incarnations.history(BK1), f"{ROOT}/confirmed"
    await world.incarnations.confirm(BK1, history, [] if world.data(path) is not None else [Create(path)])


async def _disable_again(world: MetadataWorld) -> None:
    with pytest.raises(AlreadyDisabledError) if _is_disabled(world) else _nothing():
        await world.tasks.switches.disable()


async def _enable_again(world: MetadataWorld) -> None:
    with _nothing() if _is_disabled(world) else pytest.raises(AlreadyEnabledError):
        await world.tasks.switches.enable()


def _stored(world: MetadataWorld) -> LedgerMetadata:
    return decode(world.store.cell.get(world.ledgers.path(LEDGER)).data)


def _is_disabled(world: MetadataWorld) -> bool:
    return world.data(f"{ROOT}/underreplication/disable") is not None


def _has_ledger(world: MetadataWorld) -> bool:
    return world.data(world.ledgers.path(LEDGER)) is not None


def _has_task(world: MetadataWorld) -> bool:
    return world.data(task_path(ROOT, LEDGER)) is not None


def _has_lock(world: MetadataWorld) -> bool:
    return world.data(lock_path(ROOT, LEDGER)) is not None


def _is_closed(world: MetadataWorld) -> bool:
    return world.store.cell.get(world.ledgers.path(LEDGER)).stat.version >= 1


def _is_registered(world: MetadataWorld, *, is_read_only: bool) -> bool:
    writable, read_only = (world.data(f"{ROOT}/available/{mode}{BK1}") is not None for mode in ("", "readonly/"))
    return (writable, read_only) == (not is_read_only, is_read_only)


def _nothing() -> pytest.MonkeyPatch.context:  # type: ignore[valid-type]
    return pytest.MonkeyPatch.context()


PARKED = ParkedTask(
    ledger_id=LEDGER, reason=ParkReason.NO_LIVE_COPY, detail="", since_ms=0, bookies_seen=frozenset(), task_version=0
)

RESERVATION = Reservation(EntryId(0), 0, BK1, "uuid")

SCENARIOS = {
    "format": Scenario(
        lambda w: w.store.stat("/"), _format, _format_again, lambda w: w.data(f"{ROOT}/LAYOUT") is not None
    ),
    "create": Scenario(_formatted, _create, _create_again, _has_ledger),
    "write": Scenario(_with_ledger, _write, _write_again, _is_closed),
    "delete": Scenario(
        _with_ledger,
        lambda w: w.ledgers.delete(LEDGER),
        lambda w: w.ledgers.delete(LEDGER),
        lambda w: not _has_ledger(w),
    ),
    "new id": Scenario(_formatted, lambda w: w.ledgers.new_id(), lambda w: w.ledgers.new_id(), lambda w: True),
    "initialize": Scenario(
        _formatted,
        lambda w: w.tasks.initialize(),
        lambda w: w.tasks.initialize(),
        lambda w: w.data(f"{ROOT}/underreplication/locks") is not None,
    ),
    "mark": Scenario(
        _formatted,
        lambda w: w.tasks.marking.mark(LEDGER, [BK1]),
        lambda w: w.tasks.marking.mark(LEDGER, [BK1]),
        _has_task,
    ),
    "add to a mark": Scenario(
        _with_task,
        lambda w: w.tasks.marking.mark(LEDGER, [BookieId("b")]),
        lambda w: w.tasks.marking.mark(LEDGER, [BookieId("b")]),
        lambda w: b'"b"' in (w.data(task_path(ROOT, LEDGER)) or b""),
    ),
    "mark many": Scenario(
        _with_task, _mark_many, _mark_many, lambda w: all(w.data(task_path(ROOT, i)) is not None for i in range(3))
    ),
    "lock": Scenario(_with_task, _lock, _lock, _has_lock),
    "complete": Scenario(_with_lock, _complete, _complete_again, lambda w: not _has_task(w) and not _has_lock(w)),
    "release": Scenario(
        _with_lock,
        lambda w: w.tasks.locks.release(w.results[0].lock),  # type: ignore[attr-defined]
        lambda w: w.tasks.locks.release(w.results[0].lock),  # type: ignore[attr-defined]
        lambda w: not _has_lock(w),
    ),
    "register": Scenario(_formatted, _register, _register, lambda w: _is_registered(w, is_read_only=False)),
    "turn read-only": Scenario(
        _registered, _turn_read_only, _turn_read_only, lambda w: _is_registered(w, is_read_only=True)
    ),
    "unregister": Scenario(
        _registered,
        lambda w: w.registrations.unregister(BK1),
        lambda w: w.registrations.unregister(BK1),
        lambda w: w.data(f"{ROOT}/available/{BK1}") is None,
    ),
    "disable": Scenario(_formatted, lambda w: w.tasks.switches.disable(), _disable_again, _is_disabled),
    "enable": Scenario(_disabled, lambda w: w.tasks.switches.enable(), _enable_again, lambda w: not _is_disabled(w)),
    "delay": Scenario(
        _formatted,
        lambda w: w.tasks.switches.set_lost_bookie_delay_s(5),
        lambda w: w.tasks.switches.set_lost_bookie_delay_s(5),
        lambda w: w.data(f"{ROOT}/underreplication/lostBookieRecoveryDelay") == b"5",
    ),
    "cookie": Scenario(_formatted, _cookie, _cookie_again, lambda w: w.data(f"{ROOT}/cookies/{BK1}") is not None),
    "incarnation": Scenario(
        _formatted,
        lambda w: w.incarnations.record(BK1, "u-1", 5),
        lambda w: w.incarnations.record(BK1, "u-1", 5),
        lambda w: (w.data(f"{own_path('incarnations', ROOT)}/{BK1}") or b"").count(b"u-1") == 1,
    ),
    "confirmation": Scenario(
        _recorded,
        _confirm,
        _confirm,
        lambda w: w.data(f"{ROOT}/confirmed") is not None,
    ),
    "reserve": Scenario(
        _formatted,
        _reserve,
        _reserve,
        lambda w: b"token" in (w.data(w.reservations.path(LEDGER)) or b""),
    ),
    "reserve anew": Scenario(
        _with_reservation,
        _reserve_again,
        _reserve_again,
        lambda w: b"another" in (w.data(w.reservations.path(LEDGER)) or b""),
    ),
    "release reservation": Scenario(
        _with_reservation, _release, _release_again, lambda w: w.data(w.reservations.path(LEDGER)) is None
    ),
    "write with checks": Scenario(_with_reservation, _write_checked, _write_again, _is_closed),
    "park": Scenario(
        _formatted,
        lambda w: w.parked.park(PARKED),
        lambda w: w.parked.park(PARKED),
        lambda w: w.data(f"/bkheal/parked/deep%2Fledgers/{LEDGER}") is not None,
    ),
}
CHECKED = ("reserve", "reserve anew", "release reservation", "write with checks")
MAY_BE_DONE_WHEN_UNAVAILABLE = {
    "lock",
    "complete",
    "register",
    "turn read-only",
    "unregister",
    "initialize",
    "mark many",
    "new id",
}
"""Operations that make several changes in one call: some of them may be made before the refused one."""


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_one_fault_at_any_request_does_no_harm(name: str, fault: Fault) -> None:
    scenario = SCENARIOS[name]
    for at in range(60):
        world = MetadataWorld()
        await scenario.prepare(world)
        hook = OneFault(at, fault)
        world.store.fault_hook = hook
        try:
            await scenario.act(world)
            assert scenario.is_done(world), f"fault at request {at}: the call returned, but its work is not done"
        except StoreUnavailableError:
            was_refused = not scenario.is_done(world) or name in MAY_BE_DONE_WHEN_UNAVAILABLE
            assert was_refused, f"fault at request {at}: the call raised 'unavailable', but its work is done"
        except OutcomeUnknownError:
            pass
        if hook.seen <= at:
            assert at >= 1
            return
        world.store.fault_hook = None
        if not scenario.is_done(world) or name == "complete":
            await scenario.again(world)
        assert scenario.is_done(world), f"fault at request {at}: calling again does not complete the work"
    raise AssertionError("the scenario has more requests than were tried")


async def test_lost_answer_of_any_write_is_resolved_without_an_error_for_the_caller() -> None:
    """Lost answers are common, so the common changes settle one without an error."""
    for name in (
        "format",
        "create",
        "write",
        "delete",
        "mark",
        "add to a mark",
        "mark many",
        "lock",
        "register",
        *CHECKED,
    ):
        world = MetadataWorld()
        await SCENARIOS[name].prepare(world)
        lost: set[str] = set()

        async def lose_each_once(operation: str, path: str, lost: set[str] = lost) -> Fault | None:
            if operation not in ("create", "set", "delete", "multi") or path in lost:
                return None
            lost.add(path)
            return Fault.LOSE_ANSWER

        world.store.fault_hook = lose_each_once
        await SCENARIOS[name].act(world)
        assert SCENARIOS[name].is_done(world), name
        assert lost


@dataclass
class LostRequest:
    """Lose the first request of this kind; ``meanwhile`` is what other clients do before the loss is noticed."""

    operation: str
    meanwhile: Callable[[], Awaitable[object]] | None = None
    is_lost: bool = False

    async def __call__(self, operation: str, path: str) -> Fault | None:
        if operation == self.operation and not self.is_lost:
            self.is_lost = True
            if self.meanwhile is not None:
                await self.meanwhile()
            raise WriteOutcomeUnknownError("the connection broke")
        return None


async def test_a_change_of_another_client_is_not_mistaken_for_the_lost_own_one() -> None:
    world = MetadataWorld()
    await _with_ledger(world)
    other = MetadataWorld(MemoryStore(world.store.cell))
    theirs = OPEN.closed(EntryId(5), 50)
    world.store.fault_hook = LostRequest("set", lambda: other.ledgers.write(LEDGER, theirs, 0))
    with pytest.raises(MetadataConflictError):
        await world.ledgers.write(LEDGER, OPEN.closed(EntryId(3), 9), 0)
    assert _stored(world).last_entry_id == 5


@pytest.mark.parametrize("format_version", [2, 3])
async def test_a_ledger_of_another_client_is_not_mistaken_for_the_lost_own_one(format_version: int) -> None:
    """Equal metadata of format 2 has equal bytes, so the creator of a ledger cannot be recognized."""
    world = MetadataWorld()
    await _formatted(world)
    other = MetadataWorld(MemoryStore(world.store.cell))
    other.ledgers = LedgerStore(other.store, Cluster(ROOT, LayoutKind.HIERARCHICAL, "x"), random.Random(2))
    metadata = replace(OPEN, format_version=format_version)
    world.store.fault_hook = LostRequest("create", lambda: other.ledgers.create(LEDGER, metadata))
    with pytest.raises(WriteOutcomeUnknownError if format_version == 2 else LedgerExistsError):
        await world.ledgers.create(LEDGER, metadata)


async def test_a_ledger_is_deleted_although_the_first_request_was_lost() -> None:
    world = MetadataWorld()
    await _with_ledger(world)
    world.store.fault_hook = LostRequest("delete")
    await world.ledgers.delete(LEDGER)
    assert not _has_ledger(world)


async def test_an_orphaned_lock_that_another_session_has_acquired_is_not_taken_over() -> None:
    """Programs of Apache delete locks of other sessions."""
    world = MetadataWorld()
    await _with_task(world)

    async def lose_the_answer_and_fail(operation: str, path: str) -> Fault:
        return Fault.LOSE_ANSWER if operation == "multi" else Fault.FAIL_BEFORE

    world.store.fault_hook = lose_the_answer_and_fail
    with pytest.raises(StoreUnavailableError):
        await world.tasks.locks.lock(LEDGER, "host")
    world.store.fault_hook = None
    await world.store.delete(lock_path(ROOT, LEDGER))
    other = MetadataWorld(MemoryStore(world.store.cell))
    theirs = await other.tasks.locks.lock(LEDGER, "other")
    assert theirs is not None
    assert await world.tasks.locks.lock(LEDGER, "host") is None
    assert await other.tasks.locks.complete(theirs)


async def test_mark_many_counts_marks_whose_answer_was_lost() -> None:
    world = MetadataWorld()
    await _with_task(world)
    world.store.fault_hook = OneFault(at=0, fault=Fault.FAIL_BEFORE, seen=1)
    requests: list[str] = []

    async def lose_first_multi_of_tasks(operation: str, path: str) -> Fault | None:
        requests.append(operation)
        is_first = operation == "multi" and "/0000/0000/0000/" in path and requests.count("lost") == 0
        if is_first:
            requests.append("lost")
        return Fault.LOSE_ANSWER if is_first else None

    world.store.fault_hook = lose_first_multi_of_tasks
    assert await world.tasks.marking.mark_many([(LedgerId(i), [BK1]) for i in range(3)]) == 3
    assert "lost" in requests


async def test_a_cluster_opens_if_an_answer_was_lost_while_formatting() -> None:
    world = MetadataWorld()
    world.store.fault_hook = OneFault(at=3, fault=Fault.LOSE_ANSWER)
    await _format(world)
    assert (await open_cluster(world.store, ROOT)).root == ROOT


class LosingStore(MemoryStore):
    """A store whose connection breaks while deletes are sent: they are not carried out, and no answer shows this."""

    losses = 0

    @override
    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        if not self.losses:
            return await super().delete(path, version)
        self.losses -= 1
        raise WriteOutcomeUnknownError(path)


@pytest.mark.parametrize("losses", [1, WRITE_ATTEMPTS_MAX])
async def test_a_registration_that_remains_is_not_reported_as_deleted(losses: int) -> None:
    store = LosingStore(MemoryCell())
    world = MetadataWorld(store)
    await _registered(world)

    async def repeat_until_done(change: Step) -> None:
        store.losses = losses
        if losses == WRITE_ATTEMPTS_MAX:
            with pytest.raises(WriteOutcomeUnknownError):
                await change(world)
        await change(world)

    await repeat_until_done(_turn_read_only)
    assert _is_registered(world, is_read_only=True)
    await repeat_until_done(lambda w: w.registrations.unregister(BK1))
    assert (await world.registrations.list()).registered == frozenset()


@in_virtual_time
async def test_an_unreachable_store_is_not_reported_as_a_bookie_id_in_use() -> None:
    world = MetadataWorld()
    await _formatted(world)
    world.store.suspend()
    with pytest.raises(StoreUnavailableError):
        await world.registrations.register(BK1, INFO, is_read_only=False, takeover_deadline_s=0.1)


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_cookie_that_was_not_written_is_not_taken_for_the_own_one(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks while the cookie is sent, and another bookie may have taken the id in the meantime."""
    world = MetadataWorld()
    await _formatted(world)
    ours, theirs = (Cookie(BK1, (journal,), ("/ledgers",)) for journal in ("/ours", "/theirs"))

    async def lost(path: str, data: bytes, **_: bool) -> None:
        monkeypatch.undo()
        if is_taken:
            await world.cookies.create(theirs)
        raise WriteOutcomeUnknownError(path)

    monkeypatch.setattr(world.store, "create", lost)
    with pytest.raises(CookieExistsError if is_taken else WriteOutcomeUnknownError):
        await world.cookies.create(ours)
    stored = await world.cookies.read(BK1)
    assert (None if stored is None else stored.cookie) == (theirs if is_taken else None)
