"""The load of clients on a bookie: adds of many writers, lone adds, and reads from its caches and from its disk.

Every contestant has the same load from the same client. Rounds alternate, so other load on the machine affects all
of them equally; the median round counts.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from auditor.bench.bookies.contestants import BookiePair, Contestant, contestants
from auditor.bench.bookies.disk import PlainFile, drop_caches, synced_writes
from auditor.bench.process_time import cpu_s
from bookie.client.bookkeeper import BookKeeper, LedgerOptions
from bookie.metadata.bookies.registration import Registrations
from bookie.model.errors import TransientError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.packet import HEADER_SIZE
from bookie.wire.port import Status
from bookie.wire.requests import Info

Say = Callable[[str], None]

LONE_PAYLOAD_BYTES: Final = 100
_LONE_ADDS: Final = 300
_WARM_ENTRIES: Final = 2000
_WARM_BYTES: Final = 4 << 20
_ENTRIES_MAX: Final = 200_000
_RANDOM_READS: Final = 500
_ASK_TIMEOUT_S: Final = 10.0
_DIGEST_BYTES: Final = 4


class LoadFailedError(TransientError):
    """A bookie gave an unexpected answer, so there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class LoadSize:
    """The size of the measurement.

    Attributes:
        payloads: bytes of the payload of an entry; each is a case of its own.
        writers: concurrent writers; each number is a case of its own.
        bytes_per_round: payload bytes written in one round, and read in each case of reads.
        rounds: how often each case is measured.
    """

    payloads: Sequence[int]
    writers: Sequence[int]
    bytes_per_round: int
    rounds: int

    def entries(self, payload_bytes: int) -> int:
        """Return the number of entries of one round."""
        return max(10, min(_ENTRIES_MAX, self.bytes_per_round // payload_bytes))


async def measure_adds(found: Sequence[Contestant], load: LoadSize, say: Say) -> list[dict[str, Any]]:
    """Measure each size of payload with each number of writers: from the first add to the last acknowledgement."""
    figures = []
    for payload_bytes in load.payloads:
        payload = random.Random(1).randbytes(payload_bytes)
        for each in found:
            await _write(each.client, payload, 1, min(_WARM_ENTRIES, max(10, _WARM_BYTES // payload_bytes)))
        for writers in load.writers:
            entries = max(load.entries(payload_bytes), 2 * writers)
            say(f"adds: {entries:,} entries of {payload_bytes:,} B by {writers} writers")
            rates: dict[str, list[float]] = {each.name: [] for each in found}
            used_s = dict.fromkeys(rates, 0.0)
            for number in range(load.rounds):
                # The order alternates, because the flush of one contestant's writes slows down the next one.
                for each in found if number % 2 else reversed(found):
                    before_s = cpu_s(each.server.running)
                    rates[each.name].append(entries / await _write(each.client, payload, writers, entries))
                    used_s[each.name] += cpu_s(each.server.running) - before_s
            figures.append(
                {
                    "payload_bytes": payload_bytes,
                    "writers": writers,
                    "entries": entries,
                    "results": {
                        name: _rate(those, payload_bytes)
                        | {"bookie_cpu_us": round(used_s[name] / entries / load.rounds * 1e6, 1)}
                        for name, those in rates.items()
                    },
                }
            )
    return figures


async def measure_lone_adds(found: Sequence[Contestant], directory: Path, say: Say) -> dict[str, Any]:
    """Measure adds with nothing else in flight, alternating with a bare write and fdatasync and an empty request."""
    say(f"lone adds: {_LONE_ADDS} of {LONE_PAYLOAD_BYTES} B")
    payload = random.Random(1).randbytes(LONE_PAYLOAD_BYTES)
    times: dict[str, list[float]] = {"fdatasync": []}
    with synced_writes(directory / "lone", payload + bytes(HEADER_SIZE + _DIGEST_BYTES)) as bare:
        for each in found:
            bookie = await _only_bookie(each.client.ports.registrations)
            writer = await each.client.create_ledger(LedgerOptions(1, 1, 1))
            adds, trips = times.setdefault(each.name, []), times.setdefault(f"{each.name}, round trip", [])
            await writer.append(payload)
            for _ in range(_LONE_ADDS):
                times["fdatasync"].append(bare.once())
                trips.append(await _timed_trip(each.client, bookie))
                started_s = time.perf_counter()
                await writer.append(payload)
                adds.append(time.perf_counter() - started_s)
            await writer.close()
    return {"payload_bytes": LONE_PAYLOAD_BYTES, "times": {name: percentiles(those) for name, those in times.items()}}


async def measure_reads(bookies: BookiePair, load: LoadSize, directory: Path, say: Say) -> list[dict[str, Any]]:
    """Measure reads of one ledger: just written, then after a restart without cached pages, in order and at random.

    The bookie is restarted before each contestant, because two of them share one.
    """
    results: list[dict[str, Any]] = [{} for _ in load.payloads]
    written: list[dict[str, tuple[LedgerId, LedgerId]]] = [{} for _ in load.payloads]
    async with contestants(bookies) as found:
        for result, ids_of, size in zip(results, written, load.payloads, strict=True):
            for each in found:
                say(f"reads from the caches: {load.entries(size):,} entries of {size:,} B, {each.name}")
                ids_of[each.name] = await _ledger(each.client, load, size), await _ledger(each.client, load, size)
                rate = load.entries(size) / await _read_all(each.client, ids_of[each.name][1], load.entries(size))
                result[each.name] = {"tail": _rate([rate], size)}
    for name in written[0]:
        async with contestants(bookies) as found:
            [server] = [each.server for each in found if each.name == name]
        await server.stop()
        drop_caches(server.directory)
        await server.start()
        async with contestants(bookies) as found:
            [client] = [each.client for each in found if each.name == name]
            for result, ids_of, size in zip(results, written, load.payloads, strict=True):
                say(f"reads from the disk: {size:,} B, {name}")
                result[name] |= await _cold_reads(client, ids_of[name], size, load.entries(size))
    for result, size in zip(results, load.payloads, strict=True):
        result["plain file"] = _plain(directory, size, load.entries(size))
    return [
        {"payload_bytes": size, "entries": load.entries(size), "results": result}
        for result, size in zip(results, load.payloads, strict=True)
    ]


async def _cold_reads(client: BookKeeper, ids: tuple[LedgerId, LedgerId], size: int, entries: int) -> dict[str, Any]:
    count = min(_RANDOM_READS, entries)
    in_order_s = await _read_all(client, ids[0], entries)
    at_random_s = await _read_at_random(client, ids[1], entries, count)
    return {"cold sequential": _rate([entries / in_order_s], size), "cold random": _rate([count / at_random_s], size)}


def _plain(directory: Path, payload_bytes: int, entries: int) -> dict[str, Any]:
    place = directory / "plain"
    place.mkdir(exist_ok=True)
    plain = PlainFile(place / "file", payload_bytes * entries)
    count = min(_RANDOM_READS, entries)
    return {
        "cold sequential": _rate([entries / plain.sequential_s()[0]], payload_bytes),
        "cold random": _rate([count / plain.random_s(count, payload_bytes, random.Random(1))], payload_bytes),
    }


async def _write(client: BookKeeper, payload: bytes, writers: int, entries: int) -> float:
    open_writers = [await client.create_ledger(LedgerOptions(1, 1, 1)) for _ in range(writers)]
    shares = [len(range(number, entries, writers)) for number in range(writers)]

    async def submit(writer: Any, count: int) -> None:
        last = None
        for _ in range(count):
            last = await writer.submit(payload)
        if last is not None:
            await last  # acknowledgements come in order

    started_s = time.perf_counter()
    await asyncio.gather(*(submit(writer, count) for writer, count in zip(open_writers, shares, strict=True)))
    seconds = time.perf_counter() - started_s
    await asyncio.gather(*(writer.close() for writer in open_writers))
    return seconds


async def _ledger(client: BookKeeper, load: LoadSize, payload_bytes: int) -> LedgerId:
    writer = await client.create_ledger(LedgerOptions(1, 1, 1))
    payload, last = random.Random(1).randbytes(payload_bytes), None
    for _ in range(load.entries(payload_bytes)):
        last = await writer.submit(payload)
    if last is not None:
        await last
    await writer.close()
    return writer.ledger_id


async def _read_all(client: BookKeeper, ledger_id: LedgerId, entries: int) -> float:
    reader = await client.open_ledger(ledger_id)
    count, started_s = 0, time.perf_counter()
    async for _ in reader.read_range(EntryId(0), EntryId(entries - 1)):
        count += 1
    if count != entries:
        raise LoadFailedError(f"{count} of {entries} entries were read")
    return time.perf_counter() - started_s


async def _read_at_random(client: BookKeeper, ledger_id: LedgerId, entries: int, count: int) -> float:
    reader = await client.open_ledger(ledger_id)
    wanted = random.Random(2).sample(range(entries), count)
    started_s = time.perf_counter()
    for entry_id in wanted:
        await reader.read(EntryId(entry_id))
    return time.perf_counter() - started_s


async def _only_bookie(registrations: Registrations) -> BookieId:
    [bookie] = (await registrations.list()).registered
    return bookie


async def _timed_trip(client: BookKeeper, bookie: BookieId) -> float:
    started_s = time.perf_counter()
    reply = await client.ports.transport.ask(bookie, Info(), _ASK_TIMEOUT_S)
    if reply.status is not Status.OK:
        raise LoadFailedError(f"{bookie} answered {reply.status.name}: {reply.detail}")
    return time.perf_counter() - started_s


def _rate(rates: Sequence[float], payload_bytes: int) -> dict[str, Any]:
    rate = statistics.median(rates)
    return {
        "per_second": round(rate, 1),
        "mb_per_second": round(rate * payload_bytes / 1e6, 2),
        "rounds": [round(each, 1) for each in rates],
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile, in milliseconds."""
    ordered = sorted(seconds)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 4)
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99))
    }
