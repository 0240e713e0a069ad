"""Run pytest processes concurrently, a limited number at a time, and read their reports while they run."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.rings.plan import Part
from tests.rings.results import Failure, PartResult, take_report

LANES: Final = 4
"""How many pytest processes run at a time. Rings that start processes wait more than half of the time, so four keep two
cores busy."""
_LOOK_AGAIN_S: Final = 0.5
_PROGRESS_EVERY_S: Final = 60.0
_END_GRACE_S: Final = 20.0
"""How long pytest may take to end its fixtures after an interrupt."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The pytest processes of one run, and their settings.

    Attributes:
        directory: contains a folder for each process with its log, its report, and pytest's temporary files.
        count: how many processes run at a time.
        options: further arguments of each pytest.
        emit: prints a line of progress.
    """

    directory: Path
    count: int = LANES
    options: Sequence[str] = ()
    emit: Callable[[str], None] = print

    async def run(self, parts: Sequence[Part]) -> Sequence[PartResult]:
        """Run every part, and return the results in the order of ``parts``. A cancellation ends all its processes."""
        free = asyncio.Semaphore(self.count)
        began_s = time.monotonic()
        progress = {part.name: PartResult(part.name, part.ring) for part in parts}

        async def one(part: Part) -> PartResult:
            async with free:
                self.emit(f"{_clock(began_s)} {part.name}: started, {len(part.files)} files")
                result = await self._run_part(part, progress[part.name])
                counts = ", ".join(f"{result.count(name)} {name}" for name in ("passed", "failed", "skipped"))
                self.emit(f"{_clock(began_s)} {part.name}: {counts} in {result.wall_s:.0f} s")
                return result

        printing = asyncio.create_task(self._print_progress(progress, began_s))
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(one(part)) for part in parts]
        finally:
            printing.cancel()
        return [task.result() for task in running]

    async def _run_part(self, part: Part, result: PartResult) -> PartResult:
        home = self.directory / part.name
        home.mkdir(parents=True)
        report = home / "report.jsonl"
        command = [
            *(sys.executable, "-m", "pytest", "-q", f"--basetemp={home / 'tmp'}", f"--report-log={report}"),
            *("-p", "no:cacheprovider", *self.options, *map(str, part.files)),
        ]
        # Container images set this variable. With it, every process of the tests would compile what it imports, and
        # pytest would rewrite the assertions of each file again.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        began_s = time.monotonic()
        with (home / "pytest.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: ASYNC220  # asyncio would wait for it, and lose its CPU time
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that an interrupt in the terminal reaches only the runner
            )
        reading = _Reading(report, result)
        waiting = asyncio.create_task(_wait4(process.pid))
        try:
            while not waiting.done():
                for failure in reading.read_new():
                    self.emit(f"{part.name}: FAILED {failure.test}")
                await asyncio.wait([waiting], timeout=_LOOK_AGAIN_S)
        except asyncio.CancelledError:
            await _end(process.pid, waiting)
            raise
        reading.read_new()
        status, result.cpu_s = waiting.result()
        result.wall_s = time.monotonic() - began_s
        result.exit_code = process.returncode = os.waitstatus_to_exitcode(status)
        if not result.has_failed:
            await asyncio.to_thread(shutil.rmtree, home / "tmp", ignore_errors=True)
        return result

    async def _print_progress(self, progress: Mapping[str, PartResult], began_s: float) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_EVERY_S)
            running = [f"{r.name} {len(r.outcomes)}" for r in progress.values() if r.outcomes and not r.wall_s]
            self.emit(f"{_clock(began_s)} tests done: {', '.join(running) or 'none yet, collecting'}")


class _Reading:
    """Reads whole lines of a growing report."""

    def __init__(self, path: Path, result: PartResult) -> None:
        self._path = path
        self._result = result
        self._offset = 0

    def read_new(self) -> Sequence[Failure]:
        """Read the new lines and return the failures in them."""
        if not self._path.exists():
            return []
        before = len(self._result.failures)
        with self._path.open("rb") as report:
            report.seek(self._offset)
            found = report.read()
        whole = found[: found.rfind(b"\n") + 1]
        self._offset += len(whole)
        take_report(self._result, whole.decode(errors="replace").splitlines())
        return self._result.failures[before:]


async def _wait4(pid: int) -> tuple[int, float]:
    """Return the status and the CPU seconds of a child, including all children that it waited for."""
    _, status, usage = await asyncio.to_thread(os.wait4, pid, 0)
    return status, usage.ru_utime + usage.ru_stime


async def _end(pid: int, waiting: asyncio.Task[tuple[int, float]]) -> None:
    """Interrupt a process and its group, and kill them if they do not end."""
    for sent, grace_s in ((signal.SIGINT, _END_GRACE_S), (signal.SIGKILL, _END_GRACE_S)):
        if waiting.done():
            return
        os.killpg(pid, sent)
        await asyncio.wait([waiting], timeout=grace_s)


def _clock(began_s: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - began_s), 60)
    return f"[{minutes:3}:{seconds:02}]"
