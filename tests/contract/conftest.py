"""Run each test of the metadata store on the twin, the simulator's store and a real ZooKeeper.

It also runs on the twin and on ZooKeeper through the request-joining store, where each request is joined to another.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from bookie.embedded.zookeeper import EmbeddedZooKeeper, ZooKeeperKerberos
from bookie.metadata.access import PLAIN_ACCESS, ZooKeeperAccess, ZooKeeperLogin
from bookie.metadata.cluster import Cluster
from bookie.metadata.port import ANY_VERSION, MetadataStore, Node, Operation, SetData
from bookie.metadata.store.combining import CombiningStore
from bookie.metadata.store.credentials import sasl_options
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.wire.security import TlsSettings
from tests.certificates import make_ca, make_certificate
from tests.deadlines import STATE_S
from tests.sessions import LONG_SESSION_S, close_session
from tests.simulation.loop import Process
from tests.simulation.store import SimCell, SimStore, StoreFaults
from tests.simulation.trace import Trace
from tests.worlds.cluster import formatted
from tests.worlds.kerberos import REALM, Realm, a_realm
from tests.worlds.secured import Secured, make_security, start_secured

T = TypeVar("T")

CLIENT: Final = "bkheal"
_ZOOKEEPER: Final = "zookeeper/127.0.0.1"
KERBEROS_ACCESS: Final = ZooKeeperAccess(login=ZooKeeperLogin.GSSAPI, acl="creator")
_MORE_ZOOKEEPERS: Final = {"zookeeper, joined", "zookeeper, secured"}
"""Real ZooKeepers on which the gate runs only the tests of the store itself."""
_STORE_FILES: Final = {"test_metadata_store_contract.py", "test_ended_sessions.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave some stores to the long suites in the tests of records, which use a store only through its port.

    The gate runs these tests on the twins, on a plain ZooKeeper, and on a twin with joined requests.
    """
    for item in items:
        arguments = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if arguments.get("make_backend") in _MORE_ZOOKEEPERS and item.path.name not in _STORE_FILES:
            item.add_marker(pytest.mark.long)


class Backend(Protocol):
    """What a test needs in addition to the port: sessions, and faults that only the server can cause."""

    name: str

    async def open(self) -> MetadataStore:
        """Open another session on the same data."""
        ...

    async def expire(self, store: MetadataStore) -> None:
        """End the store's session, and return after a new one has begun."""
        ...

    async def interrupt(self, store: MetadataStore) -> None:
        """Break the store's connection, and let it reconnect in the same session."""
        ...

    def deny(self, path: str) -> None:
        """Remove every permission on the node."""
        ...

    async def close(self) -> None:
        """End every opened session."""
        ...


class MemoryBackend:
    name = "memory"

    def __init__(self) -> None:
        self.cell: MemoryCell = MemoryCell()
        self._stores: list[MemoryStore] = []

    async def open(self) -> MetadataStore:
        self._stores.append(MemoryStore(self.cell))
        return self._stores[-1]

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryStore)
        store.expire()
        await asyncio.sleep(0)
        store.resume()

    async def interrupt(self, store: MetadataStore) -> None:
        assert isinstance(store, MemoryStore)
        store.suspend()
        await asyncio.sleep(0)
        store.resume()

    def deny(self, path: str) -> None:
        self.cell.deny(path)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


class SimulatedBackend(MemoryBackend):
    """The store of the simulator's histories, on an ordinary event loop."""

    name = "simulated"

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._trace = Trace(loop)
        self.cell: SimCell = SimCell(loop, lambda *change: None)
        self._stores = []

    async def open(self) -> MetadataStore:
        number = len(self._stores)
        loop, faults = asyncio.get_running_loop(), StoreFaults(latency_max_s=0.0)
        store = SimStore(self.cell, Process(f"session{number}"), loop, random.Random(number), faults, self._trace)
        self._stores.append(store)
        return store


