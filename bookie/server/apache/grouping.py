"""Requests that arrived together, put together: the storage takes a batch for hardly more than the price of an entry.

Adds of one ledger, key and recovery flag become one batch, plain or fencing reads of one ledger one read. Requests that
arrive in the middle do not separate them: the protocol promises no order among unanswered requests, but the adds of one
such group keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from bookie.server.apache.requests import AddKind, Other, Read
from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX

READS_MAX: Final = 256
"""Reads in one group; their answer is bounded by bytes as well."""


class AddGroup:
    """Adds for one ``AddBatch``: at least one, and within its bounds.

    Attributes:
        kind: what they have in common.
        packets: the entries.
        accepted: the frames that are answered once they are stored, in the same order.
        size: bytes of the entries.
    """

    __slots__ = ("accepted", "kind", "packets", "size")

    def __init__(self, kind: AddKind) -> None:
        self.kind = kind
        self.packets: list[bytes] = []
        self.accepted: list[bytes] = []
        self.size = 0

    def room(self, packet_bytes: int) -> int:
        """How many entries of this size fit in; at least one as long as the group is empty."""
        by_count = BATCH_ENTRIES_MAX - len(self.packets)
        by_bytes = (BATCH_BYTES_MAX - self.size) // packet_bytes if packet_bytes else by_count
        return max(min(by_count, by_bytes), not self.packets)


class AddGroups:
    """Adds as they come, in groups in the order of their first adds."""

    def __init__(self) -> None:
        self.groups: list[AddGroup] = []
        self._open: dict[AddKind, AddGroup] = {}

    def add(self, kind: AddKind, packets: Sequence[bytes], accepted: Sequence[bytes]) -> None:
        """Take adds of one kind, whose entries all have the same size."""
        start, packet_bytes = 0, len(packets[0])
        group = self._open.get(kind)
        while start < len(packets):
            room = 0 if group is None else group.room(packet_bytes)
            if group is None or room <= 0:
                group = self._open[kind] = AddGroup(kind)
                self.groups.append(group)
                room = group.room(packet_bytes)
            taken = packets[start : start + room]
            group.packets += taken
            group.accepted += accepted[start : start + room]
            group.size += len(taken) * packet_bytes
            start += room


def group_others(requests: Iterable[Other]) -> list[list[Read] | Other]:
    """Groups of reads, and every other request as it is, in the order of their first.

    The reads of one group all name entries, or they all ask for the last one.
    """
    groups: list[list[Read] | Other] = []
    open_groups: dict[tuple[int, bytes | None, int], list[Read]] = {}
    for request in requests:
        if not isinstance(request, Read):
            groups.append(request)
            continue
        key = (request.ledger_id, request.fence_key, min(request.entry_id, 0))
        group = open_groups.get(key)
        if group is None or len(group) >= READS_MAX:
            group = open_groups[key] = []
            groups.append(group)
        group.append(request)
    return groups
