"""Pulling: the target of a copy reads entries directly from their holders, without a detour through this process.

The invariant: pulling only removes entries from what is left to copy, and only those that the target has acknowledged.
The target verifies and stores them as if this process had sent them (``bookie.server.copying``), so its acknowledgement
is worth that of an add. Everything else stays: an entry that was refused or did not verify, what only silent holders
have, and all that a target refuses. The copier then copies it through this process, from the same holders in the same
order. So each finding (a damaged copy, an unreadable entry, a target that fails) rests on what this process itself was
answered, and a fault while pulling costs one request.

Entries are pulled only if both bookies can: the target registers that it copies, and the holder has a gRPC endpoint.
A digest must be able to show damage, so ledgers with a DUMMY digest, and those whose metadata has no digest type, are
not pulled. A target that fails to pull is not asked to again in the same copy. A holder that did not answer the target
is left alone by this target for a minute: between two bookies there may be no path at all.

S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.bookies.registration import ServiceInfo
from bookie.metadata.bookies.service_info import PROTOCOL_GRPC
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.digest import digest_key
from bookie.model.errors import TransientError
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import DigestType
from bookie.runtime.clock import Clock
from bookie.wire.port import BATCH_ENTRIES_MAX, Status
from replicator.copying.sources import Orders
from replicator.copying.target import LedgerDigest, Target

NO_PATH_S: Final = 60.0
"""Seconds during which a target is not asked again to read from an unresponsive holder."""
_PAIRS_MAX: Final = 10_000

LookUp = Callable[[BookieId], Awaitable[ServiceInfo | None]]
"""What a bookie has registered; may be a few seconds old."""


@dataclass(slots=True)
class Pulled:
    """What a pull brought."""

    entries: int = 0
    bytes: int = 0
    later: list[EntryId] = field(default_factory=list)
    """What did not fit into an answer, and what a silent holder has: to be pulled again, from another holder."""
    rest: list[EntryId] = field(default_factory=list)
    """What this process has to copy."""
    silent: set[BookieId] = field(default_factory=set)
    """Holders without an answer to the target."""


class Pulls:
    """Who can pull from whom. One for the whole process."""

    def __init__(self, look_up: LookUp, clock: Clock) -> None:
        """Prepare; bookies are looked up when they are needed."""
        self._look_up = look_up
        self._clock = clock
        self._without_path: dict[tuple[BookieId, BookieId], float] = {}
        """By target and holder, until when there is no path between them."""

    async def can(self, target: BookieId, holder: BookieId) -> bool:
        """Whether ``target`` can read from ``holder``; False if unknown."""
        if self._clock.monotonic_s() < self._without_path.get((target, holder), 0.0):
            return False
        try:
            reader, source = await self._look_up(target), await self._look_up(holder)
        except TransientError:
            return False
        is_reader = reader is not None and reader.can_copy
        return is_reader and source is not None and source.endpoint(PROTOCOL_GRPC) is not None

    def note_silent(self, target: BookieId, holder: BookieId) -> None:
        """Record a missing answer of ``holder`` to ``target``."""
        self._without_path.pop((target, holder), None)
        if len(self._without_path) >= _PAIRS_MAX:
            del self._without_path[next(iter(self._without_path))]
        self._without_path[target, holder] = self._clock.monotonic_s() + NO_PATH_S


class Pull:
    """The pulls of one target for one copy. Shared by the lanes of the copy."""

    def __init__(
        self, pulls: Pulls, ledger: Versioned, bookie: BookieId, target: Target, goes_on: Callable[[], Awaitable[bool]]
    ) -> None:
        """Prepare; nothing is pulled any more once ``goes_on`` returns False."""
        self._pulls = pulls
        self._bookie = bookie
        self._target = target
        self._goes_on = goes_on
        digest_type, password = ledger.metadata.digest_type, ledger.metadata.password or b""
        self._digest: LedgerDigest | None = None
        """None: nothing is pulled."""
        if digest_type is not None and digest_type is not DigestType.DUMMY:
            self._digest = LedgerDigest(digest_type, digest_key(digest_type, password))

    async def bring(
        self, entry_ids: Sequence[EntryId], orders: Orders, avoided: Set[BookieId], entry_bytes: int
    ) -> Pulled:
        """Let the target read entries from their first holders, with one request per holder if possible.

        Each of ``entry_ids`` that the target has not acknowledged then is in ``later`` or ``rest`` of the result.

        Args:
            entry_ids: what to copy, ascending.
            orders: the holders of each.
            avoided: holders that are not worth a request now.
            entry_bytes: the expected size of an entry.
        """
        pulled = Pulled()
        groups: dict[BookieId, list[EntryId]] = {}
        for entry_id in entry_ids:
            if not orders[entry_id] or orders[entry_id][0] in avoided:
                pulled.rest.append(entry_id)
            else:
                groups.setdefault(orders[entry_id][0], []).append(entry_id)
        for holder, wanted in groups.items():
            await self._from(holder, wanted, entry_bytes, pulled)
        return pulled

    async def _from(self, holder: BookieId, wanted: Sequence[EntryId], entry_bytes: int, pulled: Pulled) -> None:
        digest = self._digest
        if digest is None or not await self._pulls.can(self._bookie, holder) or not await self._goes_on():
            pulled.rest += wanted
            return
        asked = wanted[:BATCH_ENTRIES_MAX]
        reply = await self._target.pull(holder, asked, digest, len(asked) * entry_bytes)
        pulled.entries += reply.stored_count
        pulled.bytes += reply.stored_bytes
        pulled.rest += (refusal.entry_id for refusal in reply.refusals)
        if reply.status is not Status.OK:
            self._digest = None
            pulled.rest += wanted[reply.covered :]
            return
        pulled.later += wanted[reply.covered :]
        if reply.source is not Status.OK:
            self._pulls.note_silent(self._bookie, holder)
            pulled.silent.add(holder)
