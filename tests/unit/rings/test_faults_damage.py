"""What a run under faults damages, and when it counts as repaired."""

from __future__ import annotations

import asyncio
import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from bookie.client.bookkeeper import BookKeeper
from bookie.model.ids import BookieId, EntryId
from bookie.server.joining.directories import CURRENT
from bookie.storage.journal.format import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    FileHeader,
    RecordKind,
    encode_batch,
    encode_file_header,
    encode_record,
)
from bookie.wire.port import Status
from tests.faults.damage import Files, Place, cut_end, flip_bits, places
from tests.faults.disks import Directories, hide, show
from tests.faults.healing import DeniedEntryError, Healing
from tests.faults.network import Network
from tests.links import LOOPBACK, Link, Trouble
from tests.unit.rings.test_faults_verdict import METADATA, packet
from tests.worlds.ledgers import LEDGER
from tests.worlds.repair import RepairWorld, a_world, answers, flipped
from tests.worlds.virtual_time import in_virtual_time

B = BookieId("b")


def changed_bits(before: bytes, after: bytes) -> int:
    return sum((one ^ other).bit_count() for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_flipped_bits_are_in_their_places(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    count = flip_bits([Place(path, 300, 200)], random.Random(seed))
    after = path.read_bytes()
    assert 0 < changed_bits(bytes(1000), after) <= count
    assert not any(after[:200])
    assert not any(after[300:])


def test_a_cut_file_ends_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    assert cut_end([Place(path, 900, 600)], random.Random(0)) == 1000 - path.stat().st_size
    assert 600 <= path.stat().st_size < 900


async def test_the_last_batch_of_a_journal_is_spared(tmp_path: Path) -> None:
    directory = tmp_path / "journal" / CURRENT / "journal"
    directory.mkdir(parents=True)
    data, record = encode_file_header(FileHeader(1, 1, 0)), encode_record(RecordKind.FENCE, LEDGER)
    offsets = []
    for sequence in (1, 2, 3):
        offsets.append(len(data))
        header = BatchHeader(1, sequence, sequence - 1, len(data), len(record), 1)
        data += b"".join(encode_batch(header, [record]))
    path = directory / f"{1:016x}.journal"
    path.write_bytes(data)
    assert await places(Files.JOURNAL, Directories.below(tmp_path, 1), is_cut=False) == [Place(path, offsets[-1])]
    assert await places(Files.JOURNAL, Directories.below(tmp_path, 1), is_cut=True) == [], (
        "no mark records the last batch as durable"
    )
    path.write_bytes(data[: offsets[-1] + BATCH_HEADER_SIZE - 1])
    assert await places(Files.JOURNAL, Directories.below(tmp_path, 1), is_cut=False) == [Place(path, offsets[-2])]


async def begun(world: RepairWorld) -> tuple[BookKeeper, Healing]:
    """Store a ledger on three bookies; return a client, and what is to be verified on one of them."""
    await world.ledgers.create(LEDGER, METADATA)
    for bookie in "abc":
        for entry in range(3):
            await world.bookies.put(bookie, LEDGER, [packet(entry)])
    client, healing = BookKeeper(world.ports(world.store).client()), Healing(B)
    await healing.begin(client, has_lists=True)
    assert healing.unverified == {LEDGER}
    return client, healing


@in_virtual_time
async def test_a_bookie_has_damage_until_every_copy_is_good() -> None:
    async with a_world("a b c") as world:
        client, healing = await begun(world)
        world.bookies[B].results[EntryId(1)] = flipped
        await healing.check(client)
        assert (healing.unverified, healing.bad) == ({LEDGER}, {LEDGER})
        world.bookies[B].results.clear()
        await healing.check(client)
        assert (healing.unverified, healing.bad) == (set(), set())


@in_virtual_time
async def test_a_bookie_may_not_deny_what_it_had() -> None:
    async with a_world("a b c") as world:
        client, healing = await begun(world)
        world.bookies[B].results[EntryId(1)] = answers(Status.NO_ENTRY)
        with pytest.raises(DeniedEntryError):
            await healing.check(client)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def test_a_link_holds_bytes_back_and_closes_connections() -> None:
    server = await asyncio.start_server(echo, LOOPBACK, 0)
    link = Link(server.sockets[0].getsockname()[1])
    port = await link.listen(LOOPBACK)
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        for trouble in (Trouble.CUT, Trouble.NO_ANSWERS, Trouble.SLOW):
            link.set(trouble)
            writer.write(trouble.name.encode())
            answer = asyncio.create_task(reader.readexactly(len(trouble.name)))
            if trouble is not Trouble.SLOW:
                await asyncio.wait([answer], timeout=0)
                assert not answer.done()
            link.set(None)
            assert await answer == trouble.name.encode()
        link.set(Trouble.CLOSE)
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    finally:
        server.close()
        await link.close()


async def test_a_zookeeper_server_does_not_learn_the_address_of_another_one_behind_a_link() -> None:
    server = await asyncio.start_server(echo, LOOPBACK, 0)
    network = Network()
    try:
        _, election = await network.between_servers(0, 1, 1, server.sockets[0].getsockname()[1])
        reader, writer = await asyncio.open_connection(LOOPBACK, election)
        address = b"127.0.0.1:3888"
        writer.write(struct.pack(">qqi", -65536, 3, len(address)) + address + b"vote")
        assert await reader.readexactly(12) == struct.pack(">q", 3) + b"vote"
        writer.close()
    finally:
        server.close()
        await network.close()


def test_each_journal_and_each_ledger_directory_has_a_disk_of_its_own() -> None:
    directories = Directories.below(Path("/b"), 2)
    assert directories.options == ["--journal-dir=/b/journal,/b/journal-2", "--ledger-dir=/b/ledgers,/b/ledgers-2"]
    assert [str(path) for path, _ in directories.sizes_mib()] == [
        *("/b/journal", "/b/journal-2", "/b/ledgers", "/b/ledgers-2")
    ]


def test_a_directory_that_is_mounted_again_has_its_files(tmp_path: Path) -> None:
    (tmp_path / CURRENT).mkdir()
    (tmp_path / CURRENT / "file").write_text("content")
    hide(tmp_path)
    assert not (tmp_path / CURRENT).exists()
    show(tmp_path)
    assert (tmp_path / CURRENT / "file").read_text() == "content"
