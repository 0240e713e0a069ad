"""The synchronous client, for programs without an event loop.

    from bookie.client import sync

    with sync.connect("zk+hierarchical://localhost:2181/ledgers") as client:
        with client.create_ledger() as ledger:
            ledger.append(b"hello")
        for entry in client.open_ledger(ledger.ledger_id).read_all():
            print(entry.payload)

The event loop runs in a thread of its own, and every call waits for its result. A client can be shared by threads.
Iterables that are passed to a call are read in the caller's thread.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from bookie.client import connect as asynchronous
from bookie.client.ledger_filter import LedgerFilter
from bookie.client.log.log import Log, LogInfo
from bookie.client.log.values import LogEntry, LogOptions, LogPosition
from bookie.client.log.writer import LogWriter
from bookie.client.options import LedgerOptions, WriterOptions
from bookie.client.reader.reader import LedgerReader
from bookie.client.settings import ClientSettings
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import DigestType, LedgerMetadata
from bookie.model.packet import Entry
from bookie.runtime.loop_thread import LoopThread, Started

_PositionT = TypeVar("_PositionT")

_WAITING_ENTRIES_MAX: Final = 512
_WAITING_BYTES_MAX: Final = 4 << 20
"""Maximum entries, and maximum bytes, of ``append_all`` that wait for room in the pipeline of the writer."""


class SyncLogWriter:
    """A ``LogWriter`` without ``async``."""

    def __init__(self, loop: LoopThread, writer: LogWriter) -> None:
        self._loop = loop
        self._writer = writer

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger being written now."""
        return self._writer.ledger_id

    def append(self, payload: bytes) -> LogPosition:
        """Append an entry and wait for its acknowledgement. Raises as ``LogWriter.append``."""
        return self._loop.run(self._writer.append(payload))

    def append_all(self, payloads: Iterable[bytes]) -> list[LogPosition]:
        """Append many entries through the pipeline and wait for all of them. Raises as ``LogWriter.append``."""
        return _append_all(self._loop, self._writer, payloads)

    def roll(self) -> None:
        """Continue in a new ledger. Raises as ``LogWriter.roll``."""
        self._loop.run(self._writer.roll())

    def close(self) -> None:
        """Close the ledger being written. Raises as ``LogWriter.close``."""
        self._loop.run(self._writer.close())

    def __enter__(self) -> SyncLogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._writer.__aexit__(kind, error, trace))


class SyncLog:
    """A ``Log`` without ``async``.

    Example::

        log = client.log("orders")
        with log.write() as writer:
            position = writer.append(b"order 1")
        for entry in log.read(): ...
    """

    def __init__(self, loop: LoopThread, log: Log) -> None:
        self._loop = loop
        self._log = log

    @property
    def name(self) -> str:
        """The log's name."""
        return self._log.name

    def create(self, options: LogOptions | None = None) -> None:
        """Create an empty log. Raises as ``Log.create``."""
        self._loop.run(self._log.create(options))

    def write(
        self,
        options: LogOptions | None = None,
        *,
        password: bytes = b"",
        writer_options: WriterOptions | None = None,
        is_created: bool = True,
    ) -> SyncLogWriter:
        """Become the log's writer. Raises as ``Log.write``."""
        work = self._log.write(options, password=password, writer_options=writer_options, is_created=is_created)
        return SyncLogWriter(self._loop, self._loop.run(work))

    def read(self, first: LogPosition | None = None, *, password: bytes | None = None) -> Iterator[LogEntry]:
        """Yield the entries from ``first`` to the current end. Raises as ``Log.read``."""
        return self._loop.iterate(self._log.read(first, password=password), _payload_bytes)

    def tail(
        self, first: LogPosition | None = None, *, password: bytes | None = None, poll_s: float | None = None
    ) -> Iterator[LogEntry]:
        """As ``read``, and then yield each new entry as it is appended, without end. Raises as ``Log.tail``."""
        return self._loop.iterate(self._log.tail(first, password=password, poll_s=poll_s), _payload_bytes)

    def end(self) -> LogPosition | None:
        """Return the position of the next entry that becomes readable. Raises as ``Log.end``."""
        return self._loop.run(self._log.end())

    def truncate(self, before: LogPosition) -> Sequence[LedgerId]:
        """Delete whole ledgers before a position. Raises as ``Log.truncate``."""
        return self._loop.run(self._log.truncate(before))

    def delete(self) -> None:
        """Delete the log and its ledgers permanently. Raises as ``Log.delete``."""
        self._loop.run(self._log.delete())

    def info(self) -> LogInfo:
        """Return the current composition of the log. Raises as ``Log.info``."""
        return self._loop.run(self._log.info())


