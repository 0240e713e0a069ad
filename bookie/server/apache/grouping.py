"""Grouping of requests that arrived together: a batch costs the storage hardly more than one entry.

Adds of one ledger, key and recovery flag become one batch; plain or fencing reads of one ledger become one read.
Requests in between do not separate a group: the protocol promises no order among unanswered requests. The adds of one
group keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from bookie.server.apache.requests import AddKind, Other, Read
from bookie.wire.add_wait import AddWait
from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX

READS_MAX: Final = 256
"""The most reads in one group. Their answer also has a bound in bytes."""
WAITING_GROUPS_MAX: Final = 512
"""The most groups of adds of one connection that are decoded at once. While as many wait, no more are decoded. A piece
of the stream may have adds to more than three thousand ledgers, whose groups would take 1.8 MB."""
GROUP_OVERHEAD_BYTES: Final = 8 << 10
"""Memory of a group in the storage in addition to its entries: for its task, its requests and its answers.

Source: 60,028 groups of one add of 100 bytes each, waiting for the ledger disk, took 498 MiB (Python 3.11, Linux).
"""


class AddGroup:
    """The adds of one ``AddBatch``: at least one, within the bounds of a batch.

    Attributes:
        kind: their common properties.
        packets: the entries.
        accepted: the answer frames to send once the entries are stored, in the same order.
        size: bytes of the entries.
        wait: the bounds of their wait while the ledger disk is behind; None before it begins.
    """

    __slots__ = ("accepted", "kind", "packets", "size", "wait")

    def __init__(self, kind: AddKind) -> None:
        self.kind = kind
        self.packets: list[bytes] = []
        self.accepted: list[bytes] = []
        self.size = 0
        self.wait: AddWait | None = None

    @property
    def held_bytes(self) -> int:
        """The approximate memory that the group takes in the storage."""
        return self.size + GROUP_OVERHEAD_BYTES

    def room(self, packet_bytes: int) -> int:
        """Return how many entries of this size fit; at least one if the group is empty."""
        by_count = BATCH_ENTRIES_MAX - len(self.packets)
        by_bytes = (BATCH_BYTES_MAX - self.size) // packet_bytes if packet_bytes else by_count
        return max(min(by_count, by_bytes), not self.packets)


class AddGroups:
    """The groups of arriving adds, in the order of their first adds."""

    def __init__(self) -> None:
        self.groups: list[AddGroup] = []
        self._open: dict[AddKind, AddGroup] = {}

    @property
    def is_full(self) -> bool:
        """Whether no more may be decoded at once."""
        return len(self.groups) >= WAITING_GROUPS_MAX

    def add(self, kind: AddKind, packets: Sequence[bytes], accepted: Sequence[bytes]) -> None:
        """Add adds of one kind whose entries have the same size."""
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


def group_requests(requests: Iterable[Other]) -> list[list[Read] | Other]:
    """Group the reads, and keep all other requests unchanged, in the order of the first request of each group.

    The reads of one group either all request entries by id, or all request the last one.
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
