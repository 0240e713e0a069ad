"""Apache's bookies return: at another address, with empty disks, or after a recovery that was stuck without them."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.client.errors import RecoveryNotPossibleError
from bookie.embedded.apache import ApacheBookie
from bookie.embedded.apache_jars import ApacheJvm
from bookie.metadata.layout import cookie_path
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import EntryId, LedgerId
from bookie.model.schedule import Stripe
from bookie.runtime.ports import free_loopback_port
from bookie.wire.port import Status
from bookie.wire.requests import Read
from tests.apache.driver import JavaDriver
from tests.apache.programs import Replicator
from tests.apache.waiting import until
from tests.apache.worlds import (
    PASSWORD,
    ApacheWorld,
    Ledger,
    begin,
    check_healthy,
    connect,
    extend,
    held,
    no_work_left,
    seen,
    world,
    written,
)
from tests.deadlines import STATE_S

pytestmark = pytest.mark.apache

NAMES = ("bk-plain-1", "bk_2", "bookie-3.bookies.svc.cluster.local")
SHAPES = ((3, 3, 2), (3, 2, 2))


@pytest.fixture(scope="module")
def here(apache_jvm: ApacheJvm, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheWorld]:
    """Three bookies whose ids are not addresses, and ledgers with a position on each of them."""

    async def fill(made: ApacheWorld) -> None:
        settings = [{"bookieId": name, "zkTimeout": "30000"} for name in NAMES]
        await asyncio.gather(*(made.cluster.add_bookies(1, extra=each) for each in settings))
        await made.java.new_client("patient", settings={"delayEnsembleChange": "true"})

    with world(tmp_path_factory.mktemp("returning"), apache_jvm, java_classes, bookies=0, heap_mib=160) as made:
        asyncio.run(fill(made))
        yield made


@pytest.fixture
async def client(here: ApacheWorld) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(here.uri) as ours:
        yield ours


async def mark(java: JavaDriver, ledgers: Sequence[Ledger], *missing: ApacheBookie) -> None:
    for ledger in ledgers:
        await java.call("mark", ledger=ledger.ledger_id, missing=[bookie.bookie_id for bookie in missing])


async def endings(uri: str, directory: Path) -> dict[int, str]:
    """Return how a replicator ends each task."""
    replicator = await Replicator.start(uri, directory, "--once")
    assert await replicator.wait() == 0
    return {event["ledger_id"]: event["ending"] for event in replicator.events() if "ending" in event}


async def test_a_bookie_that_returns_on_another_port_is_found_and_completed_in_place(
    here: ApacheWorld, client: ConnectedBookKeeper, tmp_path: Path
) -> None:
    java, moved = here.java, here.bookie("bk_2")
    whole = await written(java, SHAPES, 2)
    handle = await begin(java, (3, 3, 2), client="patient")
    await extend(handle, "CRC32C", 10)

    async def first_entry() -> Status:
        reply = await client.ports.transport.ask(
            moved.bookie_id, Read(LedgerId(whole[0].ledger_id), [EntryId(0)]), STATE_S
        )
        return reply.results[0].status if reply.results else reply.status

    assert await first_entry() is Status.OK
    await moved.stop()
    await extend(handle, "CRC32C", 10)
    await handle.close()
    short = Ledger(handle.ledger_id, "CRC32C", 20)
    await mark(java, [*whole, short], moved)
    moved.port = free_loopback_port(random.SystemRandom())
    moved.settings["bookiePort"] = str(moved.port)
    await moved.start()

    await until(first_entry, lambda status: status is Status.OK, "our client reads from the new port")
    before = await seen(java, [*whole, short])
    assert await held(java, moved.bookie_id, short.ledger_id) < short.entries
    assert await endings(here.uri, tmp_path) == {
        short.ledger_id: "repaired",
        **{ledger.ledger_id: "nothing_missing" for ledger in whole},
    }
    assert await held(java, moved.bookie_id, short.ledger_id) == short.entries
    assert await seen(java, [*whole, short]) == before
    await no_work_left(here, client)
    await check_healthy(java, [*whole, short])


async def lose_disks(client: ConnectedBookKeeper, bookie: ApacheBookie) -> None:
    """Start a bookie again without its cookie and its disks."""
    await bookie.stop()
    await client.store.delete(cookie_path(client.cluster.root, bookie.bookie_id))
    for directory in ("journal", "ledgers"):
        shutil.rmtree(bookie.directory / directory)
    await bookie.start()


async def test_a_bookie_that_lost_its_cookie_and_its_disks_is_completed_in_place(
    here: ApacheWorld, client: ConnectedBookKeeper, tmp_path: Path
) -> None:
    java, wiped = here.java, here.bookie(NAMES[2])
    ledgers = [*await written(java, SHAPES, 4), *await written(java, SHAPES[:1], 1, entries=0)]
    before = await seen(java, ledgers)
    await lose_disks(client, wiped)
    assert [await held(java, wiped.bookie_id, ledger.ledger_id) for ledger in ledgers] == [0] * len(ledgers)

    await mark(java, ledgers, wiped)
    *filled, empty = ledgers
    assert await endings(here.uri, tmp_path) == {
        **{ledger.ledger_id: "repaired" for ledger in filled},
        empty.ledger_id: "nothing_missing",
    }
    assert await seen(java, ledgers) == before
    for number, ledger in enumerate(filled):
        size, quorum, _ = SHAPES[number % len(SHAPES)]
        position = before[ledger.ledger_id].ensembles["0"].index(wiped.bookie_id)
        stored = Stripe(size, quorum).count(position, EntryId(0), EntryId(ledger.entries - 1))
        assert await held(java, wiped.bookie_id, ledger.ledger_id) == stored
    await no_work_left(here, client)
    await check_healthy(java, ledgers)


async def test_a_bookie_that_loses_its_disks_after_its_answer_is_queried_again(
    here: ApacheWorld, client: ConnectedBookKeeper, tmp_path: Path
) -> None:
    java, (asked, silent) = here.java, sorted(map(here.bookie, NAMES[:2]), key=lambda bookie: bookie.bookie_id)
    (ledger,) = ledgers = await written(java, SHAPES[:1], 1)
    await mark(java, ledgers, asked, silent)
    silent.running.pause()
    replicator = await Replicator.start(here.uri, tmp_path)
    async with replicator.process:
        process = psutil.Process(replicator.process.pid)

        async def waits_for_the_second() -> bool:
            return any(each.raddr and each.raddr.port == silent.port for each in process.net_connections("tcp"))

        await until(waits_for_the_second, bool, "the first bookie has answered, and the second is asked")
        await lose_disks(client, asked)
        assert await held(java, asked.bookie_id, ledger.ledger_id) == 0
        await mark(java, ledgers, asked)
        silent.running.resume()
        await no_work_left(here, client)
        endings = [event["ending"] for event in replicator.events() if "ending" in event]
    assert endings == ["marked_again", "repaired"]
    assert await held(java, asked.bookie_id, ledger.ledger_id) == ledger.entries
    await check_healthy(java, ledgers)


async def left_open(java: JavaDriver) -> list[Ledger]:
    """Write ledgers on all bookies, and leave them open."""
    handles = [await begin(java, (3, 3, 2)) for _ in range(2)]
    for handle in handles:
        await extend(handle, "CRC32C", 25)
    return [Ledger(handle.ledger_id, "CRC32C", 25) for handle in handles]


async def recovery_by_apache_killed(
    here: ApacheWorld, second: JavaDriver, ledger: Ledger, silent: Sequence[ApacheBookie]
) -> None:
    """Let Apache's client begin a recovery and wait for paused bookies, and kill it."""
    for bookie in silent:
        bookie.running.pause()
    recovery = asyncio.create_task(second.open(ledger.ledger_id, password=PASSWORD, recovery=True))

    async def state() -> str:
        return await state_of(here.java, ledger)

    await until(state, lambda now: now == "IN_RECOVERY", "Apache's client has begun to read")
    second.process.kill9()
    assert isinstance((await asyncio.gather(recovery, return_exceptions=True))[0], Exception)


