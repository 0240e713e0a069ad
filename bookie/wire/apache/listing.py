"""Lists of entries from Apache's bookies, which are requested only if an operator permits it.

A list costs such a bookie memory until it restarts. With ``SortedLedgerStorage``, Apache's default, each index page
read for a list stays in use (docs/decisions/0068-apaches-bookies-are-not-asked-for-lists.md). After all pages of its
cache are in use, the bookie waits forever for a free one, in adds as well. So everything except a replicas check with
``--apache-lists`` reads entries to find out which ones such a bookie holds.

With ``DbLedgerStorage``, Pulsar's default, a request for the list of a stored ledger calls a method missing from the
storage (4.17): no answer comes, not even a refusal. A second request on the same connection, a read of the last entry,
distinguishes such a bookie from a slow one: if only the read is answered, the bookie does not list. The result is kept
for the connection. So later requests take one quick read instead of a wait, and a bookie that restarts with another
storage is asked again. A late list resets the result.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bookie.model.availability import EntryRuns, InvalidAvailabilityError
from bookie.model.ids import NO_ENTRY, LedgerId
from bookie.runtime.waiting import run_cooperatively
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.connection import ApacheAnswer, ExpectedAnswer, FutureWaiter, Version3Connection
from bookie.wire.apache.reading import entry_result
from bookie.wire.port import ListReply, Status

LIST_SILENCE_S: Final = 2.0
"""After this time without an answer to a list, the bookie gets a request supported by every bookie."""

_HAS_ENTRIES_STATUSES: Final = frozenset({Status.OK, Status.CORRUPT, Status.IO_ERROR})
"""Answers to a read of the last entry after which only reads of each entry show the bookie's entries.

A damaged last entry shows nothing about the others.
"""
_LEDGER_KNOWN_STATUSES: Final = _HAS_ENTRIES_STATUSES | {Status.LIMBO, Status.NO_ENTRY}
_NO_LIST_DETAIL: Final = "Apache's bookies are not asked for lists, or have none (DbLedgerStorage)"


async def list_entries(connection: Version3Connection, ledger_id: LedgerId, silence_s: float | None) -> ListReply:
    """List a ledger's entries; UNSUPPORTED if the bookie cannot list, or (``silence_s`` is None) must not be asked to.

    If a bookie without lists holds no entry of the ledger, or has it in limbo, the status of the read of the last entry
    is the reply, without entries; in limbo the bookie may serve some. Without any answer the call does not return:
    deadlines are left to the caller. Apache's bookies have no pins: the ledger may be collected at any time.

    Raises:
        ConnectionLostError: the connection ended.
    """
    if silence_s is None or connection.is_without_lists:
        return _reply_without_list(await _last(connection, ledger_id))
    await connection.ready()
    listing = FutureWaiter()
    wanted = pb.Request(getListOfEntriesOfLedgerRequest=pb.GetListOfEntriesOfLedgerRequest(ledgerId=ledger_id))
    expected = ExpectedAnswer(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, ledger_id, None, listing)
    txn_id, frame = connection.prepare(wanted, expected)
    connection.send([frame])
    is_late_welcome = False
    try:
        await asyncio.wait([listing.future], timeout=silence_s)
        if not listing.future.done():
            status = await _last_unless_listed(connection, ledger_id, listing)
            if status is not None:
                reply = _reply_without_list(status)
                if status in _LEDGER_KNOWN_STATUSES and not connection.is_without_lists:
                    connection.is_without_lists = is_late_welcome = True
                    listing.future.add_done_callback(lambda answer: _note_lists_supported(connection, answer))
                return reply
        return await _listed(await listing.future)
    finally:
        if not is_late_welcome:
            connection.forget([txn_id])


async def _last(connection: Version3Connection, ledger_id: LedgerId) -> Status:
    request = pb.Request(readRequest=pb.ReadRequest(ledgerId=ledger_id, entryId=NO_ENTRY))
    answer = await connection.ask(pb.READ_ENTRY, request, ledger_id, NO_ENTRY)
    return entry_result(answer, ledger_id, None).status


async def _last_unless_listed(
    connection: Version3Connection, ledger_id: LedgerId, listing: FutureWaiter
) -> Status | None:
    """Return the status of a read of the last entry; None if the list came first."""
    await connection.ready()
    reading = FutureWaiter()
    request = pb.Request(readRequest=pb.ReadRequest(ledgerId=ledger_id, entryId=NO_ENTRY))
    txn_id, frame = connection.prepare(request, ExpectedAnswer(pb.READ_ENTRY, ledger_id, NO_ENTRY, reading))
    connection.send([frame])
    try:
        await asyncio.wait([listing.future, reading.future], return_when=asyncio.FIRST_COMPLETED)
    finally:
        connection.forget([txn_id])
    if listing.future.done():
        return None
    return entry_result(reading.future.result(), ledger_id, None).status


def _reply_without_list(last: Status) -> ListReply:
    """Return the reply of a bookie without lists, from its answer for the last entry."""
    return ListReply(Status.UNSUPPORTED, detail=_NO_LIST_DETAIL) if last in _HAS_ENTRIES_STATUSES else ListReply(last)


async def _listed(answer: ApacheAnswer) -> ListReply:
    if answer.status is not Status.OK:
        return ListReply(answer.status, detail=answer.detail)
    try:
        decoding = EntryRuns.decoding(answer.content.availabilityOfEntriesOfLedger)
        return ListReply(Status.OK, await run_cooperatively(decoding))
    except InvalidAvailabilityError as error:
        return ListReply(Status.IO_ERROR, detail=str(error))


def _note_lists_supported(connection: Version3Connection, answer: asyncio.Future[ApacheAnswer]) -> None:
    if not answer.cancelled() and answer.exception() is None:
        connection.is_without_lists = False
