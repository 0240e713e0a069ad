"""The synchronous face: the same client for programs without an event loop.

    with sync.connect("zk+hierarchical://localhost:2181/ledgers") as client:
        with client.create_ledger() as ledger:
            ledger.append(b"hello")

The event loop runs in one thread of its own; every call waits for its result there. Safe to share between threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from bookie.client import connect as asynchronous
from bookie.client.bookkeeper import LedgerOptions
from bookie.client.reader import LedgerReader
from bookie.client.settings import ClientSettings
from bookie.client.writer import LedgerWriter
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.packet import Entry

T = TypeVar("T")


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="bkheal-client", daemon=True)
        self._thread.start()

    @property
    def is_stopped(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """End the thread; calls that other threads still wait for are cancelled. Idempotent."""
        if not self.is_stopped:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_cancel_others())
        self._loop.close()


class SyncLedgerWriter:
    """See ``LedgerWriter``."""

    def __init__(self, loop: _Loop, writer: LedgerWriter) -> None:
        self._loop = loop
        self._writer = writer

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger being written."""
        return self._writer.ledger_id

    def append(self, payload: bytes) -> EntryId:
        """Append an entry and wait for its acknowledgement. Raises as ``LedgerWriter.append``."""
        return self._loop.run(self._writer.append(payload))

    def append_all(self, payloads: list[bytes]) -> list[EntryId]:
        """Append many entries through the pipeline and wait for all of them."""
        return self._loop.run(_append_all(self._writer, payloads))

    def close(self) -> LedgerMetadata:
        """Seal the ledger. Raises as ``LedgerWriter.close``."""
        return self._loop.run(self._writer.close())

    def __enter__(self) -> SyncLedgerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._writer.__aexit__(kind, error, trace))


class SyncLedgerReader:
    """See ``LedgerReader``."""

    def __init__(self, loop: _Loop, reader: LedgerReader) -> None:
        self._loop = loop
        self._reader = reader

    def last_entry_id(self) -> EntryId:
        """Last readable entry, inclusive; -1 for none."""
        return self._loop.run(self._reader.last_entry_id())

    def read(self, entry_id: EntryId) -> Entry:
        """Read one entry."""
        return self._loop.run(self._reader.read(entry_id))

    def read_all(self) -> Iterator[Entry]:
        """Every readable entry, in order, fetched in chunks."""
        last = self.last_entry_id()
        step = 512
        for first in range(0, last + 1, step):
            yield from self._loop.run(_collect(self._reader, first, min(last, first + step - 1)))


class SyncBookKeeper:
    """See ``BookKeeper``."""

    def __init__(self, loop: _Loop, client: asynchronous.ConnectedBookKeeper) -> None:
        self._loop = loop
        self._client = client

    def create_ledger(
        self,
        options: LedgerOptions = LedgerOptions(),  # noqa: B008 (an immutable value)
        *,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
    ) -> SyncLedgerWriter:
        """Create a ledger and return its writer. Raises as ``BookKeeper.create_ledger``."""
        work = self._client.create_ledger(options, password=password, custom=custom)
        return SyncLedgerWriter(self._loop, self._loop.run(work))

    def open_ledger(self, ledger_id: LedgerId, *, password: bytes | None = None) -> SyncLedgerReader:
        """Open a ledger for reading. Raises as ``BookKeeper.open_ledger``."""
        return SyncLedgerReader(self._loop, self._loop.run(self._client.open_ledger(ledger_id, password=password)))

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Delete a ledger's metadata. Idempotent."""
        self._loop.run(self._client.delete_ledger(ledger_id))

    def ledgers(self) -> list[LedgerId]:
        """Ids of all ledgers."""
        return self._loop.run(_ids(self._client))

    def close(self) -> None:
        """End every connection and the thread. Idempotent; calls that still wait in other threads are cancelled."""
        if self._loop.is_stopped:
            return
        try:
            self._loop.run(self._client.close())
        finally:
            self._loop.stop()

    def __enter__(self) -> SyncBookKeeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(metadata_uri: str, settings: ClientSettings | None = None) -> SyncBookKeeper:
    """Connect to a cluster. Raises as ``bookie.client.connect.connect``."""
    loop = _Loop()
    try:
        return SyncBookKeeper(loop, loop.run(asynchronous.connect(metadata_uri, settings)))
    except BaseException:
        loop.stop()
        raise


async def _append_all(writer: LedgerWriter, payloads: list[bytes]) -> list[EntryId]:
    return list(await asyncio.gather(*[await writer.submit(payload) for payload in payloads]))


async def _collect(reader: LedgerReader, first: int, last: int) -> list[Entry]:
    return [entry async for entry in reader.read_range(EntryId(first), EntryId(last))]


async def _ids(client: asynchronous.ConnectedBookKeeper) -> list[LedgerId]:
    return [ledger_id async for ledger_id in client.ledgers()]


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
