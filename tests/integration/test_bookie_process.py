"""Real bookie processes on a real ZooKeeper: killed, stopped, cut off, refused."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from bookie.client.resolve import RegistrationResolver
from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.registration import Bookies, Registrations
from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.clock import SystemClock
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import Fence, Read
from tests.deadlines import STATE_S
from tests.integration.served import Served
from tests.sessions import LONG_SESSION_S, end_sessions, expire, kill9, sessions_of
from tests.worlds.entries import packed_entry

pytestmark = pytest.mark.integration

LEDGER = LedgerId(7)
KEY = b"k" * 20
READY = r"^bookie (\S+) ready on (\S+):(\d+)$"


def entry(entry_id: int, payload: bytes = b"payload") -> bytes:
    return packed_entry(LEDGER, entry_id, payload)


@dataclass
class Machine:
    """A cluster and the directories of one bookie."""

    zookeeper: EmbeddedZooKeeper
    root: str
    home: Path
    store: ZooKeeperStore
    cluster: Cluster
    stack: AsyncExitStack
    starts: int = 0
    transport: GrpcTransport = field(init=False)

    @property
    def hosts(self) -> str:
        return self.zookeeper.connect_string

    def __post_init__(self) -> None:
        self.registrations = Registrations(self.store, self.cluster)
        self.transport = GrpcTransport(RegistrationResolver(self.registrations, SystemClock()), is_plaintext=True)

    def start(self, **options: object) -> ManagedProcess:
        """Start a bookie. ``options`` override the defaults of the tests; True stands for an option without a value."""
        arguments = {
            "metadata_uri": f"zk+hierarchical://{self.hosts}{self.root}",
            "journal_dir": self.home / "journal",
            "ledger_dir": self.home / "ledgers",
            "port": 0,
            "read_only_below_bytes": 0,
            "session_timeout": LONG_SESSION_S,
            **options,
        }
        words = []
        for name, value in arguments.items():
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        self.starts += 1
        process = ManagedProcess.start(
            "bookie", [sys.executable, "-m", "bookie.server", *words], log_path=self.home / f"log-{self.starts}"
        )
        self.stack.push_async_callback(process.stop)
        return process

    async def ready(self, **options: object) -> tuple[ManagedProcess, BookieId]:
        process = self.start(**options)
        return process, BookieId((await process.wait_for_line(READY, STATE_S))[1])

    async def refused(self, exit_code: int, **options: object) -> str:
        """Start a bookie that must refuse to start, and return its output."""
        process = self.start(**options)
        assert await process.wait(STATE_S) == exit_code
        *logs, line = process.log_tail().splitlines()
        assert line.startswith("bookie: ")
        assert all(" WARNING " in log for log in logs), logs
        return line

    async def add(self, bookie: BookieId, *entries: bytes) -> Status:
        reply = await self.transport.add(bookie, AddBatch(LEDGER, KEY, entries), STATE_S)
        return reply.status

    async def read_all(self, bookie: BookieId, count: int) -> list[bytes]:
        """Read entries 0 to ``count - 1``, through the transport used before the restart of the bookie."""
        entry_ids = [EntryId(entry_id) for entry_id in range(count)]
        async with asyncio.timeout(STATE_S):
            while (reply := await self.transport.ask(bookie, Read(LEDGER, entry_ids), STATE_S)).status is not Status.OK:
                assert reply.status is Status.UNREACHABLE
        return [result.packet for result in reply.results]

    async def until(self, is_reached: Callable[[Bookies], bool]) -> None:
        """Wait for registrations. The test's own connection may take as long to return as the bookie's."""
        async with asyncio.timeout(STATE_S):
            while True:
                try:
                    seen = await self.registrations.list()
                    while not is_reached(seen):
                        seen = await self.registrations.wait_changed(seen)
                except StoreUnavailableError:
                    if not (session := self.store.session).is_connected:
                        await self.store.wait_session_changed(session)
                else:
                    return


async def machine_on(zookeeper: EmbeddedZooKeeper, root: str, home: Path) -> AsyncIterator[Machine]:
    async with AsyncExitStack() as stack:
        store = await ZooKeeperStore.connect(zookeeper.connect_string, session_timeout_s=LONG_SESSION_S)
        stack.push_async_callback(store.close)
        await format_cluster(store, root, rng=random.Random())
        machine = Machine(zookeeper, root, home, store, await open_cluster(store, root), stack)
        stack.push_async_callback(machine.transport.close)
        yield machine


@pytest.fixture
async def machine(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> AsyncIterator[Machine]:
    async for machine in machine_on(zookeeper, fresh_root, tmp_path):
        yield machine


@pytest.fixture
async def own_zookeeper(tmp_path: Path) -> AsyncIterator[EmbeddedZooKeeper]:
    async with await EmbeddedZooKeeper.start(tmp_path / "zookeeper", is_durable=False) as server:
        yield server


@pytest.fixture
async def fragile_machine(own_zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> AsyncIterator[Machine]:
    async for machine in machine_on(own_zookeeper, "/ledgers", tmp_path):
        yield machine


async def test_a_killed_bookie_comes_back_with_its_entries_and_fences(machine: Machine) -> None:
    process, bookie = await machine.ready()
    assert await machine.add(bookie, *(entry(n) for n in range(100))) is Status.OK
    assert (await machine.transport.ask(bookie, Fence(LEDGER, KEY), STATE_S)).status is Status.OK
    await kill9(machine.zookeeper, process)
    assert await machine.add(bookie, entry(100)) is Status.UNREACHABLE

    _, again = await machine.ready()
    assert again == bookie  # the id comes from the directories, although the port differs
    assert await machine.read_all(bookie, 100) == [entry(n) for n in range(100)]
    assert await machine.add(bookie, entry(100)) is Status.FENCED


async def test_nothing_acknowledged_is_lost_by_a_kill_under_load(machine: Machine) -> None:
    process, bookie = await machine.ready()
    sessions = await sessions_of(machine.zookeeper, process)
    acknowledged: list[int] = []

    async def keep_adding(first: int) -> None:
        entry_id = first
        while await machine.add(bookie, entry(entry_id)) is Status.OK:
            acknowledged.append(entry_id)
            entry_id += 16
            if len(acknowledged) == 1000:
                process.kill9()

    await asyncio.gather(*(keep_adding(first) for first in range(16)))
    await process.wait(STATE_S)
    await end_sessions(machine.zookeeper, sessions)
    await machine.ready()
    packets = await machine.read_all(bookie, max(acknowledged) + 1)
    assert [packets[entry_id] for entry_id in acknowledged] == [entry(entry_id) for entry_id in acknowledged]


async def test_a_stopped_bookie_unregisters_and_exits_with_code_0(machine: Machine) -> None:
    process, bookie = await machine.ready()
    assert await machine.registrations.list() == Bookies(frozenset({bookie}), frozenset())
    assert await machine.add(bookie, entry(0)) is Status.OK  # the client keeps an add stream open
    assert await process.stop(STATE_S) == 0
    assert await machine.registrations.list() == Bookies(frozenset(), frozenset())
    lines = process.log_tail().splitlines()
    assert sum(re.fullmatch(READY, line) is not None for line in lines) == 1, lines
    assert all(" WARNING " in line for line in lines if not re.fullmatch(READY, line)), lines


async def test_the_default_id_is_the_advertised_address(machine: Machine) -> None:
    _, bookie = await machine.ready(advertised_host="localhost")
    info = await machine.registrations.service_info(bookie)
    assert info is not None
    assert f"{info.endpoints[0].host}:{info.endpoints[0].port}" == bookie
    assert bookie.startswith("localhost:")
    assert await machine.add(bookie, entry(0)) is Status.OK


async def test_a_bookie_serves_during_an_outage_of_zookeeper_and_registers_afterwards(
    fragile_machine: Machine, own_zookeeper: EmbeddedZooKeeper
) -> None:
    machine = fragile_machine
    process, bookie = await machine.ready()
    assert await machine.add(bookie, entry(0)) is Status.OK
    own_zookeeper.kill()
    await own_zookeeper.process.wait(STATE_S)
    assert await machine.add(bookie, entry(1)) is Status.OK
    await own_zookeeper.restart()
    await machine.until(lambda bookies: bookie in bookies.writable)
    assert await machine.add(bookie, entry(2)) is Status.OK
    assert process.is_running


async def test_a_bookie_exits_cleanly_during_an_outage_of_zookeeper(
    fragile_machine: Machine, own_zookeeper: EmbeddedZooKeeper
) -> None:
    process, _ = await fragile_machine.ready()
    own_zookeeper.kill()
    await own_zookeeper.process.wait(STATE_S)
    assert await process.stop(STATE_S) == 0
    await own_zookeeper.restart()


async def test_a_bookie_that_lost_its_session_registers_again(machine: Machine) -> None:
    process, bookie = await machine.ready()
    process.pause()
    await expire(machine.zookeeper, process)
    assert bookie not in (await machine.registrations.list()).registered
    process.resume()
    await machine.until(lambda bookies: bookie in bookies.writable)
    assert await machine.add(bookie, entry(0)) is Status.OK


async def test_a_bookie_on_a_full_disk_starts_read_only(machine: Machine) -> None:
    _, bookie = await machine.ready(read_only_below_bytes=1 << 60)
    assert await machine.registrations.list() == Bookies(frozenset(), frozenset({bookie}))
    assert await machine.add(bookie, entry(0)) is Status.READ_ONLY


async def test_a_failing_disk_ends_the_process(machine: Machine) -> None:
    process, bookie = await machine.ready()
    psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (100_000, 100_000))  # writes beyond it fail with EFBIG
    assert await machine.add(bookie, entry(0, bytes(200_000))) is not Status.OK
    assert await process.wait(STATE_S) == 74
    assert process.log_tail().splitlines()[-1].startswith("bookie: ")
    assert "Traceback" not in process.log_tail()
    assert await machine.registrations.list() == Bookies(frozenset(), frozenset())


async def test_a_damaged_journal_is_refused_unless_salvage_is_allowed(machine: Machine) -> None:
    process, bookie = await machine.ready()
    for n in range(3):
        assert await machine.add(bookie, entry(n)) is Status.OK
    await kill9(machine.zookeeper, process)
    [journal] = (machine.home / "journal" / "current" / "journal").glob("*.journal")
    data = bytearray(journal.read_bytes())
    data[data.index(entry(0)) + 40] ^= 1
    journal.write_bytes(data)
    assert "bkheal bookie salvage-journal" in await machine.refused(74)
    _, again = await machine.ready(salvage_journal=True)
    assert again == bookie
    async with asyncio.timeout(STATE_S):
        while not (reply := await machine.transport.ask(bookie, Read(LEDGER, [EntryId(1)]), STATE_S)).results:
            assert reply.status is Status.UNREACHABLE
    assert reply.results[0].packet == entry(1)


async def test_empty_disks_with_a_known_bookie_id_are_refused(machine: Machine) -> None:
    process, bookie = await machine.ready()
    assert await process.stop() == 0
    line = await machine.refused(78, bookie_id=bookie, journal_dir=machine.home / "j2", ledger_dir=machine.home / "l2")
    assert "another bookie id" in line


async def test_a_lost_ledger_disk_is_refused(machine: Machine) -> None:
    process, _ = await machine.ready()
    assert await process.stop() == 0
    assert "ledger directory" in await machine.refused(78, ledger_dir=machine.home / "l2")


async def test_a_second_process_in_the_same_directories_is_refused(machine: Machine) -> None:
    await machine.ready()
    assert "in use" in await machine.refused(78)


async def test_another_process_with_the_same_bookie_id_is_refused(machine: Machine) -> None:
    _, bookie = await machine.ready()
    line = await machine.refused(78, bookie_id=bookie, journal_dir=machine.home / "j2", ledger_dir=machine.home / "l2")
    assert bookie in line


async def test_a_port_in_use_is_refused_before_anything_is_written(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in await machine.refused(78, port=port)
    assert await machine.registrations.known() == frozenset()


async def test_clusters_of_apaches_bookies_are_refused(machine: Machine) -> None:
    await CookieStore(machine.store, machine.cluster).create(
        Cookie(BookieId("apache:3181"), ("/j",), ("/l",), machine.cluster.instance_id)
    )
    assert "Apache" in await machine.refused(78)


async def test_all_invalid_settings_are_reported_together(machine: Machine) -> None:
    line = await machine.refused(78, host="0.0.0.0", ledger_dir=machine.home / "journal", port=70000)
    assert all(problem in line for problem in ("70000", "two directories", "tls_ca", "advertised_host"))


async def test_a_root_without_a_cluster_is_refused(machine: Machine) -> None:
    assert "/nothing" in await machine.refused(78, metadata_uri=f"zk+hierarchical://{machine.hosts}/nothing")


async def test_an_invalid_metadata_uri_is_refused(machine: Machine) -> None:
    assert "zk" in await machine.refused(78, metadata_uri="postgres://nowhere")


async def forward(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter, port: int) -> None:
    from_server, to_server = await asyncio.open_connection("127.0.0.1", port)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    await asyncio.gather(pump(from_client, to_server), pump(from_server, to_client))


@pytest.mark.parametrize("is_bookie", [True, False], ids=["bookie", "replicator"])
async def test_a_process_waits_for_a_zookeeper_that_does_not_answer(machine: Machine, is_bookie: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        uri = f"zk+hierarchical://127.0.0.1:{port}{machine.root}"

        def start() -> ManagedProcess:
            if is_bookie:
                return machine.start(metadata_uri=uri, connect_timeout=1, http_port=0)
            words = [sys.executable, "-m", "replicator", "--metadata-uri", uri, "--http-port", "0"]
            return ManagedProcess.start("replicator", words, log_path=machine.home / f"log-{random.random()}")

        waiting = []
        for process in (start(), start()):
            machine.stack.push_async_callback(process.stop)
            line = await process.wait_for_line(r"metrics on (http://\S+)$", STATE_S)
            served = Served(process, line[1])
            waiting.append(served)
            assert (await served.get("/livez"))[0] == 200
            status, why = await served.get("/readyz?verbose")
            assert (status, "ZooKeeper" in why) == (503, True)
        assert await waiting[1].process.stop(STATE_S) == 0, waiting[1].process.log_tail()

    async def serve(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        await forward(from_client, to_client, machine.zookeeper.port)

    server = await asyncio.start_server(serve, "127.0.0.1", port, reuse_address=True)
    async with server:
        await waiting[0].until_status("/readyz", 200)
        assert await waiting[0].process.stop(STATE_S) == 0, waiting[0].process.log_tail()


def test_a_bookie_loads_no_heavy_packages() -> None:
    code = "import bookie.server.__main__, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyspark", "typer", "rich", "pandas", "pyarrow", "numpy", "py4j"} & set(loaded)
