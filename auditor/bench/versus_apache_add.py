"""Durable adds on one bookie: Apache's and bkheal's, under the same load of bkheal's client.

One writer, a window of adds in flight, ledgers of one copy; each acknowledged add is on the disk on both sides. Rounds
take turns, so that other load on the machine affects all alike; the median round counts.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from auditor.bench.versus_apache_settings import BOOKIE_HEAP_MIB, bookie_options
from bookie.client.bookkeeper import BookKeeper, LedgerOptions
from bookie.client.connect import connect
from bookie.embedded.apache import ApacheCluster
from bookie.embedded.cluster import EmbeddedCluster
from bookie.metadata.bookies.registration import Registrations
from bookie.model.ids import BookieId
from bookie.runtime.java import Java
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.resolver import APACHE_PROTOCOL, BookieAddress, Resolver

PAYLOADS: Final = (100, 1024, 16_384)
ROUNDS: Final = 3
ENTRIES_MAX: Final = 200_000
_WARM_ENTRIES: Final = 4000

Say = Callable[[str], None]


class ApacheEndpoints(Resolver):
    """Resolve a bookie to its address for Apache's protocol, also if it speaks gRPC as well."""

    def __init__(self, registrations: Registrations) -> None:
        self._registrations = registrations

    @override
    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        info = await self._registrations.service_info(bookie)
        if info is None or (endpoint := info.endpoint(APACHE_PROTOCOL)) is None:
            return None
        # The disks are known here: no other process takes the port during the benchmark.
        return BookieAddress(endpoint.host, endpoint.port, APACHE_PROTOCOL, info.incarnation)


@dataclass(frozen=True, slots=True)
class _Contestant:
    name: str
    client: BookKeeper


class AddComparison:
    """Two clusters of one bookie each."""

    def __init__(self, java: Java, lib: Path, directory: Path, say: Say) -> None:
        self._java = java
        self._lib = lib
        self._directory = directory
        self._say = say

    async def run(self, bytes_per_round: int) -> list[dict[str, Any]]:
        """Measure each size of payload.

        Raises:
            EmbeddedProcessError: a bookie did not start.
            TransientError: an add failed.
        """
        figures = []
        async with self._contestants() as contestants:
            for payload_bytes in PAYLOADS:
                entries = max(1, min(ENTRIES_MAX, bytes_per_round // payload_bytes))
                self._say(f"add: {entries:,} entries of {payload_bytes} B, {ROUNDS} rounds")
                rates: dict[str, list[float]] = {each.name: [] for each in contestants}
                payload = random.Random(1).randbytes(payload_bytes)
                for each in contestants:
                    await _write(each.client, payload, min(entries, _WARM_ENTRIES))
                for _ in range(ROUNDS):
                    for each in contestants:
                        rates[each.name].append(entries / await _write(each.client, payload, entries))
                figures.append({"payload_bytes": payload_bytes, "entries": entries, "results": _summed(rates)})
        return figures

    @asynccontextmanager
    async def _contestants(self) -> AsyncIterator[list[_Contestant]]:
        async with (
            await ApacheCluster.start(
                self._directory / "add-apache",
                bookies=1,
                options=bookie_options(),
                is_formatted_by_apache=False,
                heap_mib=BOOKIE_HEAP_MIB,
                java=self._java,
                lib=self._lib,
            ) as theirs,
            await EmbeddedCluster.start(
                self._directory / "add-ours", bookies=1, java=self._java, speaks_apache=True
            ) as ours,
            await connect(theirs.metadata_uri) as to_theirs,
            await connect(ours.metadata_uri) as to_ours,
        ):
            over_apache = ApacheTransport(ApacheEndpoints(to_ours.ports.registrations))
            try:
                ports = replace(to_ours.ports, transport=over_apache)
                yield [
                    _Contestant("apache", to_theirs),
                    _Contestant("ours over gRPC", to_ours),
                    _Contestant("ours over Apache's protocol", BookKeeper(ports)),
                ]
            finally:
                await over_apache.close()


def _summed(rates: dict[str, list[float]]) -> dict[str, Any]:
    return {
        name: {
            "adds_per_second": round(statistics.median(those)),
            "rounds": [round(rate) for rate in those],
        }
        for name, those in rates.items()
    }


async def _write(client: BookKeeper, payload: bytes, entries: int) -> float:
    """Seconds from the first add to the last acknowledgement; they come in order."""
    writer = await client.create_ledger(LedgerOptions(1, 1, 1))
    started_s = time.perf_counter()
    last = None
    for _ in range(entries):
        last = await writer.submit(payload)
    if last is not None:
        await last
    seconds = time.perf_counter() - started_s
    await writer.close()
    return seconds
