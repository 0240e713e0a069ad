"""Pulling: the target of a copy reads entries directly from their holders, so they do not pass through this process.

The invariant: pulling only removes acknowledged entries from the entries left to copy. The target verifies and stores
them as if this process had sent them (``bookie.server.copying``), so its acknowledgement counts like that of an add.
All other entries remain: those that a holder refused, that did not verify, whose holders are all unresponsive, or that
the target refused. The copier then copies them through this process, from the same holders in the same order. So each
finding (a damaged copy, an unreadable entry, a failing target) is based on answers to this process itself, and a fault
while pulling costs one request.

Entries are pulled only if both bookies support it: the target is registered as able to copy, and the holder has a gRPC
endpoint. Ledgers with a DUMMY digest or without a digest type in the metadata are not pulled, because no digest would
show damage. After a failed pull, the target pulls nothing more in the same copy. If a holder does not answer the
target, the target does not pull from it for a minute, because there may be no network path between the two.

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
"""How long a target does not pull from a holder that did not answer it."""
_PAIRS_MAX: Final = 10_000

LookUp = Callable[[BookieId], Awaitable[ServiceInfo | None]]
"""Returns the service information that a bookie registered. The answer may be a few seconds old."""


@dataclass(slots=True)
class Pulled:
    """The result of a pull."""

    entries: int = 0
    bytes: int = 0
    later: list[EntryId] = field(default_factory=list)
    """Entries to pull in a later request: they did not fit into an answer, or their holder did not answer, so that
    another holder must be tried."""
    rest: list[EntryId] = field(default_factory=list)
    """Entries that this process must copy itself."""
    unresponsive: set[BookieId] = field(default_factory=set)
    """Holders that did not answer the target."""


class Pulls:
    """Which bookies can pull from which. One instance per process."""

    def __init__(self, look_up: LookUp, clock: Clock) -> None:
        """Prepare. ``look_up`` is called when a bookie's information is needed."""
        self._look_up = look_up
        self._clock = clock
        self._without_path: dict[tuple[BookieId, BookieId], float] = {}
        """For a target and a holder: until when to assume that there is no network path between them."""

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

    def note_unresponsive(self, target: BookieId, holder: BookieId) -> None:
        """Record that ``holder`` did not answer ``target``."""
        self._without_path.pop((target, holder), None)
        if len(self._without_path) >= _PAIRS_MAX:
            del self._without_path[next(iter(self._without_path))]
        self._without_path[target, holder] = self._clock.monotonic_s() + NO_PATH_S


class Pull:
    """The pulls of one target for one copy. Shared by the lanes of the copy."""

    def __init__(
        self,
        pulls: Pulls,
        ledger: Versioned,
        bookie: BookieId,
        target: Target,
        may_continue: Callable[[], Awaitable[bool]],
    ) -> None:
        """Prepare. No pull is sent if ``may_continue`` returns False."""
        self._pulls = pulls
        self._bookie = bookie
        self._target = target
        self._may_continue = may_continue
        digest_type, password = ledger.metadata.digest_type, ledger.metadata.password or b""
        self._digest: LedgerDigest | None = None
        """None if nothing may be pulled."""
        if digest_type is not None and digest_type is not DigestType.DUMMY:
            self._digest = LedgerDigest(digest_type, digest_key(digest_type, password))

    async def pull_entries(
        self, entry_ids: Sequence[EntryId], orders: Orders, avoided: Set[BookieId], entry_bytes: int
    ) -> Pulled:
        """Let the target read entries from their first holders, with one request per holder if possible.

        The result contains each entry that was not acknowledged in ``later`` or ``rest``.

        Args:
            entry_ids: the entries to copy, ascending.
            orders: the holders of each entry, in the order to ask them.
            avoided: unresponsive holders, from which nothing is pulled.
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
            await self._pull_from(holder, wanted, entry_bytes, pulled)
        return pulled

    async def _pull_from(self, holder: BookieId, wanted: Sequence[EntryId], entry_bytes: int, pulled: Pulled) -> None:
        digest = self._digest
        if digest is None or not await self._pulls.can(self._bookie, holder) or not await self._may_continue():
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
            self._pulls.note_unresponsive(self._bookie, holder)
            pulled.unresponsive.add(holder)
