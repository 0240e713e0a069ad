"""The main interface of the ledger client: create, open, recover, delete and list ledgers, and logs made of them.

async with await connect("zk+hierarchical://localhost:2181/ledgers") as client:
    async with client.create_ledger(LedgerOptions(3, 3, 2)) as ledger:
        entry_id = await ledger.append(b"hello")

    reader = await client.open_ledger(ledger.ledger_id)
    async for entry in reader.read_all():
        print(entry.entry_id, entry.payload)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

from bookie.client.access import stored_digest
from bookie.client.ledger_filter import LedgerFilter
from bookie.client.log.log import Log
from bookie.client.options import InvalidQuorumError, LedgerOptions, WriterOptions
from bookie.client.ports import ClientPorts
from bookie.client.reader.reader import LedgerReader, ledger_to_read, open_reader
from bookie.client.recovery.recovery import recover_ledger
from bookie.client.writer.creation import LedgerCreation, create_planned, plan_ledger, start_writer
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.metadata.logs.log_store import LogLists
from bookie.model.ids import NO_ENTRY, BookieId, LedgerId
from bookie.model.metadata import DigestType, LedgerMetadata, LedgerState

__all__ = ["BookKeeper", "InvalidQuorumError", "LedgerOptions", "readable_entries", "stored_digest"]

_SCAN_LEDGERS: Final = 500
"""Number of ledgers whose metadata a listing reads at once."""


class BookKeeper:
    """A client of one cluster, on the given ports. ``bookie.client.connect.connect`` creates one.

    ==================  ==========================================================
    ``create_ledger``   a new ledger, and its writer
    ``open_ledger``     a reader; with ``recover=True`` also for a ledger whose writer is dead
    ``recover_ledger``  fence the writer and close the ledger
    ``delete_ledger``   permanently
    ``ledgers``         ids of ledgers, filtered
    ``scan_ledgers``    the same, with their metadata
    ``log``             an endless log made of ledgers: append, read, tail, truncate
    ``logs``            names of all logs
    ==================  ==========================================================
    """

    def __init__(self, ports: ClientPorts) -> None:
        self.ports = ports

    def create_ledger(
        self,
        options: LedgerOptions | None = None,
        *,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        writer_options: WriterOptions | None = None,
    ) -> LedgerCreation:
        """Create a ledger. Await the result for its writer, or use it as an async context that closes the ledger.

        Example::

            async with client.create_ledger(LedgerOptions(3, 3, 2), custom={"app": b"shop"}) as ledger:
                first = await ledger.append(b"one")                       # durable on two bookies
                futures = [await ledger.submit(line) for line in lines]   # a pipeline: do not wait for each
                ids = [await future for future in futures]

        Args:
            options: the numbers of bookies, copies and durable copies, and the digest; None for the defaults.
            password: needed to write the ledger, and to read it with ``open_ledger(password=...)``. It is stored in the
                cluster's metadata, as BookKeeper does: it prevents mistakes, not access by administrators.
            custom: the application's own metadata of the ledger; ``scan_ledgers`` filters by it.
            writer_options: see ``WriterOptions``; None for the defaults.

        Raises:
            InvalidQuorumError, InvalidWriterOptionsError: impossible options; nothing was created.
            NotEnoughBookiesError: too few writable bookies; the text contains the number missing. Nothing was created.
            LedgerExistsError: a thousand ids in a row are taken; create it again to try the ids after them.
            StoreUnavailableError: no answer from the metadata store.
            WriteOutcomeUnknownError: the store's answers were lost; a ledger without entries may have been created.
        """

        async def create() -> LedgerWriter:
            of_writer = writer_options or WriterOptions()
            of_writer.check()
            plan = await plan_ledger(self.ports, options or LedgerOptions(), password, custom or {})
            plan, ledger = await create_planned(self.ports, plan)
            return start_writer(self.ports, plan, ledger, password, of_writer)

        return LedgerCreation(create)

    async def open_ledger(
        self,
        ledger_id: LedgerId,
        *,
        password: bytes | None = None,
        digest_type: DigestType | None = None,
        recover: bool = False,
    ) -> LedgerReader:
        """Open a ledger for reading.

        An open ledger can be read and tailed while it is written. If its writer is dead, the end of the ledger is
        undecided: ``recover=True`` decides it, and prevents a writer that is still alive from adding entries.

        Example::

            reader = await client.open_ledger(ledger_id, password=b"secret")
            entry = await reader.read(0)
            async for entry in reader.read_all(): ...
            async for entry in reader.tail(0): ...      # follows the writer until the ledger is closed

        Args:
            ledger_id: the ledger to open.
            password: the password with which it was created; None for the stored one (administration).
            digest_type: the type that the caller expects; None accepts the type in the metadata.
            recover: whether to recover it first, see ``recover_ledger``.

        Raises:
            NoSuchLedgerError: there is no such ledger.
            WrongPasswordError: the password is not the ledger's.
            WrongDigestTypeError: it has another digest type.
            UnreadableMetadataError: its metadata cannot be decoded.
            StoreUnavailableError: no answer from the metadata store.
        """
        ledger = await ledger_to_read(self.ports, ledger_id)
        reader = open_reader(self.ports, ledger, password, digest_type)
        if recover and not ledger.metadata.is_closed:
            ledger = await recover_ledger(self.ports, ledger_id, password)
            reader = open_reader(self.ports, ledger, password)
        return reader

    async def recover_ledger(self, ledger_id: LedgerId, *, password: bytes | None = None) -> LedgerMetadata:
        """Fence the writer of a ledger, find the end, close the ledger, and return the final metadata.

        Every acknowledged entry is kept. A recovery is safe at any time, also while others recover the same ledger. A
        closed ledger is not changed.

        Raises:
            NoSuchLedgerError: there is no such ledger.
            WrongPasswordError: the password is not the ledger's.
            RecoveryNotPossibleError: too few bookies answer to find the end; recover again when they are back.
            OutcomeUnknownError: the answer of the metadata store was lost; recover again.
            StoreUnavailableError: no answer from the metadata store.
        """
        return (await recover_ledger(self.ports, ledger_id, password)).metadata

    async def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Delete a ledger's metadata permanently. Idempotent. Bookies delete its entries in their next collection.

        Raises:
            WriteOutcomeUnknownError: answers were lost; delete the ledger again.
            StoreUnavailableError: no answer; nothing was changed.
        """
        await self.ports.ledgers.delete(ledger_id)

    async def ledgers(
        self,
        *,
        state: LedgerState | None = None,
        bookie: BookieId | None = None,
        custom: Mapping[str, bytes | None] | None = None,
        created_after_ms: int | None = None,
        created_before_ms: int | None = None,
        id_prefix: str = "",
        limit: int | None = None,
    ) -> AsyncGenerator[LedgerId, None]:
        """Yield the ids of the ledgers that match every given condition, ascending; all ids without conditions.

        Example::

            async for ledger_id in client.ledgers(state=LedgerState.OPEN, custom={"app": b"shop"}): ...

        Args:
            state: open, in recovery, or closed.
            bookie: a bookie that some fragment names.
            custom: required keys of the custom metadata, with their values; None for any value.
            created_after_ms: earliest creation time, inclusive, epoch milliseconds.
            created_before_ms: end of the creation times, exclusive, epoch milliseconds.
            id_prefix: first digits of the id.
            limit: maximum number of ids.

        Raises:
            AccessDeniedError: see ``scan_ledgers``.
            StoreUnavailableError: no answer from the metadata store.
        """
        where = LedgerFilter(
            states=None if state is None else frozenset({state}),
            bookie=bookie,
            custom=custom or {},
            created_after_ms=created_after_ms,
            created_before_ms=created_before_ms,
            id_prefix=id_prefix,
        )
        count = 0
        if where.needs_metadata:
            async for item in self.scan_ledgers(where, limit=limit):
                if isinstance(item, Versioned):
                    yield item.ledger_id
            return
        if limit is not None and limit <= 0:
            return
        async for ledger_id in self.ports.ledgers.ids():
            if where.matches_id(ledger_id):
                yield ledger_id
                count += 1
                if count == limit:
                    return

    async def scan_ledgers(
        self, where: LedgerFilter | None = None, *, limit: int | None = None
    ) -> AsyncGenerator[Versioned | Unreadable, None]:
        """Yield the matching ledgers with their metadata, ascending by id.

        Ledgers with unreadable metadata are included only if there are no conditions. The result is not a snapshot:
        ledgers created or deleted during the scan may or may not be included. Metadata that this session may not read
        counts as unreadable.

        Raises:
            AccessDeniedError: this session may read the metadata of no ledger of a part of the scan.
            StoreUnavailableError: no answer from the metadata store.
        """
        where = where or LedgerFilter()
        left = limit
        batch: list[LedgerId] = []
        async for ledger_id in self.ports.ledgers.ids():
            if left is not None and left <= 0:
                return
            if where.matches_id(ledger_id):
                batch.append(ledger_id)
            size = _SCAN_LEDGERS if left is None or where.needs_metadata else min(left, _SCAN_LEDGERS)
            if len(batch) >= size:
                for item in await self._read_matching(batch, where):
                    yield item
                    left = None if left is None else left - 1
                    if left == 0:
                        return
                batch = []
        for item in (await self._read_matching(batch, where))[:left]:
            yield item

    def log(self, name: str) -> Log:
        """Return a handle of the log ``name``; nothing is read or written yet. See ``Log``.

        Example::

            async with await client.log("orders").write() as log:     # created if it does not exist
                position = await log.append(b"order 1")
            async for entry in client.log("orders").read(): ...

        Raises:
            InvalidLogNameError: no log can have this name.
        """
        return Log(self.ports, self._logs(), name)

    async def logs(self) -> Sequence[str]:
        """Return the names of all logs, sorted.

        Raises:
            StoreUnavailableError: no answer from the metadata store.
        """
        return await self._logs().names()

    async def _read_matching(self, ids: Sequence[LedgerId], where: LedgerFilter) -> list[Versioned | Unreadable]:
        matching: list[Versioned | Unreadable] = []
        for item in await self.ports.ledgers.read_many_permitted(ids):
            if isinstance(item, Unreadable):
                if not where.needs_metadata:
                    matching.append(item)
            elif item is not None and where.matches(item.metadata):
                matching.append(item)
        return matching

    def _logs(self) -> LogLists:
        assert self.ports.logs is not None, "this client was made without the port for logs"
        return self.ports.logs


def readable_entries(metadata: LedgerMetadata) -> int:
    """Return the number of entries in a closed ledger; 0 if the end is unknown."""
    return (metadata.last_entry_id if metadata.last_entry_id is not None else NO_ENTRY) + 1
