"""Apache's replication worker and ours in one cluster: each repairs the other side's findings, and both run at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache import ApacheBookie, ApacheServer
from bookie.embedded.apache_jars import ApacheJvm
from tests.apache.driver import JavaHandle
from tests.apache.programs import Audit, Replicator, bkheal
from tests.apache.waiting import until
from tests.apache.worlds import (
    QUICK,
    ApacheWorld,
    Ledger,
    Seen,
    begin,
    check_healthy,
    connect,
    each,
    extend,
    gone,
    held,
    no_work_left,
    seen,
    world,
    written,
)
from tests.deadlines import STATE_S

pytestmark = pytest.mark.apache

SHAPES = ((3, 3, 3), (3, 2, 2), (4, 2, 2), (2, 2, 2))
"""Each add is acknowledged by all bookies of its write set, so only the copies that the tests remove are missing."""
UNSETTLED = 75


@pytest.fixture(scope="module")
def here(apache_jvm: ApacheJvm, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheWorld]:
    with world(tmp_path_factory.mktemp("both-repairers"), apache_jvm, java_classes, bookies=5) as made:
        yield made


@pytest.fixture
async def client(here: ApacheWorld) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(here.uri) as ours:
        yield ours


async def write_backlog(here: ApacheWorld, count: int) -> list[Ledger]:
    """Write closed ledgers of several shapes; every third has a second fragment, created while a bookie was stopped."""
    java = here.java

    async def one(number: int) -> tuple[JavaHandle, str]:
        digest = ("CRC32C", "CRC32", "MAC", "DUMMY")[number % 4]
        handle = await begin(java, SHAPES[number % len(SHAPES)], digest, ("v2", "v3")[number // 4 % 2])
        await extend(handle, digest, 12)
        return handle, digest

    begun = await each(range(count), one)
    await here.running[-1].stop()
    for handle, digest in begun[::3]:
        await extend(handle, digest, 8)
    for bookie in here.cluster.bookies:
        await bookie.start()
    for handle, _ in begun:
        await handle.close()
    longer = {handle.ledger_id for handle, _ in begun[::3]}
    return [Ledger(handle.ledger_id, digest, 20 if handle.ledger_id in longer else 12) for handle, digest in begun]


def throttle(config: Path, bytes_per_second: int) -> None:
    """Limit the copying of the replicators with ``config``; 0 for no limit."""
    made = config.with_suffix(".new")
    made.write_text(f"[replicator]\nbytes_per_second = {bytes_per_second}\n")
    made.rename(config)


async def waits_for_the_switch(here: ApacheWorld, recovery: ApacheServer) -> None:
    """Wait until Apache's worker has found recovery disabled and waits until it is enabled."""
    jstack = here.cluster.jvm.java.executable.with_name("jstack")

    async def threads() -> str:
        command = [str(jstack), str(recovery.running.pid)]
        dumped = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=STATE_S)
        return dumped.stdout

    await until(threads, lambda text: "waitIfLedgerReplicationDisabled" in text, "Apache's worker waits")


async def test_both_share_a_backlog_and_obey_each_others_switch(
    here: ApacheWorld, client: ConnectedBookKeeper, audit: Audit, tmp_path: Path
) -> None:
    ledgers = await write_backlog(here, 72)
    victim = here.bookie(most_named(await seen(here.java, ledgers), here.running[:-1]))
    lost = victim.bookie_id
    await here.kill9(victim)
    await gone(client, lost)
    await audit(here.uri, tmp_path)
    before = await seen(here.java, ledgers)
    hurt = {ledger_id for ledger_id, found in before.items() if lost in found.members}
    marked = await here.tasks()
    assert marked == {ledger_id: [lost] for ledger_id in hurt}
    assert len(hurt) >= 20

    await here.cluster.shell("autorecovery", "-disable")
    idle = await Replicator.start(here.uri, tmp_path / "idle", "--once")
    assert await idle.wait() == UNSETTLED
    assert idle.repaired == []
    await here.cluster.shell("autorecovery", "-enable")
    assert (await bkheal("recovery", "disable", uri=here.uri)).exit_code == 0
    recovery = await here.cluster.start_auto_recovery(QUICK)
    await waits_for_the_switch(here, recovery)
    assert await here.tasks() == marked
    assert await seen(here.java, ledgers) == before

    config = tmp_path / "bkheal.toml"
    throttle(config, 1)
    options = ("--ledgers-in-flight", "1")
    ours = await asyncio.gather(
        *(Replicator.start(here.uri, tmp_path / f"ours-{n}", *options, config=config) for n in (1, 2))
    )

    async def not_reported_by_us() -> set[int]:
        left = await here.tasks()
        return hurt - left.keys() - {ledger_id for replicator in ours for ledger_id in replicator.repaired}

    assert (await bkheal("recovery", "enable", uri=here.uri)).exit_code == 0
    # Each of our workers is in its first or second ledger. It may have repaired one that its log does not show yet.
    await until(not_reported_by_us, lambda done: len(done) > len(ours), "Apache's worker has repaired some ledgers")
    throttle(config, 0)
    for replicator in ours:
        os.kill(replicator.process.pid, signal.SIGHUP)
    await no_work_left(here, client)
    await asyncio.gather(*(replicator.stop() for replicator in ours), here.kill9(recovery))

    after = await seen(here.java, ledgers)
    by_us = [ledger_id for replicator in ours for ledger_id in replicator.repaired]
    assert len(by_us) == len(set(by_us))  # no ledger was repaired by both of our workers
    assert set(by_us) < hurt  # each side repaired some
    assert by_us
    for ledger in ledgers:
        was, now = before[ledger.ledger_id], after[ledger.ledger_id]
        writes, fragments = now.version - was.version, was.fragments_with(lost)
        # Apache writes once per fragment, we once per ledger. More writes would mean that both repaired the ledger.
        assert writes == (min(fragments, 1) if ledger.ledger_id in by_us else fragments), (ledger, was, now)
    await nothing_was_copied_twice(here, after, hurt)
    await judged(here, ledgers, before, after, lost)


