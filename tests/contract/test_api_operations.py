"""``Operations`` over the store, on the twin and on a real ZooKeeper."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import pytest
from typing_extensions import override

from auditor.api import operations as api_operations
from auditor.api.operations import StoreOperations, worst_fragment
from auditor.api.operations_port import ALL_MARKS, MarkFilter, MarkPage, TaskState
from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.registration import Bookies, BookieState, Registrations
from bookie.metadata.bookies.service_info import PROTOCOL_GRPC, Endpoint, ServiceInfo
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import bookie_path, ledger_path, lost_bookie_delay_path, task_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import ANY_VERSION, MetadataStore, Node
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks, ParkReason
from bookie.metadata.tasks.switches import InvalidDelayError
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.severity import Severity
from bookie.wire.port import BookieInfo, InfoReply, ReplyT, Request, Status
from bookie.wire.requests import Info
from tests.worlds.clocks import EPOCH_MS, ManualClock
from tests.worlds.requests import WithoutAdds

A, B, C, D = (BookieId(f"{name}:3181") for name in "abcd")
NOW_MS = EPOCH_MS


class Figures(WithoutAdds):
    """Returns figures for one bookie only."""

    def __init__(self) -> None:
        self.asked: list[BookieId] = []

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        assert isinstance(request, Info)
        self.asked.append(bookie)
        if bookie != A:
            return cast(ReplyT, InfoReply(Status.UNREACHABLE))
        return cast(ReplyT, InfoReply(Status.OK, BookieInfo("uuid", "1", False, 1_000, 400, 12)))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def figures() -> Figures:
    return Figures()


@pytest.fixture
def operations(store: MetadataStore, cluster: Cluster, clock: ManualClock, figures: Figures) -> StoreOperations:
    return StoreOperations(store, cluster, figures, clock)


def ledger(*members: BookieId, last: int | None = 9) -> LedgerMetadata:
    made = LedgerMetadata(len(members), len(members), 2, (Fragment(EntryId(0), members),))
    return made if last is None else made.closed(EntryId(last), 4_096)


async def register(store: MetadataStore, cluster: Cluster, bookie: BookieId, *, is_read_only: bool = False) -> None:
    info = ServiceInfo((Endpoint("grpc", f"host-{bookie[0]}", 3181, PROTOCOL_GRPC),))
    registrations = Registrations(store, cluster)
    await registrations.register(bookie, info, is_read_only=is_read_only, takeover_deadline_s=5)


async def test_marked_ledgers_are_judged_and_paged(
    store: MetadataStore, cluster: Cluster, operations: StoreOperations, clock: ManualClock
) -> None:
    ledgers, tasks = LedgerStore(store, cluster, random.Random(1)), UnderReplication(store, cluster, clock)
    await tasks.initialize()
    for bookie in (A, B):
        await register(store, cluster, bookie)
    await ledgers.create(LedgerId(1), ledger(A, B, C))
    await ledgers.create(LedgerId(2), ledger(C, D, last=None))
    await ledgers.create(LedgerId(3), ledger(A, B))
    await ledgers.create(LedgerId(5), ledger(A, C))
    await store.set(ledger_path(cluster.kind, cluster.root, LedgerId(5)), b"rubbish", ANY_VERSION)
    marks = [(1, C), (2, C), (3, B), (4, C), (5, C)]
    await tasks.marking.mark_many([(LedgerId(number), [bookie]) for number, bookie in marks])
    held = await tasks.locks.lock(LedgerId(3), "worker")
    assert held is not None
    parked = ParkedTasks(store, cluster.root)
    why = ParkedTask(
        ledger_id=LedgerId(2),
        reason=ParkReason.NO_LIVE_COPY,
        detail="no bookie has it",
        since_ms=NOW_MS,
        bookies_seen=frozenset(),
        task_version=0,
    )
    await parked.park(why)
    page = await operations.list_tasks(10)
    shown = [(view.ledger_id, view.state, view.condition, view.copies_min, view.ledger_bytes) for view in page.tasks]
    assert shown == [
        (1, TaskState.WAITING, "below_write_quorum", 2, 4_096),
        (2, TaskState.PARKED, "no_live_copy", 0, None),
        (3, TaskState.IN_PROGRESS, "healthy", None, 4_096),
        (4, TaskState.WAITING, "gone", None, None),
        (5, TaskState.WAITING, "unreadable", None, None),
    ]
    assert page.next_after is None
    assert (page.tasks[0].missing, page.tasks[0].marked_ms) == ((C,), NOW_MS)
    assert (page.tasks[1].park_reason, page.tasks[1].detail) == (ParkReason.NO_LIVE_COPY, "no bookie has it")
    assert page.tasks[4].detail
    walked, after = [], None
    while True:
        part = await operations.list_tasks(2, after)
        walked += [view.ledger_id for view in part.tasks]
        after = part.next_after
        if after is None:
            break
    assert walked == [1, 2, 3, 4, 5]
    missing = await operations.list_tasks(10, wanted=MarkFilter(str(B)))
    assert [view.ledger_id for view in missing.tasks] == [3]
    assert [task.ledger_id for task in (await operations.list_marks(10)).tasks] == walked
    assert await operations.is_any_marked()


async def test_a_mark_that_cannot_be_read_is_in_every_list_because_its_bookies_are_unknown(
    store: MetadataStore, cluster: Cluster, operations: StoreOperations, clock: ManualClock
) -> None:
    ledgers, tasks = LedgerStore(store, cluster, random.Random(1)), UnderReplication(store, cluster, clock)
    await tasks.initialize()
    await ledgers.create(LedgerId(1), ledger(A, B, C))
    await tasks.marking.mark_many([(LedgerId(1), [C])])
    await store.set(task_path(cluster.root, LedgerId(1)), b"rubbish", ANY_VERSION)
    for wanted in (ALL_MARKS, MarkFilter(missing=B), MarkFilter(not_missing=C)):
        (view,) = (await operations.list_tasks(10, wanted=wanted)).tasks
        assert (view.ledger_id, view.condition, view.missing, view.marked_ms) == (1, "unreadable", (), 0)
        assert "cannot be read" in view.detail
        assert [task.ledger_id for task in (await operations.list_marks(10, wanted=wanted)).tasks] == [1]


async def test_a_cluster_without_marks_has_an_empty_page(
    store: MetadataStore, cluster: Cluster, operations: StoreOperations, clock: ManualClock
) -> None:
    tasks = UnderReplication(store, cluster, clock)
    for _ in range(2):  # before and after the tree of tasks is created
        assert await operations.list_marks(10) == MarkPage([], None)
        assert not await operations.is_any_marked()
        await tasks.initialize()


async def test_a_search_with_few_results_ends_and_can_be_continued(
    store: MetadataStore,
    cluster: Cluster,
    operations: StoreOperations,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_operations, "MARKS_EXAMINED_MAX", 4)
    monkeypatch.setattr(api_operations, "_PLACES_AT_ONCE", 2)
    tasks = UnderReplication(store, cluster, clock)
    await tasks.initialize()
    await tasks.marking.mark_many([(LedgerId(number), [B if number == 6 else A]) for number in range(8)])
    wanted = MarkFilter(str(B))
    first = await operations.list_marks(1, None, wanted)
    assert (first.tasks, first.next_after) == ([], 3)
    second = await operations.list_marks(1, first.next_after, wanted)
    assert [task.ledger_id for task in second.tasks] == [6]


async def test_every_known_bookie_has_its_state(
    store: MetadataStore, cluster: Cluster, operations: StoreOperations, figures: Figures, clock: ManualClock
) -> None:
    cookies = CookieStore(store, cluster)
    for bookie in (A, D):
        await cookies.create(Cookie(bookie, ("/journal",), ("/ledgers",), cluster.instance_id))
    await register(store, cluster, A)
    await register(store, cluster, B, is_read_only=True)
    await store.create(bookie_path(cluster.root, C, is_read_only=False), b"\xff")
    found = [(view.bookie_id, view.state, view.host, view.disk_free_bytes) for view in await operations.bookies()]
    assert found == [
        (A, BookieState.WRITABLE, "host-a", 400),
        (B, BookieState.READ_ONLY, "host-b", None),
        (C, BookieState.WRITABLE, "", None),
        (D, BookieState.UNREGISTERED, "", None),
    ]
    await operations.bookies()
    assert sorted(figures.asked) == [A, B]  # the second call sent no request
    clock.now_s += 15
    await operations.bookies()
    assert len(figures.asked) == 4


async def test_bookies_that_cannot_be_queried_have_no_figures(
    store: MetadataStore, cluster: Cluster, clock: ManualClock
) -> None:
    await register(store, cluster, A)
    [view] = await StoreOperations(store, cluster, None, clock).bookies()
    assert (view.host, view.protocol, view.disk_total_bytes) == ("host-a", PROTOCOL_GRPC, None)


async def test_the_recovery_switch_is_apaches_and_setting_it_twice_is_no_error(
    store: MetadataStore, cluster: Cluster, operations: StoreOperations
) -> None:
    assert await operations.is_recovery_enabled()
    for is_on in (False, False, True, True):
        await operations.set_recovery(is_on=is_on)
        assert await operations.is_recovery_enabled() is is_on
        assert (await store.stat(f"{cluster.root}/underreplication/disable") is None) is is_on


async def test_the_lost_bookie_delay_is_apaches(
    store: MetadataStore, cluster: Cluster, operations: StoreOperations
) -> None:
    assert await operations.lost_bookie_delay_s() == 0
    await operations.set_lost_bookie_delay_s(90)
    assert await operations.lost_bookie_delay_s() == 90
    assert (await store.get(lost_bookie_delay_path(cluster.root))).data == b"90"
    with pytest.raises(InvalidDelayError):
        await operations.set_lost_bookie_delay_s(-1)


def test_the_worst_fragment_determines_the_severity() -> None:
    fragments = (Fragment(EntryId(0), (A, B, C)), Fragment(EntryId(5), (A, C, D)))
    metadata = LedgerMetadata(3, 3, 2, fragments).closed(EntryId(9), 1)
    worst = worst_fragment(metadata, Bookies(frozenset({A, B}), frozenset()))
    assert worst is not None
    assert (worst.severity, worst.copies_min) == (Severity.CRITICAL, 1)
    assert worst_fragment(metadata, Bookies(frozenset({A, B}), frozenset({C, D}))) is None


async def test_a_page_costs_the_same_however_many_ledgers_are_marked(
    store: MetadataStore, cluster: Cluster, operations: StoreOperations, clock: ManualClock
) -> None:
    """Each process answers on its event loop, and the leader needs this loop to confirm its vote."""
    tasks = UnderReplication(store, cluster, clock)
    await tasks.initialize()
    await tasks.marking.mark_many([(LedgerId(number), [A]) for number in range(3_000)])
    read: list[int] = []
    real = store.get_many

    async def counted(paths: Sequence[str]) -> list[Node | None]:
        read.append(len(paths))
        return await real(paths)

    store.get_many = counted  # type: ignore[method-assign]
    page = await operations.list_tasks(10, LedgerId(1_000))
    assert [view.ledger_id for view in page.tasks] == list(range(1_001, 1_011))
    assert await operations.is_any_marked()
    assert (await operations.list_marks(5)).next_after == 4
    assert sum(read) < 100
