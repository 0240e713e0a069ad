"""The requests of Apache's protocol, decoded from both versions.

Adds and reads contain their dialect, for their answers. Requests that exist only in version 3 are answered in version
3. Tens of thousands arrive per second, so they are plain classes with slots: the creation of a frozen one would take
longer than decoding. They are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bookie.model.ids import EntryId, LedgerId
from bookie.wire.port import Status


class Dialect(Protocol):
    """One version of the protocol on one connection. Answers to adds and reads are frames; others are bodies."""

    def decode(self, body: bytes) -> Request:
        """Return the request in a frame.

        Raises:
            MalformedFrameError: the frame is not a request of this version.
        """
        ...

    def refused(self, accepted: bytes, status: Status) -> bytes:
        """Return the frame for ``status`` that replaces ``accepted``, the frame of a success."""
        ...

    def was_read(self, read: Read, status: Status, packet: bytes, known_lac: int | None) -> Sequence[bytes]:
        """Return the answer to a read as pieces of a frame. ``known_lac`` is None for errors and fencing."""
        ...


class AddKind(NamedTuple):
    """The common properties of adds in one batch."""

    dialect: Dialect
    stored_in: LedgerId
    """The ledger in the entry's header. If the entry is too short for one, it is the ledger in the request, and the
    storage refuses the entry."""
    master_key: bytes
    is_recovery: bool


@dataclass(slots=True)
class Add:
    """Store one entry. Its own header has the ids, which the request only repeats."""

    kind: AddKind = field(repr=False)
    packet: bytes = field(repr=False)
    accepted: bytes = field(repr=False)
    """The answer frame to send once the entry is stored."""


@dataclass(slots=True)
class Read:
    """Read one entry; id -1: the last one. With a ``fence_key``, fence the ledger first."""

    dialect: Dialect
    tag: int
    ledger_id: LedgerId
    entry_id: EntryId
    fence_key: bytes | None = field(repr=False)


@dataclass(slots=True)
class BatchRead:
    """Version 2: read consecutive entries from ``first`` on."""

    tag: int
    ledger_id: LedgerId
    first: EntryId
    request_id: int
    count_max: int
    """0 or less means any number."""
    bytes_max: int
    fence_key: bytes | None = field(repr=False)


@dataclass(slots=True)
class LongPoll:
    """Version 3: wait for a last add confirmed greater than ``beyond``, then read."""

    dialect: Dialect
    tag: int
    ledger_id: LedgerId
    entry_id: EntryId
    beyond: EntryId
    wait_s: float
    wants_entry: bool
    """True if the answer includes entry ``beyond + 1``; otherwise ``entry_id`` is read at the end of the wait."""


@dataclass(slots=True)
class ReadLac:
    """Version 3: return the known last add confirmed."""

    tag: int
    ledger_id: LedgerId


@dataclass(slots=True)
class WriteLac:
    """Version 3: store an explicit last add confirmed."""

    tag: int
    ledger_id: LedgerId
    master_key: bytes = field(repr=False)
    packet: bytes = field(repr=False)


@dataclass(slots=True)
class Info:
    """Version 3: return disk figures."""

    tag: int
    wants_total: bool
    wants_free: bool


@dataclass(slots=True)
class ListEntries:
    """Version 3: list the entries stored here."""

    tag: int
    ledger_id: LedgerId


@dataclass(slots=True)
class ImmediateAnswer:
    """A request that is answered without the storage."""

    answer: bytes = field(repr=False)


@dataclass(slots=True)
class StartTls:
    """Version 3: continue with TLS."""

    accepted: bytes = field(repr=False)
    refused: bytes = field(repr=False)


Other = Read | BatchRead | LongPoll | ReadLac | WriteLac | Info | ListEntries | ImmediateAnswer | StartTls
Request = Add | Other
