"""A bookie compared with Apache's under the same load of clients, and with the bare disk: one machine, one run.

Figures from different machines or runs cannot be compared, but the ratios of one run can. The module of each part
defines its measurement, with start and end. Apache's bookie has DbLedgerStorage, as in large deployments, and Apache's
defaults.
"""

from __future__ import annotations

import asyncio
import enum
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from auditor.bench.bookies.contestants import contestants, running_bookies
from auditor.bench.bookies.engine import measure_engine
from auditor.bench.bookies.figures import measured
from auditor.bench.bookies.journal import measure_reserved
from auditor.bench.bookies.load import LoadSize, measure_adds, measure_lone_adds, measure_reads
from bookie.embedded.apache_jars import ApacheJarsMissingError, apache_version, find_apache_lib
from bookie.embedded.apache_settings import ApacheStorage
from bookie.runtime.java import JavaNotFoundError, find_java
from bookie.runtime.version import installed_version

PAYLOADS: Final = (100, 1024, 16_384, 1 << 20)
WRITERS: Final = (1, 10, 100)
MEGABYTES: Final = 16
ROUNDS: Final = 3

Say = Callable[[str], None]


class Measurement(enum.StrEnum):
    """What to measure."""

    ADDS = "adds"
    LONE = "lone"
    READS = "reads"
    STORAGE = "storage"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class BookieBenchmark:
    """The parts to measure, and their sizes."""

    part: Measurement = Measurement.ALL
    payloads: Sequence[int] = PAYLOADS
    writers: Sequence[int] = WRITERS
    megabytes: float = MEGABYTES
    """Megabytes of payload in each round and in each case of reads."""
    rounds: int = ROUNDS


async def run(settings: BookieBenchmark, say: Say) -> dict[str, Any]:
    """Measure; ``say`` receives progress messages.

    Without Java, only the storage is measured, and without Apache's jars, only bkheal's bookie; ``left_out`` lists the
    other parts.

    Returns:
        Versions, raw figures of each part, and ``comparisons`` with ratios and aims.

    Raises:
        EmbeddedProcessError: a bookie did not start.
        LoadFailedError: a bookie gave an unexpected answer.
    """
    load = LoadSize(settings.payloads, settings.writers, int(settings.megabytes * 1e6), settings.rounds)
    figures: dict[str, Any] = {
        "versions": {"ours": installed_version(), "python": platform.python_version()},
        "machine": {
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "left_out": [],
    }
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as name:
        directory = Path(name)
        if settings.part is not Measurement.STORAGE:
            await _measure_with_clients(settings.part, load, directory, figures, say)
        if settings.part in (Measurement.STORAGE, Measurement.ALL):
            figures["reserved"] = await measure_reserved(directory / "reserved", say)
            figures["engine"] = await measure_engine(directory, load, say)
    return figures | {"comparisons": [each.figures() for each in measured(figures)]}


async def _measure_with_clients(
    part: Measurement, load: LoadSize, directory: Path, figures: dict[str, Any], say: Say
) -> None:
    try:
        java = await asyncio.to_thread(find_java)
    except JavaNotFoundError as error:
        figures["left_out"].append(f"adds and reads of clients: the embedded ZooKeeper needs Java. {error}")
        return
    lib: Path | None = None
    try:
        lib = find_apache_lib()
        figures["versions"] |= {"apache": apache_version(lib), "java": java.version}
    except ApacheJarsMissingError as error:
        figures["left_out"].append(f"Apache's bookie: {error}")
    async with running_bookies(directory, java, lib, ApacheStorage.DB) as bookies:
        async with contestants(bookies) as found:
            if part in (Measurement.LONE, Measurement.ALL):
                figures["lone"] = await measure_lone_adds(found, directory, say)
            if part in (Measurement.ADDS, Measurement.ALL):
                figures["adds"] = await measure_adds(found, load, say)
        if part in (Measurement.READS, Measurement.ALL):
            figures["reads"] = await measure_reads(bookies, load, directory, say)