async def state_of(java: JavaDriver, ledger: Ledger) -> str:
    return str((await java.call("metadata", ledger=ledger.ledger_id))["state"])


async def test_unfinished_recoveries_are_parked_and_completed_after_the_bookies_return(
    here: ApacheWorld, client: ConnectedBookKeeper, apache_jvm: ApacheJvm, java_classes: Path, tmp_path: Path
) -> None:
    java, away = here.java, here.cluster.bookies[1:]
    by_apache, by_us = ledgers = await left_open(java)
    second = await JavaDriver.start(tmp_path / "second", here.cluster, apache_jvm, java_classes)
    try:
        await recovery_by_apache_killed(here, second, by_apache, away)
    finally:
        await second.stop()
    await asyncio.gather(*(bookie.stop() for bookie in away))
    with pytest.raises(RecoveryNotPossibleError):
        await client.recover_ledger(LedgerId(by_us.ledger_id))
    assert [await state_of(java, ledger) for ledger in ledgers] == ["IN_RECOVERY"] * 2

    await mark(java, ledgers, *away)
    replicator = await Replicator.start(here.uri, tmp_path / "replicator", "--open-ledger-grace", "1")
    async with replicator.process:
        parked = await until(client.parked.list, lambda parked: len(parked) == 2, "both tasks are parked")
        for task, ledger in zip(parked, ledgers, strict=True):
            assert (task.ledger_id, task.reason) == (ledger.ledger_id, ParkReason.NEEDS_RECOVERY)
            assert all(bookie.bookie_id in task.detail for bookie in away), task.detail
        assert [await state_of(java, ledger) for ledger in ledgers] == ["IN_RECOVERY"] * 2
        assert set(await here.tasks()) == {ledger.ledger_id for ledger in ledgers}

        await asyncio.gather(*(bookie.start() for bookie in away))
        await no_work_left(here, client)
        await until(client.parked.list, lambda parked: not parked, "no task is parked any more")
        ended = [event for event in replicator.events() if event.get("recovered")]
        assert {event["ledger_id"] for event in ended} == {ledger.ledger_id for ledger in ledgers}
    for ledger in ledgers:
        found = await java.call("metadata", ledger=ledger.ledger_id)
        assert (found["state"], found["last_entry"]) == ("CLOSED", ledger.entries - 1)
        assert found["length"] == sum(map(len, ledger.contents))
    await check_healthy(java, ledgers)
