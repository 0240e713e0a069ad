"""Durable adds on one bookie: Apache's and bkheal's, under the same load of bkheal's client.

One writer has a window of adds in flight, and ledgers have one copy. Both bookies acknowledge an add only after it is
on the disk. Rounds alternate, so other load on the machine affects both equally; the median round counts.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from auditor.bench.bookies.contestants import contestants, running_bookies
from bookie.client.bookkeeper import BookKeeper, LedgerOptions
from bookie.runtime.java import Java

PAYLOADS: Final = (100, 1024, 16_384)
ROUNDS: Final = 3
ENTRIES_MAX: Final = 200_000
_WARM_ENTRIES: Final = 4000

Say = Callable[[str], None]


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
        async with (
            running_bookies(self._directory / "add", self._java, self._lib) as bookies,
            contestants(bookies) as found,
        ):
            for payload_bytes in PAYLOADS:
                entries = max(1, min(ENTRIES_MAX, bytes_per_round // payload_bytes))
                self._say(f"add: {entries:,} entries of {payload_bytes} B, {ROUNDS} rounds")
                rates: dict[str, list[float]] = {each.name: [] for each in found}
                payload = random.Random(1).randbytes(payload_bytes)
                for each in found:
                    await _write(each.client, payload, min(entries, _WARM_ENTRIES))
                for _ in range(ROUNDS):
                    for each in found:
                        rates[each.name].append(entries / await _write(each.client, payload, entries))
                figures.append({"payload_bytes": payload_bytes, "entries": entries, "results": _median_rates(rates)})
        return figures


def _median_rates(rates: dict[str, list[float]]) -> dict[str, Any]:
    return {
        name: {
            "adds_per_second": round(statistics.median(those)),
            "rounds": [round(rate) for rate in those],
        }
        for name, those in rates.items()
    }


async def _write(client: BookKeeper, payload: bytes, entries: int) -> float:
    """Return the seconds from the first add to the last acknowledgement; acknowledgements are in order."""
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
