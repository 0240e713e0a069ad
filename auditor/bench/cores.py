"""Keeps the processes of a measurement on cores of their own, as on separate machines. Only on Linux."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PROCESSES = Path("/proc")


def cores() -> Sequence[int]:
    """Return the cores that this process may use; none if the system does not let a program choose."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@contextmanager
def apart(servers: Iterable[int], others: Iterable[int]) -> Iterator[None]:
    """Keep ``servers`` on one core, and ``others`` and all their child processes on the rest; undone at the end.

    Args:
        servers: ids of processes.
        others: ids of processes with all of their children.
    """
    all_cores, kept, moved = cores(), list(servers), list(others)
    _keep(kept, all_cores[:1])
    _keep(moved, all_cores[1:])
    try:
        yield
    finally:
        _keep([*kept, *moved], all_cores)


def _keep(processes: Iterable[int], where: Sequence[int]) -> None:
    """Set the cores of each thread; a later thread inherits those of its creator."""
    for process in processes:
        for thread in (_PROCESSES / str(process) / "task").iterdir():
            try:
                os.sched_setaffinity(int(thread.name), where)
            except ProcessLookupError:  # it has ended
                continue
