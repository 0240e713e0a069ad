"""Registrations, cookies, incarnations and parked tasks, on the twin and on ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from bookie.metadata.bookies.cookies import (
    Cookie,
    CookieConflictError,
    CookieExistsError,
    CookieStore,
    ForeignClusterError,
    InvalidCookieError,
    StoredCookie,
    check_no_apache_bookies,
    encode_cookie,
)
from bookie.metadata.bookies.incarnations import Incarnation, Incarnations, OtherDisksError, UnreadableHistoryError
from bookie.metadata.bookies.registration import BookieIdInUseError, Bookies, DisksReplacedError, Registrations
from bookie.metadata.bookies.service_info import PROPERTY_INCARNATION, Endpoint, ServiceInfo, encode_service_info
from bookie.metadata.cluster import Cluster, NotAClusterError
from bookie.metadata.layout import LayoutKind, available_path
from bookie.metadata.own_state import own_path
from bookie.metadata.port import ANY_VERSION, Create, MetadataStore, MultiFailedError, NodeExistsError, NoNodeError
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks, ParkReason
from bookie.model.ids import BookieId, LedgerId

BK1, BK2 = BookieId("bk1:3181"), BookieId("bk2:3181")
GRPC = ServiceInfo((Endpoint("bookie", "10.0.0.1", 3181, "bookie-grpc"),), ((PROPERTY_INCARNATION, "u-1"),))
APACHE = ServiceInfo((Endpoint("bookie", "10.0.0.2", 3181, "bookie-rpc"),))
NO_BOOKIES = Bookies(frozenset(), frozenset())
LONG_S = 30.0


@pytest.fixture
def registrations(store: MetadataStore, cluster: Cluster) -> Registrations:
    return Registrations(store, cluster)


@pytest.fixture
async def others(backend: Any, cluster: Cluster) -> Registrations:
    """The same registrations in another session."""
    return Registrations(await backend.open(), cluster)


async def _register(which: Registrations, *, is_read_only: bool = False, deadline_s: float = LONG_S) -> None:
    await which.register(BK1, GRPC, is_read_only=is_read_only, takeover_deadline_s=deadline_s)


async def test_only_the_disks_that_were_recorded_last_are_registered(
    store: MetadataStore, cluster: Cluster, registrations: Registrations, others: Registrations
) -> None:
    incarnations = Incarnations(store, cluster.root)
    await incarnations.record(BK1, "u-1", 0)
    await _register(registrations)
    assert BK1 in (await others.list()).writable
    await registrations.unregister(BK1)
    await incarnations.record(BK1, "u-2", 0)
    with pytest.raises(DisksReplacedError, match="u-2"):
        await _register(others)
    assert await others.list() == NO_BOOKIES


async def test_recorded_disks_are_registered_even_if_the_parent_of_registrations_is_missing(
    store: MetadataStore, cluster: Cluster, registrations: Registrations
) -> None:
    """ZooKeeper deletes the empty container nodes of Pulsar's driver."""
    await Incarnations(store, cluster.root).record(BK1, "u-1", 0)
    await _delete_parents_of_registrations(store, cluster)
    await _register(registrations)
    assert BK1 in (await registrations.list()).writable


async def _delete_parents_of_registrations(store: MetadataStore, cluster: Cluster) -> None:
    for is_read_only in (True, False):
        with contextlib.suppress(NoNodeError):
            await store.delete(available_path(cluster.root, is_read_only=is_read_only), ANY_VERSION)


async def test_registered_bookie_is_listed_with_its_info(
    store: MetadataStore, cluster: Cluster, registrations: Registrations, others: Registrations
) -> None:
    assert await registrations.list() == NO_BOOKIES
    assert await others.service_info(BK1) is None
    await _register(registrations)
    assert await others.list() == Bookies(frozenset({BK1}), frozenset())
    info = await others.service_info(BK1)
    assert info == GRPC
    assert info.incarnation == "u-1"
    node = await store.get(f"{cluster.root}/available/{BK1}")
    assert node.stat.ephemeral_owner == store.session.session_id
    await _register(registrations)
    assert (await store.get(f"{cluster.root}/available/{BK1}")).stat == node.stat