class ZooKeeperBackend:
    name = "zookeeper"

    def __init__(self, hosts: str, access: ZooKeeperAccess = PLAIN_ACCESS, plain_hosts: str = "") -> None:
        """Prepare; ``plain_hosts`` are the addresses for clients without TLS, by default ``hosts``."""
        self.hosts = hosts
        self._access = access
        self._plain_hosts = plain_hosts or hosts
        self._stores: list[ZooKeeperStore] = []
        self._denied: list[str] = []

    async def open(self, **options: Any) -> ZooKeeperStore:
        given: dict[str, Any] = {"session_timeout_s": LONG_SESSION_S, "access": self._access} | options
        self._stores.append(await ZooKeeperStore.connect(self.hosts, **given))
        return self._stores[-1]

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        seen = store.session
        await asyncio.to_thread(close_session, self._plain_hosts, *store._connection._client.client_id)
        async with asyncio.timeout(STATE_S):
            while store.session.epoch == seen.epoch or not store.session.is_connected:
                await store.wait_session_changed(store.session)

    async def interrupt(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        client = store._connection._client
        client._call(_CONNECTION_DROP, client.handler.async_result())
        seen = store.session
        async with asyncio.timeout(STATE_S):
            await store.wait_session_changed(seen)
            while not store.session.is_connected:
                await store.wait_session_changed(store.session)

    def deny(self, path: str) -> None:
        admin_only = 16  # permits to restore the permissions, without which the node cannot be removed
        with self._admin() as client:
            client.set_acls(path, [ACL(admin_only, Id("world", "anyone"))])
        self._denied.append(path)

    async def close(self) -> None:
        await asyncio.to_thread(self._allow)
        for store in self._stores:
            await store.close()

    def _allow(self) -> None:
        if self._denied:
            with self._admin() as client:
                for path in self._denied:
                    client.set_acls(path, OPEN_ACL_UNSAFE)

    def _admin(self) -> raw_client:
        return raw_client(self._plain_hosts, sasl_options=sasl_options(self._access))


class JoinedBackend:
    """Another backend whose requests are all joined with those of a second caller."""

    def __init__(self, inner: Backend) -> None:
        self.name = f"{inner.name}, joined"
        self._inner = inner

    async def open(self) -> MetadataStore:
        store = AccompaniedStore(await self._inner.open())
        await store.prepare()
        return store

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, AccompaniedStore)
        await self._inner.expire(store.inner)

    async def interrupt(self, store: MetadataStore) -> None:
        assert isinstance(store, AccompaniedStore)
        await self._inner.interrupt(store.inner)

    def deny(self, path: str) -> None:
        self._inner.deny(path)

    async def close(self) -> None:
        await self._inner.close()


class AccompaniedStore(CombiningStore):
    """A store that makes a second, unrelated request of the same kind in the same turn of the loop as each request."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.inner = inner
        self._companion = f"/companion-{uuid.uuid4().hex}"

    async def prepare(self) -> None:
        await self.inner.create(self._companion)

    async def get(self, path: str) -> Node:
        return await self._beside(super().get(path), super().get_many([self._companion]))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._beside(super().get_many(paths), super().get_many([self._companion]))

    async def create(
        self, path: str, data: bytes = b"", *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> str:
        own = super().create(path, data, is_ephemeral=is_ephemeral, is_sequential=is_sequential)
        return await self._beside(own, super().multi([SetData(self._companion, b"")]))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._beside(super().delete(path, version), super().multi([SetData(self._companion, b"")]))

    async def multi(self, operations: Sequence[Operation]) -> None:
        await self._beside(super().multi(operations), super().multi([SetData(self._companion, b"")]))

    async def sync(self, path: str) -> None:
        await self._beside(super().sync(path), super().sync(self._companion))

    async def _beside(self, own: Coroutine[Any, Any, T], companion: Coroutine[Any, Any, Any]) -> T:
        company = asyncio.ensure_future(companion)
        try:
            return await own
        finally:
            await asyncio.gather(company, return_exceptions=True)


class raw_client:  # noqa: N801  # reads as a function
    """A kazoo client for operations that the port does not have."""

    def __init__(self, hosts: str, **options: Any) -> None:
        self._client = KazooClient(hosts, **options)

    def __enter__(self) -> KazooClient:
        self._client.start(timeout=STATE_S)
        return self._client

    def __exit__(self, *error: object) -> None:
        self._client.stop()
        self._client.close()


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One ZooKeeper with TLS and logins for the whole session."""
    made = asyncio.run(start_secured(tmp_path_factory.mktemp("secured")))
    yield made
    asyncio.run(made.server.stop())


@pytest.fixture(scope="session")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    """A Kerberos server with a principal for clients and one for ZooKeeper."""
    with asyncio.Runner() as runner, ExitStack() as stack:
        world = a_realm(tmp_path_factory.mktemp("realm"))
        made = runner.run(world.__aenter__())
        stack.callback(lambda: runner.run(world.__aexit__(None, None, None)))
        made.keytab(CLIENT)
        made.keytab(_ZOOKEEPER)
        yield made


@pytest.fixture(scope="session")
def kerberized(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A ZooKeeper of the realm that also supports TLS."""
    directory = tmp_path_factory.mktemp("kerberos")
    kerberos = ZooKeeperKerberos(f"{_ZOOKEEPER}@{REALM}", realm.keytab(_ZOOKEEPER), realm.configuration)
    security = replace(make_security(directory / "certificates"), users={}, kerberos=kerberos)
    server = asyncio.run(EmbeddedZooKeeper.start(directory / "zookeeper", is_durable=False, security=security))
    yield Secured(server, directory / "certificates")
    asyncio.run(server.stop())


def log_in_by_keytab(realm: Realm, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the key of its principal, without a ticket. Tickets are kept in ``directory``."""
    monkeypatch.setenv("KRB5_CONFIG", str(realm.configuration))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{directory / 'tickets'}")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{realm.directory / f'{CLIENT}.keytab'}")


