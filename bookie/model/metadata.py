"""Ledger metadata as immutable values. Their constructors refuse impossible combinations.

Invariants (docs/formats.md#metadata-rules): at least one fragment, strictly increasing first entries, ``E >= Qw >=
Qa``, ``E`` members per fragment, a last entry and a length if and only if the ledger is closed. Two rules are not
enforced, because metadata in real clusters may break them (the metadata lint reports it): the first fragment starts at
entry 0, and the members of a fragment are distinct.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from bookie.model.errors import PermanentError
from bookie.model.ids import NO_ENTRY, BookieId, EntryId
from bookie.model.schedule import Stripe

METADATA_VERSION: Final = 3
"""Metadata format of new ledgers (docs/formats.md#field-rules)."""


class InvalidMetadataError(PermanentError):
    """Ledger metadata that breaks a rule of docs/formats.md#metadata-rules."""


class LedgerState(enum.Enum):
    """Life cycle of a ledger; the values are those of the wire format."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(enum.Enum):
    """The digest type of entries; the values are those of the wire format (Apache's client calls HMAC "MAC")."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True)
class Fragment:
    """A run of entries with one ensemble. ``members[i]`` is the bookie at ensemble position ``i``."""

    first_entry_id: EntryId
    members: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """The metadata of one ledger, without its id and the znode version."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: EntryId | None = None
    """Last entry, inclusive; ``-1`` for an empty closed ledger; None unless closed."""
    length: int | None = None
    """Sum of the payload sizes in bytes; None unless closed."""
    digest_type: DigestType | None = DigestType.CRC32C
    """None only in metadata without a password (format 1)."""
    password: bytes | None = field(default=b"", repr=False)
    ctime_ms: int | None = None
    """Creation time recorded in the metadata, epoch milliseconds; None if not stored."""
    custom: tuple[tuple[str, bytes], ...] = ()
    ctoken: int | None = None
    """Random token of the creator; every later rewrite stores 0 (docs/formats.md#field-rules)."""
    format_version: int = METADATA_VERSION

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise InvalidMetadataError(f"impossible ledger metadata: {problem}")

    def _problem(self) -> str | None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 0 or self.write_quorum < 1:
            return f"E={self.ensemble_size} Qw={self.write_quorum} Qa={self.ack_quorum}, need E >= Qw >= Qa and Qw >= 1"
        if not self.fragments:
            return "no fragment"
        previous = None
        for fragment in self.fragments:
            if len(fragment.members) != self.ensemble_size:
                return f"fragment {fragment.first_entry_id} has {len(fragment.members)} members, E={self.ensemble_size}"
            if fragment.first_entry_id < 0 or (previous is not None and fragment.first_entry_id <= previous):
                return f"fragment {fragment.first_entry_id} does not follow {previous}"
            previous = fragment.first_entry_id
        closed = self.state is LedgerState.CLOSED
        if closed != (self.last_entry_id is not None) or closed != (self.length is not None):
            return "last entry and length belong to closed ledgers, and only to them"
        if (self.password is None) != (self.digest_type is None):
            return "password and digest type go together"
        return None

    @property
    def is_closed(self) -> bool:
        """Whether the ledger's end is final."""
        return self.state is LedgerState.CLOSED

    @property
    def is_empty(self) -> bool:
        """Whether the ledger is closed without an entry. This is final: it will never have any."""
        return self.last_entry_id == NO_ENTRY

    @property
    def stripe(self) -> Stripe:
        """The distribution of every fragment's entries over its ensemble."""
        return Stripe(self.ensemble_size, self.write_quorum)

    @property
    def last_fragment(self) -> Fragment:
        """The fragment to which the writer appends."""
        return self.fragments[-1]

    @property
    def custom_map(self) -> Mapping[str, bytes]:
        """Custom metadata as a mapping (a copy)."""
        return dict(self.custom)

    def fragment_index(self, entry_id: EntryId) -> int:
        """Return the index of the fragment covering ``entry_id`` (greatest first entry not after it).

        Raises:
            InvalidMetadataError: the entry lies before the first fragment.
        """
        index = bisect_right(self.fragments, entry_id, key=lambda f: f.first_entry_id) - 1
        if index < 0:
            raise InvalidMetadataError(f"entry {entry_id} lies before the first fragment")
        return index

    def fragment_last_entry_id(self, index: int) -> EntryId | None:
        """Return the last entry of fragment ``index``, inclusive, or None for the last fragment of an open ledger.

        The fragment is empty if the result is below its first entry.
        """
        if index + 1 < len(self.fragments):
            return EntryId(self.fragments[index + 1].first_entry_id - 1)
        return self.last_entry_id

    def final_last_entry_id(self, index: int, *, is_tail_written: bool = False) -> EntryId | None:
        """Return the last entry of fragment ``index``, inclusive, or None if the fragment may still change (S2, S19).

        The last fragment of an unclosed ledger is still written. The one before also counts as growing until the last
        one is known to contain an entry (``is_tail_written``): with the old protocol its end may be unconfirmed
        (docs/formats.md#sampling, #3917). No entry lies beyond the end of a closed ledger, even if a fragment does.
        """
        growing = 0 if self.is_closed else 1 if is_tail_written else 2
        if index >= len(self.fragments) - growing:
            return None
        last = self.fragment_last_entry_id(index)
        if last is None or self.last_entry_id is None:
            return last
        return min(last, self.last_entry_id)

    def growing(self) -> Iterator[int]:
        """Yield the indices of the fragments that may still change (``final_last_entry_id``): at most the last two."""
        count = len(self.fragments)
        return (index for index in range(max(0, count - 2), count) if self.final_last_entry_id(index) is None)

    def members(self) -> frozenset[BookieId]:
        """Return every bookie named in any fragment."""
        return frozenset(member for fragment in self.fragments for member in fragment.members)

    def closed(self, last_entry_id: EntryId, length: int) -> LedgerMetadata:
        """Return this metadata closed at ``last_entry_id`` (inclusive) with ``length`` payload bytes."""
        return replace(self, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)

    def with_last_fragment(self, first_entry_id: EntryId, members: tuple[BookieId, ...]) -> LedgerMetadata:
        """Return this metadata with a new last fragment. An empty old last fragment is replaced."""
        kept = self.fragments[:-1] if self.last_fragment.first_entry_id == first_entry_id else self.fragments
        return replace(self, fragments=(*kept, Fragment(first_entry_id, members)))

    def with_members(self, changed: Mapping[int, tuple[BookieId, ...]]) -> LedgerMetadata:
        """Return this metadata with other members in some fragments, by index; all else is unchanged.

        Raises:
            InvalidMetadataError: there is no such fragment, or it would have another number of members.
        """
        fragments = list(self.fragments)
        for index, members in changed.items():
            if not 0 <= index < len(fragments):
                raise InvalidMetadataError(f"no fragment {index} among {len(fragments)}")
            fragments[index] = Fragment(fragments[index].first_entry_id, members)
        return replace(self, fragments=tuple(fragments))
