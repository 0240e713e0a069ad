"""What a client of Apache's protocol may ask, as values that both versions of the protocol decode to.

Adds and reads carry the dialect that they came in, which is how they are answered; what only version 3 can ask is
answered in version 3. They come by the ten thousand each second, so they are plain classes with slots: freezing one
would cost more than decoding it. They are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bookie.model.ids import EntryId, LedgerId
from bookie.wire.port import Status


class Dialect(Protocol):
    """One version of the protocol on one connection. Adds and reads are answered with frames, the rest with bodies."""

    def decode(self, body: bytes) -> Request:
        """What a frame asks for.

        Raises:
            MalformedFrameError: it is not a request of this version.
        """
        ...

    def refused(self, accepted: bytes, status: Status) -> bytes:
        """The frame of ``status``, if ``accepted`` would have been the frame of a success."""
        ...

    def was_read(self, read: Read, status: Status, packet: bytes, known_lac: int | None) -> Sequence[bytes]:
        """The pieces of the frame that answers a read; ``known_lac`` is None if there is none (errors, fencing)."""
        ...


class AddKind(NamedTuple):
    """What adds that are stored together have in common."""

    dialect: Dialect
    stored_in: LedgerId
    """Ledger in the entry's header; the one beside it for an entry too short to have one, which the storage refuses."""
    master_key: bytes
    is_recovery: bool


@dataclass(slots=True)
class Add:
    """Store one entry. Its own header has its ids; the ids beside it are only repeated."""

    kind: AddKind = field(repr=False)
    packet: bytes = field(repr=False)
    accepted: bytes = field(repr=False)
    """The frame that is answered once it is stored."""


@dataclass(slots=True)
class Read:
    """Read one entry, -1 for the last one, after fencing the ledger if there is a ``fence_key``."""

    dialect: Dialect
    tag: int
    ledger_id: LedgerId
    entry_id: EntryId
    fence_key: bytes | None = field(repr=False)


@dataclass(slots=True)
class BatchRead:
    """Version 2's: entries without gaps from ``first`` on."""

    tag: int
    ledger_id: LedgerId
    first: EntryId
    request_id: int
    count_max: int
    """0 or less: any."""
    bytes_max: int
    fence_key: bytes | None = field(repr=False)


@dataclass(slots=True)
class LongPoll:
    """Version 3's: wait for a last add confirmed beyond one, then read."""

    dialect: Dialect
    tag: int
    ledger_id: LedgerId
    entry_id: EntryId
    beyond: EntryId
    wait_s: float
    wants_entry: bool
    """True if entry ``beyond + 1`` belongs to the answer; otherwise ``entry_id`` is read at the end of the wait."""


@dataclass(slots=True)
class ReadLac:
    """Version 3's: what is known of the last add confirmed."""

    tag: int
    ledger_id: LedgerId


@dataclass(slots=True)
class WriteLac:
    """Version 3's: an explicit last add confirmed."""

    tag: int
    ledger_id: LedgerId
    master_key: bytes = field(repr=False)
    packet: bytes = field(repr=False)


@dataclass(slots=True)
class Info:
    """Version 3's: disk figures."""

    tag: int
    wants_total: bool
    wants_free: bool


@dataclass(slots=True)
class ListEntries:
    """Version 3's: which entries are here."""

    tag: int
    ledger_id: LedgerId


@dataclass(slots=True)
class Answered:
    """A request whose answer needs nothing of the storage."""

    answer: bytes = field(repr=False)


@dataclass(slots=True)
class StartTls:
    """Version 3's: go on encrypted."""

    accepted: bytes = field(repr=False)
    refused: bytes = field(repr=False)


Other = Read | BatchRead | LongPoll | ReadLac | WriteLac | Info | ListEntries | Answered | StartTls
Request = Add | Other
