"""Every request to a bookie except adds, as a value, with the promises of its reply.

A client makes one with ``Transport.ask``; the bookie answers it with ``BookieHandler.answer``. Code with the same
treatment for all requests (routing, measuring, faults) has one method for all; only the codecs and the bookie itself
distinguish them. Adds are separate, as a stream in order.
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
    """Whether the caller expects an answer of ``SMALL_READ_BYTES`` at most; such reads may share a call."""
    failed: ClassVar = ReadReply

    @property
    def is_urgent(self) -> bool:
        """Whether it goes before other reads: a read with a fence belongs to a recovery."""
        return self.fence_key is not None


@dataclass(frozen=True, slots=True)
class ReadLast(Request[ReadReply]):
    """Read the entry with the greatest id that the bookie holds; the reply has one result, with the true id.

    An Apache bookie may answer with an older entry (R137).
    """

    ledger_id: LedgerId
    failed: ClassVar = ReadReply


@dataclass(frozen=True, slots=True)
class Fence(Request[FenceReply]):
    """Refuse every later add without the recovery flag, permanently; creates an unknown ledger.

    A read-only bookie fences as well: a fence takes bytes, not kilobytes.
    """

    ledger_id: LedgerId
    master_key: bytes = field(repr=False)
    failed: ClassVar = FenceReply


@dataclass(frozen=True, slots=True)
class ReadLac(Request[LacReply]):
    """Ask for the bookie's values of the last add confirmed; never fences."""

    ledger_id: LedgerId
    failed: ClassVar = LacReply


@dataclass(frozen=True, slots=True)
class WaitLac(Request[LacReply]):
    """Long poll: answered as soon as the answer shows a last add confirmed greater than ``beyond``.

    ``LacReply.entry`` carries entry ``beyond + 1`` once it is confirmed and stored there. The bookie bounds the number
    of waiters; beyond the bound the answer comes at once, so a caller must pause before it repeats the request. Such an
    answer is not the end of the wait.
    """

    ledger_id: LedgerId
    beyond: EntryId
    wait_s: float
    """After it (bookies bound it) the bookie answers with its present values.

    The bookie also waits for an unknown ledger, or one in limbo. The deadline of the call has to be longer.
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

    A bookie without lists answers UNSUPPORTED: ``bookie.client.held_entries`` then finds the entries by reading.
    """

    ledger_id: LedgerId
    failed: ClassVar = ListReply


@dataclass(frozen=True, slots=True)
class Copy(Request[CopyReply]):
    """Ask a bookie to read entries from another one, to verify them, and to store them as recovery adds are stored.

    May be repeated: an entry replaces the one with the same id. A bookie that does not support copies answers
    UNSUPPORTED or BAD_REQUEST; the registration shows which bookies do (``ServiceInfo.can_copy``).
    """

    ledger_id: LedgerId
    entry_ids: Sequence[EntryId]
    """At most ``BATCH_ENTRIES_MAX``, ascending."""
    source: BookieId
    """Its address is the one registered in the cluster of the copying bookie."""
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
"""All requests: mypy checks each ``match`` on it for exhaustiveness."""


def incarnation_for(request: Request[ReplyT], registered: str) -> str:
    """Return the disks that a request is meant for: those named in it, or else those of the bookie's address."""
    return (request.incarnation if isinstance(request, Copy) else "") or registered


def with_results(reply: ReplyT, results: Sequence[EntryResult]) -> ReplyT:
    """Return the reply to a failed read with the results received before the failure; any other reply unchanged."""
    if results and isinstance(reply, ReadReply) and not reply.results:
        return replace(reply, results=tuple(results))
    return reply
