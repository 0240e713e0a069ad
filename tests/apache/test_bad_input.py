"""Bad input is refused or reported, and nothing is changed: passwords, digest types, keys, an unresponsive bookie.

The tests use Apache's bookies, which check the key of a ledger themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.client.errors import WrongDigestTypeError
from bookie.embedded.apache import ApacheBookie, ApacheCluster
from bookie.model.digest import master_key
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import DigestType
from bookie.wire.port import Status
from bookie.wire.requests import Fence
from tests.apache.driver import JavaDriver, JavaHandle, expected, payloads
from tests.apache.programs import Replicator, bkheal
from tests.apache.waiting import until
from tests.apache.worlds import PASSWORD, SIZES, Ledger, check_healthy, connect, extend, gone, on
from tests.sessions import expire

pytestmark = pytest.mark.apache

Take = Callable[[ApacheBookie], Awaitable[None]]
OLD = "keeps no passwords"
"""A client that writes metadata of format 1, which has no field for a password or a digest type."""


@pytest.fixture
async def client(apache_cluster: ApacheCluster) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(apache_cluster.metadata_uri) as ours:
        yield ours


@pytest.fixture
async def old(java: JavaDriver) -> AsyncIterator[str]:
    await java.new_client(OLD, settings={"ledgerMetadataVersion": "1"})
    yield OLD
    await java.drop_client(OLD)


async def node(client: ConnectedBookKeeper, ledger_id: int) -> tuple[bytes, int]:
    """Return a ledger's stored metadata, and the number of its writes."""
    found = await client.store.get(client.ports.ledgers.path(LedgerId(ledger_id)))
    return found.data, found.stat.version


async def refused(uri: str, *arguments: str) -> None:
    """Run a command, which must end with one sentence about the password."""
    ended = await bkheal(*arguments, uri=uri)
    assert (ended.exit_code, ended.printed, ended.errors.count("\n")) == (1, "", 1), (arguments, ended)
    assert "password" in ended.errors


async def test_a_wrong_password_or_digest_type_changes_nothing_and_the_writer_goes_on(
    apache_cluster: ApacheCluster, java: JavaDriver, client: ConnectedBookKeeper
) -> None:
    uri = apache_cluster.metadata_uri
    handle = await java.create(3, 3, 2, digest="MAC", password=PASSWORD)
    await handle.write(5, seed="known", sizes=SIZES)
    before, ledger = await node(client, handle.ledger_id), str(handle.ledger_id)
    wrong = ("--password", "a guess")
    await asyncio.gather(*(refused(uri, "ledger", verb, ledger, *wrong) for verb in ("read", "recover", "tail")))
    with pytest.raises(WrongDigestTypeError, match="HMAC, not CRC32C"):
        await client.open_ledger(LedgerId(handle.ledger_id), password=PASSWORD, digest_type=DigestType.CRC32C)
    assert await node(client, handle.ledger_id) == before
    await handle.write(5, seed="known", sizes=SIZES)
    await handle.close()
    read = await java.read_all(handle.ledger_id, digest="MAC", password=PASSWORD)
    assert read == expected(payloads("known", range(10), SIZES))


async def test_a_key_that_bookies_refuse_is_detected_before_a_recovery_begins(
    apache_cluster: ApacheCluster, java: JavaDriver, client: ConnectedBookKeeper, old: str
) -> None:
    """The metadata keeps no password, so only the bookies can check it."""
    uri = apache_cluster.metadata_uri
    handle = await java.create(3, 2, 2, digest="CRC32", password=PASSWORD, client=old)
    await handle.write(1, seed="old", sizes=SIZES)  # one of its bookies then has no data of the ledger
    before, ledger = await node(client, handle.ledger_id), str(handle.ledger_id)
    assert before[0].startswith(b"BookieMetadataFormatVersion\t1")
    await asyncio.gather(
        refused(uri, "ledger", "recover", ledger), refused(uri, "ledger", "close", ledger, "--password", "a guess")
    )
    assert await node(client, handle.ledger_id) == before
    await handle.write(8, seed="old", sizes=SIZES)
    ended = await bkheal("ledger", "recover", ledger, "--password", PASSWORD.decode(), "--output", "json", uri=uri)
    assert (ended.exit_code, ended.document["state"], ended.document["last_entry_id"]) == (0, "CLOSED", 8)
    read = await java.read_all(handle.ledger_id, digest="CRC32", password=PASSWORD)
    assert read == expected(payloads("old", range(9), SIZES))


async def closed(handle: JavaHandle, digest: str) -> Ledger:
    await extend(handle, digest, 8)
    await handle.close()
    return Ledger(handle.ledger_id, digest, 8)


async def endings(replicator: Replicator) -> dict[int, Mapping[str, Any]]:
    """Return how the latest attempt for each ledger ended."""
    return {event["ledger_id"]: event for event in replicator.events() if "ending" in event}


async def done(replicator: Replicator) -> set[int]:
    return set(replicator.repaired)


def ids(ledgers: Sequence[Ledger]) -> set[int]:
    return {ledger.ledger_id for ledger in ledgers}


async def forget(client: ConnectedBookKeeper, ledger_id: int) -> None:
    """Remove a task that no worker could finish."""
    held = await client.ports.tasks.locks.lock(LedgerId(ledger_id), "here")
    assert held is not None
    assert await client.ports.tasks.locks.complete(held)
    await client.parked.unpark(LedgerId(ledger_id))


