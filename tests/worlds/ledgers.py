"""Ledgers for tests: names, metadata in one line, and entries as their writer packs them."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator

from bookie.model.digest import digest_for
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bookie.model.packet import pack

LEDGER = LedgerId(7)
PASSWORD = b"secret"


def names(text: str) -> tuple[BookieId, ...]:
    """Return bookies from their names, separated by spaces."""
    return tuple(map(BookieId, text.split()))


def name_set(text: str) -> frozenset[BookieId]:
    return frozenset(names(text))


def make_metadata(
    *fragments: tuple[int, str],
    quorum: tuple[int, int],
    last: int | None = None,
    state: LedgerState = LedgerState.OPEN,
    digest_type: DigestType = DigestType.CRC32C,
    length: int = 0,
) -> LedgerMetadata:
    """Return metadata with these (first entry, members), closed at ``last`` unless it is None."""
    parts = tuple(Fragment(EntryId(first), names(members)) for first, members in fragments)
    size = len(parts[0].members)
    metadata = LedgerMetadata(size, *quorum, parts, state, digest_type=digest_type, password=PASSWORD)
    return metadata if last is None else metadata.closed(EntryId(last), length)


def closed_ledger(*members: BookieId) -> LedgerMetadata:
    """Return metadata of 100 entries of 10 bytes, each on every member."""
    size = len(members)
    return LedgerMetadata(size, size, max(1, size - 1), (Fragment(EntryId(0), members),)).closed(EntryId(99), 1000)


def with_member(metadata: LedgerMetadata, index: int, position: int, bookie: BookieId) -> LedgerMetadata:
    """Return metadata with ``bookie`` at ``position`` of fragment ``index``."""
    members = metadata.fragments[index].members
    return metadata.with_members({index: (*members[:position], bookie, *members[position + 1 :])})


def make_packets(
    ledger_id: LedgerId, count: int, *, payload_bytes: int = 10, digest_type: DigestType = DigestType.CRC32C
) -> dict[EntryId, bytes]:
    """Return the stored forms of entries 0 to ``count - 1``, as their writer packs them."""
    return {EntryId(i): packet for i, packet in enumerate(_packed(ledger_id, count, payload_bytes, digest_type))}


@functools.lru_cache(maxsize=4)  # the tests of a file use the same large ledger
def _packed(ledger_id: LedgerId, count: int, payload_bytes: int, digest_type: DigestType) -> tuple[bytes, ...]:
    digest = digest_for(digest_type, PASSWORD)
    rng = random.Random(ledger_id)
    return tuple(
        pack(digest, ledger_id, EntryId(i), i - 1, (i + 1) * payload_bytes, rng.randbytes(payload_bytes))
        for i in range(count)
    )


def placed_copies(metadata: LedgerMetadata) -> Iterator[tuple[BookieId, list[EntryId]]]:
    """Yield each member of each fragment of a closed ledger, with the entries of its position in ascending order."""
    for index, fragment in enumerate(metadata.fragments):
        last = metadata.fragment_last_entry_id(index)
        assert last is not None
        for position, member in enumerate(fragment.members):
            entries = map(EntryId, range(fragment.first_entry_id, last + 1))
            yield member, [entry for entry in entries if position in metadata.stripe.write_set(entry)]


def should_hold(metadata: LedgerMetadata, bookie: str, entry_ids: Iterable[EntryId]) -> list[EntryId]:
    """Return the entries that the metadata places on a bookie, in ascending order."""
    return [
        entry_id
        for entry_id in sorted(entry_ids)
        if any(
            member == bookie and metadata.stripe.stores(position, entry_id)
            for position, member in enumerate(metadata.fragments[metadata.fragment_index(entry_id)].members)
        )
    ]
