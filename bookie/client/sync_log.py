"""The synchronous face of logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType

from bookie.client.log.log import Log, LogInfo
from bookie.client.log.values import LogEntry, LogOptions, LogPosition
from bookie.client.log.writer import LogWriter
from bookie.client.writer_options import WriterOptions
from bookie.model.ids import LedgerId
from bookie.runtime.loop_thread import LoopThread


class SyncLogWriter:
    """See ``LogWriter``."""

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
        return self._loop.run(_append_all(self._writer, payloads))

    def roll(self) -> None:
        """Go on in a new ledger. Raises as ``LogWriter.roll``."""
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
    """See ``Log``.

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
        """Create the log, empty. Raises as ``Log.create``."""
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
        """Entries from ``first`` to the end as it is now. Raises as ``Log.read``."""
        return self._loop.iterate(self._log.read(first, password=password))

    def tail(
        self, first: LogPosition | None = None, *, password: bytes | None = None, poll_s: float | None = None
    ) -> Iterator[LogEntry]:
        """As ``read``, and then every entry as it is appended, without end. Raises as ``Log.tail``."""
        return self._loop.iterate(self._log.tail(first, password=password, poll_s=poll_s))

    def end(self) -> LogPosition | None:
        """Where the next readable entry will be. Raises as ``Log.end``."""
        return self._loop.run(self._log.end())

    def truncate(self, before: LogPosition) -> Sequence[LedgerId]:
        """Free whole ledgers before a position. Raises as ``Log.truncate``."""
        return self._loop.run(self._log.truncate(before))

    def delete(self) -> None:
        """Delete the log and its ledgers for good. Raises as ``Log.delete``."""
        self._loop.run(self._log.delete())

    def info(self) -> LogInfo:
        """What the log consists of. Raises as ``Log.info``."""
        return self._loop.run(self._log.info())


async def _append_all(writer: LogWriter, payloads: Iterable[bytes]) -> list[LogPosition]:
    return list(await asyncio.gather(*[await writer.submit(payload) for payload in payloads]))
