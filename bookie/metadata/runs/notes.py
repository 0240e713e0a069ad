"""What is kept about kinds and runs beside their records: success, pauses, and wishes to end a run.

last-success/<kind>   when the last run of this kind that saw everything began; outlives the records
paused/<kind>         present: no scheduled run of this kind begins
requests/<run_id>     present: somebody wants this run to end; the process that runs it looks
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bookie.metadata.layout import own_path
from bookie.metadata.nodes import change, find, put, remove
from bookie.metadata.port import MetadataStore
from bookie.model.run import RunKind

_TEXT_MAX: Final = 200
"""Bytes of a name that are kept."""


class RunNotes:
    """The notes of one cluster."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._base = own_path("runs", ledgers_root)

    async def note_success(self, kind: RunKind, started_ms: int) -> None:
        """Note that the run of this kind that began at ``started_ms`` saw everything; an older time changes nothing.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; noting it again is safe.
        """

        def later(data: bytes | None) -> bytes | None:
            return None if data is not None and _number(data) >= started_ms else str(started_ms).encode()

        await change(self._store, self._path("last-success", kind.value), later)

    async def last_success_ms(self) -> Mapping[RunKind, int]:
        """When the last successful run of each kind began, epoch milliseconds; kinds that never had one are absent.

        Raises:
            StoreUnavailableError: no answer.
        """
        nodes = await self._store.get_many_data([self._path("last-success", kind.value) for kind in RunKind])
        times = {kind: _number(data) for kind, data in zip(RunKind, nodes, strict=True) if data is not None}
        return {kind: time_ms for kind, time_ms in times.items() if time_ms > 0}

    async def pause_kind(self, kind: RunKind, owner: str) -> None:
        """Let no scheduled run of this kind begin, in any process. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; pausing again is safe.
        """
        await put(self._store, self._path("paused", kind.value), owner.encode()[:_TEXT_MAX])

    async def resume_kind(self, kind: RunKind) -> None:
        """Undo ``pause_kind``. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; resuming again is safe.
        """
        await remove(self._store, self._path("paused", kind.value))

    async def paused_kinds(self) -> Sequence[RunKind]:
        """Kinds whose schedule is paused.

        Raises:
            StoreUnavailableError: no answer.
        """
        nodes = await self._store.get_many_data([self._path("paused", kind.value) for kind in RunKind])
        return [kind for kind, data in zip(RunKind, nodes, strict=True) if data is not None]

    async def request_cancel(self, run_id: str, owner: str) -> None:
        """Ask the process that runs it to end a run; it looks every few seconds.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; asking again is safe.
        """
        await put(self._store, self._path("requests", run_id), owner.encode()[:_TEXT_MAX])

    async def cancel_requested_by(self, run_id: str) -> str | None:
        """The caller who asked to end a run; None if there is none.

        Raises:
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self._path("requests", run_id))
        return None if node is None else node.data.decode(errors="replace")[:_TEXT_MAX]

    async def clear_request(self, run_id: str) -> None:
        """Forget a request. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; pruning clears it.
        """
        await remove(self._store, self._path("requests", run_id))

    def _path(self, part: str, name: str) -> str:
        return f"{self._base}/{part}/{name}"


def _number(data: bytes) -> int:
    return int(data) if data.isdigit() and len(data) < 16 else 0
