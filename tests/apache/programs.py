"""Our programs as processes on an Apache cluster."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from auditor.cli.audit.shadow import exit_code
from bookie.embedded.process import ManagedProcess
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from spark_jobs.one_shot import run as one_shot
from spark_jobs.one_shot.run import OneShot
from spark_jobs.session import SessionSettings
from spark_jobs.settings import AuditSettings, FailOn
from tests.deadlines import PROGRAM_S, STATE_S
from tests.lent_session import lend_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.runs.port import Gate
    from spark_jobs.runs.run import AuditResult
    from spark_jobs.shadow.run import Shadow


@dataclass(frozen=True)
class Ended:
    """A finished program."""

    exit_code: int
    printed: str
    errors: str

    @property
    def document(self) -> dict[str, Any]:
        """Return its output, as JSON."""
        found: dict[str, Any] = json.loads(self.printed)
        return found


async def bkheal(*arguments: str, uri: str, deadline_s: float = PROGRAM_S) -> Ended:
    """Run ``bkheal`` with these arguments until it ends, or kill it at the deadline."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "auditor.cli.main", *arguments, "--metadata-uri", uri),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(deadline_s):
            printed, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ended(process.returncode or 0, printed.decode(errors="replace"), errors.decode(errors="replace"))


class Audit(Protocol):
    """Runs a check in this process, as ``bkheal audit run`` does; see the fixture ``audit``."""

    async def __call__(
        self, uri: str, directory: Path, kind: RunKind = RunKind.BOOKIES, **settings: Any
    ) -> dict[str, Any]:
        """Run a check, which must succeed, and return its summary. The settings are those of ``AuditSettings``."""


def audit_in(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Audit:
    """Return a function that runs checks in an existing Spark session, and otherwise does what the command does."""

    lend_session(monkeypatch, spark)

    async def audit(uri: str, directory: Path, kind: RunKind = RunKind.BOOKIES, **settings: Any) -> dict[str, Any]:
        shot = OneShot(kind, AuditSettings(uri, directory / "reports", **settings), SessionSettings(), "the test")
        result = await asyncio.to_thread(one_shot.run_one_shot, shot)
        assert result.exit_code(FailOn.NEVER) == ExitCode.OK, result.summary
        summary: dict[str, Any] = json.loads(json.dumps(result.summary.to_json()))
        return summary

    return audit


class Comparison(Protocol):
    """Compares with Apache's marks in this process, as ``bkheal audit shadow`` does; see the fixture ``shadow``."""

    async def __call__(self, uri: str, directory: Path, settle_s: float) -> tuple[int, dict[str, Any]]:
        """Return the exit code and the document of a comparison, which counts losses older than ``settle_s``."""


def shadow_in(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Comparison:
    """Return a function that compares in an existing Spark session, and otherwise does what the command does."""
    lend_session(monkeypatch, spark)

    async def shadow(uri: str, directory: Path, settle_s: float) -> tuple[int, dict[str, Any]]:
        settings = AuditSettings(uri, directory / "reports", is_dry_run=True)
        found: list[Shadow] = []

        def then(session: SparkSession, result: AuditResult, gate: Gate) -> None:
            from spark_jobs.shadow.run import compare  # this imports Spark

            found.append(compare(session, result, settings, print, gate, SystemClock(), rows_max=20, settle_s=settle_s))

        shot = OneShot(RunKind.BOOKIES, settings, SessionSettings(), "the test")
        result = await asyncio.to_thread(one_shot.run_one_shot, shot, then=then)
        [compared] = found
        document: dict[str, Any] = json.loads(json.dumps(dict(compared.to_json())))
        return exit_code(result, compared), document | {"ledgers": result.summary.counts.ledgers}

    return shadow


async def audit_process(uri: str, directory: Path, *more: str) -> dict[str, Any]:
    """Run ``bkheal audit run`` with these options, which must succeed, and return its summary."""
    where = str(directory / "reports")
    ended = await bkheal("audit", "run", "--report-dir", where, "--output", "json", *more, uri=uri)
    assert ended.exit_code == 0, ended.errors
    return ended.document


@dataclass
class Replicator:
    """A replicator process."""

    process: ManagedProcess

    @classmethod
    async def start(cls, uri: str, directory: Path, *more: str, config: Path | None = None) -> Replicator:
        """Start it and wait until it is ready; with ``config`` it is ``bkheal replicator``, which follows the file."""
        directory.mkdir(parents=True, exist_ok=True)
        program = ("replicator",) if config is None else ("auditor.cli.main", "replicator", "--config", str(config))
        command = [sys.executable, "-m", *program, "--metadata-uri", uri, "--output", "json", *more]
        process = ManagedProcess.start("replicator", command, log_path=directory / "log.txt")
        await process.wait_for_line(r'"event": "ready"', STATE_S)
        return cls(process)

    def events(self) -> Sequence[Mapping[str, Any]]:
        """The events that it has printed so far."""
        lines = self.process.log_path.read_text(errors="replace").splitlines()
        return [event for line in lines if line.startswith("{") and "event" in (event := json.loads(line))]

    @property
    def repaired(self) -> Sequence[int]:
        """Return the ledgers that it has repaired according to its log, in order."""
        return [event["ledger_id"] for event in self.events() if event.get("ending") == "repaired"]

    async def wait(self, deadline_s: float = PROGRAM_S) -> int:
        """Wait for the end of the process, and return the exit code."""
        return await self.process.wait(deadline_s)

    async def stop(self) -> None:
        """Send SIGTERM and wait."""
        await self.process.stop(STATE_S)