async def test_a_repair_that_is_refused_or_whose_copies_do_not_verify_changes_nothing(
    apache_cluster: ApacheCluster,
    java: JavaDriver,
    client: ConnectedBookKeeper,
    old: str,
    taken_away: Take,
    tmp_path: Path,
) -> None:
    """The only spare bookie has another key for one ledger; another ledger's metadata has no digest type."""
    lost, bookies = apache_cluster.bookies[1], {bookie.bookie_id for bookie in apache_cluster.bookies}
    sound = await closed(await on(java, {lost.bookie_id}, 4, 2, 2, password=PASSWORD), "CRC32C")
    another_key = await closed(await on(java, {lost.bookie_id}, 4, 2, 2, password=PASSWORD), "CRC32C")
    unlike = await closed(await on(java, {lost.bookie_id}, 4, 2, 2, password=PASSWORD, digest="MAC", client=old), "MAC")
    members = set((await java.call("metadata", ledger=another_key.ledger_id))["ensembles"]["0"])
    (spare,) = bookies - members
    other_key = master_key(b"another")
    fenced = await client.ports.transport.ask(BookieId(spare), Fence(LedgerId(another_key.ledger_id), other_key), 10)
    assert fenced.status is Status.OK
    read = await bkheal("ledger", "read", str(unlike.ledger_id), uri=apache_cluster.metadata_uri)
    assert (read.exit_code, read.printed, read.errors.count("\n")) == (69, "", 1)
    assert read.errors.count("CORRUPT") == 2  # once for each copy

    await taken_away(lost)
    await gone(client, lost.bookie_id)
    before = {one.ledger_id: await node(client, one.ledger_id) for one in (another_key, unlike)}
    for one in (sound, another_key, unlike):
        await client.ports.tasks.marking.mark(LedgerId(one.ledger_id), [lost.bookie_id])
    ours = await Replicator.start(apache_cluster.metadata_uri, tmp_path / "ours")
    reported = await until(lambda: endings(ours), lambda found: len(found) == 3, "a turn of every task has ended")
    await ours.stop()
    assert reported[sound.ledger_id]["ending"] == "repaired"
    assert (reported[another_key.ledger_id]["ending"], reported[unlike.ledger_id]["ending"]) == ("failed", "parked")
    assert f"{spare}=UNAUTHORIZED" in reported[another_key.ledger_id]["detail"]
    assert "CORRUPT (CRC32 digest mismatch)" in reported[unlike.ledger_id]["detail"]
    assert reported[unlike.ledger_id]["detail"].endswith("names no digest type, so CRC32 was assumed")
    assert {ledger_id: await node(client, ledger_id) for ledger_id in before} == before
    tasks = {task.ledger_id: task.missing for task in await client.ports.tasks.list()}
    assert {ledger_id: tasks[LedgerId(ledger_id)] for ledger_id in before} == dict.fromkeys(before, (lost.bookie_id,))
    for ledger_id in before:
        await forget(client, ledger_id)
    await check_healthy(java, [sound])


async def test_a_bookie_that_does_not_answer_delays_only_its_own_ledger(
    apache_cluster: ApacheCluster, java: JavaDriver, client: ConnectedBookKeeper, taken_away: Take, tmp_path: Path
) -> None:
    lost, silent, other = apache_cluster.bookies[0], apache_cluster.bookies[1], apache_cluster.bookies[2]
    stuck = await closed(await on(java, {lost.bookie_id, silent.bookie_id}, 2, 2, 2, password=PASSWORD), "CRC32C")
    others = [
        await closed(await on(java, {lost.bookie_id, other.bookie_id}, 2, 2, 2, password=PASSWORD), "CRC32C")
        for _ in range(3)
    ]
    await taken_away(lost)
    await gone(client, lost.bookie_id)
    for one in (stuck, *others):
        await client.ports.tasks.marking.mark(LedgerId(one.ledger_id), [lost.bookie_id])
    before = await node(client, stuck.ledger_id)
    silent.running.pause()
    try:
        ours = await Replicator.start(apache_cluster.metadata_uri, tmp_path / "ours", "--poll-interval", "1")
        await until(
            client.ports.tasks.locks.locked,
            lambda locked: stuck.ledger_id in locked,
            "the repair of the ledger has begun",
        )
        await expire(apache_cluster.zookeeper, silent.running)  # a registered bookie may become a target
        await until(lambda: done(ours), lambda found: found >= ids(others), "all other ledgers are repaired")
        reported = await until(
            lambda: endings(ours), lambda found: stuck.ledger_id in found, "the turn of the ledger has ended"
        )
        assert reported[stuck.ledger_id]["ending"] in ("failed", "parked")
        assert reported[stuck.ledger_id]["detail"]
        assert await node(client, stuck.ledger_id) == before
        assert await client.ports.tasks.read(LedgerId(stuck.ledger_id)) is not None
    finally:  # resumed without a restart, it would register only after another session timeout
        await silent.stop()
        await silent.start()
    await until(lambda: done(ours), lambda found: stuck.ledger_id in found, "the last ledger is repaired")
    await ours.stop()
    assert await client.ports.tasks.read(LedgerId(stuck.ledger_id)) is None
    await check_healthy(java, [stuck, *others])
