"""Collectors of surplus copies during slow repairs of the other kind: the lock protects unfinished copies from them."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache_jars import ApacheJvm
from bookie.embedded.apache_settings import ApacheOptions
from bookie.embedded.process import ManagedProcess
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.digest import master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import Read
from tests.apache.driver import JavaDriver, expected, payloads
from tests.apache.programs import Audit, Replicator
from tests.apache.waiting import until
from tests.apache.worlds import (
    PASSWORD,
    QUICK,
    ApacheWorld,
    Ledger,
    check_healthy,
    connect,
    end_cluster,
    gone,
    held,
    seen,
    start_cluster,
    world,
    written,
)
from tests.deadlines import PROGRAM_S, STATE_S
from tests.sessions import LONG_SESSION_S, kill9
from tests.worlds.ledgers import make_metadata, make_packets

pytestmark = pytest.mark.apache

COLLECTS_OFTEN = {
    # Without a table in memory: a ledger in it stays invisible to the collector until there are megabytes of data.
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.InterleavedLedgerStorage",
    "gcWaitTime": "1000",
    "gcOverreplicatedLedgerWaitTime": "1000",
    "minorCompactionInterval": "0",
    "majorCompactionInterval": "0",
}
ENTRIES, SIZE = 160, 60_000
"""Much more than one request carries, so a slow repair pauses in the middle."""
ENTRIES_MOVED = 10
RECOVERY_ADD = 2
PASSES = 2
"""Number of surplus copies deleted one after another while a copy pauses: a full pass is between two deletions."""
COLLECTED_S = 240.0
"""A bookie of bkheal waits a minute before it deletes, and a pass that has begun does not see a new copy."""
KEY = hashlib.sha1(b"ledger" + PASSWORD).hexdigest()


@pytest.fixture(scope="module")
def here(apache_jvm: ApacheJvm, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheWorld]:
    options = ApacheOptions(extra=COLLECTS_OFTEN)
    with world(tmp_path_factory.mktemp("collectors"), apache_jvm, java_classes, bookies=3, options=options) as made:
        yield made


@pytest.fixture
async def client(here: ApacheWorld) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(here.uri) as ours:
        yield ours


async def write_large(java: JavaDriver) -> int:
    """Write a closed ledger with three copies of every entry, after the ledgers with copies for Apache's collector.

    Apache's collector (4.17.3) closes its ZooKeeper session after the last ledger of a bookie, perhaps before it has
    released the ledger's lock. It then retries the release for ever on the thread that delivers all answers of
    ZooKeeper. A ledger followed by another one is not affected.
    """
    handle = await java.create(3, 3, 3, password=PASSWORD)
    await handle.write(ENTRIES, seed="large", sizes=(SIZE,))
    await handle.close()
    return handle.ledger_id


async def surplus_for(here: ApacheWorld, client: ConnectedBookKeeper, lost: str) -> list[Ledger]:
    """Write ledgers with one copy each, none of them on the bookie to be lost."""
    found: list[Ledger] = []
    for _ in range(50):
        (ledger,) = await written(here.java, ((1, 1, 1),), 1, entries=4)
        if lost in (await seen(here.java, [ledger]))[ledger.ledger_id].members:
            await client.delete_ledger(LedgerId(ledger.ledger_id))
            continue
        found.append(ledger)
        if len(found) == 2 * PASSES:
            return found
    raise AssertionError("the same bookie of three was chosen every time")


async def read(client: ConnectedBookKeeper, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId) -> Status:
    """Read an entry from a bookie; return the status of the answer."""
    reply = await client.ports.transport.ask(bookie, Read(ledger_id, [entry_id]), PROGRAM_S)
    return reply.results[0].status if reply.results else reply.status


async def collected(here: ApacheWorld, client: ConnectedBookKeeper, surplus: Sequence[Ledger], target: str) -> None:
    """Add surplus copies to ``target``, each after the deletion of the previous one.

    Entries are read and not listed, because a list keeps the collector of a bookie of bkheal off the ledger.
    """
    for ledger in surplus:
        (holder,) = (await seen(here.java, [ledger]))[ledger.ledger_id].members
        where = {"ledger": ledger.ledger_id, "entry": 3}
        packet = (await here.java.call("read_copy", bookie=holder, **where))["data"]
        await here.java.call("add_copy", bookie=target, data=packet, key=KEY, flags=RECOVERY_ADD, **where)
        await until(
            functools.partial(read, client, BookieId(target), LedgerId(ledger.ledger_id), EntryId(3)),
            lambda status: status.is_absent,
            "the surplus copy is collected",
            COLLECTED_S,
        )


async def large_is_well(java: JavaDriver, ledger_id: int) -> None:
    assert (await java.call("check", ledger=ledger_id, client="v3"))["fragments"] == []
    wanted = expected(payloads("large", range(ENTRIES), (SIZE,)))
    for wire in ("v2", "v3"):
        assert await java.read_all(ledger_id, password=PASSWORD, client=wire) == wanted


@pytest.mark.long
async def test_apaches_collector_keeps_copies_made_by_our_slow_replicator(
    here: ApacheWorld, client: ConnectedBookKeeper, audit: Audit, tmp_path: Path
) -> None:
    """The copy is slowed to one byte a second until the collector has passed, then continues at full speed."""
    java = here.java
    lost = here.running[0]
    surplus = await surplus_for(here, client, lost.bookie_id)
    large = await write_large(java)
    (target,) = [bookie.bookie_id for bookie in await here.cluster.add_bookies(1)]
    await here.kill9(lost)
    await gone(client, lost.bookie_id)
    await audit(here.uri, tmp_path)
    assert await here.tasks() == {large: [lost.bookie_id]}
    before = await java.call("metadata", ledger=large)

    file = tmp_path / "bkheal.toml"
    file.write_text("[replicator]\nbytes_per_second = 1\n")
    command = [sys.executable, "-m", "auditor.cli.main", "replicator", "--once", "--metadata-uri", here.uri]
    replicator = ManagedProcess.start("replicator", [*command, "--config", str(file)], log_path=tmp_path / "log.txt")
    async with replicator:

        async def copied() -> int:
            return await held(java, target, large)

        begun = await until(copied, lambda count: count > 0, "a part is copied")
        await collected(here, client, surplus[:PASSES], target)
        assert begun <= await copied() < ENTRIES
        assert await client.ports.tasks.locks.locked() == {large}
        assert await java.call("metadata", ledger=large) == before

        made = file.with_suffix(".new")
        made.write_text("[replicator]\nbytes_per_second = 0\n")
        made.rename(file)
        assert await replicator.wait(STATE_S) == 0
    assert await here.tasks() == {}
    assert await client.ports.tasks.locks.locked() == frozenset()
    await collected(here, client, surplus[PASSES:], target)
    assert await copied() == ENTRIES
    await large_is_well(java, large)
    await check_healthy(java, surplus)
    for ledger in [*surplus, Ledger(large, "CRC32C", ENTRIES)]:
        await client.delete_ledger(LedgerId(ledger.ledger_id))  # the next test may kill the bookies of these


def our_bookie(here: ApacheWorld, directory: Path) -> ManagedProcess:
    """Start a bookie of bkheal that collects continuously."""
    places = ("--journal-dir", str(directory / "journal"), "--ledger-dir", str(directory / "ledgers"))
    settings = ("--read-only-below-bytes", "1", "--collect-interval", "1", "--session-timeout", str(LONG_SESSION_S))
    return ManagedProcess.start(
        "bookie",
        [
            *(sys.executable, "-m", "bookie.server", "--metadata-uri", here.uri, "--host", "127.0.0.1"),
            *("--port", "0", "--apache-port", "0", *places, *settings),
        ],
        log_path=directory / "bookie.txt",
    )


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_our_collector_keeps_copies_made_by_apaches_slow_worker(
    here: ApacheWorld, client: ConnectedBookKeeper, tmp_path: Path
) -> None:
    """The slow worker is killed during the repair, and a fast one repeats all of it."""
    java = here.java
    lost = here.running[0]
    surplus = await surplus_for(here, client, lost.bookie_id)
    large = await write_large(java)
    ours = our_bookie(here, tmp_path)
    async with ours:
        target = (await ours.wait_for_line(r"^bookie (\S+) ready on", STATE_S))[1]
        await here.kill9(lost)
        await gone(client, lost.bookie_id)
        slow = await here.cluster.start_auto_recovery({**QUICK, "replicationRateByBytes": str(SIZE // 2)})

        async def copied() -> int:
            return await held(java, target, large)

        begun = await until(copied, lambda count: count > 0, "a part is copied")
        await collected(here, client, surplus[:1], target)
        assert begun <= await copied() < ENTRIES
        assert large in await client.ports.tasks.locks.locked()
        await here.kill9(slow)
        quick = await here.cluster.start_auto_recovery(QUICK)
        await until(here.tasks, lambda left: large not in left, "Apache's worker has repaired the ledger")
        await here.kill9(quick)
        await collected(here, client, surplus[1:2], target)
        assert await copied() == ENTRIES
        await large_is_well(java, large)
        for ledger in [*surplus, Ledger(large, "CRC32C", ENTRIES)]:
            await client.delete_ledger(LedgerId(ledger.ledger_id))  # the next test may kill the bookies of these
    await here.cluster.add_bookies(1)  # the next test needs as many bookies


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_our_collector_keeps_copies_made_by_apaches_recover_command(
    here: ApacheWorld, client: ConnectedBookKeeper, tmp_path: Path
) -> None:
    """The command takes no lock, and names the bookie only after its last add (R141)."""
    java = here.java
    lost = here.running[0]
    large = await write_large(java)
    ours = our_bookie(here, tmp_path)
    async with ours:
        target = (await ours.wait_for_line(r"^bookie (\S+) ready on", STATE_S))[1]
        await here.kill9(lost)
        await gone(client, lost.bookie_id)
        rate = ("-rate", str(SIZE))
        shell = here.cluster.shell("recover", "-force", *rate, "-ledger", str(large), lost.bookie_id, deadline_s=500.0)
        await shell
        assert await held(java, target, large) == ENTRIES
        await large_is_well(java, large)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_bookie_accepts_copies_of_a_collected_ledger_only_after_a_restart(
    apache_jvm: ApacheJvm, tmp_path: Path
) -> None:
    cluster = await start_cluster(
        tmp_path / "cluster", apache_jvm, bookies=3, options=ApacheOptions(extra=COLLECTS_OFTEN)
    )
    try:
        former, other, lost = (BookieId(bookie.bookie_id) for bookie in cluster.bookies)
        async with await connect(cluster.metadata_uri) as client:
            ledger_id = await collected_after_a_move(client, former, other, lost)
            await kill9(cluster.zookeeper, cluster.bookies[2])
            await gone(client, lost)
            await client.ports.tasks.marking.mark(ledger_id, [lost])
            first = await Replicator.start(cluster.metadata_uri, tmp_path / "first", "--once")
            await first.wait(STATE_S)
            [parked] = await client.parked.list()
            assert parked.reason is ParkReason.TARGETS_REFUSE
            [refusal] = parked.refusals
            assert refusal.bookie == former
            assert (await client.ports.registrations.numbers([former]))[former] < refusal.zxid

            await cluster.bookies[0].stop()
            await cluster.bookies[0].start()
            assert (await client.ports.registrations.numbers([former]))[former] > refusal.zxid
            await client.parked.unpark(ledger_id)
            second = await Replicator.start(cluster.metadata_uri, tmp_path / "second", "--once")
            assert await second.wait(STATE_S) == 0
            assert second.repaired == [ledger_id]
            assert (await client.ports.ledgers.read(ledger_id)).metadata.members() == {former, other}
    finally:
        await end_cluster(cluster)


async def collected_after_a_move(
    client: ConnectedBookKeeper, former: BookieId, other: BookieId, new: BookieId
) -> LedgerId:
    """Write a ledger whose copies moved from ``former`` to ``new``, and wait until the first ones are collected.

    Another ledger follows it on ``former``; see ``write_large``.
    """
    moved, following = [await client.ports.ledgers.new_id() for _ in range(2)]
    for ledger_id, members in ((moved, f"{new} {other}"), (following, f"{former} {other}")):
        metadata = make_metadata((0, members), quorum=(2, 2), last=ENTRIES_MOVED - 1)
        await client.ports.ledgers.create(ledger_id, metadata)
        packets = list(make_packets(ledger_id, ENTRIES_MOVED).values())
        for bookie in (former, other, new):
            reply = await client.ports.transport.add(
                bookie, AddBatch(ledger_id, master_key(PASSWORD), packets), PROGRAM_S
            )
            assert reply.status is Status.OK

    found = functools.partial(read, client, former, moved, EntryId(0))
    await until(found, lambda status: status is not Status.OK, "the moved copies are collected")
    return moved
