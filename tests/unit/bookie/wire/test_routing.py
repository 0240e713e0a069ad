"""Which transport a request uses, and the order of the requests to one bookie."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.port import StoreUnavailableError
from bookie.model.ids import BookieId, LedgerId
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from bookie.wire.port import AddBatch, AddReply, Status
from bookie.wire.requests import Info
from bookie.wire.resolver import BookieAddress
from bookie.wire.routing import RoutedTransport, open_transport
from tests.worlds.requests import one_of_each

OURS, APACHES = BookieId("ours:1"), BookieId("apache:2")
LEDGER = LedgerId(7)
BATCH = AddBatch(LEDGER, b"key", [b"entry"])


class Addresses:
    """A resolver that answers only after its gate was opened."""

    def __init__(self, **protocols: str) -> None:
        self.protocols: dict[str, str | None] = dict(protocols)
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: StoreUnavailableError | None = None

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        protocol = self.protocols.get(bookie.split(":")[0])
        return None if protocol is None else BookieAddress("host", 1, protocol)


class Recording(MemoryTransport):
    """A transport that answers each add with ``status`` and records it."""

    def __init__(self, name: str) -> None:
        super().__init__(Addresses(), MemoryNetwork())
        self.name = name
        self.adds: list[AddBatch] = []
        self.has_adds = asyncio.Event()
        self.status = Status.OK

    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        self.adds.append(batch)
        self.has_adds.set()
        return AddReply(self.status, self.name)


class Way:
    def __init__(self, **protocols: str) -> None:
        self.addresses = Addresses(**protocols)
        self.grpc, self.apache = Recording("grpc"), Recording("apache")
        self.transport = RoutedTransport(self.addresses, self.grpc, self.apache)

    async def add(self, bookie: BookieId, batch: AddBatch = BATCH, timeout_s: float = 5) -> AddReply:
        return await self.transport.add(bookie, batch, timeout_s)


async def test_each_bookie_is_reached_over_the_protocol_that_it_speaks() -> None:
    way = Way(ours="bookie-grpc", apache="bookie-rpc")
    assert (await way.add(OURS)).detail == "grpc"
    assert (await way.add(APACHES)).detail == "apache"


async def test_a_known_protocol_is_not_looked_up_again() -> None:
    way = Way(apache="bookie-rpc")
    await way.add(APACHES)
    way.addresses.gate.clear()
    assert (await way.add(APACHES)).detail == "apache"


async def test_a_changed_protocol_of_a_bookie_is_detected() -> None:
    way = Way(apache="bookie-rpc")
    await way.add(APACHES)
    way.addresses.protocols["apache"] = "bookie-grpc"
    way.apache.status = Status.UNRESOLVED
    assert (await way.add(APACHES)).status is Status.UNRESOLVED
    assert (await way.add(APACHES)).detail == "grpc"


async def test_adds_keep_their_order_during_the_lookup() -> None:
    way = Way(apache="bookie-rpc")
    way.addresses.gate.clear()
    batches = [AddBatch(LEDGER, b"key", [b"%d" % number]) for number in range(10)]
    adding = [asyncio.ensure_future(way.add(APACHES, batch)) for batch in batches[:5]]
    await asyncio.sleep(0)
    way.addresses.gate.set()
    await way.apache.has_adds.wait()
    adding += [asyncio.ensure_future(way.add(APACHES, batch)) for batch in batches[5:]]
    await asyncio.gather(*adding)
    assert way.apache.adds == batches


async def test_a_lookup_that_takes_too_long_is_a_timeout() -> None:
    way = Way(apache="bookie-rpc")
    way.addresses.gate.clear()
    assert (await way.add(APACHES, timeout_s=0.01)).status is Status.TIMEOUT
    way.addresses.gate.set()
    assert (await way.add(APACHES)).detail == "apache"


@pytest.mark.parametrize("error", [None, StoreUnavailableError("no answer")])
async def test_a_bookie_without_an_address_is_unresolved_for_every_request(error: StoreUnavailableError | None) -> None:
    addresses = Addresses()
    addresses.error = error
    transport = open_transport(addresses)
    try:
        assert (await transport.add(OURS, BATCH, 1)).status is Status.UNRESOLVED
        for request in one_of_each(LEDGER, b"key", b"", 0.1):
            assert (await transport.ask(OURS, request, 1)).status is Status.UNRESOLVED
    finally:
        await transport.close()


async def test_a_closed_transport_reaches_no_bookie() -> None:
    transport = open_transport(Addresses(apache="bookie-rpc", ours="bookie-grpc"))
    await transport.close()
    assert [(await transport.ask(bookie, Info(), 1)).status for bookie in (OURS, APACHES)] == [Status.UNREACHABLE] * 2
