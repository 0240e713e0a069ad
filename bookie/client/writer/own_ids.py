"""Entries numbered by the application: accepted in any order, written in the order of their ids.

An entry waits here, unsent, until every lower id has been submitted. So bookies never hold an entry beyond a gap, and
the length in each entry's header counts exactly the entries up to it, as recovery requires for closing a ledger. The
pipeline's bounds also limit how far ahead an id may be, and how many bytes may wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from bookie.client.errors import (
    AddOutcomeUnknownError,
    DuplicateEntryIdError,
    EntryIdTooFarError,
    InvalidEntryIdError,
)
from bookie.client.settings import ClientSettings
from bookie.client.writer.pipeline import Pipeline, Waiter, report_outcome_unknown
from bookie.model.ids import EntryId

ENTRY_ID_MAX: Final = (1 << 63) - 2
"""The greatest id whose successor still fits into an entry's header."""


class ExplicitIdQueue:
    """The waiting entries of one writer."""

    def __init__(self, pipeline: Pipeline, settings: ClientSettings, admit: Callable[[bytes, Waiter], None]) -> None:
        """Start without waiting entries.

        Args:
            pipeline: the writer's pipeline.
            settings: contains the bounds, which are those of the pipeline.
            admit: admits the next entry to the pipeline.
        """
        self._pipeline = pipeline
        self._settings = settings
        self._admit = admit
        self._held: dict[EntryId, tuple[bytes, Waiter]] = {}
        self._held_bytes = 0
        self._moved = asyncio.Event()
        self._feeder: asyncio.Task[None] | None = None

    async def put(self, entry_id: EntryId, payload: bytes) -> Waiter:
        """Accept an entry and return the future of its acknowledgement. If no lower id is missing, wait for room.

        A call that is cancelled while it waits withdraws the entry.

        Raises:
            InvalidEntryIdError, DuplicateEntryIdError, EntryIdTooFarError: refused, and nothing was changed.
        """
        self._check(entry_id, payload)
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._held[entry_id] = payload, waiter
        self._held_bytes += len(payload)
        self._feed()
        try:
            while entry_id in self._held and self._is_ready:
                self._moved.clear()
                await self._moved.wait()
        except asyncio.CancelledError:
            if entry_id in self._held:
                self._take(entry_id)
                self._moved.set()
            raise
        return waiter

    async def wait_admitted(self) -> None:
        """Wait until every entry before the first missing id is in the pipeline, or the pipeline has failed."""
        while self._is_ready and self._pipeline.error is None:
            self._moved.clear()
            await self._moved.wait()

    def drop(self) -> None:
        """Drop every waiting entry: its caller gets an unknown outcome."""
        for entry_id in sorted(self._held):
            _, waiter = self._take(entry_id)
            report_outcome_unknown(waiter, self._outcome_unknown_error(entry_id))
        self._moved.set()

    @property
    def _is_ready(self) -> bool:
        return self._pipeline.state.next_entry_id in self._held

    def _check(self, entry_id: EntryId, payload: bytes) -> None:
        following = self._pipeline.state.next_entry_id
        if not 0 <= entry_id <= ENTRY_ID_MAX:
            raise InvalidEntryIdError(f"not an entry id: {entry_id} (0 to 2^63-2)")
        if entry_id < following or entry_id in self._held:
            raise DuplicateEntryIdError(f"entry {entry_id} was submitted before")
        ahead = entry_id - following
        if ahead > self._settings.pipeline_entries_max:
            raise EntryIdTooFarError(
                f"entry {entry_id} is {ahead} ahead of entry {following}, which is missing; "
                f"at most {self._settings.pipeline_entries_max} may be"
            )
        if ahead and self._held_bytes + len(payload) > self._settings.pipeline_bytes_max:
            raise EntryIdTooFarError(
                f"{self._held_bytes} bytes already wait for entries with lower ids, from {following} on"
            )

    def _outcome_unknown_error(self, entry_id: EntryId) -> AddOutcomeUnknownError:
        if self._pipeline.error is not None:
            return self._pipeline.outcome_unknown_error()
        return AddOutcomeUnknownError(
            f"ledger {self._pipeline.ledger.ledger_id} was closed before entry {self._pipeline.state.next_entry_id} "
            f"was submitted: entry {entry_id} is beyond its end"
        )

    def _feed(self) -> None:
        pipeline = self._pipeline
        while self._is_ready and pipeline.has_room and pipeline.error is None:
            payload, waiter = self._take(pipeline.state.next_entry_id)
            self._admit(payload, waiter)
            self._moved.set()
        if self._is_ready and self._feeder is None and pipeline.error is None:
            self._feeder = pipeline.start("admit waiting entries", self._feed_continuously())

    async def _feed_continuously(self) -> None:
        while self._is_ready and self._pipeline.error is None:
            await self._pipeline.wait_room()
            self._feed()
        self._feeder = None

    def _take(self, entry_id: EntryId) -> tuple[bytes, Waiter]:
        payload, waiter = self._held.pop(entry_id)
        self._held_bytes -= len(payload)
        return payload, waiter
