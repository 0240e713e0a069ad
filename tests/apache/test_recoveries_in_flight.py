"""A writer dies with adds in flight: either recovery keeps acknowledged entries, and both clients read the same end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.client.options import LedgerOptions
from bookie.embedded.apache import ApacheBookie, ApacheCluster
from bookie.embedded.apache_jars import ApacheJvm
from bookie.model.digest import digest_for, master_key
from bookie.model.errors import ConflictError, TransientError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, LedgerMetadata, LedgerState
from bookie.model.packet import pack
from bookie.wire.port import AddBatch, AddReply, Status
from bookie.wire.requests import ReadLast
from tests.apache.driver import JavaDriver, JavaError, JavaHandle, expected, payloads
from tests.apache.waiting import until
from tests.apache.worlds import connect, paused
from tests.deadlines import STATE_S

pytestmark = pytest.mark.apache

SIZES = (1, 0, 100, 3_000)
SEED = "in flight"
ACKNOWLEDGED = 40
"""Number of entries of an open ledger that are on all bookies."""
LEDGERS = 4
FIRST = 200
"""Number of entries acknowledged before a bookie stops answering."""
MORE = 150
"""Minimum number of entries that another bookie stores while one does not answer, before the writer is killed."""
ENDLESS = 200_000
"""More entries than a writer can write before it is killed."""
PAUSE_S = 0.001
"""The pause between lines, which keeps the amount to read back small."""


@pytest.fixture
async def client(apache_cluster: ApacheCluster) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(apache_cluster.metadata_uri) as ours:
        yield ours


async def metadata_of(client: ConnectedBookKeeper, ledger_id: int) -> LedgerMetadata:
    return (await client.ports.ledgers.read(LedgerId(ledger_id))).metadata


async def members_of(client: ConnectedBookKeeper, ledger_id: int) -> Sequence[BookieId]:
    return (await metadata_of(client, ledger_id)).last_fragment.members


async def last_stored(client: ConnectedBookKeeper, bookie: BookieId, ledger_id: int) -> int:
    """Return the last entry on a bookie, acknowledged or not; -1 for none."""
    reply = await client.ports.transport.ask(bookie, ReadLast(LedgerId(ledger_id)), STATE_S)
    return reply.results[0].entry_id if reply.results and reply.results[0].status is Status.OK else -1


async def recovered_by_apache(java: JavaDriver, ledger_id: int, wire: str) -> tuple[int, int] | None:
    """Return last entry and length; ``None`` if the other recovery closed the ledger first."""
    try:
        state = await (await java.open(ledger_id, recovery=True, client=wire)).state()
    except JavaError:
        return None
    assert state.is_closed
    return state.last_add_confirmed, state.length


async def recovered_by_us(client: ConnectedBookKeeper, ledger_id: int) -> tuple[int, int] | None:
    try:
        metadata = await client.recover_ledger(LedgerId(ledger_id))
    except (ConflictError, TransientError):
        return None
    assert metadata.is_closed
    assert metadata.last_entry_id is not None
    assert metadata.length is not None
    return metadata.last_entry_id, metadata.length


async def is_read_alike(
    java: JavaDriver, client: ConnectedBookKeeper, ledger_id: int, contents: Sequence[bytes]
) -> tuple[int, int]:
    """Check that both clients read a closed ledger to its end, as ``contents`` begins; return last entry and length."""
    found = await metadata_of(client, ledger_id)
    assert found.state is LedgerState.CLOSED
    assert found.last_entry_id is not None
    assert found.length is not None
    kept = contents[: found.last_entry_id + 1]
    for wire in ("v2", "v3"):
        assert await java.read_all(ledger_id, client=wire) == expected(kept)
    reader = await client.open_ledger(LedgerId(ledger_id))
    assert [entry.payload async for entry in reader.read_all()] == kept
    return found.last_entry_id, found.length


async def left_by_apaches_writer(java: JavaDriver, contents: Sequence[bytes]) -> int:
    await java.new_client("strained")
    handle = await java.create(3, 3, 2, client="strained")
    await handle.write(len(contents), seed=SEED, sizes=SIZES)
    await java.drop_client("strained")
    return handle.ledger_id


async def left_by_our_writer(client: ConnectedBookKeeper, contents: Sequence[bytes]) -> int:
    ledger = await client.create_ledger(LedgerOptions(3, 3, 2))
    for content in contents:
        await ledger.append(content)
    await ledger.abandon()
    return ledger.ledger_id


async def with_an_unconfirmed_entry(
    java: JavaDriver, client: ConnectedBookKeeper, writer: str, number: int, contents: Sequence[bytes]
) -> int:
    """Write an open ledger whose entries are on all bookies, except for the last one, which is on a single bookie."""
    confirmed, whole = contents[:-1], sum(map(len, contents))
    left = left_by_apaches_writer(java, confirmed) if writer == "apache's" else left_by_our_writer(client, confirmed)
    ledger_id = LedgerId(await left)
    lonely = (await members_of(client, ledger_id))[number % 3]
    digest, last = digest_for(DigestType.CRC32C, b""), len(confirmed)
    packet = pack(digest, ledger_id, EntryId(last), last - 1, whole, contents[-1])
    batch = AddBatch(ledger_id, master_key(b""), [packet])
    assert await client.ports.transport.add(lonely, batch, STATE_S) == AddReply(Status.OK)
    return ledger_id


@pytest.mark.parametrize("writer", ["apache's", "ours"])
async def test_concurrent_recoveries_of_both_agree_on_an_entry_that_only_one_bookie_has(
    java: JavaDriver, client: ConnectedBookKeeper, writer: str
) -> None:
    """If Apache's client leaves the entry out, it still counts its bytes, from the length in the entry's header.

    (``LedgerRecoveryOp`` of 4.17 takes it with the last add confirmed, and only corrects it by the entries beyond.)
    """
    contents = payloads(SEED, range(ACKNOWLEDGED + 1), SIZES)
    whole = sum(map(len, contents))
    ends = [(ACKNOWLEDGED - 1, whole - len(contents[-1])), (ACKNOWLEDGED, whole)]
    by_apache = (ACKNOWLEDGED - 1, whole)
    for number in range(LEDGERS):
        ledger_id = await with_an_unconfirmed_entry(java, client, writer, number, contents)
        wire = ("v2", "v3")[number % 2]
        theirs, ours = await asyncio.gather(
            recovered_by_apache(java, ledger_id, wire), recovered_by_us(client, ledger_id)
        )
        end = await is_read_alike(java, client, ledger_id, contents)
        assert end in [*ends, by_apache]
        assert {theirs, ours} - {None} == {end}

    ledger_id = await with_an_unconfirmed_entry(java, client, writer, LEDGERS, contents)
    assert await recovered_by_us(client, ledger_id) in ends
    assert await is_read_alike(java, client, ledger_id, contents) in ends


@asynccontextmanager
async def silent(cluster: ApacheCluster, client: ConnectedBookKeeper, ledger_id: int) -> AsyncIterator[BookieId]:
    """Pause one member of the ledger until the end of the block; yield another member."""
    members = await members_of(client, ledger_id)
    quiet: ApacheBookie = next(bookie for bookie in cluster.bookies if bookie.bookie_id == members[0])
    async with paused(client, quiet):
        yield members[1]


def line(number: int) -> bytes:
    return b"%d " % number * (number % 40)


@asynccontextmanager
async def fed_writer(uri: str, ack_quorum: int) -> AsyncIterator[Process]:
    """Run ``bkheal ledger write`` with an open standard input."""
    shape = ("-e", "3", "-w", "3", "-a", str(ack_quorum))
    command = (sys.executable, "-m", "auditor.cli.main", "ledger", "write", *shape, "--metadata-uri", uri)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def feed(process: Process, first: int, fed: list[bytes]) -> None:
    """Write lines while the process accepts them. Each line is appended to ``fed`` before it is written."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        for number in range(first, ENDLESS):
            fed.append(line(number))
            process.stdin.write(fed[-1] + b"\n")
            await process.stdin.drain()
            await asyncio.sleep(PAUSE_S)