async def test_changed_info_replaces_the_bookies_own_registration(registrations: Registrations) -> None:
    await _register(registrations)
    moved = replace(GRPC, endpoints=(replace(GRPC.endpoints[0], port=4000),))
    await registrations.register(BK1, moved, is_read_only=False, takeover_deadline_s=LONG_S)
    assert await registrations.service_info(BK1) == moved


async def test_a_bookie_becomes_read_only_and_writable_again_without_being_absent(
    registrations: Registrations, others: Registrations
) -> None:
    await _register(registrations)
    seen: list[Bookies] = []
    stop = asyncio.Event()

    async def watch() -> None:
        while not stop.is_set():
            seen.append(await others.list())

    watching = asyncio.create_task(watch())
    for is_read_only in (True, False) * 10:
        await _register(registrations, is_read_only=is_read_only)
        listed = await registrations.list()
        one, none = frozenset({BK1}), frozenset[BookieId]()
        assert listed == (Bookies(none, one) if is_read_only else Bookies(one, none))
        assert await registrations.service_info(BK1) == GRPC
    stop.set()
    await watching
    assert {bookies.registered for bookies in seen} == {frozenset({BK1})}
    assert all(not bookies.writable & bookies.read_only for bookies in seen)


async def test_bookie_id_of_a_live_session_is_refused(registrations: Registrations, others: Registrations) -> None:
    await _register(registrations)
    for is_read_only in (False, True):
        with pytest.raises(BookieIdInUseError, match=BK1):
            await _register(others, is_read_only=is_read_only, deadline_s=0.05)
    await others.unregister(BK1)
    assert (await registrations.list()).writable == {BK1}


@pytest.mark.parametrize("is_read_only", [False, True])
async def test_a_start_waits_for_the_end_of_the_predecessors_registration(
    backend: Any, cluster: Cluster, others: Registrations, with_deadline: Any, is_read_only: bool
) -> None:
    predecessor = await backend.open()
    await _register(Registrations(predecessor, cluster), is_read_only=is_read_only)
    taking_over = asyncio.create_task(_register(others))
    await others.list()
    assert not taking_over.done()
    await predecessor.close()
    await with_deadline(taking_over)
    assert await others.list() == Bookies(frozenset({BK1}), frozenset())


async def test_an_unregistered_bookie_is_not_listed(registrations: Registrations) -> None:
    await _register(registrations)
    await registrations.unregister(BK1)
    await registrations.unregister(BK1)
    assert await registrations.list() == NO_BOOKIES


async def test_registration_ends_with_the_session(
    store: MetadataStore, backend: Any, registrations: Registrations, others: Registrations
) -> None:
    await _register(registrations)
    await backend.expire(store)
    assert await others.list() == NO_BOOKIES
    await _register(registrations)
    assert (await others.list()).writable == {BK1}


async def test_a_wait_ends_after_a_change_of_writable_or_read_only_bookies(
    registrations: Registrations, others: Registrations, with_deadline: Any
) -> None:
    seen = await others.list()
    changes: list[Callable[[], Awaitable[None]]] = [
        lambda: _register(registrations),
        lambda: _register(registrations, is_read_only=True),
        lambda: registrations.unregister(BK1),
    ]
    for change in changes:
        waiting = asyncio.create_task(others.wait_changed(seen))
        await others.list()
        assert not waiting.done()
        await change()
        seen = await with_deadline(waiting)
        while seen != await registrations.list():
            seen = await with_deadline(others.wait_changed(seen))
    assert seen == NO_BOOKIES
    assert await with_deadline(others.wait_changed(Bookies(frozenset({BK2}), frozenset()))) == NO_BOOKIES