class _Submitter(Protocol[_PositionT]):
    def submit(self, payload: bytes) -> Coroutine[Any, Any, asyncio.Future[_PositionT]]: ...


def _append_all(loop: LoopThread, writer: _Submitter[_PositionT], payloads: Iterable[bytes]) -> list[_PositionT]:
    """Append each entry as soon as ``payloads`` yields it in this thread. The iterable may wait and use this client."""
    admitted: collections.deque[tuple[int, Started[asyncio.Future[_PositionT]]]] = collections.deque()
    acknowledgements: list[asyncio.Future[_PositionT]] = []
    waiting_bytes = 0
    for payload in payloads:
        admitted.append((len(payload), loop.start(writer.submit(payload))))
        waiting_bytes += len(payload)
        while len(admitted) > _WAITING_ENTRIES_MAX or waiting_bytes > _WAITING_BYTES_MAX:
            size, future = admitted.popleft()
            acknowledgements.append(future.result())
            waiting_bytes -= size
    acknowledgements += [future.result() for _, future in admitted]
    return loop.run(_acknowledged(acknowledgements))


async def _acknowledged(acknowledgements: Iterable[asyncio.Future[_PositionT]]) -> list[_PositionT]:
    return list(await asyncio.gather(*acknowledgements))


def _payload_bytes(entry: Entry | LogEntry) -> int:
    return len(entry.payload)


class SyncLedgerWriter:
    """A ``LedgerWriter`` without ``async``."""

    def __init__(self, loop: LoopThread, writer: LedgerWriter) -> None:
        self._loop = loop
        self._writer = writer

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger being written."""
        return self._writer.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this writer last stored or read it."""
        return self._writer.metadata

    def append(self, payload: bytes) -> EntryId:
        """Append an entry and wait for its acknowledgement. Raises as ``LedgerWriter.append``."""
        return self._loop.run(self._writer.append(payload))

    def append_all(self, payloads: Iterable[bytes]) -> list[EntryId]:
        """Append many entries through the pipeline and wait for all of them. Raises as ``LedgerWriter.append``."""
        return _append_all(self._loop, self._writer, payloads)

    def append_at(self, entry_id: EntryId, payload: bytes) -> EntryId:
        """Append an entry with an id chosen by the caller. Raises as ``LedgerWriter.append_at``."""
        return self._loop.run(self._writer.append_at(entry_id, payload))

    def close(self) -> LedgerMetadata:
        """Close the ledger. Raises as ``LedgerWriter.close``."""
        return self._loop.run(self._writer.close())

    def __enter__(self) -> SyncLedgerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._writer.__aexit__(kind, error, trace))


