"""Copies between two bookies, with requests and reads through the twin, and through gRPC on the loopback interface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from bookie.model.digest import digest_for, digest_key, master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import PACKET_BYTES_MAX
from bookie.runtime.clock import SystemClock
from bookie.server.copying import Copying
from bookie.server.grpc.server import GrpcServer
from bookie.wire.batching import batches
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from bookie.wire.port import (
    BATCH_ENTRIES_MAX,
    READ_BYTES_MAX,
    AddBatch,
    CopyReply,
    InfoReply,
    Status,
    Transport,
)
from bookie.wire.requests import Copy, Fence, Info
from bookie.wire.resolver import APACHE_PROTOCOL, BookieAddress
from bookie.wire.security import TlsSettings
from tests.contract.transport_world import a_world
from tests.deadlines import STATE_S
from tests.worlds.cluster import MemoryBookie, open_bookie
from tests.worlds.ledgers import LEDGER, PASSWORD, make_packets

SOURCE, TARGET = BookieId("source"), BookieId("target")
KEY = master_key(PASSWORD)
HERE = "127.0.0.1"


@dataclass
class Directory:
    """The registrations of the cluster."""

    addresses: dict[BookieId, BookieAddress] = field(default_factory=dict)

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        return self.addresses.get(bookie)


@dataclass
class World:
    """A source, a target permitted to copy from it, and a client of the target."""

    directory: Directory
    client: Transport
    source: MemoryBookie
    target: MemoryBookie

    async def fill(self, *packets: bytes) -> None:
        for batch in batches(packets):
            reply = await self.source.storage.add(AddBatch(LEDGER, KEY, batch, is_recovery=True))
            assert reply.status is Status.OK

    async def copy(self, *entry_ids: int, digest_type: DigestType = DigestType.CRC32C) -> CopyReply:
        return await self.client.ask(TARGET, copying(*entry_ids, digest_type=digest_type), STATE_S)

    async def on_target(self) -> dict[EntryId, bytes]:
        held = list((await self.target.storage.list_entries(LEDGER)).entries)
        found: dict[EntryId, bytes] = {}
        while held:
            results = (await self.target.storage.read(LEDGER, held)).results
            found |= {result.entry_id: result.packet for result in results}
            held = held[len(results) :]
        return found


def copying(*entry_ids: int, digest_type: DigestType = DigestType.CRC32C) -> Copy:
    key = digest_key(digest_type, PASSWORD)
    return Copy(LEDGER, [EntryId(n) for n in entry_ids], SOURCE, KEY, digest_type, key)


@asynccontextmanager
async def two_bookies(kind: str, tls: TlsSettings | None = None) -> AsyncIterator[World]:
    directory, network = Directory(), MemoryNetwork()

    def transport() -> Transport:
        if kind == "memory":
            return MemoryTransport(directory, network)
        return GrpcTransport(directory, tls=tls, is_plaintext=tls is None)

    client, between = transport(), transport()
    source = await open_bookie(incarnation="source disks")
    target = await open_bookie(incarnation="target disks", copying=Copying(between, SystemClock()))
    servers: list[GrpcServer] = []
    for number, (name, bookie) in enumerate(((SOURCE, source), (TARGET, target))):
        port = number + 1
        network.listen(HERE, port, bookie.service)
        if kind == "grpc":
            servers.append(GrpcServer(concurrent_requests_max=20))
            port = servers[-1].bind(HERE, 0, tls)
            await servers[-1].start(bookie.service)
        directory.addresses[name] = BookieAddress(HERE, port, incarnation=f"{name} disks")
    try:
        yield World(directory, client, source, target)
    finally:
        await client.close()
        await between.close()
        for server in servers:
            await server.stop()
        for bookie in (source, target):
            assert await bookie.service.drain(STATE_S)
            await bookie.storage.abort()


@pytest.fixture(params=["memory", "grpc"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with two_bookies(request.param) as world:
        yield world


@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
async def test_only_the_requested_entries_are_copied_byte_for_byte(world: World, digest_type: DigestType) -> None:
    packets = make_packets(LEDGER, 20, digest_type=digest_type)
    await world.fill(*packets.values())
    reply = await world.copy(1, 2, 5, digest_type=digest_type)
    copied = {entry_id: packets[entry_id] for entry_id in map(EntryId, (1, 2, 5))}
    assert (reply.status, reply.source, reply.covered, list(reply.refusals)) == (Status.OK, Status.OK, 3, [])
    assert reply.stored_bytes == sum(map(len, copied.values()))
    assert await world.on_target() == copied


async def test_a_repeated_copy_changes_nothing(world: World) -> None:
    packets = make_packets(LEDGER, 5)
    await world.fill(*packets.values())
    first, second = await world.copy(*packets), await world.copy(*packets)
    assert first.stored_count == second.stored_count == 5
    assert await world.on_target() == packets


async def test_each_missing_or_damaged_entry_is_named_and_the_others_are_copied(world: World) -> None:
    packets = make_packets(LEDGER, 6)
    packets[EntryId(3)] = packets[EntryId(3)][:-1] + bytes([packets[EntryId(3)][-1] ^ 1])
    await world.fill(*(packet for entry_id, packet in packets.items() if entry_id != 1))
    reply = await world.copy(*packets)
    assert (reply.status, reply.source, reply.covered) == (Status.OK, Status.OK, 6)
    assert [(each.entry_id, each.status) for each in reply.refusals] == [(1, Status.NO_ENTRY), (3, Status.CORRUPT)]
    assert list(await world.on_target()) == [0, 2, 4, 5]


async def test_a_digest_with_another_key_verifies_nothing(world: World) -> None:
    await world.fill(*make_packets(LEDGER, 2, digest_type=DigestType.HMAC).values())
    other = replace(copying(0, 1, digest_type=DigestType.HMAC), digest_key=digest_key(DigestType.HMAC, b"other"))
    reply = await world.client.ask(TARGET, other, STATE_S)
    assert [each.status for each in reply.refusals] == [Status.CORRUPT] * 2
    assert await world.on_target() == {}


async def test_what_does_not_fit_into_one_answer_is_requested_again(world: World) -> None:
    packets = make_packets(LEDGER, 4, payload_bytes=PACKET_BYTES_MAX - 100)
    await world.fill(*packets.values())
    waiting, copied_bytes = list(packets), []
    while waiting:
        reply = await world.copy(*waiting)
        assert (reply.status, reply.source) == (Status.OK, Status.OK)
        copied_bytes.append(reply.stored_bytes)
        waiting = waiting[reply.covered :]
    assert len(copied_bytes) > 1
    assert max(copied_bytes) <= READ_BYTES_MAX + PACKET_BYTES_MAX
    assert await world.on_target() == packets


async def test_a_fenced_or_read_only_target_accepts_copies(world: World) -> None:
    packets = make_packets(LEDGER, 3)
    await world.fill(*packets.values())
    assert (await world.client.ask(TARGET, Fence(LEDGER, KEY), STATE_S)).status is Status.OK
    world.target.service.is_read_only = True
    assert (await world.copy(*packets)).stored_count == 3


async def test_a_full_target_stores_nothing_and_reports_it(world: World) -> None:
    await world.fill(*make_packets(LEDGER, 3).values())
    world.target.storage.takes_no_adds = True
    reply = await world.copy(0, 1, 2)
    assert (reply.status, reply.covered, reply.stored_bytes) == (Status.READ_ONLY, 0, 0)
    assert await world.on_target() == {}


def of_other_disks(world: World) -> Copy:
    return replace(copying(0), incarnation="other disks")


def with_wrong_key(world: World) -> Copy:
    return replace(copying(0), master_key=b"stranger")


def from_unregistered_bookie(world: World) -> Copy:
    return replace(copying(0), source=BookieId(f"{HERE}:{world.directory.addresses[SOURCE].port}"))


def without_digest(world: World) -> Copy:
    return replace(copying(0), digest_type=DigestType.DUMMY)


def of_too_many(world: World) -> Copy:
    return copying(*range(BATCH_ENTRIES_MAX + 1))


REFUSALS: list[tuple[Callable[[World], Copy], Status]] = [
    (of_other_disks, Status.WRONG_INCARNATION),
    (with_wrong_key, Status.UNAUTHORIZED),
    (without_digest, Status.BAD_REQUEST),
    (of_too_many, Status.BAD_REQUEST),
    (lambda _: copying(), Status.BAD_REQUEST),
    (lambda _: copying(2, 1), Status.BAD_REQUEST),
    (lambda _: copying(-1), Status.BAD_REQUEST),
    (lambda _: replace(copying(0), digest_key=b"short"), Status.BAD_REQUEST),
    (lambda _: replace(copying(0), source=BookieId("../b")), Status.BAD_REQUEST),
    (lambda _: replace(copying(0), source=BookieId("..")), Status.BAD_REQUEST),
    (lambda _: replace(copying(0), source=BookieId("")), Status.BAD_REQUEST),
    (lambda _: replace(copying(0), ledger_id=LedgerId(-1)), Status.BAD_REQUEST),
]


@pytest.mark.parametrize(("refused", "status"), REFUSALS)
async def test_a_refused_request_stores_nothing(world: World, refused: Callable[[World], Copy], status: Status) -> None:
    await world.fill(*make_packets(LEDGER, 3).values())
    await world.target.storage.add(AddBatch(LEDGER, KEY, [make_packets(LEDGER, 10)[EntryId(9)]], is_recovery=True))
    reply = await world.client.ask(TARGET, refused(world), STATE_S)
    assert (reply.status, reply.covered) == (status, 0)
    assert list(await world.on_target()) == [9]


async def test_an_address_is_not_accepted_as_a_bookie_id(world: World) -> None:
    """A caller can name only registered bookies. An id that looks like an address is looked up, not connected to."""
    await world.fill(*make_packets(LEDGER, 1).values())
    reply = await world.client.ask(TARGET, from_unregistered_bookie(world), STATE_S)
    assert (reply.status, reply.source, reply.covered) == (Status.OK, Status.UNRESOLVED, 0)


async def test_a_lost_source_or_one_with_another_protocol_is_not_reported_as_without_entries(
    world: World,
) -> None:
    address = world.directory.addresses[SOURCE]
    for elsewhere, source in (
        (BookieAddress(HERE, 9, incarnation="x"), Status.UNREACHABLE),
        (replace(address, protocol=APACHE_PROTOCOL), Status.UNRESOLVED),
        (replace(address, incarnation="other disks"), Status.WRONG_INCARNATION),
    ):
        world.directory.addresses[SOURCE] = elsewhere
        reply = await world.copy(0)
        assert (reply.status, reply.source, reply.covered, reply.refusals) == (Status.OK, source, 0, [])
        assert not reply.source.is_absent


async def test_a_bookie_that_does_not_support_copies_refuses_and_continues_to_serve(world: World) -> None:
    request = replace(copying(0), source=TARGET)
    reply = await world.client.ask(SOURCE, request, STATE_S)
    assert (reply.status, reply.covered) == (Status.BAD_REQUEST, 0)
    assert isinstance(await world.client.ask(SOURCE, Info(), STATE_S), InfoReply)


async def test_apaches_protocol_has_no_copies() -> None:
    async with a_world("apache") as world:
        reply = await world.transport.ask(BookieId("bookie-1"), copying(0), STATE_S)
        assert reply.status is Status.UNSUPPORTED


@pytest.mark.needs("openssl")
async def test_a_bookie_reads_from_others_with_its_own_certificate(certificates: dict[str, TlsSettings]) -> None:
    async with two_bookies("grpc", certificates["bookie"]) as world:
        packets = make_packets(LEDGER, 3)
        await world.fill(*packets.values())
        assert (await world.copy(*packets)).stored_count == 3


def test_the_digest_key_gives_access_only_to_the_digest() -> None:
    assert digest_key(DigestType.HMAC, PASSWORD) != master_key(PASSWORD)
    assert digest_key(DigestType.CRC32C, PASSWORD) == b""
    assert digest_for(DigestType.HMAC, PASSWORD).size == len(digest_key(DigestType.HMAC, PASSWORD))
