"""Apache's bookies answer a read of a damaged entry, and of one whose entry log is lost, with an I/O error.

With ``DbLedgerStorage`` they serve such an entry after it is stored again. With ``SortedLedgerStorage`` they read it
from its former place until the next flush, so another bookie replaces them.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path

import pytest

from bookie.client.access import recorded_digest
from bookie.client.held_entries import HeldEntriesReader
from bookie.embedded.apache import ApacheBookie
from bookie.embedded.apache_settings import ApacheOptions, ApacheStorage
from bookie.model.availability import EntryRuns
from bookie.model.ids import EntryId, LedgerId
from bookie.model.packet import HEADER_SIZE
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from bookie.wire.port import Status
from tests.apache.conftest import OwnCluster
from tests.apache.driver import expected, payloads
from tests.apache.programs import Audit, Replicator, bkheal
from tests.apache.worlds import PASSWORD, connect, on

pytestmark = pytest.mark.apache

COUNT = 30
SIZES = (3000,)


def damage(bookie: ApacheBookie, ledger_id: int, entries: Collection[int], *, is_log_lost: bool) -> None:
    """Overwrite the ids of entries in the entry logs of a stopped bookie, or remove these logs."""
    logs = sorted((bookie.directory / "ledgers/current").glob("*.log"))
    for entry_id in entries:
        ids = struct.pack(">qq", ledger_id, entry_id)
        found = [log for log in logs if log.exists() and ids in log.read_bytes()]
        assert found or is_log_lost, f"entry {entry_id} is in no log"
        for log in found:
            if is_log_lost:
                log.unlink()
            else:
                log.write_bytes(log.read_bytes().replace(ids, b"\xff" * len(ids)))


def spoil(bookie: ApacheBookie, ledger_id: int, entries: Collection[int]) -> None:
    """Change the first byte of the digest of entries in the entry logs of a stopped bookie."""
    for entry_id in entries:
        ids = struct.pack(">qq", ledger_id, entry_id)
        for log in (bookie.directory / "ledgers/current").glob("*.log"):
            content = bytearray(log.read_bytes())
            if (at := content.find(ids)) >= 0:
                content[at + HEADER_SIZE] ^= 1
                log.write_bytes(content)


@pytest.mark.parametrize(
    ("storage", "is_log_lost"),
    [
        pytest.param(ApacheStorage.SORTED, False, id="sorted", marks=pytest.mark.long),
        pytest.param(ApacheStorage.SORTED, True, id="sorted, lost log", marks=pytest.mark.long),
        pytest.param(ApacheStorage.DB, False, id="db"),
        pytest.param(ApacheStorage.DB, True, id="db, lost log", marks=pytest.mark.long),
    ],
)
async def test_copies_that_a_bookie_cannot_read_are_found_and_replaced(
    own_cluster: OwnCluster, audit: Audit, tmp_path: Path, storage: ApacheStorage, is_log_lost: bool
) -> None:
    cluster, java = await own_cluster(bookies=4, options=ApacheOptions(storage=storage))
    bookie = cluster.bookies[1]
    await (await java.create(3, 3, 2)).close()  # ledger 0, whose ids would be found everywhere in a log
    handle = await on(java, {bookie.bookie_id}, 3, 3, 2, password=PASSWORD)
    await handle.write(COUNT, seed="unreadable", sizes=SIZES)
    await handle.close()
    ledger_id = LedgerId(handle.ledger_id)
    await bookie.stop()
    await bookie.start()  # this moves the entries of its journal to its entry logs
    await bookie.stop()
    damaged = range(COUNT) if is_log_lost else [0, 7, 12, COUNT - 1]
    damage(bookie, ledger_id, damaged, is_log_lost=is_log_lost)
    await bookie.start()

    async with await connect(cluster.metadata_uri) as client:
        asking = HeldEntriesReader(client.ports.transport, SystemClock(), 10.0)
        copies = await asking.copies(bookie.bookie_id, ledger_id, map(EntryId, range(COUNT)))
        assert copies.held.status is Status.CORRUPT
        assert not EntryRuns.of(damaged).without(copies.unread), "a damaged entry could be read"
        found = await audit(cluster.metadata_uri, tmp_path, RunKind.REPLICAS)
        assert found["verdict"] != "clean"
        replicator = await Replicator.start(cluster.metadata_uri, tmp_path / "replicator", "--once")
        assert await replicator.wait() == 0
        assert replicator.repaired == [ledger_id]
        members = (await java.call("metadata", ledger=ledger_id))["ensembles"]["0"]
        assert (bookie.bookie_id in members) == (storage is ApacheStorage.DB)
        await bookie.stop()
        await bookie.start()  # from now on it reads entries from its disk, not from memory
        for member in members:
            copies = await asking.copies(member, ledger_id, map(EntryId, range(COUNT)))
            assert (copies.held.status, len(copies.held.entries)) == (Status.OK, COUNT)
    contents = expected(payloads("unreadable", range(COUNT), SIZES))
    assert await java.read_all(ledger_id, password=PASSWORD, client="v3") == contents
    assert (await java.call("check", ledger=ledger_id, client="v3"))["fragments"] == []
    assert (await java.call("tasks"))["tasks"] == []


@pytest.mark.long
@pytest.mark.parametrize("storage", [ApacheStorage.SORTED, ApacheStorage.DB])
async def test_wrong_copies_of_a_named_bookie_are_replaced(
    own_cluster: OwnCluster, tmp_path: Path, storage: ApacheStorage
) -> None:
    """The bookie serves them, because it does not verify the digest.

    With ``DbLedgerStorage`` it would serve them again after the next flush if the good ones were stored there: it reads
    ahead in the former log.
    """
    cluster, java = await own_cluster(bookies=4, options=ApacheOptions(storage=storage))
    bookie = cluster.bookies[1]
    await (await java.create(3, 3, 2)).close()  # ledger 0, whose ids would be found everywhere in a log
    handle = await on(java, {bookie.bookie_id}, 3, 3, 2, password=PASSWORD)
    await handle.write(COUNT, seed="wrong bytes", sizes=SIZES)
    await handle.close()
    ledger_id = LedgerId(handle.ledger_id)
    await bookie.stop()
    await bookie.start()  # this moves the entries of its journal to its entry logs
    await bookie.stop()
    damaged = [0, 7, 12, COUNT - 1]
    spoil(bookie, ledger_id, damaged)
    await bookie.start()

    verify = ("ledger", "verify", str(ledger_id), "--output", "json")
    ended = await bkheal(*verify, uri=cluster.metadata_uri)
    (row,) = ended.document["ledgers"]
    assert (ended.exit_code, row["verdict"], row["without_good_copy"]["entries"]) == (1, "bad", 0)
    found = {each["bookie_id"]: each for each in row["bookies"]}
    assert {name: each["good"] for name, each in found.items() if each["good"] != COUNT} == {
        bookie.bookie_id: COUNT - len(damaged)
    }
    assert [each["first"] for each in found[bookie.bookie_id]["damaged_ranges"]] == damaged
    assert (await java.call("tasks"))["tasks"] == []
    ended = await bkheal(*verify, "--mark", uri=cluster.metadata_uri)
    assert (ended.exit_code, ended.document["ledgers"][0]["mark"]["outcome"]) == (1, "marked")

    async with await connect(cluster.metadata_uri) as client:
        digest = recorded_digest((await client.ports.ledgers.read(ledger_id)).metadata)
        asking = HeldEntriesReader(client.ports.transport, SystemClock(), 10.0)
        replicator = await Replicator.start(cluster.metadata_uri, tmp_path / "replicator", "--once")
        assert await replicator.wait() == 0
        assert replicator.repaired == [ledger_id]
        members = (await java.call("metadata", ledger=ledger_id))["ensembles"]["0"]
        assert bookie.bookie_id not in members
        for member in members:
            copies = await asking.copies(member, ledger_id, map(EntryId, range(COUNT)), digest)
            assert (copies.held.status, len(copies.held.entries)) == (Status.OK, COUNT)
    assert (await java.call("tasks"))["tasks"] == []
    ended = await bkheal(*verify, uri=cluster.metadata_uri)
    assert (ended.exit_code, ended.document["ledgers"][0]["verdict"]) == (0, "good")


@pytest.mark.long
async def test_copies_that_a_source_of_another_repair_cannot_read_are_replaced(
    own_cluster: OwnCluster, audit: Audit, tmp_path: Path
) -> None:
    cluster, java = await own_cluster(bookies=4, options=ApacheOptions(storage=ApacheStorage.DB))
    lost, bookie, _, _ = cluster.bookies
    await (await java.create(3, 3, 2)).close()  # ledger 0, whose ids would be found everywhere in a log
    handle = await on(java, {lost.bookie_id, bookie.bookie_id}, 3, 3, 2, password=PASSWORD)
    sizes = (200_000,)  # so large that entries are read in several parts, and not all from one source
    await handle.write(COUNT, seed="unreadable source", sizes=sizes)
    await handle.close()
    ledger_id = LedgerId(handle.ledger_id)
    await bookie.stop()
    await bookie.start()  # this moves the entries of its journal to its entry logs
    await bookie.stop()
    damage(bookie, ledger_id, range(COUNT - 1), is_log_lost=False)
    await bookie.start()
    await lost.stop()

    await audit(cluster.metadata_uri, tmp_path, RunKind.BOOKIES)
    replicator = await Replicator.start(cluster.metadata_uri, tmp_path / "replicator", "--once")
    assert await replicator.wait() == 0
    assert ledger_id in replicator.repaired  # the lost bookie may have been a member of the empty ledger as well
    members = (await java.call("metadata", ledger=ledger_id))["ensembles"]["0"]
    assert bookie.bookie_id in members
    assert lost.bookie_id not in members
    async with await connect(cluster.metadata_uri) as client:
        asking = HeldEntriesReader(client.ports.transport, SystemClock(), 10.0)
        for member in members:
            copies = await asking.copies(member, ledger_id, map(EntryId, range(COUNT)))
            assert (copies.held.status, len(copies.held.entries)) == (Status.OK, COUNT)
    assert (await java.call("tasks"))["tasks"] == []
