"""The last add confirmed of an open ledger, read from the bookies of its last ensemble without fencing.

Every value from a bookie is verified with the ledger's digest. A writer declares an entry confirmed only after its
acknowledgement, and recoveries copy stored bytes verbatim. So it is always safe to read up to the greatest verified
value, which may be stale. It is never the end of a fragment (S19).

Source: docs/formats.md#coverage, #opening.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from bookie.client.ports import ClientPorts
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.coverage import is_covered
from bookie.model.digest import Digest
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.packet import DamagedEntry, Entry, unpack, unpack_lac
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import cancel_all, guarded
from bookie.wire.port import EntryResult, LacReply, Request, Status
from bookie.wire.requests import ReadLac, WaitLac

_REPOLL_PAUSE_S: Final = 0.5
"""Pause before the repetition of a poll that ended early without a new value: too many polls wait at the bookie, or its
limit for waiting is lower."""
_REPEATABLE_STATUSES: Final = frozenset((Status.OK, Status.NO_ENTRY, Status.NO_LEDGER, Status.LIMBO))
"""Statuses after which a poll is repeated. Others are failures: the bookie is asked again only in the next call."""


@dataclass(frozen=True, slots=True)
class LastAddConfirmedResult:
    """The last add confirmed according to the answers of the bookies."""

    entry_id: EntryId
    """At least the entry before the last fragment."""
    is_covered: bool
    """Whether the bookies that answered include a holder of every acknowledged entry."""
    is_answered: bool
    """Whether any member answered without a failure."""
    evidence: dict[BookieId, Status]
    piggybacked: Entry | None = None
    """The entry after ``beyond`` of a long poll, if an answer contained it."""


class PendingPolls:
    """The long polls of one follower that have no answer yet. They continue during the next wait."""

    def __init__(self) -> None:
        self.open: dict[tuple[int, BookieId], asyncio.Task[LacReply]] = {}
        """By position and bookie."""

    async def stop(self) -> None:
        """Cancel the polls. Idempotent."""
        polls = list(reversed(self.open.values()))
        self.open.clear()
        await cancel_all(polls)


class ConfirmedReads:
    """Requests about one ledger to the bookies of its last ensemble."""

    def __init__(self, ports: ClientPorts, digest: Digest) -> None:
        self._ports = ports
        self._digest = digest

    async def read(self, ledger: Versioned) -> LastAddConfirmedResult:
        """Ask every member, until the ensemble is covered or all have answered or timed out."""
        timeout_s = self._ports.settings.read_timeout_s
        return await self._ask_members(ledger, ReadLac(ledger.ledger_id), timeout_s, lambda tally: tally.is_covered)

    async def wait(
        self, ledger: Versioned, beyond: EntryId, wait_s: float, polls: PendingPolls
    ) -> LastAddConfirmedResult:
        """Ask every member to answer as soon as its value exceeds ``beyond``; the first such answer ends the call.

        A member that answers earlier without such a value is asked again, because it may not have waited at all. If no
        member has such a value, the call takes at least ``wait_s``, even if every bookie refuses at once. Members that
        have not answered by then are not asked again: their answers count in the next call with the same ``polls``.
        """
        clock = self._ports.clock
        until_s = clock.monotonic_s() + wait_s
        timeout_s = wait_s + self._ports.settings.read_timeout_s
        poll = WaitLac(ledger.ledger_id, beyond, 0.0 if fault_point("reader.short_poll") else wait_s)
        confirmed = await self._ask_members(ledger, poll, timeout_s, lambda tally: tally.best > beyond, until_s, polls)
        if confirmed.entry_id <= beyond and (rest_s := until_s - clock.monotonic_s()) > 0:
            await clock.sleep(rest_s)
        return confirmed

    async def _ask_members(
        self,
        ledger: Versioned,
        request: Request[LacReply],
        timeout_s: float,
        is_enough: Callable[[_Tally], bool],
        until_s: float | None = None,
        polls: PendingPolls | None = None,
    ) -> LastAddConfirmedResult:
        """Ask every member until ``is_enough`` or ``until_s``. At ``until_s``, open requests are kept in ``polls``."""
        tally = _Tally(ledger, self._digest, request.beyond if isinstance(request, WaitLac) else None)
        members, clock = ledger.metadata.last_fragment.members, self._ports.clock
        kept = {} if polls is None else {key: polls.open.pop(key) for key in enumerate(members) if key in polls.open}
        earlier = set(kept.values())
        asking = {
            kept.get((position, bookie)) or self._asked(bookie, request, timeout_s): position
            for position, bookie in enumerate(members)
        }
        waiting = list(asking)
        is_over = False
        try:
            if polls is not None:
                await polls.stop()  # those of former members
            # A member that hangs must not delay the caller's next read of the metadata.
            async with asyncio.timeout(None if until_s is None else until_s - clock.monotonic_s()):
                while waiting and not is_enough(tally):
                    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for task in [task for task in waiting if task in done]:
                        waiting.remove(task)
                        position = asking.pop(task)
                        status = tally.count(position, task.result())
                        if until_s is None or not isinstance(request, WaitLac) or status not in _REPEATABLE_STATUSES:
                            continue
                        if task in earlier:  # it has waited, so no pause is needed
                            repeated = self._asked(members[position], request, timeout_s)
                        elif until_s - clock.monotonic_s() > _REPOLL_PAUSE_S:
                            again = self._poll_again(members[position], request, until_s)
                            repeated = guarded("last add confirmed", again)
                        else:
                            continue
                        asking[repeated] = position
                        waiting.append(repeated)
        except TimeoutError:
            is_over = True
        finally:
            if is_over and polls is not None:
                polls.open.update({(position, members[position]): task for task, position in asking.items()})
            else:
                await cancel_all(asking)
        return tally.result()

    def _asked(self, bookie: BookieId, request: Request[LacReply], timeout_s: float) -> asyncio.Task[LacReply]:
        return guarded("last add confirmed", self._ports.transport.ask(bookie, request, timeout_s))

    async def _poll_again(self, bookie: BookieId, poll: WaitLac, until_s: float) -> LacReply:
        await self._ports.clock.sleep(_REPOLL_PAUSE_S)
        rest_s = max(until_s - self._ports.clock.monotonic_s(), 0.0)
        timeout_s = rest_s + self._ports.settings.read_timeout_s
        return await self._ports.transport.ask(bookie, replace(poll, wait_s=rest_s), timeout_s)


class _Tally:
    """Answers of an ensemble, and the conclusions from them."""

    def __init__(self, ledger: Versioned, digest: Digest, beyond: EntryId | None) -> None:
        self._ledger = ledger
        self._digest = digest
        self._beyond = beyond
        self._known: set[int] = set()
        self._evidence: dict[BookieId, Status] = {}
        self._piggybacked: Entry | None = None
        self.best = EntryId(ledger.metadata.last_fragment.first_entry_id - 1)

    @property
    def is_covered(self) -> bool:
        metadata = self._ledger.metadata
        return is_covered(self._known, metadata.stripe, metadata.ack_quorum)

    def count(self, position: int, reply: LacReply) -> Status:
        """Count an answer, and return its status."""
        status, found = verified_lac(reply, self._digest, self._ledger.ledger_id)
        self._evidence[self._ledger.metadata.last_fragment.members[position]] = status
        if status is Status.OK or status.is_absent:
            self._known.add(position)
        self.best = max(self.best, found)
        if self._beyond is not None and reply.entry is not None and found > self._beyond:
            self._piggybacked = self._piggybacked or self._entry(EntryId(self._beyond + 1), reply.entry)
        return status

    def result(self) -> LastAddConfirmedResult:
        is_answered = bool(self._known)
        return LastAddConfirmedResult(self.best, self.is_covered, is_answered, self._evidence, self._piggybacked)

    def _entry(self, entry_id: EntryId, result: EntryResult) -> Entry | None:
        if result.status is not Status.OK:
            return None
        try:
            return unpack(self._digest, result.packet, self._ledger.ledger_id, entry_id)
        except DamagedEntry:
            return None


def verified_lac(reply: LacReply, digest: Digest, ledger_id: LedgerId) -> tuple[Status, EntryId]:
    """Return the evidence in one bookie's answer: its status (CORRUPT if a part is damaged) and the greatest LAC."""
    status, best = reply.status, EntryId(-1)
    if reply.explicit:
        try:
            best = max(best, unpack_lac(digest, reply.explicit, ledger_id))
        except DamagedEntry:
            status = Status.CORRUPT
    last = reply.last_entry
    if last is not None and last.status is Status.OK:
        try:
            entry = unpack(digest, last.packet, ledger_id, last.entry_id)
        except DamagedEntry:
            return Status.CORRUPT, best
        if not -1 <= entry.last_add_confirmed < entry.entry_id:
            return Status.CORRUPT, best
        best = max(best, entry.last_add_confirmed)
    elif last is not None and not last.status.is_absent:
        status = last.status
    return status, best
