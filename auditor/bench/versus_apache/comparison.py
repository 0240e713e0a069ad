"""Apache BookKeeper's auditor, worker and bookie compared with ours: same machine, same ZooKeeper, same data, one run.

Figures from different machines or runs cannot be compared, but the ratios of one run can. The module of each part
defines its measurement, with start and end.
"""

from __future__ import annotations

import asyncio
import enum
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from auditor.bench.versus_apache import audits as versus_apache_audit
from auditor.bench.versus_apache import repairs as versus_apache_repair
from auditor.bench.versus_apache.adds import AddComparison
from auditor.bench.versus_apache.audits import AuditComparison
from auditor.bench.versus_apache.figures import comparisons
from auditor.bench.versus_apache.processes import JavaPrograms
from auditor.bench.versus_apache.repairs import (
    ENTRY_BYTES,
    SHAPES,
    RepairComparison,
    RepairContest,
    Shape,
    empty_ledgers,
    large_ledgers,
    small_ledgers,
)
from bookie.embedded.apache_jars import ApacheJarsMissingError, apache_version, find_apache_lib
from bookie.model.errors import PermanentError
from bookie.runtime.java import find_java
from bookie.runtime.version import installed_version

LEDGERS: Final = (10_000, 100_000, 1_000_000)
MEGABYTES: Final = 32
WARM_ROUNDS: Final = 3
_LARGE_LEDGERS: Final = 500_000
"""From this size on, a single later audit is enough: it takes minutes, and varies little."""

Say = Callable[[str], None]


class ComparisonPart(enum.StrEnum):
    """A part of the comparison."""

    AUDIT = "audit"
    REPAIR = "repair"
    ADD = "add"
    ALL = "all"


class InvalidShapeError(PermanentError):
    """A shape of ledgers that cannot be compared."""


@dataclass(frozen=True, slots=True)
class VersusSettings:
    """The parts to measure, and their sizes."""

    part: ComparisonPart = ComparisonPart.ALL
    ledgers: Sequence[int] = LEDGERS
    """Numbers of ledgers of the audits."""
    megabytes: float = MEGABYTES
    """Megabytes lost with the bookie, for each contestant and shape, and megabytes written in each round of adds."""
    shapes: Sequence[Shape] = SHAPES
    """Ensemble, write quorum and ack quorum of the ledgers to repair."""
    entry_bytes: Sequence[int] = ENTRY_BYTES
    """Payloads of the entries to repair, each a case of its own."""
    small_ledgers: int = 0
    """Ledgers of a few entries to repair for each shape; 0: no such case."""
    empty_ledgers: int = 0
    apache_lib: Path | None = None
    """Folder with Apache's jars; None: the one returned by ``find_apache_lib``."""
    is_tuned: bool = True
    """Whether Apache also runs with its best documented settings."""


async def run(settings: VersusSettings, say: Say) -> dict[str, Any]:
    """Measure; ``say`` receives progress messages.

    Returns:
        Versions, settings, raw figures of each part, and ``comparisons``.

    Raises:
        ApacheJarsMissingError, JdkMissingError, JavaNotFoundError: a program is not installed; the message names it.
        ContestantError, EmbeddedProcessError: a process did not start, or did not do its work.
    """
    lib = _lib(settings.apache_lib)
    java = await asyncio.to_thread(find_java)
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as name:
        directory = Path(name)
        programs = await asyncio.to_thread(JavaPrograms.compile, java, lib, directory / "classes")
        figures = _versions_and_machine(lib, java.version)
        if settings.part in (ComparisonPart.AUDIT, ComparisonPart.ALL):
            audits = []
            for ledgers in settings.ledgers:
                warm = 1 if ledgers >= _LARGE_LEDGERS else WARM_ROUNDS
                comparison = AuditComparison(programs, directory / f"audit-{ledgers}", say)
                audits.append(await comparison.run(ledgers, warm, is_tuned=settings.is_tuned))
            figures["audit"] = audits
        if settings.part in (ComparisonPart.REPAIR, ComparisonPart.ALL):
            repair = RepairComparison(programs, directory, say)
            cases = [case for shape in settings.shapes for case in _repair_cases(shape, settings)]
            figures["repair"] = [await repair.run(case, is_tuned=settings.is_tuned) for case in cases]
        if settings.part in (ComparisonPart.ADD, ComparisonPart.ALL):
            figures["add"] = await AddComparison(java, lib, directory, say).run(int(settings.megabytes * 1e6))
    return figures | {"comparisons": [each.figures() for each in comparisons(figures)]}


def _repair_cases(shape: Shape, settings: VersusSettings) -> Iterator[RepairContest]:
    for entry_bytes in settings.entry_bytes:
        yield large_ledgers(shape, entry_bytes, int(settings.megabytes * 1e6))
    if settings.small_ledgers:
        yield small_ledgers(shape, settings.small_ledgers)
    if settings.empty_ledgers:
        yield empty_ledgers(shape, settings.empty_ledgers)


def parse_shape(text: str) -> Shape:
    """Read ``E/Qw/Qa``.

    Raises:
        InvalidShapeError: it is not three numbers, or such a ledger cannot be repaired after the loss of a bookie.
    """
    try:
        ensemble_size, write_quorum, ack_quorum = map(int, text.split("/"))
    except ValueError:
        raise InvalidShapeError(f"{text!r} is not E/Qw/Qa, for example 3/2/2") from None
    if not 2 <= write_quorum <= ensemble_size or not 1 <= ack_quorum <= write_quorum:
        raise InvalidShapeError(f"{text!r}: need an ensemble of at least Qw, Qw of 2 or more, and Qa of 1 to Qw")
    return ensemble_size, write_quorum, ack_quorum


def _lib(given: Path | None) -> Path:
    if given is None:
        return find_apache_lib()
    if not any(given.glob("bookkeeper-server-*.jar")):
        raise ApacheJarsMissingError(f"no bookkeeper-server-*.jar in {given}: name the folder with Apache's jars")
    return given.resolve()


def _versions_and_machine(lib: Path, java_version: int) -> dict[str, Any]:
    return {
        "versions": {
            "apache": apache_version(lib),
            "ours": installed_version(),
            "java": java_version,
            "python": platform.python_version(),
        },
        "machine": {"cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "settings": {
            "audit, apache": {**versus_apache_audit.DEFAULTS, "jvm": " ".join(versus_apache_audit.DEFAULT_JVM)},
            "audit, apache tuned": {**versus_apache_audit.TUNED, "jvm": " ".join(versus_apache_audit.TUNED_JVM)},
            "repair, apache": dict(versus_apache_repair.DEFAULTS),
            "repair, apache tuned": dict(versus_apache_repair.TUNED),
            "audit, cluster": {
                "bookies": versus_apache_audit.BOOKIES,
                "lost": 1,
                "copies": versus_apache_audit.COPIES,
            },
        },
    }
