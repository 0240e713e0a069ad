"""Every request to a bookie except adds, as a value, with the guarantees of its reply.

A client makes one with ``Transport.ask``; the bookie answers it with ``BookieHandler.answer``. Code that treats all
requests alike (routing, measuring, faults) has one method for all; only the codecs and the bookie itself distinguish
them. Adds are separate, because they are an ordered stream.
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
    """Read entries. The answer contains at most ``READ_BYTES_MAX`` bytes and one more entry."""

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
        """Whether the read goes before others: a read with a fence belongs to a recovery."""
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
    """Permanently refuse every later add without the recovery flag. An unknown ledger is created.

    A read-only bookie also fences, because a fence needs only a few bytes.
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
    """Wait for a last add confirmed greater than ``beyond`` (long poll): the bookie answers as soon as it has one.

    ``LacReply.entry`` carries entry ``beyond + 1`` once it is confirmed and stored there. The bookie bounds the number
    of waiters; beyond the bound the answer comes at once, so a caller must pause before it repeats the request. Such an
    answer is not the end of the wait.
    """

    ledger_id: LedgerId
    beyond: EntryId
    wait_s: float
    """Time after which the bookie answers with its present values, in seconds. Bookies limit it.

    The bookie also waits for an unknown ledger, or one in limbo. The deadline of the call must be longer.
    """
    failed: ClassVar = LacReply


@dataclass(frozen=True, slots=True)
class WriteLac(Request[AddReply]):
    """Write a last add confirmed: a hint, not durable and never needed for safety. Read-only bookies accept it."""

    ledger_id: LedgerId
    master_key: bytes = field(repr=False)
    explicit: bytes = field(repr=False)
    """The packet made by ``packet.pack_lac``."""
    failed: ClassVar = AddReply


@dataclass(frozen=True, slots=True)
class ListEntries(Request[ListReply]):
    """Ask which entries of a ledger the bookie holds. For a while after that, the ledger is not collected (a pin).

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
    """The key returned by ``bookie.model.digest.digest_key``."""
    incarnation: str = ""
    """Disks for which the copies are meant, as in ``AddBatch``."""
    failed: ClassVar = CopyReply


@dataclass(frozen=True, slots=True)
class Info(Request[InfoReply]):
    """Ask for the state of the bookie."""

    failed: ClassVar = InfoReply


AnyRequest = Read | ReadLast | Fence | ReadLac | WaitLac | WriteLac | ListEntries | Copy | Info
"""All requests: mypy checks each ``match`` on it for exhaustiveness."""


def incarnation_for(request: Request[ReplyT], registered: str) -> str:
    """Return the disks for which a request is meant: those that it names, or else those of the bookie's address."""
    return (request.incarnation if isinstance(request, Copy) else "") or registered


def with_results(reply: ReplyT, results: Sequence[EntryResult]) -> ReplyT:
    """Return the reply to a failed read with the results received before the failure; any other reply unchanged."""
    if results and isinstance(reply, ReadReply) and not reply.results:
        return replace(reply, results=tuple(results))
    return reply