async def test_a_read_only_registration_works_without_its_parent_node(
    store: MetadataStore, cluster: Cluster, registrations: Registrations, with_deadline: Any
) -> None:
    await store.delete(f"{cluster.root}/available/readonly")
    assert await registrations.list() == NO_BOOKIES
    waiting = asyncio.create_task(registrations.wait_changed(NO_BOOKIES))
    await _register(registrations, is_read_only=True)
    assert (await with_deadline(waiting)).read_only == {BK1}


async def test_a_missing_cluster_is_an_error_and_not_an_empty_list_of_bookies(store: MetadataStore, base: str) -> None:
    with pytest.raises(NotAClusterError):
        await Registrations(store, Cluster(f"{base}/gone", LayoutKind.HIERARCHICAL, "x")).list()


async def test_deleted_parents_of_registrations_mean_no_bookies_and_are_watched(
    store: MetadataStore, cluster: Cluster, registrations: Registrations, with_deadline: Any
) -> None:
    """ZooKeeper deletes the empty container nodes of Pulsar's driver (R86)."""
    await store.delete(f"{cluster.root}/available/readonly")
    await store.delete(f"{cluster.root}/available")
    assert await registrations.list() == NO_BOOKIES
    waiting = asyncio.create_task(registrations.wait_changed(NO_BOOKIES))
    await _register(registrations, is_read_only=False)
    assert (await with_deadline(waiting)).writable == {BK1}


async def test_observations_show_whether_a_bookie_came_and_left_between_them(
    store: MetadataStore, cluster: Cluster, registrations: Registrations
) -> None:
    path = f"{cluster.root}/available/{BK2}"
    seen = [await registrations.observe()]

    async def is_unseen() -> bool:
        seen.append(await registrations.observe())
        assert seen[-1].bookies == await registrations.list()
        return seen[-1].has_unseen_changes_since(seen[-2])

    for is_read_only in (False, True, False):
        await _register(registrations, is_read_only=is_read_only)
        assert not await is_unseen()
    await registrations.unregister(BK1)
    assert not await is_unseen()
    await store.create(path, is_ephemeral=True)
    await store.delete(path)
    assert await is_unseen()
    assert seen[-1].version != seen[-2].version
    assert not await is_unseen()
    assert seen[-1].version == seen[-2].version
    for parent in ("available/readonly", "available"):
        await store.delete(f"{cluster.root}/{parent}")
    await is_unseen()
    await _register(registrations)
    assert not await is_unseen()


async def test_damaged_registration_has_no_endpoints(
    store: MetadataStore, cluster: Cluster, registrations: Registrations
) -> None:
    await store.create(f"{cluster.root}/available/{BK1}", b"\xff\xff", is_ephemeral=True)
    assert await registrations.service_info(BK1) == ServiceInfo(())


async def test_cookies_list_every_bookie_that_ever_joined(store: MetadataStore, cluster: Cluster) -> None:
    cookies = CookieStore(store, cluster)
    registrations = Registrations(store, cluster)
    assert await registrations.known() == frozenset()
    assert await cookies.read(BK1) is None
    cookie = Cookie(BK1, ("/j",), ("/l1", "/l2"), cluster.instance_id)
    await cookies.create(cookie)
    assert await registrations.known() == {BK1}
    assert await cookies.read(BK1) == StoredCookie(cookie, 0)
    with pytest.raises(CookieExistsError):
        await cookies.create(cookie)
    grown = replace(cookie, ledger_dirs=("/l1", "/l2", "/l3"))
    await cookies.replace(grown, 0)
    assert await cookies.read(BK1) == StoredCookie(grown, 1)
    for attempt in (
        cookies.replace(cookie, 0),
        cookies.delete(BK1, 0),
        cookies.replace(replace(cookie, bookie_id=BK2), 0),
    ):
        with pytest.raises(CookieConflictError):
            await attempt
    await cookies.delete(BK1, 1)
    await cookies.delete(BK1, 1)
    assert await registrations.known() == frozenset()