@pytest.mark.parametrize("ack_quorum", [2, 3])
async def test_apache_recovers_every_entry_that_our_killed_process_confirmed(
    java: JavaDriver, client: ConnectedBookKeeper, apache_cluster: ApacheCluster, ack_quorum: int
) -> None:
    """With an ack quorum of 2, acknowledgements continue while a bookie does not answer; with 3 there are none."""
    before = set((await java.call("ledgers"))["ledgers"])
    fed = [line(number) for number in range(FIRST)]

    async def begun() -> set[int]:
        return set((await java.call("ledgers"))["ledgers"]) - before

    async with fed_writer(apache_cluster.metadata_uri, ack_quorum) as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(each + b"\n" for each in fed))
        (ledger_id,) = await until(begun, lambda found: len(found) == 1, "the ledger exists")
        reader = await java.open(ledger_id)
        await until(reader.last_add_confirmed, lambda lac: lac == FIRST - 1, "readers read the first entries")
        async with silent(apache_cluster, client, ledger_id) as awake:
            feeding = asyncio.create_task(feed(process, FIRST, fed))
            await until(
                lambda: last_stored(client, awake, ledger_id),
                lambda last: last >= FIRST + MORE,
                "another bookie has more entries than the unreachable one",
            )
            if ack_quorum == 2:
                await until(reader.last_add_confirmed, lambda lac: lac >= FIRST + MORE, "readers read more entries")
            reported = await reader.last_add_confirmed()
            process.kill()
            await process.wait()
        await feeding

    end = await recovered_by_apache(java, ledger_id, "v3")
    assert end is not None
    assert FIRST - 1 <= reported <= end[0] < len(fed)
    assert await is_read_alike(java, client, ledger_id, fed) == end


