"""The transport port: the requests of any process to a bookie (``bookie.wire.requests``), over any protocol.

A failure of a bookie is a reply, not an exception: every call returns a reply with a ``Status``, even if there is no
answer. Only cancellation and our own bugs raise. A status is *absent* for exactly two values (safety rule S6):
corruption, limbo, refusal and a missing answer are all "unknown". Each reply belongs to its request (S18); adapters
match them and drop the rest. Every call has a deadline.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.add_wait import AddWait

BATCH_BYTES_MAX: Final = 1 << 20
"""Size at which a batch is complete. Its last entry may exceed this size."""
BATCH_ENTRIES_MAX: Final = 1024
READ_ENTRIES_MAX: Final = 4096
READ_BYTES_MAX: Final = 8 << 20
"""Bound of one read's answer; the client requests the rest again."""
JOINT_LEDGERS_MAX: Final = 64
"""Maximum number of ledgers whose lists, or whose entries, one call requests."""
SMALL_READ_BYTES: Final = 64 << 10
"""Largest answer of a read in a shared call: a call costs as much as this many bytes."""

_NO_ENTRIES: Final = EntryRuns(())


class Status(enum.IntEnum):
    """Outcome of a request to a bookie. Values below 100 are used on the wire."""

    OK = 0
    NO_ENTRY = 1
    """The ledger is known to this bookie, and the entry was never stored here."""
    NO_LEDGER = 2
    """The ledger is unknown to this bookie."""
    CORRUPT = 3
    """The entry was stored, but its bytes are damaged."""
    LIMBO = 4
    """This bookie lost a disk: it cannot determine whether it had the entry or the ledger."""
    FENCED = 5
    UNAUTHORIZED = 6
    READ_ONLY = 7
    TOO_MANY_REQUESTS = 8
    WRONG_INCARNATION = 9
    """The request was meant for other disks under the same bookie id."""
    IO_ERROR = 10
    BAD_REQUEST = 11
    SHUTTING_DOWN = 12
    UNREACHABLE = 100
    """No connection, or it broke: the request may or may not have taken effect."""
    TIMEOUT = 101
    """No answer within the deadline: the request may or may not have taken effect."""
    UNRESOLVED = 102
    """The bookie is not registered, or has no endpoint for this transport."""
    UNSUPPORTED = 103
    """The bookie works, but cannot answer this kind of request."""

    @property
    def is_absent(self) -> bool:
        """True if the bookie itself answers "never stored" (S6)."""
        return self in (Status.NO_ENTRY, Status.NO_LEDGER)


@dataclass(frozen=True, slots=True)
class AddBatch:
    """Entries of one ledger, in stored form, for one bookie. All are accepted, or none.

    Over Apache's protocol each entry is a separate request, so there a refused batch may have been stored in part.
    """

    ledger_id: LedgerId
    master_key: bytes = field(repr=False)
    entries: Sequence[bytes] = field(repr=False)
    is_recovery: bool = False
    """Whether the batch is accepted on a fenced ledger as well (S3)."""
    incarnation: str = ""
    """Disks for which the batch is meant (others answer WRONG_INCARNATION); empty for those registered now."""
    wait: AddWait | None = field(default=None, repr=False, compare=False)
    """Within a bookie: the wait before TOO_MANY_REQUESTS, if the ledger disk is behind. None: no wait. Never sent."""


@dataclass(frozen=True, slots=True)
class AddReply:
    """The reply to an add. OK only after every entry of the batch is durable on that bookie (S11)."""

    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EntryResult:
    """One entry's outcome; ``packet`` is the stored form, present exactly if the status is OK."""

    entry_id: EntryId
    status: Status
    packet: bytes = field(default=b"", repr=False)
    detail: str = ""
    """The reason, if more is known than the status."""


