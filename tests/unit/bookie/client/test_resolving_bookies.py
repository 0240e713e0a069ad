"""From a registration to an address: which protocol, and how long an address is used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest

from bookie.client.resolve import RegistrationResolver
from bookie.metadata.bookies.registration import Endpoint, Registrations, ServiceInfo
from bookie.metadata.bookies.service_info import PROPERTY_INCARNATION
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.model.ids import BookieId
from bookie.wire.resolver import BookieAddress
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import formatted

BOOKIE = BookieId("bookie-1:3181")
GRPC = Endpoint("bookie", "host", 1, "bookie-grpc")
APACHE = Endpoint("bookie", "host", 2, "bookie-rpc")
HTTP = Endpoint("httpserver", "host", 3, "http")
PROPERTIES = ((PROPERTY_INCARNATION, "disks"),)


@pytest.fixture
async def registrations() -> AsyncIterator[Registrations]:
    store = MemoryStore(MemoryCell())
    yield Registrations(store, await formatted(store))
    await store.close()


async def register(registrations: Registrations, info: ServiceInfo) -> None:
    await registrations.register(BOOKIE, info, is_read_only=False, takeover_deadline_s=1)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (ServiceInfo((GRPC,), PROPERTIES), BookieAddress("host", 1, "bookie-grpc", "disks")),
        (ServiceInfo((HTTP, APACHE)), BookieAddress("host", 2, "bookie-rpc")),
        (ServiceInfo((APACHE, GRPC), PROPERTIES), BookieAddress("host", 1, "bookie-grpc", "disks")),
        (ServiceInfo((APACHE,), PROPERTIES), BookieAddress("host", 2, "bookie-rpc")),
        (ServiceInfo((HTTP,)), None),
    ],
)
async def test_grpc_is_preferred_to_apaches_protocol(
    registrations: Registrations, info: ServiceInfo, expected: BookieAddress | None
) -> None:
    await register(registrations, info)
    assert await RegistrationResolver(registrations, ManualClock()).resolve(BOOKIE) == expected


async def test_a_bookie_that_is_not_registered_has_no_address(registrations: Registrations) -> None:
    assert await RegistrationResolver(registrations, ManualClock()).resolve(BOOKIE) is None


async def test_an_address_with_an_incarnation_outlives_its_registration(registrations: Registrations) -> None:
    clock = ManualClock()
    resolver = RegistrationResolver(registrations, clock)
    await register(registrations, ServiceInfo((GRPC,), PROPERTIES))
    known = await resolver.resolve(BOOKIE)
    await registrations.unregister(BOOKIE)
    clock.now_s += 60
    assert await resolver.resolve(BOOKIE) == known is not None


class Silent(Registrations):
    """Registrations that do not answer while ``is_silent``, and otherwise answer after a turn of the event loop."""

    is_silent = False

    async def service_info(self, bookie: BookieId) -> ServiceInfo | None:
        if self.is_silent:
            raise StoreUnavailableError("no answer")
        await asyncio.sleep(0)
        return await super().service_info(bookie)


@pytest.mark.parametrize(("endpoint", "stands"), [(GRPC, True), (APACHE, False)])
async def test_if_the_store_is_unreachable_only_addresses_with_an_incarnation_stay_valid(
    endpoint: Endpoint, stands: bool
) -> None:
    store = MemoryStore(MemoryCell())
    registrations, clock = Silent(store, await formatted(store)), ManualClock()
    resolver = RegistrationResolver(registrations, clock)
    await register(registrations, ServiceInfo((endpoint,), PROPERTIES))
    known = await resolver.resolve(BOOKIE)
    registrations.is_silent = True
    clock.now_s += 10
    assert await resolver.resolve(BOOKIE) == known is not None
    clock.now_s += 10
    assert await resolver.resolve(BOOKIE) == known
    for _ in range(5):
        clock.now_s += 10
        with nullcontext() if stands or clock.now_s < 30 else pytest.raises(StoreUnavailableError):
            assert await resolver.resolve(BOOKIE) == known
    registrations.is_silent = False
    clock.now_s += 10
    assert await resolver.resolve(BOOKIE) == known
    await store.close()


@pytest.mark.parametrize("endpoint", [GRPC, APACHE])
async def test_an_address_without_an_incarnation_is_refreshed_before_use(endpoint: Endpoint) -> None:
    """A short delay of ZooKeeper does not make an Apache bookie count as unregistered."""
    store = MemoryStore(MemoryCell())
    registrations, clock = Silent(store, await formatted(store)), ManualClock()
    resolver = RegistrationResolver(registrations, clock, patience_s=0.0)
    await register(registrations, ServiceInfo((endpoint,), PROPERTIES))
    known = await resolver.resolve(BOOKIE)
    assert known is not None
    clock.now_s += 60
    assert await resolver.resolve(BOOKIE) == known
    await store.close()


async def test_an_apache_address_expires_with_its_registration(registrations: Registrations) -> None:
    clock = ManualClock()
    resolver = RegistrationResolver(registrations, clock)
    await register(registrations, ServiceInfo((APACHE,)))
    assert await resolver.resolve(BOOKIE) is not None
    await registrations.unregister(BOOKIE)
    clock.now_s += 60
    assert await resolver.resolve(BOOKIE) is None


class Slow(Registrations):
    """Registrations that count look-ups, and answer when ``answer`` is set."""

    def __init__(self, registrations: Registrations) -> None:
        self._inner = registrations
        self.count = 0
        self.answer = asyncio.Event()
        self.error: Exception | None = None

    async def service_info(self, bookie: BookieId) -> ServiceInfo | None:
        self.count += 1
        await self.answer.wait()
        if self.error is not None:
            raise self.error
        return await self._inner.service_info(bookie)


async def test_requests_that_need_an_expired_address_share_a_few_look_ups(registrations: Registrations) -> None:
    await register(registrations, ServiceInfo((GRPC,), PROPERTIES))
    slow = Slow(registrations)
    resolver = RegistrationResolver(slow, ManualClock())
    waiting = [asyncio.create_task(resolver.resolve(BOOKIE)) for _ in range(1000)]
    await asyncio.sleep(0)
    for task in waiting[:8]:  # those that look up are cancelled, so others do
        task.cancel()
    await asyncio.wait(waiting[:8])
    slow.answer.set()
    addresses = await asyncio.gather(*waiting[8:])
    assert set(addresses) == {BookieAddress("host", 1, "bookie-grpc", "disks")}
    assert slow.count <= 16


async def test_requests_that_share_a_look_up_share_its_failure(registrations: Registrations) -> None:
    slow = Slow(registrations)
    slow.error = StoreUnavailableError("no answer")
    resolver = RegistrationResolver(slow, ManualClock())
    waiting = [asyncio.create_task(resolver.resolve(BOOKIE)) for _ in range(100)]
    await asyncio.sleep(0)
    slow.answer.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, StoreUnavailableError) for result in results)
    assert slow.count == 8


async def test_a_request_with_a_known_address_does_not_wait_for_the_look_up_of_another(
    registrations: Registrations,
) -> None:
    await register(registrations, ServiceInfo((GRPC,), PROPERTIES))
    slow, clock = Slow(registrations), ManualClock()
    slow.answer.set()
    resolver = RegistrationResolver(slow, clock, patience_s=0.01)
    known = await resolver.resolve(BOOKIE)
    slow.answer.clear()
    clock.now_s += 60
    assert await asyncio.gather(*(resolver.resolve(BOOKIE) for _ in range(20))) == [known] * 20
