"""A replicator that pauses at one step of its first repair until a file exists.

Arguments: the step, the file, then the arguments of ``python -m replicator``.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.tasks.locks import TaskLocks
from bookie.metadata.tasks.reservations import Reservations
from bookie.runtime.grpc_environment import prepare_grpc
from replicator.__main__ import main
from replicator.copying.target import Target
from replicator.repair.install import Installer

PAUSED_LINE = "stands still"
_POLL_S = 0.02


class Step(StrEnum):
    """The steps at which a repair can pause."""

    LOCKED = "locked"
    """The worker has the lock, and has done nothing else."""
    RESERVED = "reserved"
    """The reservation exists, and no entry is copied."""
    COPYING = "copying"
    """The target has acknowledged a part of the copy."""
    COPIED = "copied"
    """The target has acknowledged everything, but its list has not been requested yet."""
    LISTED = "listed"
    """The target lists everything; the write of the metadata is the next request."""
    NAMED = "named"
    """The metadata names the target; the same transaction has deleted the task, its lock and the reservation."""


_Method = Callable[..., Awaitable[Any]]


class _Gate:
    """A gate that opens when the file exists."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._has_said = False

    async def wait(self) -> None:
        if not self._has_said and not self._file.exists():
            self._has_said = True
            sys.stdout.write(f"{PAUSED_LINE}\n")
            sys.stdout.flush()
        while not self._file.exists():  # noqa: ASYNC110 (another process makes it)
            await asyncio.sleep(_POLL_S)

    def before(self, method: _Method) -> _Method:
        @functools.wraps(method)
        async def waiting(*arguments: Any, **options: Any) -> Any:
            await self.wait()
            return await method(*arguments, **options)

        return waiting

    def after(self, method: _Method) -> _Method:
        @functools.wraps(method)
        async def waiting(*arguments: Any, **options: Any) -> Any:
            result = await method(*arguments, **options)
            await self.wait()
            return result

        return waiting


def _pause_at(step: Step, gate: _Gate) -> None:
    match step:
        case Step.LOCKED:
            _patch(TaskLocks, "lock", gate.after)
        case Step.RESERVED:
            _patch(Reservations, "reserve", gate.after)
        case Step.COPYING:
            _patch(Target, "store", gate.after)
            _patch(Target, "pull", gate.after)
        case Step.COPIED:
            _patch(Installer, "install", gate.before)
        case Step.LISTED:
            _patch(LedgerStore, "write", gate.before)
        case Step.NAMED:
            _patch(LedgerStore, "write", gate.after)


def _patch(owner: type, name: str, wrap: Callable[[_Method], _Method]) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


if __name__ == "__main__":
    prepare_grpc()
    _pause_at(Step(sys.argv[1]), _Gate(Path(sys.argv[2])))
    sys.exit(main(sys.argv[3:]))
