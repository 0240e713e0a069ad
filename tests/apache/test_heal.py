"""An Apache bookie is lost permanently; our audit and replicators heal the ledgers. Apache's own tools check this."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache import ApacheBookie, ApacheCluster
from bookie.model.ids import BookieId, LedgerId
from tests.apache.conftest import OwnCluster
from tests.apache.driver import JavaDriver, JavaHandle, expected, payloads
from tests.apache.programs import Audit, Replicator, bkheal
from tests.apache.shell_answers import as_printed, entries_of, printed_entries, printed_metadata
from tests.apache.worlds import connect, each, gone, on
from tests.sessions import kill9

pytestmark = pytest.mark.apache

DIGESTS = ("CRC32", "MAC", "CRC32C", "DUMMY")
SHAPES = ((3, 3, 2), (3, 2, 2), (4, 2, 1))
SIZES = (0, 1, 100, 1000, 30_000)
PASSWORD = b"secret"


@dataclass
class Written:
    """A ledger of the data set."""

    ledger_id: int
    digest: str
    wire: str
    entries: int

    @property
    def seed(self) -> str:
        return f"{self.digest}-{self.wire}"

    @property
    def contents(self) -> list[bytes]:
        return payloads(self.seed, range(self.entries), SIZES)


async def write_everything(java: JavaDriver, cluster: ApacheCluster) -> tuple[list[Written], ApacheBookie]:
    """Write ledgers of each digest type, over both versions of the protocol, striped and not; one is left open.

    Each two of a digest type, a version and a shape occur together. Some ledgers have several fragments, because a
    bookie was stopped for a while. The tests later remove the same bookie.
    """
    open_handles: list[tuple[JavaHandle, Written]] = []
    for number, (digest, shape) in enumerate(itertools.product(DIGESTS, SHAPES)):
        wire = ("v2", "v3")[number % 2]
        handle = await java.create(*shape, digest=digest, password=PASSWORD, client=wire)
        ledger = Written(handle.ledger_id, digest, wire, 30)
        await handle.write(30, seed=ledger.seed, sizes=SIZES)
        open_handles.append((handle, ledger))
    extended = open_handles[::3]
    named: Counter[str] = Counter()
    for handle, _ in extended:
        metadata = await java.call("metadata", ledger=handle.ledger_id)
        named.update(metadata["ensembles"]["0"])
    victim = next(bookie for bookie in cluster.bookies if bookie.bookie_id == named.most_common(1)[0][0])
    await victim.stop()
    for handle, ledger in extended:
        await handle.write(20, seed=ledger.seed, sizes=SIZES)
        ledger.entries += 20
    await victim.start()
    empty = await java.create(3, 3, 2, digest="CRC32C", password=PASSWORD)
    open_handles.append((empty, Written(empty.ledger_id, "CRC32C", "v3", 0)))
    for handle, _ in open_handles:
        await handle.close()
    await java.new_client("dying")
    left_open = await on(java, {victim.bookie_id}, 5, 4, 3, digest="CRC32C", password=PASSWORD, client="dying")
    ledger = Written(left_open.ledger_id, "CRC32C", "v3", 25)
    await left_open.write(25, seed=ledger.seed, sizes=SIZES)
    await java.drop_client("dying")
    return [ledger for _, ledger in open_handles] + [ledger], victim


async def short_bookies(java: JavaDriver, ledgers: Sequence[Written]) -> set[str]:
    found = [await java.call("check", ledger=ledger.ledger_id, client="v3") for ledger in ledgers]
    return {bookie for one in found for fragment in one["fragments"] for bookie in fragment["bookies"]}


async def damaged_by_apaches_checker(java: JavaDriver, ledgers: Sequence[Written]) -> set[int]:
    return {
        ledger.ledger_id
        for ledger in ledgers
        if (await java.call("check", ledger=ledger.ledger_id, client="v3"))["fragments"]
    }


async def members(java: JavaDriver, ledger: Written) -> set[str]:
    ensembles = (await java.call("metadata", ledger=ledger.ledger_id))["ensembles"]
    return {member for members in ensembles.values() for member in members}


def ids_in(printed: str) -> set[int]:
    """Return the ledger ids listed by Apache's shell, one per line: as the line, and since 4.18 as an attribute."""
    return {int(first or second) for first, second in re.findall(r"^(\d+)\b|\bledgerId=(\d+)", printed, re.MULTILINE)}


