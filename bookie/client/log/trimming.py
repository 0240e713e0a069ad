"""The removal of ledgers from a log: truncation, deletion, and the completion of either after a crash.

A ledger is removed from the list before it is deleted, so readers of the list find no gap. An open ledger is fenced
before it is deleted, so its writer fails.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bookie.client.log.values import InvalidPositionError, LogPosition
from bookie.client.ports import ClientPorts
from bookie.client.recovery.recovery import recover_ledger
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError, Versioned
from bookie.metadata.logs.log_list import LogList
from bookie.metadata.logs.log_store import ListedLog, LogLists, NoSuchLogError
from bookie.metadata.nodes import read_each_permitted
from bookie.metadata.port import AccessDeniedError
from bookie.model.errors import BkhealError
from bookie.model.ids import LedgerId
from bookie.runtime.fault_points import fault_point

_log: Final = logging.getLogger(__name__)
_DELETES_PER_BATCH_MAX: Final = 200
"""Number of deleted ledgers recorded by one change of the list. It limits the work that is repeated after a crash."""


async def truncate(ports: ClientPorts, lists: LogLists, name: str, before: LogPosition) -> Sequence[LedgerId]:
    """Remove the ledgers that end before a position, and return them. The last ledger is always kept.

    Raises:
        InvalidPositionError: the log never had that ledger.
        NoSuchLogError: there is no such log.
        LogConflictError, OutcomeUnknownError, StoreUnavailableError: truncate again.
    """
    dropped: tuple[LedgerId, ...] = ()

    def decide(now: LogList) -> LogList | None:
        nonlocal dropped
        going = removable_ledgers(name, now, before)
        if not going:
            return None
        dropped = going
        return now.without(going, is_truncation=True)

    listed = await lists.change(await lists.read(name, is_newest=True), decide)
    await finish_trimming(ports, lists, listed)
    return dropped


def removable_ledgers(name: str, now: LogList, before: LogPosition) -> tuple[LedgerId, ...]:
    """Return the ledgers that a truncation removes: those that end before a position, except the last one. Pure.

    Raises:
        InvalidPositionError: the log never had the ledger of the position.
        NoSuchLogError: the log is deleted.
    """
    check_log_not_deleted(name, now)
    if before.ledger_id > now.last_listed:
        last = "it had none yet" if now.last_listed < 0 else f"its last one is {now.last_listed}"
        raise InvalidPositionError(f"log {name!r} never had ledger {before.ledger_id}; {last}")
    return tuple(ledger_id for ledger_id in now.ledgers[:-1] if ledger_id < before.ledger_id)


async def delete_log(ports: ClientPorts, lists: LogLists, name: str) -> None:
    """Delete a log with all its ledgers. Its writer, if any, is deposed.

    Raises:
        NoSuchLogError: there is no such log, and no ledger of a deleted one is left.
        RecoveryNotPossibleError: the last ledger could not be fenced; the log was deleted. Delete it again to free
            that ledger.
        AccessDeniedError: this session may not read or delete some of its ledgers; the others are deleted.
        LogConflictError, OutcomeUnknownError, StoreUnavailableError: delete it again.
    """

    def decide(now: LogList) -> LogList | None:
        if now.is_deleted:
            return None
        return replace(now.without(now.ledgers, is_truncation=True), writer="", is_deleted=True)

    seen = await lists.read(name, is_newest=True, is_tombstone_ok=True)
    if seen.list.is_deleted and not seen.list.trimming:
        raise NoSuchLogError(f"there is no log {name!r}")
    await _trim(ports, lists, await lists.change(seen, decide))


async def finish_trimming(ports: ClientPorts, lists: LogLists, listed: ListedLog) -> ListedLog:
    """Delete the ledgers removed from the list. Best effort: the next truncation or takeover deletes the rest."""
    if not listed.list.trimming or fault_point("log.leave_trimming"):
        return listed
    try:
        return await _trim(ports, lists, listed)
    except BkhealError as error:
        _log.warning("ledgers that left a log wait for deletion", extra={"log": listed.name, "reason": str(error)})
        return listed


def check_log_not_deleted(name: str, log: LogList) -> None:
    """Refuse to change a deleted log.

    Raises:
        NoSuchLogError: the log is deleted.
    """
    if log.is_deleted:
        raise NoSuchLogError(f"there is no log {name!r}")


async def _trim(ports: ClientPorts, lists: LogLists, listed: ListedLog) -> ListedLog:
    """Delete all ledgers of ``trimming`` that this session may read and delete; the others stay there.

    Raises:
        AccessDeniedError: some ledgers are left.
    """
    refused: dict[LedgerId, AccessDeniedError] = {}
    while going := [each for each in listed.list.trimming if each not in refused]:
        going = going[: 1 if fault_point("log.trim_one") else _DELETES_PER_BATCH_MAX]
        found = await read_each_permitted(ports.ledgers.read_many, going)
        for ledger in found:
            if isinstance(ledger, Versioned) and not ledger.metadata.is_closed:
                await _fence(ports, ledger.ledger_id)
        gone = []
        for ledger_id, ledger in zip(going, found, strict=True):
            try:
                if isinstance(ledger, AccessDeniedError):
                    raise ledger  # it cannot be fenced
                await ports.ledgers.delete(ledger_id)
                gone.append(ledger_id)
            except AccessDeniedError as error:
                refused[ledger_id] = error

        def decide(now: LogList, gone: Sequence[LedgerId] = gone) -> LogList | None:
            left = now.trimmed(gone)
            return None if left == now else left

        listed = await lists.change(listed, decide)
    for refusal in refused.values():
        raise refusal
    return listed


async def _fence(ports: ClientPorts, ledger_id: LedgerId) -> None:
    try:
        await recover_ledger(ports, ledger_id)
    except NoSuchLedgerError:
        return
