"""The inventory of bookies in a run of everything: its cost, and whether it finds the hidden ledgers.

It starts ZooKeeper and one bookie process, stores an entry of each ledger there, and leaves one ledger in a hundred out
of the metadata. Then it measures the bookie's list alone, with the ends of each ledger and with complete lists of
entries, and warm dry runs of everything with the inventory and without it.

It prints nothing. Figures from different machines cannot be compared, but the ratios can.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from auditor.bench.bookies.load import LoadFailedError
from bookie.client.resolve import RegistrationResolver
from bookie.embedded.cluster import EmbeddedCluster
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.digest import digest_for, master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata
from bookie.model.packet import pack
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from bookie.runtime.waiting import all_or_first_error
from bookie.wire.grpc.administration import Administration
from bookie.wire.grpc.transport import GrpcTransport
from bookie.wire.port import AddBatch, Status
from bookie.wire.resolver import BookieAddress
from bookie.wire.security import PLAINTEXT
from spark_jobs.session import SessionSettings, spark_session
from spark_jobs.settings import AuditSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HIDDEN_ONE_IN: Final = 100
_ADDS_IN_FLIGHT: Final = 256
_ADD_TIMEOUT_S: Final = 30.0
_FILL_STEP: Final = 20_000
_PASSWORD: Final = b""
_PAYLOAD: Final = b"x" * 100


async def run(ledgers: int, warm_runs: int = 3) -> dict[str, Any]:
    """Fill and measure.

    Raises:
        LoadFailedError: the bookie refused an entry.
    """
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as directory:
        cluster = await EmbeddedCluster.start(
            Path(directory) / "cluster", bookies=1, zookeeper_heap_mib=1024, is_zookeeper_durable=False
        )
        async with cluster:
            (bookie,) = cluster.bookies
            assert bookie.known_as is not None
            hidden = await _fill(cluster.zookeeper.used_connect_string, bookie.known_as, ledgers)
            address = BookieAddress("127.0.0.1", bookie.port)
            async with Administration(address, PLAINTEXT, None) as client:
                ends_s = await _timed(client.ends(), ledgers)
                lists_s = await _timed(client.inventory(), ledgers)
            audit = AuditSettings(
                cluster.metadata_uri, Path(directory) / "reports", is_dry_run=True, inventory_grace_s=0
            )
            seconds = await asyncio.to_thread(_in_a_session, audit, warm_runs, hidden)
    with_it, without = seconds
    return {
        "ledgers": ledgers,
        "hidden": hidden,
        "list_of_ends_s": round(ends_s, 2),
        "list_of_entries_s": round(lists_s, 2),
        "ledgers_per_s_of_a_bookie": round(ledgers / ends_s),
        "everything_warm_s": [round(each, 2) for each in with_it],
        "everything_without_inventory_warm_s": [round(each, 2) for each in without],
        "ratio": round(_median(with_it) / _median(without), 2),
    }


async def _fill(hosts: str, bookie: BookieId, ledgers: int) -> int:
    """Store an entry of each ledger, and the metadata of most; return the number of ledgers without metadata."""
    store = await ZooKeeperStore.connect(hosts)
    try:
        cluster = await open_cluster(store, "/ledgers")
        registrations = Registrations(store, cluster)
        transport = GrpcTransport(RegistrationResolver(registrations, SystemClock()), tls=None, is_plaintext=True)
        try:
            await _add(transport, bookie, ledgers)
        finally:
            await transport.close()
        metadata = LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (bookie,)),)).closed(EntryId(0), len(_PAYLOAD))
        there = [LedgerId(number) for number in range(ledgers) if number % _HIDDEN_ONE_IN]
        ledger_store = LedgerStore(store, cluster, random.Random(1))
        for start in range(0, len(there), _FILL_STEP):
            await ledger_store.create_many([(each, metadata) for each in there[start : start + _FILL_STEP]])
        return ledgers - len(there)
    finally:
        await store.close()


async def _add(transport: GrpcTransport, bookie: BookieId, ledgers: int) -> None:
    digest, key = digest_for(DigestType.CRC32C, _PASSWORD), master_key(_PASSWORD)
    numbers = iter(range(ledgers))

    async def work() -> None:
        for number in numbers:
            ledger_id = LedgerId(number)
            packet = pack(digest, ledger_id, EntryId(0), EntryId(-1), len(_PAYLOAD), _PAYLOAD)
            reply = await transport.add(bookie, AddBatch(ledger_id, key, [packet]), _ADD_TIMEOUT_S)
            if reply.status is not Status.OK:
                raise LoadFailedError(f"the bookie refused ledger {number}: {reply.status.name} {reply.detail}")

    await all_or_first_error(work() for _ in range(_ADDS_IN_FLIGHT))


async def _timed(listed: AsyncIterator[object], expected: int) -> float:
    begun_s = time.perf_counter()
    found = 0
    async for _ in listed:
        found += 1
    if found != expected:
        raise AssertionError(f"the bookie listed {found} ledgers of {expected}")
    return time.perf_counter() - begun_s


def _in_a_session(audit: AuditSettings, warm_runs: int, hidden: int) -> tuple[Sequence[float], Sequence[float]]:
    """Return the seconds of alternating warm runs with the inventory and without it."""
    from dataclasses import replace

    with spark_session(SessionSettings()) as spark:
        both = [
            (_seconds(spark, audit, hidden), _seconds(spark, replace(audit, with_inventory=False), None))
            for _ in range(warm_runs + 1)
        ]
    return [one for one, _ in both[1:]], [other for _, other in both[1:]]


def _seconds(spark: SparkSession, audit: AuditSettings, hidden: int | None) -> float:
    from spark_jobs.runs.run import run_check

    begun_s = time.perf_counter()
    summary = run_check(spark, RunKind.EVERYTHING, audit).summary
    took_s = time.perf_counter() - begun_s
    found = None if summary.inventory is None else summary.inventory.unowned
    if found != hidden:
        raise AssertionError(f"{found} ledgers were found that are not in the metadata, and {hidden} are")
    return took_s


def _median(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]