async def test_a_permanently_lost_bookie_is_repaired_and_apache_reads_everything(
    own_cluster: OwnCluster, audit: Audit, tmp_path: Path
) -> None:
    cluster, java = await own_cluster(bookies=6)
    ledgers, victim = await write_everything(java, cluster)
    *closed, left_open = ledgers
    uri, lost = cluster.metadata_uri, victim.bookie_id
    assert (await audit(uri, tmp_path, is_dry_run=True))["verdict"] == "clean"
    # Only this bookie may lack entries: those acknowledged before the writer replaced it.
    assert await short_bookies(java, closed) <= {lost}

    async with await connect(uri) as client:
        await read_contents(client, ledgers)

        await kill9(cluster.zookeeper, victim)
        shutil.rmtree(victim.directory)
        await gone(client, lost)
        summary = await audit(uri, tmp_path)
        before = {ledger.ledger_id: await members(java, ledger) for ledger in ledgers}
        hurt = {ledger_id for ledger_id, named in before.items() if lost in named}
        assert hurt
        assert sum(count["ledgers"] for count in summary["findings"]) == len(hurt)
        assert {task["ledger"] for task in (await java.call("tasks"))["tasks"]} == hurt
        assert ids_in(await cluster.shell("listunderreplicated", "-missingreplica", lost)) == hurt
        assert await damaged_by_apaches_checker(java, closed) == hurt - {left_open.ledger_id}

        replicators = await asyncio.gather(
            *(
                Replicator.start(uri, tmp_path / f"replicator-{number}", "--once", "--open-ledger-grace", "1")
                for number in (1, 2)
            )
        )
        assert [await replicator.wait() for replicator in replicators] == [0, 0]
        repaired = [ledger_id for replicator in replicators for ledger_id in replicator.repaired]
        assert sorted(repaired) == sorted(hurt)  # each ledger by one of the two replicators

        assert (await java.call("tasks"))["tasks"] == []
        assert ids_in(await cluster.shell("listunderreplicated")) == set()
        assert await damaged_by_apaches_checker(java, ledgers) == set()
        assert (await audit(uri, tmp_path))["verdict"] == "clean"
        for ledger in ledgers:
            await check_copies(java, client, ledger, lost, before[ledger.ledger_id])
        await shell_agrees(cluster, client, ledgers, await read_contents(client, ledgers))
    for ledger in ledgers:
        for wire in ("v2", "v3"):
            read = await java.read_all(ledger.ledger_id, digest=ledger.digest, password=PASSWORD, client=wire)
            assert read == expected(ledger.contents)


async def check_copies(
    java: JavaDriver, client: ConnectedBookKeeper, ledger: Written, lost: BookieId, before: set[str]
) -> None:
    """Check that each member holds all entries of its position, and that new members hold no others."""
    found = (await client.ports.ledgers.read(LedgerId(ledger.ledger_id))).metadata
    assert found.last_entry_id == ledger.entries - 1
    stored: Counter[str] = Counter()
    for index, fragment in enumerate(found.fragments):
        assert lost not in fragment.members
        is_last = index + 1 == len(found.fragments)
        last = ledger.entries - 1 if is_last else found.fragments[index + 1].first_entry_id - 1
        for position, name in enumerate(fragment.members):
            stored[name] += found.stripe.count(position, fragment.first_entry_id, last)
    for member, count in stored.items():
        if count:
            listed = await java.call("available_entries", bookie=member, ledger=ledger.ledger_id)
            assert listed["total"] >= count
            if member not in before:
                assert listed["total"] == count


async def read_contents(client: ConnectedBookKeeper, ledgers: Sequence[Written]) -> dict[int, list[bytes]]:
    """Check that our client reads all contents (of an open ledger the confirmed ones), and return them by ledger."""
    read: dict[int, list[bytes]] = {}
    for ledger in ledgers:
        reader = await client.open_ledger(LedgerId(ledger.ledger_id), password=PASSWORD)
        found = [entry.payload async for entry in reader.read_all()]
        assert found == (ledger.contents if reader.metadata.is_closed else ledger.contents[: len(found)]), ledger
        read[ledger.ledger_id] = found
    return read


async def shell_agrees(
    cluster: ApacheCluster, client: ConnectedBookKeeper, ledgers: Sequence[Written], read: dict[int, list[bytes]]
) -> None:
    """Check that Apache's shell prints the metadata and the entries that our client read. Each print starts Java."""

    async def metadata_agrees(ledger: Written) -> None:
        ours = (await client.ports.ledgers.read(LedgerId(ledger.ledger_id))).metadata
        assert await printed_metadata(cluster, ledger.ledger_id) == as_printed(ours)

    async def entries_agree(ledger: Written) -> None:
        printed = await printed_entries(cluster, ledger.ledger_id, PASSWORD)
        assert printed == list(entries_of(ledger.ledger_id, read[ledger.ledger_id])), ledger

    differing = one_of_each_digest(ledgers)
    await each([*differing, ledgers[-1]], metadata_agrees)
    await each(differing[:2], entries_agree)


def one_of_each_digest(ledgers: Sequence[Written]) -> list[Written]:
    """Return one ledger of each digest type. They have all three shapes, and the first has several fragments."""
    found = [[ledger for ledger in ledgers if ledger.digest == digest] for digest in DIGESTS]
    return [of_digest[number % len(SHAPES)] for number, of_digest in enumerate(found)]


async def test_the_command_line_reads_what_apache_wrote(
    apache_cluster: ApacheCluster, java: JavaDriver, tmp_path: Path
) -> None:
    handle = await java.create(3, 2, 2)
    await handle.write(5, seed="cli", sizes=SIZES)
    await handle.close()
    copy = tmp_path / "copy"
    ended = await bkheal("ledger", "read", str(handle.ledger_id), "--to", str(copy), uri=apache_cluster.metadata_uri)
    assert ended.exit_code == 0, ended.errors
    assert copy.read_bytes() == b"".join(payloads("cli", range(5), SIZES))