@pytest.fixture(
    params=[
        "memory",
        "simulated",
        "zookeeper",
        "memory, joined",
        "zookeeper, joined",
        pytest.param("zookeeper, secured", marks=pytest.mark.needs("openssl")),
        pytest.param("zookeeper, TLS", marks=[pytest.mark.long, pytest.mark.needs("openssl")]),
        pytest.param("zookeeper, SASL", marks=[pytest.mark.long, pytest.mark.needs("openssl")]),
        pytest.param("zookeeper, Kerberos", marks=[pytest.mark.long, pytest.mark.needs("kerberos")]),
    ]
)
def make_backend(request: pytest.FixtureRequest) -> Callable[[], Backend]:
    """Choose the store. This is outside any event loop, because the server's fixture runs its own."""
    if request.param == "memory":
        return MemoryBackend
    if request.param == "simulated":
        return SimulatedBackend
    if request.param == "memory, joined":
        return lambda: JoinedBackend(MemoryBackend())
    if request.param in ("zookeeper, secured", "zookeeper, TLS", "zookeeper, SASL"):
        world: Secured = request.getfixturevalue("secured")
        plain, tls = world.server.connect_string, world.server.secure_connect_string
        return {
            "zookeeper, secured": lambda: ZooKeeperBackend(tls, world.both, plain),
            "zookeeper, TLS": lambda: ZooKeeperBackend(tls, world.tls, plain),
            "zookeeper, SASL": lambda: ZooKeeperBackend(plain, world.sasl),
        }[request.param]
    if request.param == "zookeeper, Kerberos":
        patch, directory = request.getfixturevalue("monkeypatch"), request.getfixturevalue("tmp_path")
        log_in_by_keytab(request.getfixturevalue("realm"), directory, patch)
        server = request.getfixturevalue("kerberized").server
        return lambda: ZooKeeperBackend(server.connect_string, KERBEROS_ACCESS)
    hosts = request.getfixturevalue("zookeeper").connect_string
    if request.param == "zookeeper, joined":
        return lambda: JoinedBackend(ZooKeeperBackend(hosts))
    return lambda: ZooKeeperBackend(hosts)


@pytest.fixture
async def backend(make_backend: Callable[[], Backend]) -> AsyncIterator[Backend]:
    made = make_backend()
    yield made
    await made.close()


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    """One session on the store under test."""
    return await backend.open()


@pytest.fixture
async def base(store: MetadataStore) -> str:
    """An existing node that only this test uses."""
    return await store.create(f"/t-{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsSettings]:
    """Certificates by the name of their owner. All except the stranger's are signed by the same authority."""
    directory = tmp_path_factory.mktemp("certificates")
    make_ca(directory, "our-ca")
    make_ca(directory, "strange-ca")
    return {
        "bookie": make_certificate(directory, "bookie", "our-ca", "IP:127.0.0.1"),
        "elsewhere": make_certificate(directory, "elsewhere", "our-ca", "DNS:another.example"),
        "client": make_certificate(directory, "client", "our-ca", "DNS:client"),
        "stranger": make_certificate(directory, "stranger", "strange-ca", "IP:127.0.0.1,DNS:client"),
    }


@dataclass
class RotatedFiles:
    """The TLS files of a server, which another process replaces."""

    tls: TlsSettings
    known: dict[str, TlsSettings]

    def put(self, name: str, *, only_cert: bool = False) -> None:
        """Replace the files by those of ``name``, each atomically."""
        new = self.known[name]
        for source, path in ((new.key, self.tls.key), (new.cert, self.tls.cert)):
            if source == new.key and only_cert:
                continue
            assert source is not None
            assert path is not None
            beside = path.with_suffix(".new")
            shutil.copyfile(source, beside)
            beside.replace(path)


@pytest.fixture
def rotated(certificates: dict[str, TlsSettings], tmp_path: Path) -> RotatedFiles:
    """A server's files, at first those of ``bookie``."""
    tls = TlsSettings(certificates["bookie"].ca, tmp_path / "tls.crt", tmp_path / "tls.key")
    files = RotatedFiles(tls, certificates)
    files.put("bookie")
    return files


@pytest.fixture
async def cluster(store: MetadataStore, base: str) -> Cluster:
    return await formatted(store, f"{base}/ledgers")


@pytest.fixture
def with_deadline() -> Callable[[Awaitable[Any]], Awaitable[Any]]:
    """A function that awaits with a deadline, so that a lost wake-up fails the test instead of hanging."""
    return lambda awaitable: asyncio.wait_for(awaitable, STATE_S)