async def test_new_disks_have_a_new_number_even_if_the_cookie_was_deleted_and_recreated(
    store: MetadataStore, cluster: Cluster, registrations: Registrations
) -> None:
    cookies = CookieStore(store, cluster)
    cookie = Cookie(BK1, ("/j",), ("/l1",), cluster.instance_id)
    assert await registrations.disks([BK1]) == {BK1: 0}
    await cookies.create(cookie)
    first = await registrations.disks([BK1, BK2])
    assert first[BK2] == 0
    await _register(registrations)
    await registrations.unregister(BK1)
    await _register(registrations)
    assert await registrations.disks([BK1, BK2]) == first
    await cookies.replace(cookie, 0)
    second = await registrations.disks([BK1])
    await cookies.delete(BK1, 1)
    assert await registrations.disks([BK1]) == {BK1: 0}
    await cookies.create(cookie)
    third = await registrations.disks([BK1])
    assert 0 < first[BK1] < second[BK1] < third[BK1]


async def test_damaged_cookie_is_an_error(store: MetadataStore, cluster: Cluster) -> None:
    cookies = CookieStore(store, cluster)
    await cookies.create(Cookie(BK1, ("/j",), ("/l",)))
    await store.set(f"{cluster.root}/cookies/{BK1}", b"rubbish", ANY_VERSION)
    with pytest.raises(InvalidCookieError):
        await cookies.read(BK1)


async def test_incarnations_are_kept_permanently(store: MetadataStore, cluster: Cluster) -> None:
    bookie = BookieId(f"bk-{random.SystemRandom().getrandbits(64):x}")
    incarnations = Incarnations(store, cluster.root)
    assert await incarnations.read(bookie) == ()
    for uuid in ("u-1", "u-1", "u-2", "u-2"):
        await incarnations.record(bookie, uuid, 1000)
    assert await incarnations.read(bookie) == (Incarnation("u-1", 1000), Incarnation("u-2", 1000))
    assert bookie in await incarnations.known()
    await asyncio.gather(*(incarnations.record(bookie, f"v-{i}", 2000) for i in range(3)))
    assert {item.uuid for item in await incarnations.read(bookie)} == {"u-1", "u-2", "v-0", "v-1", "v-2"}
    path = f"{own_path('incarnations', cluster.root)}/{bookie}"
    newest = (await incarnations.read(bookie))[-1].uuid
    assert (await incarnations.latest([bookie, BookieId("never")])).keys() == {bookie}
    found = (await incarnations.latest([bookie]))[bookie]
    assert found.uuid == newest
    await store.multi([found.check])
    await store.set(path, b"{}[", ANY_VERSION)
    with pytest.raises(MultiFailedError):
        await store.multi([found.check])
    assert (await incarnations.latest([bookie]))[bookie].uuid == ""
    with pytest.raises(UnreadableHistoryError):
        await incarnations.record(bookie, "u-3", 3000)
    assert (await store.get(path)).data == b"{}["
    assert bookie not in await Incarnations(store, "/another/root").known()


async def test_disks_are_recorded_and_confirmed_only_if_the_history_is_unchanged(
    store: MetadataStore, cluster: Cluster
) -> None:
    bookie = BookieId(f"bk-{random.SystemRandom().getrandbits(64):x}")
    incarnations, path = Incarnations(store, cluster.root), f"{cluster.root}/{random.SystemRandom().getrandbits(64):x}"
    empty = await incarnations.history(bookie)
    await incarnations.record(bookie, "u-1", 1000, empty)
    with pytest.raises(OtherDisksError):
        await incarnations.record(bookie, "u-2", 1000, empty)
    await incarnations.record(bookie, "u-1", 1000, empty)  # a repetition after a lost answer
    first = await incarnations.history(bookie)
    await incarnations.confirm(bookie, first, [Create(path)])
    assert await store.stat(path) is not None
    with pytest.raises(OtherDisksError):
        await incarnations.record(bookie, "u-2", 1000, first)
    with pytest.raises(OtherDisksError):
        await incarnations.confirm(bookie, first, [])
    with pytest.raises(MultiFailedError) as refused:
        await incarnations.confirm(bookie, await incarnations.history(bookie), [Create(path)])
    assert (refused.value.index, type(refused.value.cause)) == (1, NodeExistsError)
    assert await incarnations.read(bookie) == (Incarnation("u-1", 1000),)


