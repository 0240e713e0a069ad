"""Our bookies and Apache's in one cluster: Apache's client, shell and repair use both kinds, and so do ours."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.client.options import LedgerOptions
from bookie.embedded.apache_jars import ApacheJvm
from bookie.embedded.cluster import EmbeddedBookie
from bookie.embedded.process import ManagedProcess
from bookie.metadata.layout import COOKIES
from bookie.model.digest import digest_for, master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import pack
from bookie.model.run import RunKind
from bookie.model.schedule import Stripe
from bookie.wire.port import AddBatch, Status
from tests.apache.driver import JavaDriver, JavaError, expected
from tests.apache.programs import Audit, Replicator, bkheal
from tests.apache.shell_answers import entry_ids_in
from tests.apache.waiting import until
from tests.apache.worlds import (
    PASSWORD,
    QUICK,
    ApacheWorld,
    Ledger,
    begin,
    check_all_nodes_known,
    check_healthy,
    connect,
    extend,
    gone,
    held,
    no_work_left,
    seen,
    world,
    written,
)
from tests.deadlines import STATE_S
from tests.sessions import LONG_SESSION_S

pytestmark = pytest.mark.apache

REFUSED = 78
SHAPES = ((3, 3, 3), (3, 2, 2))


@dataclass(frozen=True)
class Mixed:
    """A cluster of three bookies of each kind, with ledgers on only one kind and ledgers on both."""

    world: ApacheWorld
    ours: Sequence[EmbeddedBookie]
    on_ours: Sequence[Ledger]
    on_theirs: Sequence[Ledger]
    on_both: Sequence[Ledger]

    @property
    def java(self) -> JavaDriver:
        return self.world.java

    @property
    def our_names(self) -> set[BookieId]:
        return {bookie.bookie_id for bookie in self.ours}

    @property
    def their_names(self) -> set[BookieId]:
        return {bookie.bookie_id for bookie in self.world.cluster.bookies}

    @property
    def ledgers(self) -> list[Ledger]:
        return [*self.on_ours, *self.on_theirs, *self.on_both]


async def start_all(bookies: Sequence[EmbeddedBookie]) -> None:
    for bookie in bookies:
        bookie.launch()
    for bookie in bookies:
        await bookie.wait_ready()


async def both_versions(java: JavaDriver, shapes: Sequence[Sequence[int]]) -> list[Ledger]:
    """Write ledgers by newly connected clients, which use only the current bookies."""
    for wire in ("v2", "v3"):
        await java.drop_client(wire)
    return [ledger for wire in ("v2", "v3") for ledger in await written(java, shapes, 2 * len(shapes), client=wire)]


@pytest.fixture(scope="module")
def mixed(apache_jvm: ApacheJvm, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    directory = tmp_path_factory.mktemp("mixed")
    stack = AsyncExitStack()

    async def fill(here: ApacheWorld) -> Mixed:
        options: dict[str, Any] = {"speaks_apache": True, "session_timeout_s": LONG_SESSION_S}
        ours = [EmbeddedBookie(f"ours-{n}", directory / f"ours-{n}", here.uri, **options) for n in (1, 2, 3)]
        for bookie in ours:
            stack.push_async_callback(bookie.stop)
        await start_all(ours)
        on_ours = await both_versions(here.java, SHAPES)
        await here.cluster.add_bookies(3)
        await asyncio.gather(*(bookie.stop() for bookie in ours))
        on_theirs = await both_versions(here.java, SHAPES)
        await start_all(ours)
        on_both = await both_versions(here.java, ((4, 3, 3), (4, 2, 2)))
        return Mixed(here, ours, on_ours, on_theirs, on_both)

    with world(directory, apache_jvm, java_classes, bookies=0) as here:
        try:
            yield asyncio.run(fill(here))
        finally:
            asyncio.run(stack.aclose())


async def all_on_both(mixed: Mixed, ledgers: Sequence[Ledger]) -> None:
    for one in (await seen(mixed.java, ledgers)).values():
        assert one.members & mixed.our_names
        assert one.members & mixed.their_names


@pytest.fixture
async def client(mixed: Mixed) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(mixed.world.uri) as ours:
        yield ours


async def test_apaches_client_writes_and_reads_on_our_bookies_and_on_both_kinds(
    mixed: Mixed, client: ConnectedBookKeeper
) -> None:
    found = await seen(mixed.java, mixed.ledgers)
    assert all(found[ledger.ledger_id].members <= mixed.our_names for ledger in mixed.on_ours)
    assert all(found[ledger.ledger_id].members <= mixed.their_names for ledger in mixed.on_theirs)
    await all_on_both(mixed, mixed.on_both)
    await check_healthy(mixed.java, mixed.ledgers)
    for ledger in mixed.ledgers:
        async with asyncio.timeout(STATE_S):
            reader = await client.open_ledger(ledger.ledger_id)  # type: ignore[arg-type]
            assert [entry.payload async for entry in reader.read_all()] == ledger.contents


@pytest.mark.parametrize("wire", ["v2", "v3"])
async def test_apaches_client_fences_a_writer_on_both_kinds_and_recovers_its_entries(mixed: Mixed, wire: str) -> None:
    java = mixed.java
    await java.new_client(f"slow-{wire}", v2=wire == "v2")
    writer = await begin(java, (4, 4, 4), client=f"slow-{wire}")
    await extend(writer, "CRC32C", 25)
    reader = await java.open(writer.ledger_id, digest="CRC32C", password=PASSWORD, recovery=True, client=wire)
    ledger = Ledger(writer.ledger_id, "CRC32C", 25)
    assert await reader.read(0, 24) == expected(ledger.contents)
    with pytest.raises(JavaError) as refused:
        await extend(writer, "CRC32C", 1)
    assert refused.value.kind in ("BKLedgerFencedException", "BKLedgerClosedException", "BKNotEnoughBookiesException")
    await java.drop_client(f"slow-{wire}")
    await all_on_both(mixed, [ledger])
    await check_healthy(java, [ledger])


async def test_apaches_shell_reads_and_tests_on_both_kinds(mixed: Mixed) -> None:
    shell = mixed.world.cluster.shell
    for ledger in (mixed.on_ours[0], mixed.on_both[0]):
        printed = await shell("readledger", "-ledgerid", str(ledger.ledger_id), extra={"passwd": PASSWORD.decode()})
        assert len(entry_ids_in(printed, ledger.ledger_id)) == ledger.entries, printed
    quorums = ("-ensemble", "6", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "60")
    printed = await shell("simpletest", *quorums)
    assert "60 entries written to ledger" in printed


async def test_our_bookie_without_apaches_protocol_refuses_to_join_and_changes_nothing(
    mixed: Mixed, client: ConnectedBookKeeper, tmp_path: Path
) -> None:
    async def state() -> object:
        registered = (await client.ports.registrations.list()).registered
        cookies = await client.store.children(f"{client.cluster.root}/{COOKIES}")
        return registered, sorted(cookies.names)

    before = await state()
    places = ("--journal-dir", str(tmp_path / "journal"), "--ledger-dir", str(tmp_path / "ledgers"))
    command = [sys.executable, "-m", "bookie.server", "--metadata-uri", mixed.world.uri, "--host", "127.0.0.1", *places]
    process = ManagedProcess.start("bookie", [*command, "--port", "0"], log_path=tmp_path / "log.txt")
    assert await process.wait(STATE_S) == REFUSED
    (sentence,) = [line for line in process.log_tail().splitlines() if line.startswith("bookie: ")]
    assert "bookies of Apache BookKeeper" in sentence
    assert "start it with --apache-port" in sentence
    assert await state() == before
    assert not [path for path in tmp_path.rglob("*") if path.name == "VERSION"]


async def test_apaches_client_reads_what_our_writer_wrote_on_both_kinds(
    mixed: Mixed, client: ConnectedBookKeeper
) -> None:
    ledgers = []
    for digest, kind in (("CRC32C", DigestType.CRC32C), ("MAC", DigestType.HMAC)):
        async with client.create_ledger(LedgerOptions(4, 3, 3, digest_type=kind), password=PASSWORD) as writer:
            for content in Ledger(0, digest, 30).contents:
                await writer.submit(content)
        ledgers.append(Ledger(writer.ledger_id, digest, 30))
    await all_on_both(mixed, ledgers)
    await check_healthy(mixed.java, ledgers)


async def test_we_recover_ledgers_of_either_writer_on_both_kinds_and_apaches_client_reads_them(
    mixed: Mixed, client: ConnectedBookKeeper
) -> None:
    await mixed.java.new_client("dying")
    theirs = await begin(mixed.java, (4, 3, 3), client="dying")
    await extend(theirs, "CRC32C", 25)
    await mixed.java.drop_client("dying")
    ours = await client.create_ledger(LedgerOptions(4, 3, 3), password=PASSWORD)
    for content in Ledger(0, "CRC32C", 25).contents:
        await ours.append(content)
    await ours.abandon()

    ledgers = [Ledger(ledger_id, "CRC32C", 25) for ledger_id in (theirs.ledger_id, ours.ledger_id)]
    for ledger in ledgers:
        metadata = await client.recover_ledger(LedgerId(ledger.ledger_id))
        assert (metadata.is_closed, metadata.last_entry_id) == (True, 24)
        assert metadata.length == sum(map(len, ledger.contents))
    await all_on_both(mixed, ledgers)
    await check_healthy(mixed.java, ledgers)


async def with_a_hole(client: ConnectedBookKeeper, kind: set[BookieId]) -> tuple[Ledger, BookieId]:
    """Return a closed ledger, and one of its members, of this kind, which lacks an entry."""
    writer = await client.create_ledger(LedgerOptions(4, 3, 3), password=PASSWORD)
    await writer.abandon()
    ledger = Ledger(writer.ledger_id, "CRC32C", 20)
    found = await client.ports.ledgers.read(writer.ledger_id)
    members = found.metadata.last_fragment.members
    place, lacking = next((place, member) for place, member in enumerate(members) if member in kind)
    hole = Stripe(4, 3).first_entry(place, 5, ledger.entries - 1)
    digest, length = digest_for(DigestType.CRC32C, PASSWORD), 0
    for entry_id, content in enumerate(ledger.contents):
        length += len(content)
        packet = pack(digest, writer.ledger_id, EntryId(entry_id), entry_id - 1, length, content)
        batch = AddBatch(writer.ledger_id, master_key(PASSWORD), [packet])
        for member in (members[each] for each in Stripe(4, 3).write_set(EntryId(entry_id))):
            if (entry_id, member) != (hole, lacking):
                assert (await client.ports.transport.add(member, batch, STATE_S)).status is Status.OK
    await client.ports.ledgers.write(
        writer.ledger_id, found.metadata.closed(EntryId(ledger.entries - 1), length), found.version
    )
    return ledger, lacking


async def test_the_replicas_check_finds_only_the_missing_entries_on_both_kinds(
    mixed: Mixed, client: ConnectedBookKeeper, audit: Audit, tmp_path: Path
) -> None:
    here = mixed.world
    assert await here.tasks() == {}
    holes = [await with_a_hole(client, kind) for kind in (mixed.our_names, mixed.their_names)]
    found = await audit(here.uri, tmp_path, RunKind.REPLICAS, apache_lists=True)
    assert (found["complete"], found["replicas"]["unknown"]) == (True, [])
    assert await here.tasks() == {ledger.ledger_id: [lacking] for ledger, lacking in holes}
    ours = await Replicator.start(here.uri, tmp_path / "ours", "--once")
    assert await ours.wait() == 0
    assert sorted(ours.repaired) == sorted(ledger.ledger_id for ledger, _ in holes)
    await no_work_left(here, client)
    await all_on_both(mixed, [ledger for ledger, _ in holes])
    await check_healthy(mixed.java, [ledger for ledger, _ in holes])


async def test_apaches_worker_repairs_the_loss_of_our_bookie_and_ours_that_of_apaches(
    mixed: Mixed, client: ConnectedBookKeeper, audit: Audit, tmp_path: Path
) -> None:
    here, java = mixed.world, mixed.java
    lost = mixed.ours[0]
    before = await seen(java, mixed.ledgers)
    await here.kill9(lost)
    await gone(client, lost.bookie_id)
    recovery = await here.cluster.start_auto_recovery(QUICK)

    async def still_named() -> set[int]:
        return {
            ledger_id for ledger_id, one in (await seen(java, mixed.ledgers)).items() if lost.bookie_id in one.members
        }

    await until(still_named, lambda left: not left, "Apache's worker has replaced our bookie")
    await no_work_left(here, client)
    await here.kill9(recovery)
    healed = await seen(java, mixed.ledgers)
    for ledger in mixed.on_ours:  # our other two bookies were members already
        assert healed[ledger.ledger_id].members & mixed.their_names
    assert {key for key, one in before.items() if one.version != healed[key].version} == {
        key for key, one in before.items() if lost.bookie_id in one.members
    }
    await check_healthy(java, mixed.ledgers)

    gone_too = here.cluster.bookies[0]
    await here.kill9(gone_too)
    await gone(client, gone_too.bookie_id)
    await audit(here.uri, tmp_path)
    hurt = set(await here.tasks())  # these may include ledgers of other tests
    assert hurt >= {key for key, one in healed.items() if gone_too.bookie_id in one.members}
    ours = await Replicator.start(here.uri, tmp_path / "ours", "--once")
    assert await ours.wait() == 0
    assert sorted(ours.repaired) == sorted(hurt)
    await no_work_left(here, client)
    after = await seen(java, mixed.ledgers)
    onto_ours = 0
    for ledger in mixed.on_theirs:  # Apache's other two bookies were members already
        (taker,) = after[ledger.ledger_id].members - healed[ledger.ledger_id].members
        assert taker in mixed.our_names
        onto_ours += await held(java, taker, ledger.ledger_id)
    assert onto_ours
    await check_healthy(java, mixed.ledgers)


async def done(uri: str, *arguments: str) -> None:
    """Run a ``bkheal`` command, which must succeed."""
    ended = await bkheal(*arguments, uri=uri)
    assert ended.exit_code == 0, (arguments, ended.printed, ended.errors)


async def test_our_bookies_are_removed_again_and_apaches_have_every_entry(
    mixed: Mixed, client: ConnectedBookKeeper, tmp_path: Path
) -> None:
    here, java, uri = mixed.world, mixed.java, mixed.world.uri
    await asyncio.gather(*(bookie.start() for bookie in here.cluster.bookies))
    await here.cluster.add_bookies(1)  # the largest ensemble needs as many bookies
    alive = [bookie for bookie in mixed.ours if bookie.running.is_running]
    names = [bookie.bookie_id for bookie in alive]
    before = await seen(java, mixed.ledgers)
    assert any(one.members & set(names) for one in before.values())

    await done(uri, "drain", "start", *names, "--yes")
    replicator = await Replicator.start(uri, tmp_path / "replicator")
    await done(uri, "drain", "status", *names, "--wait", "--timeout", str(STATE_S))
    await replicator.stop()
    await done(uri, "ok-to-stop", *names)
    await asyncio.gather(*(bookie.stop() for bookie in alive))
    await gone(client, *mixed.our_names)
    await done(uri, "decommission", *mixed.our_names, "--yes")

    assert all(one.members <= mixed.their_names for one in (await seen(java, mixed.ledgers)).values())
    await check_healthy(java, mixed.ledgers)
    await no_work_left(here, client)
    cookies = await client.store.children(f"{client.cluster.root}/{COOKIES}")
    assert set(cookies.names) == mixed.their_names
    await check_all_nodes_known(client.store, client.cluster.root, mixed.our_names | mixed.their_names)