@dataclass(frozen=True, slots=True)
class ReadReply:
    """Results in the order asked, covering a prefix of the request.

    ``status`` is OK if each covered entry has its own result, which may be an error; otherwise the request as a whole
    failed after that prefix. If the status is OK and the prefix is shorter than the request, the answer reached its
    limit of bytes: request the rest again (at least one entry is always covered).
    """

    status: Status
    results: Sequence[EntryResult] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FenceReply:
    """The reply to a fence. OK only after the fence is durable. ``last_entry`` is the greatest stored entry, if any.

    An Apache bookie may have stored a greater one (R137).
    """

    status: Status
    last_entry: EntryResult | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LacReply:
    """A bookie's values for a ledger's last add confirmed. The client verifies all of them with the digest.

    OK if the bookie answered; ``explicit`` and ``last_entry`` are then its values, if any. The statuses for absent and
    LIMBO are those of reads; such a reply may also contain the existing entry.
    """

    status: Status
    explicit: bytes = field(default=b"", repr=False)
    """The newest explicit LAC, as ``packet.pack_lac`` made it; empty if there is none."""
    last_entry: EntryResult | None = None
    """The entry with the greatest id, whose header names a LAC; None if there is none. As in ``FenceReply``."""
    entry: EntryResult | None = None
    """The entry requested along with a long poll, if this bookie has it; else None."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ListReply:
    """The entries of one ledger that the bookie can serve."""

    status: Status
    entries: EntryRuns = _NO_ENTRIES
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CopyReply:
    """The progress of a bookie that copies entries from another one. The first ``covered`` entries have an outcome.

    Each covered entry is durable on the copying bookie, unless ``refusals`` names it. ``status`` is the status of the
    copying bookie: if it is not OK, this bookie could not store the entries after the covered ones. ``source`` is the
    status of the other bookie: if it is not OK, nothing is known about the entries after the covered ones (S6). With
    both OK, the remaining entries did not fit into one answer; request them again (at least one is always covered).
    """

    status: Status
    covered: int = 0
    stored_bytes: int = 0
    refusals: Sequence[EntryResult] = ()
    """Covered entries not stored, ascending: the source's answer, or CORRUPT with the reason."""
    source: Status = Status.OK
    source_detail: str = ""
    read_s: float = 0.0
    """The time until the answer of the source, in seconds."""
    detail: str = ""

    @property
    def stored_count(self) -> int:
        """The number of durable entries."""
        return self.covered - len(self.refusals)


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """State of a bookie. Disk figures are of the ledger directory, in bytes."""

    incarnation: str
    """Empty if the bookie reports none; the same holds for ``version``."""
    version: str
    is_read_only: bool
    """The bookie's own answer; False if it has none. The registration is authoritative."""
    disk_total_bytes: int
    disk_free_bytes: int
    ledger_count: int | None
    """None: unknown."""


@dataclass(frozen=True, slots=True)
class InfoReply:
    """The reply to a request for the state; ``info`` is present exactly if the status is OK."""

    status: Status
    info: BookieInfo | None = None
    detail: str = ""


class Reply(Protocol):
    """The common part of the replies to all requests."""

    @property
    def status(self) -> Status:
        """The outcome."""
        ...

    @property
    def detail(self) -> str:
        """The reason, if more is known than the status."""
        ...


ReplyT = TypeVar("ReplyT", bound=Reply)
_ReplyT_co = TypeVar("_ReplyT_co", bound=Reply, covariant=True)


class Failed(Protocol[_ReplyT_co]):
    """The constructor of a failed reply of one kind."""

    def __call__(self, status: Status, *, detail: str) -> _ReplyT_co:
        """Return the reply."""
        ...


class Request(ABC, Generic[_ReplyT_co]):
    """One request to a bookie, as a value (``bookie.wire.requests``), with the kind of its reply in its type."""

    __slots__ = ()

    @property
    @abstractmethod
    def failed(self) -> Failed[_ReplyT_co]:
        """The constructor of the reply to this request after it failed as a whole."""


class Transport(Protocol):
    """The requests to bookies. Adds to one bookie over one transport are delivered in the order of the calls."""

    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        """Store a batch of entries."""
        ...

    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        """Make any other request, and return the reply to it."""
        ...

    async def close(self) -> None:
        """Close every connection; outstanding calls answer UNREACHABLE."""
        ...
