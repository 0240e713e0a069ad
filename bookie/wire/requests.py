"""Every request to a bookie but adds, as a value: what is asked, and what the reply to it promises.

A client makes one with ``Transport.ask``; the bookie answers it with ``BookieHandler.answer``. Whatever treats all of
them alike (routing, measuring, faults) has one method for all; only the codecs and the bookie itself distinguish them.
Adds are apart, as a stream in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.wire.port import (
    AddReply,
    CopyReply,
    EntryResult,
    FenceReply,
    InfoReply,
    LacReply,
    ListReply,
    ReadReply,
    ReplyT,
    Request,
)


@dataclass(frozen=True, slots=True)
class Read(Request[ReadReply]):
    """Read entries. The answer holds at most ``READ_BYTES_MAX`` bytes and one entry more."""

    ledger_id: LedgerId
    entry_ids: Sequence[EntryId]
    """At most ``READ_ENTRIES_MAX``, ascending."""
    fence_key: bytes | None = field(default=None, repr=False)
    """With the master key, the ledger is durably fenced before anything is read, as by ``Fence``.

    A wrong key answers UNAUTHORIZED.
    """
    is_small: bool = False
    """Whether the caller expects an answer of ``SMALL_READ_BYTES`` at most, so that it may share a call with others."""
    failed: ClassVar = ReadReply

    @property
    def is_urgent(self) -> bool:
        """Whether it goes before other reads: those that fence are a recovery's."""
        return self.fence_key is not None


@dataclass(frozen=True, slots=True)
class ReadLast(Request[ReadReply]):
    """Read the entry with the greatest id that the bookie holds; one result, its true id in it."""

    ledger_id: LedgerId
    failed: ClassVar = ReadReply


@dataclass(frozen=True, slots=True)
class Fence(Request[FenceReply]):
    """Refuse every later add without the recovery flag, permanently; creates an unknown ledger.

    A read-only bookie fences as well: that takes bytes, not kilobytes.
    """

    ledger_id: LedgerId
    master_key: bytes = field(repr=False)
    failed: ClassVar = FenceReply


@dataclass(frozen=True, slots=True)
class ReadLac(Request[LacReply]):
    """Ask what the bookie knows of the last add confirmed; never fences."""

    ledger_id: LedgerId
    failed: ClassVar = LacReply


@dataclass(frozen=True, slots=True)
class WaitLac(Request[LacReply]):
    """Long poll: answered as soon as the answer shows a last add confirmed greater than ``beyond``.

    ``LacReply.entry`` carries entry ``beyond + 1`` once it is confirmed and stored there. The bookie bounds the number
    of waiters; beyond it the answer comes at once, so a caller that repeats the request needs a pause of its own.
    """

    ledger_id: LedgerId
    beyond: EntryId
    wait_s: float
    """After it (bookies bound it) the bookie answers with what there is.

    A ledger that is unknown there, or in limbo, is waited for as well. The deadline of the call has to be longer.
    """
    failed: ClassVar = LacReply


@dataclass(frozen=True, slots=True)
class WriteLac(Request[AddReply]):
    """Write a last add confirmed. A hint: not durable, never needed for safety. A read-only bookie takes it as well."""

    ledger_id: LedgerId
    master_key: bytes = field(repr=False)
    explicit: bytes = field(repr=False)
    """As ``packet.pack_lac`` makes it."""
    failed: ClassVar = AddReply


@dataclass(frozen=True, slots=True)
class ListEntries(Request[ListReply]):
    """Ask which entries of a ledger the bookie holds. Keeps the ledger from being collected for a while (a pin).

    UNSUPPORTED by a bookie that has no lists: ``bookie.client.held_entries`` finds out by reading.
    """

    ledger_id: LedgerId
    failed: ClassVar = ListReply


@dataclass(frozen=True, slots=True)
class Copy(Request[CopyReply]):
    """Ask a bookie to read entries from another one, to verify them, and to store them as recovery adds are stored.

    May be repeated: an entry replaces the one with the same id. A bookie that does not copy answers
    UNSUPPORTED or BAD_REQUEST; the registration shows which bookies do (``ServiceInfo.can_copy``).
    """

    ledger_id: LedgerId
    entry_ids: Sequence[EntryId]
    """At most ``BATCH_ENTRIES_MAX``, ascending."""
    source: BookieId
    """Its address is the one that it has registered in the cluster of the bookie that is asked."""
    master_key: bytes = field(repr=False)
    digest_type: DigestType
    """Not DUMMY, which verifies nothing."""
    digest_key: bytes = field(default=b"", repr=False)
    """As ``bookie.model.digest.digest_key`` makes it."""
    incarnation: str = ""
    """Disks that the copies are meant for, as in ``AddBatch``."""
    failed: ClassVar = CopyReply


@dataclass(frozen=True, slots=True)
class Info(Request[InfoReply]):
    """Ask for the state of the bookie."""

    failed: ClassVar = InfoReply


AnyRequest = Read | ReadLast | Fence | ReadLac | WaitLac | WriteLac | ListEntries | Copy | Info
"""All there are: a ``match`` on it is checked for being exhaustive."""


def incarnation_for(request: Request[ReplyT], registered: str) -> str:
    """Return the disks that a request is meant for: those that it names, or else those of the bookie's address."""
    return (request.incarnation if isinstance(request, Copy) else "") or registered


def with_results(reply: ReplyT, results: Sequence[EntryResult]) -> ReplyT:
    """Return the reply to a read that failed, with the results that came before it failed; any other as it is."""
    if results and isinstance(reply, ReadReply) and not reply.results:
        return replace(reply, results=tuple(results))
    return reply
