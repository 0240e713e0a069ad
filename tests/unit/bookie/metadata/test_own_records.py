"""Records of bkheal that other releases wrote, or that are damaged (docs/failure-model.md#state-under-bkheal)."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie.metadata.bookies.collections import HeldCollection, HeldCollections
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.first_seen_down import Down, FirstSeenDown
from bookie.metadata.bookies.incarnations import Incarnation, Incarnations, UnreadableHistoryError
from bookie.metadata.bookies.maintenance import MaintenanceWindow, MaintenanceWindows
from bookie.metadata.bookies.returned import EndedLoss, ReturnedBookies
from bookie.metadata.logs.log_list import LogList, UnreadableLogError
from bookie.metadata.logs.log_store import LogLists
from bookie.metadata.nodes import put
from bookie.metadata.own_state import own_path
from bookie.metadata.runs.records import LockHolder, RunLane, Runs
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from bookie.metadata.tasks.boosts import Boost, Boosts
from bookie.metadata.tasks.copy_limits import CopyLimits, CopyLimitsStore, CopyProfile
from bookie.metadata.tasks.decisions import Decision, DecisionKind, Decisions, LostFragment
from bookie.metadata.tasks.doubts import DoubtedMembers
from bookie.metadata.tasks.failures import FailedTask, FailedTasks
from bookie.metadata.tasks.parked import CopyRefusal, ParkedTask, ParkedTasks, ParkReason
from bookie.metadata.tasks.reservations import Reservation, Reservations, UnreadableReservationError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.records import UnreadableRecordError
from bookie.model.run import RunCause, RunKind, RunRecord, RunState

ROOT = "/ledgers"
B1, B2, B3 = BookieId("b1:3181"), BookieId("b2:3181"), BookieId("b3:3181")
LEDGER = LedgerId(7)
SINCE_MS = 1_763_900_000_000
RUN_ID = "20261120T101500Z-0a1b2c"

# The format of the first releases.
PARKED = (
    b'{"reason": "no_live_copy", "detail": "all copies are lost", "since_ms": 1763900000000, '
    b'"bookies_seen": ["b1:3181", "b2:3181"], "task_version": 3}'
)
RESERVATION = (
    b'{"token": "t-1", "reservations": [{"first_entry_id": 0, "position": 2, "target": "b3:3181", '
    b'"incarnation": "7d0c"}]}'
)
DOUBTS = b'{"members": ["b1:3181", "b2:3181"]}'
DRAIN = b'{"by": "ops", "since_ms": 1763900000000}'
DOWN = b'{"since_ms": 1763900000000, "audited_ms": 1763900060000, "is_delay_waived": true}'
INCARNATIONS = b'[{"uuid": "7d0c", "since_ms": 1763900000000}, {"uuid": "99aa", "since_ms": 1763900000001}]'
LOG = (
    b'{"format":1,"ctime_ms":1763900000000,"last_listed":5,"ledgers":[3,5],"options":{"ensemble_size":3},'
    b'"trimming":[2],"truncated_through":2,"writer":"w1"}'
)
LIMITS = b'{"format":1,"bytes_per_second":5,"profile":"balanced","by":"ops","since_ms":1763900000000,"new_field":1}'
LOCK = b'{"run_id": "20261120T101500Z-0a1b2c", "process": "host:12"}'
BOOST = b'{"format": 1, "by": "ops", "since_ms": 1763900000000, "until_ms": 1763900060000}'
WINDOW = (
    b'{"format": 1, "bookies": ["b1:3181", "b2:3181"], "by": "ops", "since_ms": 1763900000000, '
    b'"until_ms": 1763900060000, "holds_critical": true, "note": "new disks"}'
)
COLLECTION = (
    b'{"format": 1, "ledgers": 60, "known": 100, "since_ms": 1763900000000, "allowed_by": "ops", "allowed_since_ms": '
    b'1763900000000, "allowed_until_ms": 1763900060000, "allowed_max": 66}'
)
RETURNED = b'{"format": 1, "losses": [{"since_ms": 1763900000000, "returned_ms": 1763900060000}]}'
DECISION = (
    b'{"format": 1, "verdict": "loss_accepted", "by": "ops", "at_ms": 1763900000000, "reason": "fire", "park_reason": '
    b'"no_live_copy", "lost": [{"first_entry_id": 0, "last_entry_id": 9, "positions": [0, 2], "bookies": ["b1:3181", '
    b'"b3:3181"]}]}'
)
RUN = (
    b'{"run_id": "20261120T101500Z-0a1b2c", "kind": "bookies", "cause": "schedule", "owner": "cron", "process": '
    b'"host:12", "state": "abandoned", "is_dry_run": false, "phase": "", "done": 0, "total": 0, "started_ms": 0, '
    b'"updated_ms": 0, "finished_ms": 0, "verdict": "", "exit_code": -1, "ledgers": 9, "findings": {"CRITICAL": 2}, '
    b'"tasks_changed": 0, "report": "", "detail": ""}'
)

PATHS = {
    PARKED: own_path("parked", ROOT) + f"/{LEDGER}",
    RESERVATION: own_path("reservations", ROOT) + f"/{LEDGER}",
    DOUBTS: own_path("doubts", ROOT) + f"/{LEDGER}",
    DRAIN: own_path("drains", ROOT) + f"/{B1}",
    DOWN: own_path("first-seen-down", ROOT) + f"/{B1}",
    INCARNATIONS: own_path("incarnations", ROOT) + f"/{B1}",
    LOG: own_path("logs", ROOT) + "/a",
    LIMITS: own_path("copy-limits", ROOT),
    LOCK: own_path("runs", ROOT) + "/locks/bookies",
    BOOST: own_path("boosts", ROOT) + f"/{LEDGER}",
    WINDOW: own_path("maintenance", ROOT) + "/rack%3A%2Fr1",
    COLLECTION: own_path("collections", ROOT) + f"/{B1}",
    RETURNED: own_path("returned", ROOT) + f"/{B1}",
    DECISION: own_path("decisions", ROOT) + f"/{LEDGER}",
    RUN: own_path("runs", ROOT) + f"/records/{RUN_ID}",
}


async def store_with(written: Callable[[bytes], bytes]) -> MemoryStore:
    store = MemoryStore(MemoryCell())
    for data, path in PATHS.items():
        await put(store, path, written(data))
    return store


async def test_records_of_the_first_releases_are_read() -> None:
    store = await store_with(lambda data: data)
    parked = ParkedTask(
        ledger_id=LEDGER,
        reason=ParkReason.NO_LIVE_COPY,
        detail="all copies are lost",
        since_ms=SINCE_MS,
        bookies_seen=frozenset({B1, B2}),
        task_version=3,
    )
    assert await ParkedTasks(store, ROOT).get(LEDGER) == parked
    reserved = await Reservations(store, ROOT).read(LEDGER)
    assert reserved is not None
    assert (reserved.token, reserved.reservations) == ("t-1", (Reservation(EntryId(0), 2, B3, "7d0c"),))
    assert await DoubtedMembers(store, ROOT).get(LEDGER) == frozenset({B1, B2})
    expected = CopyLimits(5, profile=CopyProfile.BALANCED, by="ops", since_ms=SINCE_MS)
    assert (await CopyLimitsStore(store, ROOT).read()).limits == expected
    assert await Drains(store, ROOT).read() == {B1: Drain(B1, "ops", SINCE_MS)}
    assert await FirstSeenDown(store, ROOT).read() == {B1: Down(SINCE_MS, SINCE_MS + 60_000, True)}
    history = (Incarnation("7d0c", SINCE_MS), Incarnation("99aa", SINCE_MS + 1))
    assert await Incarnations(store, ROOT).read(B1) == history
    ids = (LedgerId(3), LedgerId(5)), (LedgerId(2),)
    log = LogList(ids[0], "w1", ids[1], LedgerId(2), LedgerId(5), {"ensemble_size": 3}, SINCE_MS)
    assert (await LogLists(store, ROOT).read("a")).list == log
    assert await Boosts(store, ROOT).active(SINCE_MS) == [Boost(LEDGER, "ops", SINCE_MS, SINCE_MS + 60_000)]
    window = MaintenanceWindow("rack:/r1", (B1, B2), "ops", SINCE_MS, SINCE_MS + 60_000, True, "new disks")
    assert await MaintenanceWindows(store, ROOT).open_at(SINCE_MS) == (window,)
    held = HeldCollection(B1, 60, 100, SINCE_MS, "ops", SINCE_MS, SINCE_MS + 60_000, 66)
    assert await HeldCollections(store, ROOT).all() == [held]
    assert await ReturnedBookies(store, ROOT).of([B1]) == {B1: (EndedLoss(SINCE_MS, SINCE_MS + 60_000),)}
    lost = LostFragment(EntryId(0), EntryId(9), (0, 2), (B1, B3))
    decision = Decision(LEDGER, DecisionKind.LOSS_ACCEPTED, "ops", SINCE_MS, "fire", ParkReason.NO_LIVE_COPY, (lost,))
    assert await Decisions(store, ROOT).get(LEDGER) == decision
    assert await Decisions(store, ROOT).accepted() == [decision]
    runs = Runs(store, ROOT)
    run = RunRecord(
        RUN_ID,
        RunKind.BOOKIES,
        RunCause.SCHEDULE,
        "cron",
        "host:12",
        RunState.ABANDONED,
        ledgers=9,
        findings={"CRITICAL": 2},
    )
    assert await runs.get(RUN_ID) == run
    assert await runs.holder(RunLane(RunKind.BOOKIES)) == LockHolder(RUN_ID, "host:12")


async def test_parked_tasks_of_format_2_name_their_bookies_by_hash() -> None:
    """The first release with this format wrote them. A missing list counts as empty."""
    store = MemoryStore(MemoryCell())
    task = ParkedTask(
        ledger_id=LEDGER,
        reason=ParkReason.NO_LIVE_COPY,
        detail="all copies are lost",
        since_ms=SINCE_MS,
        bookies_seen=frozenset({B1, B2}),
        task_version=3,
        attempts=1,
    )
    written = (
        b'{"format":2,"reason":"no_live_copy","detail":"all copies are lost","since_ms":1763900000000,'
        b'"task_version":3,"attempts":1,"bookies":"NAME"}'
    )
    await ParkedTasks(store, ROOT).park(task)
    [name] = (await store.children(own_path("parked-bookies", ROOT))).names
    assert (await store.get(PATHS[PARKED])).data == written.replace(b"NAME", name.encode())
    path = own_path("parked-bookies", ROOT) + f"/{name}"
    assert (await store.get(path)).data == b'{"format":1,"bookies":["b1:3181","b2:3181"]}'
    assert await ParkedTasks(store, ROOT).get(LEDGER) == task
    assert await ParkedTasks(store, ROOT).list() == [task]
    refused = replace(task, refusals=(CopyRefusal(B3, SINCE_MS, 17),))
    await ParkedTasks(store, ROOT).park(refused)
    assert await ParkedTasks(store, ROOT).get(LEDGER) == refused
    await ParkedTasks(store, ROOT).park(task)
    await store.delete(path)
    assert await ParkedTasks(store, ROOT).get(LEDGER) == replace(task, bookies_seen=frozenset())


async def test_a_failure_is_read_back_until_it_is_deleted() -> None:
    store = MemoryStore(MemoryCell())
    failed = FailedTasks(store, ROOT)
    assert await failed.list() == []
    await put(store, failed.path(LEDGER), b'{"format":1,"failures":2,"pause_s":9.5,"token":"0a1b"}')
    assert await failed.list() == [FailedTask(LEDGER, 2, 9.5, "0a1b")]
    await failed.note(FailedTask(LEDGER, 3, 20.0, "77"))
    assert await failed.list() == [FailedTask(LEDGER, 3, 20.0, "77")]
    await put(store, failed.path(LEDGER), b'{"format":2,"failures":2}')
    assert await failed.list() == []
    await failed.forget(LEDGER)
    await failed.forget(LEDGER)
    assert await store.stat(failed.path(LEDGER)) is None


async def test_the_progress_of_a_copy_is_read_back() -> None:
    store = MemoryStore(MemoryCell())
    reservations = Reservations(store, ROOT)
    reserved = await reservations.reserve(LEDGER, "t-1", [Reservation(EntryId(10), 2, B3, "7d0c")])
    assert not reserved.has_progress(B3)
    progress = Reservation(EntryId(10), 2, B3, "7d0c", EntryId(15))
    assert await reservations.note_progress(reserved, [progress])
    noted = await reservations.read(LEDGER)
    assert noted is not None
    assert (noted.reservations, noted.has_progress(B3), noted.has_progress(B1)) == ((progress,), True, False)
    assert await reservations.release(reserved)
    assert not await reservations.note_progress(reserved, [progress])
    assert await reservations.ledgers() == frozenset()


def of_a_newer_format(data: bytes) -> bytes:
    without = data.replace(b'"format":1,', b"").replace(b'"format": 1, ', b"")
    return without.replace(b"{", b'{"format": 3, ', 1)


def cut_off(data: bytes) -> bytes:
    return data[:-1]


@pytest.mark.parametrize("written", [of_a_newer_format, cut_off])
async def test_a_record_of_a_newer_format_is_handled_as_safely_as_a_damaged_one(
    written: Callable[[bytes], bytes],
) -> None:
    store = await store_with(written)
    assert await ParkedTasks(store, ROOT).get(LEDGER) is None
    with pytest.raises(UnreadableReservationError):
        await Reservations(store, ROOT).read(LEDGER)
    doubts = DoubtedMembers(store, ROOT)
    assert await doubts.get(LEDGER) is None
    await doubts.add(LEDGER, [B3])
    assert (await store.get(PATHS[DOUBTS])).data == written(DOUBTS)
    drains = Drains(store, ROOT)
    assert (await drains.draining()).bookies == {B1}
    assert await FirstSeenDown(store, ROOT).read() == {}
    incarnations = Incarnations(store, ROOT)
    with pytest.raises(UnreadableHistoryError):
        await incarnations.record(B1, "7d0c", SINCE_MS)
    assert (await incarnations.latest([B1]))[B1].uuid == ""
    assert (await store.get(PATHS[INCARNATIONS])).data == written(INCARNATIONS)
    with pytest.raises(UnreadableLogError):
        await LogLists(store, ROOT).read("a")
    with pytest.raises(UnreadableRecordError):
        await CopyLimitsStore(store, ROOT).read()
    assert await Boosts(store, ROOT).active(SINCE_MS) == []
    assert await MaintenanceWindows(store, ROOT).open_at(SINCE_MS) == ()
    assert await ReturnedBookies(store, ROOT).of([B1]) == {}
    assert await Decisions(store, ROOT).get(LEDGER) is None
    assert await Decisions(store, ROOT).accepted() == []
    runs = Runs(store, ROOT)
    assert await runs.get(RUN_ID) is None
    assert await runs.holder(RunLane(RunKind.BOOKIES)) == LockHolder("", "")
