"""Memory and processor time of the processes of a local Spark session, from ``/proc``."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_EACH_S: Final = 0.25
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PROCESSES: Final = Path("/proc")
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


class SparkProcesses:
    """Processor time, and sampled resident memory in MiB; a peak between two samples is missed.

    Args:
        java_pid: Spark's Java process, the parent of the Python workers. With a local master it is driver and executor.
            None: this process did not start it, so it and the workers are not counted.
    """

    def __init__(self, java_pid: int | None) -> None:
        self._java_pid = java_pid
        self._peaks = {"driver_python": 0, "java": 0, "python_workers": 0}

    @contextmanager
    def sampled(self) -> Iterator[None]:
        """Sample until the end of the context."""
        is_over = threading.Event()

        def sample() -> None:
            while not is_over.wait(_EACH_S):
                self.sample()

        thread = threading.Thread(target=sample, name="memory", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self.sample()

    def sample(self) -> None:
        """Sample once."""
        now = {"driver_python": _resident(os.getpid()), "java": 0, "python_workers": 0}
        if self._java_pid is not None:
            now["java"] = _resident(self._java_pid)
            now["python_workers"] = sum(map(_resident, descendants(self._java_pid)))
        self._peaks = {name: max(self._peaks[name], size) for name, size in now.items()}

    def processor_s(self) -> float:
        """Return the processor time so far of the driver's Python, the Java process, and all Python workers."""
        spark = [] if self._java_pid is None else [self._java_pid, *descendants(self._java_pid)]
        return _processor_s(os.getpid(), with_children=False) + sum(map(_processor_s, spark))

    def peaks_mib(self) -> Mapping[str, int]:
        """The peaks of the driver's Python, the Java process, and all Python workers; each counts shared pages."""
        return {name: size >> 20 for name, size in self._peaks.items()}


def _resident(pid: int) -> int:
    try:
        return int((_PROCESSES / str(pid) / "statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except OSError:  # it has ended
        return 0


def _processor_s(pid: int, *, with_children: bool = True) -> float:
    """Return the processor time of a process and of its ended children."""
    try:
        stat = (_PROCESSES / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return 0.0
    # The fields after the name: user and system time of the process, then of its children.
    return _TICK_S * sum(map(int, stat.rpartition(")")[2].split()[11 : 15 if with_children else 13]))


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process. Workers start and end constantly, so one may be missed."""
    children: dict[int, list[int]] = {}
    for process in _PROCESSES.iterdir():
        if process.name.isdecimal():
            children.setdefault(_parent(process), []).append(int(process.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0