async def test_foreign_bookies_are_refused(
    store: MetadataStore, cluster: Cluster, registrations: Registrations
) -> None:
    ours = BookieId(f"ours-{random.SystemRandom().getrandbits(64):x}")
    await check_no_apache_bookies(store, cluster)
    await Incarnations(store, cluster.root).record(ours, "u-1", 1)
    await CookieStore(store, cluster).create(Cookie(ours, ("/j",), ("/l",)))
    await registrations.register(ours, GRPC, is_read_only=False, takeover_deadline_s=LONG_S)
    await check_no_apache_bookies(store, cluster)

    path = f"{cluster.root}/available/{BK2}"
    for payload in (encode_service_info(APACHE), b""):
        await store.create(path, payload, is_ephemeral=True)
        with pytest.raises(ForeignClusterError, match=BK2):
            await check_no_apache_bookies(store, cluster)
        await store.delete(path)
    both = ServiceInfo((*APACHE.endpoints, *GRPC.endpoints))
    await store.create(path, encode_service_info(both), is_ephemeral=True)
    await check_no_apache_bookies(store, cluster)

    await store.create(f"{cluster.root}/cookies/{BK1}", encode_cookie(Cookie(BK1, ("/j",), ("/l",))))
    with pytest.raises(ForeignClusterError, match=BK1):
        await check_no_apache_bookies(store, cluster)


async def test_parked_tasks_are_kept_per_cluster(store: MetadataStore, cluster: Cluster) -> None:
    parked, elsewhere = ParkedTasks(store, cluster.root), ParkedTasks(store, cluster.root + "2")
    assert await parked.list() == []
    assert await parked.get(LedgerId(5)) is None
    task = ParkedTask(
        ledger_id=LedgerId(5),
        reason=ParkReason.NO_LIVE_COPY,
        detail="all of b1, b2 are away",
        since_ms=1000,
        bookies_seen=frozenset({BK1}),
        task_version=3,
    )
    other = replace(task, ledger_id=LedgerId(1 << 40), reason=ParkReason.NEEDS_RECOVERY)
    for _ in range(2):
        await parked.park(task)
        await parked.park(other)
    assert await parked.list() == [task, other]
    assert await parked.get(LedgerId(5)) == task
    assert await elsewhere.list() == []
    await parked.park(replace(task, detail="b2 is back"))
    assert (await parked.list())[0].detail == "b2 is back"
    await parked.unpark(LedgerId(5))
    await parked.unpark(LedgerId(5))
    assert await parked.list() == [other]


async def test_damaged_parked_task_counts_as_not_parked(store: MetadataStore, cluster: Cluster) -> None:
    parked = ParkedTasks(store, cluster.root)
    task = ParkedTask(
        ledger_id=LedgerId(5),
        reason=ParkReason.NO_LIVE_COPY,
        detail="x" * 10_000,
        since_ms=1000,
        bookies_seen=frozenset(),
        task_version=0,
    )
    await parked.park(task)
    [listed] = await parked.list()
    assert len(listed.detail) == 4000
    [name] = [name for name in (await store.children("/bkheal/parked")).names if cluster.root.split("/")[1] in name]
    for rubbish in (b"", b"[]", b'{"reason": "unheard of"}', b"\xff"):
        await store.set(f"/bkheal/parked/{name}/5", rubbish, ANY_VERSION)
        assert await parked.list() == []
        assert await parked.get(LedgerId(5)) is None