class SyncLedgerReader:
    """A ``LedgerReader`` without ``async``."""

    def __init__(self, loop: LoopThread, reader: LedgerReader) -> None:
        self._loop = loop
        self._reader = reader

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger being read."""
        return self._reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata that this reader uses: state, shape, custom metadata, ..."""
        return self._reader.metadata

    def last_entry_id(self) -> EntryId:
        """Return the last readable entry, inclusive; -1 for none."""
        return self._loop.run(self._reader.last_entry_id())

    def refresh(self) -> EntryId:
        """Read the metadata again and return the last readable entry."""
        return self._loop.run(self._reader.refresh())

    def read(self, entry_id: EntryId) -> Entry:
        """Read one entry. Raises as ``LedgerReader.read``."""
        return self._loop.run(self._reader.read(entry_id))

    def read_range(self, first: EntryId, last: EntryId) -> Iterator[Entry]:
        """Yield the entries ``first`` to ``last``, inclusive, in order. Raises as ``LedgerReader.read_range``."""
        return self._loop.iterate(self._reader.read_range(first, last), _payload_bytes)

    def read_all(self) -> Iterator[Entry]:
        """Yield every readable entry, in order."""
        return self._loop.iterate(self._reader.read_all(), _payload_bytes)

    def tail(self, first: EntryId = EntryId(0), *, poll_s: float | None = None) -> Iterator[Entry]:  # noqa: B008
        """Yield the entries from ``first`` on as they become readable, until the end of the closed ledger."""
        return self._loop.iterate(self._reader.tail(first, poll_s=poll_s), _payload_bytes)


class SyncBookKeeper:
    """A ``BookKeeper`` without ``async``. Get it from ``connect``."""

    def __init__(self, loop: LoopThread, client: asynchronous.ConnectedBookKeeper) -> None:
        self._loop = loop
        self._client = client

    def create_ledger(
        self,
        options: LedgerOptions | None = None,
        *,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        writer_options: WriterOptions | None = None,
    ) -> SyncLedgerWriter:
        """Create a ledger and return its writer. Raises as ``BookKeeper.create_ledger``."""

        async def create() -> LedgerWriter:
            return await self._client.create_ledger(
                options, password=password, custom=custom, writer_options=writer_options
            )

        return SyncLedgerWriter(self._loop, self._loop.run(create()))

    def open_ledger(
        self,
        ledger_id: LedgerId,
        *,
        password: bytes | None = None,
        digest_type: DigestType | None = None,
        recover: bool = False,
    ) -> SyncLedgerReader:
        """Open a ledger for reading. Raises as ``BookKeeper.open_ledger``."""
        work = self._client.open_ledger(ledger_id, password=password, digest_type=digest_type, recover=recover)
        return SyncLedgerReader(self._loop, self._loop.run(work))

    def recover_ledger(self, ledger_id: LedgerId, *, password: bytes | None = None) -> LedgerMetadata:
        """Fence the ledger's writer, and close the ledger. Raises as ``BookKeeper.recover_ledger``."""
        return self._loop.run(self._client.recover_ledger(ledger_id, password=password))

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Delete a ledger's metadata. Idempotent. Raises as ``BookKeeper.delete_ledger``."""
        self._loop.run(self._client.delete_ledger(ledger_id))

    def ledgers(self, **conditions: Any) -> list[LedgerId]:
        """Return the ids of ledgers; the conditions are those of ``BookKeeper.ledgers``."""
        return list(self._loop.iterate(self._client.ledgers(**conditions)))

    def scan_ledgers(
        self, where: LedgerFilter | None = None, *, limit: int | None = None
    ) -> Iterator[Versioned | Unreadable]:
        """Yield ledgers with their metadata. Raises as ``BookKeeper.scan_ledgers``."""
        return self._loop.iterate(self._client.scan_ledgers(where, limit=limit))

    def log(self, name: str) -> SyncLog:
        """Return a handle of the log ``name``. Raises as ``BookKeeper.log``."""
        return SyncLog(self._loop, self._client.log(name))

    def logs(self) -> Sequence[str]:
        """Return the names of all logs, sorted."""
        return self._loop.run(self._client.logs())

    def close(self) -> None:
        """Close every connection and stop the thread. Idempotent; calls that wait in other threads are cancelled."""
        self._loop.end(self._client.close)

    def __enter__(self) -> SyncBookKeeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(metadata_uri: str, settings: ClientSettings | None = None, **options: Any) -> SyncBookKeeper:
    """Connect to a cluster; arguments and errors are those of ``bookie.client.connect.connect``."""
    loop = LoopThread()
    try:
        return SyncBookKeeper(loop, loop.run(asynchronous.connect(metadata_uri, settings, **options)))
    except BaseException:
        loop.stop()
        raise