@asynccontextmanager
async def dying_java(
    directory: Path, cluster: ApacheCluster, jvm: ApacheJvm, classes: Path, *, is_v2: bool
) -> AsyncIterator[JavaDriver]:
    """Run a separate JVM, whose client ``dying`` waits for a bookie that does not answer instead of replacing it."""
    driver = await JavaDriver.start(directory, cluster, jvm, classes)
    try:
        await driver.new_client("dying", v2=is_v2, settings={"addEntryTimeoutSec": "120"})
        yield driver
    finally:
        await driver.stop()


async def write_until_killed(handle: JavaHandle) -> None:
    with contextlib.suppress(OSError, ValueError):  # no answer, or an incomplete one
        await handle.write(ENDLESS, seed=SEED, sizes=SIZES, is_aloud=True)
        raise AssertionError("the writer ended before it was killed")


@pytest.mark.parametrize(("ack_quorum", "wire"), [(2, "v2"), (3, "v3")])
async def test_we_recover_every_entry_that_apaches_killed_process_acknowledged(
    java: JavaDriver,
    client: ConnectedBookKeeper,
    apache_cluster: ApacheCluster,
    apache_jvm: ApacheJvm,
    java_classes: Path,
    tmp_path: Path,
    ack_quorum: int,
    wire: str,
) -> None:
    """With an ack quorum of 2, acknowledgements continue while a bookie does not answer; with 3 there are none."""
    async with dying_java(tmp_path, apache_cluster, apache_jvm, java_classes, is_v2=wire == "v2") as dying:
        handle = await dying.create(3, 3, ack_quorum, client="dying")
        await handle.write(FIRST, seed=SEED, sizes=SIZES, is_aloud=True)

        async def reported() -> list[int]:
            return dying.acknowledged(handle.ledger_id)

        async with silent(apache_cluster, client, handle.ledger_id) as awake:
            writing = asyncio.create_task(write_until_killed(handle))
            await until(
                lambda: last_stored(client, awake, handle.ledger_id),
                lambda last: last >= FIRST + MORE,
                "another bookie has more entries than the unreachable one",
            )
            if ack_quorum == 2:
                await until(reported, lambda entries: len(entries) >= FIRST + MORE, "more entries are acknowledged")
            await dying.kill9()
            await writing
        last_said = max(FIRST - 1, *await reported())

    end = await recovered_by_us(client, handle.ledger_id)
    assert end is not None
    assert last_said <= end[0] < FIRST + ENDLESS
    contents = payloads(SEED, range(end[0] + 1), SIZES)
    assert await is_read_alike(java, client, handle.ledger_id, contents) == end
    assert await recovered_by_apache(java, handle.ledger_id, wire) == end
