"""A log: an endless sequence of entries under one name, stored in ledgers that are created and deleted over time.

log = client.log("orders")
async with await log.write() as writer:
    position = await writer.append(b"order 1")

async for entry in log.read():               # from the start to the current end
    print(entry.position, entry.payload)
async for entry in log.tail(position):       # continues with new entries, without end
    ...
await log.truncate(position)                 # frees whole ledgers before that position
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.client.log.reader import LogReader
from bookie.client.log.takeover import take_over
from bookie.client.log.trimming import delete_log, removable_ledgers, truncate
from bookie.client.log.values import InvalidLogOptionsError, LogEntry, LogOptions, LogPosition
from bookie.client.log.writer import LogWriter
from bookie.client.options import WriterOptions
from bookie.client.ports import ClientPorts
from bookie.client.reader.reader import open_reader
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.metadata.logs.log_store import LogLists, NoSuchLogError
from bookie.model.ids import EntryId, LedgerId

_TOKEN_BITS: Final = 128


@dataclass(frozen=True, slots=True)
class LogInfo:
    """The current composition of a log."""

    name: str
    options: LogOptions
    ctime_ms: int
    """Creation time, epoch milliseconds."""
    ledgers: tuple[Versioned | Unreadable, ...]
    """In order; ledgers deleted during the call are omitted.

    Only the last one may be open.
    """
    waiting_for_deletion: tuple[LedgerId, ...]
    """Ledgers removed from the log whose deletion was interrupted; the next writer or truncation completes it."""

    @property
    def first(self) -> LogPosition | None:
        """The first readable position; None for an empty log."""
        return LogPosition(self.ledgers[0].ledger_id, EntryId(0)) if self.ledgers else None


class Log:
    """A handle of one log. Get it from ``BookKeeper.log``; it is cheap and needs no closing."""

    def __init__(self, ports: ClientPorts, lists: LogLists, name: str) -> None:
        lists.path(name)
        self._ports = ports
        self._lists = lists
        self.name = name

    async def create(self, options: LogOptions | None = None) -> None:
        """Create an empty log; None for the default options. ``write`` also creates the log if it does not exist.

        Raises:
            LogExistsError: a log of this name already exists.
            InvalidQuorumError, InvalidLogOptionsError: impossible options.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer from the metadata store.
        """
        options = options or LogOptions()
        options.check()
        await self._lists.create(self.name, options.to_json(), self._ports.clock.epoch_ms(), self._token())

    async def write(
        self,
        options: LogOptions | None = None,
        *,
        password: bytes = b"",
        writer_options: WriterOptions | None = None,
        is_created: bool = True,
    ) -> LogWriter:
        """Become the log's writer. A former writer, dead or alive, is deposed and its ledger is closed.

        Nothing acknowledged to the former writer is lost; its appends under way may or may not be part of the log.

        Args:
            options: how to create ledgers from now on; None for the options stored with the log.
            password: the password of the ledgers, see ``BookKeeper.create_ledger``.
            writer_options: the options of the ledgers' writers.
            is_created: whether to create the log if it does not exist; if false, a missing log is an error.

        Raises:
            NoSuchLogError: there is no such log, and ``is_created`` is false.
            InvalidQuorumError, InvalidLogOptionsError, InvalidWriterOptionsError: impossible options.
            NotEnoughBookiesError: too few writable bookies for a new ledger; nothing was changed.
            RecoveryNotPossibleError: the last ledger cannot be closed now; try again when its bookies are back.
            LogFullError: the log's list of ledgers is full; truncate it.
            LogConflictError: other writers keep taking over the log.
            StoreUnavailableError, OutcomeUnknownError: no answer from the metadata store; try again.
        """
        if options is not None:
            options.check()
        if writer_options is not None:
            writer_options.check()
            if writer_options.has_own_entry_ids:
                raise InvalidLogOptionsError("a log numbers its entries itself: write without has_own_entry_ids")
        author, listed, writer = await take_over(
            self._ports,
            self._lists,
            self.name,
            token=self._token(),
            options=options,
            password=password,
            writer_options=writer_options or WriterOptions(),
            is_created=is_created,
        )
        return LogWriter(author, listed, writer)

    def read(
        self, first: LogPosition | None = None, *, password: bytes | None = None
    ) -> AsyncGenerator[LogEntry, None]:
        """Yield the entries from ``first`` (None: the start) to the current end, in order.

        Args:
            first: the start; ``position.following()`` of the last entry read continues after it.
            password: the password of the ledgers; None for the stored one.

        Raises:
            NoSuchLogError: there is no such log.
            LogTruncatedError: the position was truncated; ``error.first`` is the new start of the log.
            InvalidPositionError: the log never had that ledger.
            WrongPasswordError: the password is not the ledgers'.
            EntryUnavailableError, EntryLostError: see ``LedgerReader.read``; the entries yielded before are valid.
            StoreUnavailableError: no answer from the metadata store.
        """
        return LogReader(self._ports, self._lists, self.name, password).read(first)

    def tail(
        self, first: LogPosition | None = None, *, password: bytes | None = None, poll_s: float | None = None
    ) -> AsyncGenerator[LogEntry, None]:
        """As ``read``, and then yield each new entry as it is appended, across roll-overs and takeovers, without end.

        The newest entries become readable with the entries after them, or with explicit confirmations
        (``WriterOptions.explicit_lac_interval_s``), and at the latest when their ledger is closed. After the generator
        is closed (``contextlib.aclosing``), nothing runs in the background any more.

        Args:
            first: the start; None for the start of the log.
            password: the password of the ledgers; None for the stored one.
            poll_s: see ``LedgerReader.tail``.

        Raises:
            InvalidPollError: see ``LedgerReader.tail``.
            NoSuchLogError: there is no such log, or it was deleted.
            LogTruncatedError, InvalidPositionError, WrongPasswordError, EntryUnavailableError, EntryLostError: see
                ``read``.
            StoreUnavailableError: the metadata store did not answer for a minute.
        """
        return LogReader(self._ports, self._lists, self.name, password).tail(first, poll_s)

    async def end(self) -> LogPosition | None:
        """Return the position of the next entry that becomes readable: ``tail`` from it yields only new entries.

        The result is None for an empty log.

        Raises:
            NoSuchLogError: there is no such log.
            EntryUnavailableError: the last ledger is open, and no bookie answers.
            StoreUnavailableError: no answer from the metadata store.
        """
        listed = await self._lists.read(self.name, is_newest=True)
        if listed.list.last is None:
            return None
        reader = open_reader(self._ports, await self._ports.ledgers.read(listed.list.last), None)
        return LogPosition(listed.list.last, EntryId(await reader.last_entry_id() + 1))

    async def truncate(self, before: LogPosition) -> Sequence[LedgerId]:
        """Delete the entries before ``before``, in whole ledgers, and return the removed ledgers.

        The ledger of ``before`` is kept as a whole, and so is the last one. Bookies free the space in their next
        collection. Truncation is safe while the log is written and read.

        Raises:
            NoSuchLogError: there is no such log.
            InvalidPositionError: the log never had that ledger.
            LogConflictError, OutcomeUnknownError, StoreUnavailableError: truncate again.
        """
        return await truncate(self._ports, self._lists, self.name, before)

    async def removable(self, before: LogPosition) -> Sequence[LedgerId]:
        """Return the ledgers that ``truncate(before)`` would remove now. Nothing is changed.

        Raises:
            NoSuchLogError: there is no such log.
            InvalidPositionError: the log never had that ledger.
            StoreUnavailableError: no answer from the metadata store.
        """
        listed = await self._lists.read(self.name, is_newest=True)
        return removable_ledgers(self.name, listed.list, before)

    async def exists(self) -> bool:
        """Whether there is such a log, by a read that is not outdated.

        Raises:
            StoreUnavailableError: no answer from the metadata store.
        """
        try:
            await self._lists.read(self.name, is_newest=True)
        except NoSuchLogError:
            return False
        return True

    async def delete(self) -> None:
        """Delete the log and all its ledgers permanently; its writer is deposed.

        Raises:
            NoSuchLogError: there is no such log.
            RecoveryNotPossibleError: the log was deleted, but its last ledger cannot be fenced now; delete it again.
            LogConflictError, OutcomeUnknownError, StoreUnavailableError: delete it again.
        """
        await delete_log(self._ports, self._lists, self.name)

    async def info(self) -> LogInfo:
        """Return the current composition of the log.

        Raises:
            NoSuchLogError: there is no such log.
            AccessDeniedError: this session may read the metadata of none of its ledgers, if there are several.
            StoreUnavailableError: no answer from the metadata store.
        """
        listed = await self._lists.read(self.name)
        found = await self._ports.ledgers.read_many_permitted(listed.list.ledgers)
        return LogInfo(
            self.name,
            LogOptions.from_json(listed.list.options),
            listed.list.ctime_ms,
            tuple(ledger for ledger in found if ledger is not None),
            listed.list.trimming,
        )

    def _token(self) -> str:
        return f"{self._ports.rng.getrandbits(_TOKEN_BITS):032x}"