def most_named(found: dict[int, Seen], among: Sequence[ApacheBookie]) -> str:
    return max(
        (bookie.bookie_id for bookie in among), key=lambda name: sum(name in one.members for one in found.values())
    )


async def nothing_was_copied_twice(here: ApacheWorld, after: dict[int, Seen], hurt: set[int]) -> None:
    """Check that bookies outside the ensembles of a ledger have none of its entries, so no copy was wasted."""
    strays = [
        (bookie.bookie_id, ledger_id)
        for ledger_id in sorted(hurt)
        for bookie in here.running
        if bookie.bookie_id not in after[ledger_id].members
    ]
    counts = await each(strays, lambda stray: held(here.java, *stray))
    assert {stray: count for stray, count in zip(strays, counts, strict=True) if count} == {}


async def judged(
    here: ApacheWorld, ledgers: Sequence[Ledger], before: dict[int, Seen], after: dict[int, Seen], lost: str
) -> None:
    """Check that no ensemble has the lost bookie, that no other position changed, and that Apache reads everything."""
    for ledger in ledgers:
        was, now = before[ledger.ledger_id], after[ledger.ledger_id]
        assert lost not in now.members
        assert list(was.ensembles) == list(now.ensembles)
        for first, members in was.ensembles.items():
            kept = [(old, new) for old, new in zip(members, now.ensembles[first], strict=True) if old != lost]
            assert all(old == new for old, new in kept)
    await check_healthy(here.java, ledgers)


async def make_read_only(bookie: ApacheBookie) -> None:
    await bookie.stop()
    bookie.settings["forceReadOnlyBookie"] = "true"
    await bookie.start()


async def test_each_repairs_the_others_findings_and_read_only_bookies_are_not_used_for_new_copies(
    here: ApacheWorld, client: ConnectedBookKeeper, audit: Audit, tmp_path: Path
) -> None:
    """Apache's worker cannot repair, because there is no spare bookie when Apache's auditor marks."""
    cluster, java = here.cluster, here.java
    for _ in range(4 - len(here.running)):
        await cluster.add_bookies(1)
    width = len(here.running)
    ledgers = await written(java, ((width, 2, 2), (width, 3, 2), (width, width, 2)), 9)
    reader, first, second = here.running[:3]
    await make_read_only(reader)  # it has the only remaining copy of every fourth pair

    await here.kill9(first)
    recovery = await cluster.start_auto_recovery(QUICK)
    everything = {ledger.ledger_id for ledger in ledgers}
    await until(here.tasks, lambda found: set(found) >= everything, "Apache's auditor has marked every ledger")
    await here.kill9(recovery)
    assert {tuple(missing) for missing in (await here.tasks()).values()} == {(first.bookie_id,)}
    (spare,) = await cluster.add_bookies(1)
    (refusing,) = await cluster.add_bookies(1, extra={"forceReadOnlyBookie": "true"})
    before = await seen(java, ledgers)
    ours = await Replicator.start(here.uri, tmp_path / "ours", "--once")
    assert await ours.wait() == 0
    assert everything <= set(ours.repaired)
    after = await seen(java, ledgers)
    assert all(spare.bookie_id in found.members for found in after.values())
    await no_work_left(here, client)
    await judged(here, ledgers, before, after, first.bookie_id)

    await here.kill9(second)
    await gone(client, second.bookie_id)
    await audit(here.uri, tmp_path)
    assert {tuple(missing) for missing in (await here.tasks()).values()} == {(second.bookie_id,)}
    (spare,) = await cluster.add_bookies(1)
    before = after
    await recovery.start()
    await no_work_left(here, client)
    await here.kill9(recovery)
    after = await seen(java, ledgers)
    assert all(spare.bookie_id in found.members for found in after.values())
    assert all(refusing.bookie_id not in found.members for found in after.values())
    assert all(reader.bookie_id in found.members for found in after.values())
    await judged(here, ledgers, before, after, second.bookie_id)
    assert (await audit(here.uri, tmp_path))["verdict"] == "clean"
