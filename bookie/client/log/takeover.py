"""The takeover of a log by a new writer: close the last ledger, then create and list a new one in one transaction.

The order of the steps keeps the log ordered and complete. After the last ledger is closed, nothing is added to it
(fencing). After the transaction that creates and lists the new ledger, the next writer finds it. If a writer is deposed
before its transaction, the transaction fails, because the list contains another writer's token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from bookie.client.log.trimming import check_log_not_deleted, finish_trimming
from bookie.client.log.values import LOG_METADATA_KEY, LogOptions
from bookie.client.options import WriterOptions
from bookie.client.ports import ClientPorts
from bookie.client.recovery.recovery import recover_ledger
from bookie.client.writer.creation import PlannedLedger, plan_ledger, start_writer
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError, Versioned
from bookie.metadata.ledgers.serde import encode
from bookie.metadata.logs.log_list import LogConflictError, LogList
from bookie.metadata.logs.log_store import (
    LIST_BYTES_MAX,
    TAKEOVER_BYTES_MAX,
    ListedLog,
    LogExistsError,
    LogLists,
    NoSuchLogError,
)
from bookie.metadata.port import Create
from bookie.model.ids import NO_ENTRY, LedgerId
from bookie.runtime.fault_points import fault_point

_log: Final = logging.getLogger(__name__)

TAKEOVERS_MAX: Final = 10
"""Maximum number of rounds of one takeover. A round is lost if another writer lists a ledger first."""
_IDS_MAX: Final = 20
"""Maximum number of ledger ids requested until one is above those of the log. More than one is needed only if another
takeover runs at the same time."""


class _ConcurrentTakeoverError(LogConflictError):
    """Another writer listed a ledger after the list was read."""


@dataclass(frozen=True, slots=True)
class LogLedgerFactory:
    """The ports, token and options with which one writer of a log creates and lists its ledgers."""

    ports: ClientPorts
    lists: LogLists
    token: str
    """Unique to this writer."""
    options: LogOptions
    password: bytes
    writer_options: WriterOptions

    async def plan(self, seen: ListedLog) -> PlannedLedger:
        """Plan the next ledger of the log. Raises as ``plan_ledger``."""
        custom = {LOG_METADATA_KEY: seen.name.encode()}
        plan = await plan_ledger(self.ports, self.options.ledger, self.password, custom)
        for _ in range(_IDS_MAX):
            if plan.ledger_id > seen.list.last_listed:
                return plan
            plan = replace(plan, ledger_id=await self.ports.ledgers.new_id())
        raise LogConflictError(
            f"the cluster gives ledger ids below ledger {seen.list.last_listed} of log {seen.name!r}"
        )

    async def start(
        self,
        seen: ListedLog,
        plan: PlannedLedger,
        expect: Callable[[LogList], None],
        *,
        drop: Collection[LedgerId] = (),
        bytes_max: int = LIST_BYTES_MAX,
    ) -> tuple[ListedLog, LedgerWriter]:
        """Create the planned ledger and list it, in one transaction, and return its writer. May be repeated.

        Args:
            seen: the list as last read.
            plan: the planned ledger.
            expect: a function that raises an error if this ledger may not be added to the list.
            drop: ledgers to remove from the list by the same change.
            bytes_max: see ``LogLists.change``.

        Raises:
            LogFullError, LogConflictError, OutcomeUnknownError, StoreUnavailableError: see ``LogLists.change``.
        """
        metadata = replace(plan.metadata, ctoken=0)  # no token is needed: the list shows who created the ledger

        def decide(now: LogList) -> LogList | None:
            if now.writer == self.token and plan.ledger_id in now.ledgers:
                return None
            expect(now)
            options = self.options.to_json()
            return replace(
                now.without(drop, is_truncation=False).with_ledger(plan.ledger_id, self.token), options=options
            )

        create = Create(self.ports.ledgers.path(plan.ledger_id), encode(metadata))
        listed = await self.lists.change(seen, decide, create=create, bytes_max=bytes_max)
        ledger = Versioned(plan.ledger_id, metadata, 0)
        return listed, start_writer(self.ports, plan, ledger, self.password, self.writer_options)


async def take_over(
    ports: ClientPorts,
    lists: LogLists,
    name: str,
    *,
    token: str,
    options: LogOptions | None,
    password: bytes,
    writer_options: WriterOptions,
    is_created: bool,
) -> tuple[LogLedgerFactory, ListedLog, LedgerWriter]:
    """Become the writer of a log; see ``Log.write`` for the arguments and errors."""
    for _ in range(TAKEOVERS_MAX):
        seen = await _read_or_create(ports, lists, name, options, token, is_created=is_created)
        chosen = options or LogOptions.from_json(seen.list.options)
        author = LogLedgerFactory(ports, lists, token, chosen, password, writer_options)
        plan = await author.plan(seen)
        drop = await _settle(ports, seen)
        before, last = seen.list.writer, seen.list.last

        def expect(now: LogList, before: str = before, last: LedgerId | None = last) -> None:
            check_log_not_deleted(name, now)
            if (now.writer, now.last) != (before, last) or fault_point("log.takeover_again"):
                raise _ConcurrentTakeoverError(f"another writer takes over log {name!r} at the same time")

        try:
            listed, writer = await author.start(seen, plan, expect, drop=drop, bytes_max=TAKEOVER_BYTES_MAX)
        except LogConflictError:  # another writer listed a ledger, or another client has taken the id of this one
            continue
        _log.info("log taken over", extra={"log": name, "ledger_id": writer.ledger_id})
        try:
            listed = await finish_trimming(ports, lists, listed)
        except BaseException:  # a cancellation: the caller does not get the writer, so nothing else would stop it
            await writer.abandon()
            raise
        return author, listed, writer
    raise LogConflictError(f"other writers keep taking over log {name!r}; see who writes it, and try again")


async def _read_or_create(
    ports: ClientPorts, lists: LogLists, name: str, options: LogOptions | None, token: str, *, is_created: bool
) -> ListedLog:
    try:
        return await lists.read(name, is_newest=True)
    except NoSuchLogError:
        if not is_created:
            raise
    try:
        return await lists.create(name, (options or LogOptions()).to_json(), ports.clock.epoch_ms(), token)
    except LogExistsError:  # another writer created it first
        return await lists.read(name, is_newest=True)


async def _settle(ports: ClientPorts, seen: ListedLog) -> tuple[LedgerId, ...]:
    """Close the last ledger; return it if it should leave the list, because it is empty or was deleted."""
    last = seen.list.last
    if last is None:
        return ()
    try:
        closed = await recover_ledger(ports, last)
    except NoSuchLedgerError:
        if await ports.ledgers.current(last) is not None:
            raise
        _log.warning("the last ledger of a log was deleted by hand", extra={"log": seen.name, "ledger_id": last})
        return (last,)
    return (last,) if closed.metadata.last_entry_id == NO_ENTRY else ()
