"""Lists, retries and drops dead letters, and accepts losses."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from auditor.operating.client import Actor, ClusterClient, Document, NoSuchObjectError
from auditor.operating.owners import with_owners
from auditor.safety.dead_letters import DeadLetterOutcome, DeadLetterResult, DeadLetters
from bookie.metadata.port import NotEmptyError
from bookie.metadata.tasks.decisions import Decision, Decisions, LostFragment
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkedTask, ParkReason
from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.ids import LedgerId
from bookie.model.times import rfc3339, rfc3339_if_known

EXAMINED_MAX: Final = 20_000
"""Records that are read for one page in a search for dead letters with a reason."""
ENTRY_RANGES_SHOWN_MAX: Final = 100
"""Ranges of lost entries in one fragment of a document; the record has all of them."""
_READ_LEDGERS: Final = 1_000
_ENDS: Final = frozenset({DeadLetterOutcome.UNKNOWN, DeadLetterOutcome.FAILED, DeadLetterOutcome.NOT_TRIED})
ACCEPT: Final = "accept-loss"
DROP: Final = "drop"

ADVICE: Final[Mapping[ParkReason, str]] = {
    ParkReason.NO_CANDIDATE_BOOKIE: "add a writable bookie; the task is then tried again automatically",
    ParkReason.NO_LIVE_COPY: "bring back a bookie that holds a copy; the task is then tried again automatically. If "
    "every copy is lost permanently: `bkheal dead-letters accept-loss`",
    ParkReason.NEEDS_RECOVERY: "bring back bookies of the last ensemble; until then the end of the ledger is unknown",
    ParkReason.UNREADABLE_ENTRIES: "every reachable bookie lacks these entries; bring back another bookie that has "
    "them, or repair the disk, then `bkheal dead-letters retry`. If every copy is lost permanently: `bkheal "
    "dead-letters accept-loss`",
    ParkReason.UNREADABLE_METADATA: "check the ledger's node in ZooKeeper: it cannot be read; or it is of format 1, "
    "which keeps no password, and not closed: `bkheal ledger recover` with the password it was created with",
    ParkReason.OPEN_LEDGER: "its writer replaces the bookie with the next write or on closing; if the writer ended, "
    "close the ledger with `bkheal ledger recover`, but not while the bookie lacks entries",
    ParkReason.TARGETS_REFUSE: "check the refusals below: free space on the bookies, correct their access rules, or "
    "add a bookie; the task is tried again every five minutes. Restart an Apache bookie with FENCED in the detail: "
    "until then it refuses a ledger that its collector deleted, and is not asked again",
    ParkReason.UNREACHABLE_BOOKIES: "restart the bookies named below. If one answers IO_ERROR, it cannot read its copy "
    "and no other bookie serves one: check its log and its disk. Stop a bookie permanently only if other bookies "
    "have its entries: its copies are then replaced; the task is tried again every five minutes",
    ParkReason.MISPLACED: "no entry is at risk. Add bookies in the racks or groups that are missing, or correct the "
    "topology; the task is then tried again automatically",
    ParkReason.INTERNAL_ERROR: "report this with the detail below: it is a defect of bkheal, and nothing was changed; "
    "after an upgrade: `bkheal dead-letters retry`",
}


async def list_dead_letters(
    client: ClusterClient, limit: int, after: LedgerId | None = None, reason: ParkReason | None = None
) -> Document:
    """Return a page of dead letters, by ledger id. ``next_after`` is null on the last page; any page may be short.

    ``unreadable`` has the ledgers of the page whose record cannot be read: they count as not parked. If a reason is
    given, it is empty.

    Raises:
        StoreUnavailableError: no answer.
    """
    waiting = [each for each in sorted(await client.parked.ids()) if after is None or each > after]
    rows: list[Document] = []
    unread: set[LedgerId] = set()
    examined = 0
    while len(rows) < limit and examined < min(len(waiting), EXAMINED_MAX):
        part = waiting[examined : examined + min(_READ_LEDGERS, max(limit - len(rows), 100))]
        records = await client.parked.read_many(part, {})
        unread.update(() if reason is not None else set(part).difference(record.ledger_id for record in records))
        tasks = await client.ports.tasks.read_many([record.ledger_id for record in records])
        for record, task in zip(records, tasks, strict=True):
            if task is None or reason not in (None, record.reason):
                continue
            if len(rows) == limit:
                return await _page(client, rows, unread, rows[-1]["ledger_id"])
            missing = task.missing if isinstance(task, Task) else ()
            rows.append(dead_letter_row(record, missing, client.ports.clock.epoch_ms()))
        examined += len(part)
    following = waiting[examined - 1] if examined < len(waiting) else None
    return await _page(client, rows, unread, following)


async def _page(
    client: ClusterClient, rows: list[Document], unread: AbstractSet[LedgerId], next_after: LedgerId | None
) -> Document:
    of_page = {each for each in unread if next_after is None or each <= next_after}
    unreadable = sorted(of_page & await client.parked.ids()) if of_page else []  # a record may have been deleted
    return {
        "items": await with_owners(client.ports.ledgers, rows),
        "unreadable": unreadable,
        "next_after": next_after,
    }


def dead_letter_row(record: ParkedTask, missing: Sequence[str], now_ms: int) -> Document:
    """Return a dead letter as a document."""
    return {
        "ledger_id": record.ledger_id,
        "reason": record.reason.value,
        "since": rfc3339_if_known(record.since_ms, "seconds"),
        "age_seconds": max(0, (now_ms - record.since_ms) // 1000),
        "missing": list(missing),
        "detail": record.detail,
        "advice": ADVICE[record.reason],
    }


async def retry_dead_letters(
    client: ClusterClient,
    actor: Actor,
    ledgers: Sequence[LedgerId],
    *,
    is_skipping: bool = False,
    on_unparked: Callable[[LedgerId], None] = lambda ledger_id: None,
) -> Document:
    """Let workers retry dead letters, also those with an unreadable record. Return those whose record was deleted.

    Args:
        client: of the cluster.
        actor: the requester.
        ledgers: the dead letters to retry.
        is_skipping: skip those that are not parked any more.
        on_unparked: called after each record is deleted, so that a caller knows what was done before an error.

    Raises:
        NoSuchObjectError: one of them is not a dead letter, and none is skipped; nothing was changed.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; repeating the call for the others is safe.
    """
    present = await client.parked.ids()
    absent = sorted(set(ledgers) - present)
    if absent and not is_skipping:
        raise NoSuchObjectError(f"not parked: {', '.join(map(str, absent))}")
    wanted = [each for each in ledgers if each in present]
    if wanted:
        await actor.record(client, "dead-letters retry", _named(wanted))
    done: list[LedgerId] = []
    for ledger_id in wanted:
        with contextlib.suppress(NotEmptyError):  # its node has children, so it stays; the other nodes are deleted
            await client.parked.unpark(ledger_id)
            done.append(ledger_id)
            on_unparked(ledger_id)
    return {"dry_run": False, "ledgers": done}


async def expected_decisions(
    client: ClusterClient, actor: Actor, verb: str, ledgers: Sequence[LedgerId]
) -> list[DeadLetterResult]:
    """Return the expected results of ``ACCEPT`` or ``DROP``. If one ledger is refused, none would be changed.

    Raises:
        StoreUnavailableError: no answer.
        NotAClusterError: the cluster was deleted.
    """
    letters = _letters(client, actor)
    check = letters.check_accept if verb == ACCEPT else letters.check_drop
    expected = [await check(ledger_id) for ledger_id in ledgers]
    if not any(each.outcome is DeadLetterOutcome.REFUSED for each in expected):
        return expected
    nothing = "nothing was changed, because another ledger is refused"
    return [
        each
        if each.outcome is DeadLetterOutcome.REFUSED
        else DeadLetterResult(each.ledger_id, DeadLetterOutcome.NOT_TRIED, nothing)
        for each in expected
    ]


def is_final(expected: Sequence[DeadLetterResult]) -> bool:
    """Return whether there is nothing to change, or nothing can be changed."""
    refused = any(each.outcome is DeadLetterOutcome.REFUSED for each in expected)
    return refused or all(
        each.outcome in (DeadLetterOutcome.ALREADY_ACCEPTED, DeadLetterOutcome.ALREADY_DROPPED) for each in expected
    )


async def decide(
    client: ClusterClient, actor: Actor, verb: str, ledgers: Sequence[LedgerId], reason: str
) -> list[DeadLetterResult]:
    """Accept the losses of dead letters, or drop them, one after the other; stop at the first error.

    The results have each change that was made before the error.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: no answer when writing the record; nothing was changed.
        PermanentError, ConflictError: writing the record or the first ledger failed; the others were not changed.
    """
    await actor.record(client, f"dead-letters {verb}", f"{_named(ledgers)}: {reason}")
    letters = _letters(client, actor)
    results: list[DeadLetterResult] = []
    for ledger_id in ledgers:
        if results and results[-1].outcome in _ENDS:
            results.append(
                DeadLetterResult(
                    ledger_id,
                    DeadLetterOutcome.NOT_TRIED,
                    "an error ended the command before this ledger was processed",
                )
            )
            continue
        try:
            change = letters.accept if verb == ACCEPT else letters.drop
            results.append(await change(ledger_id, reason))
        except (TransientError, OutcomeUnknownError) as error:
            detail = f"the store did not answer, and the change may have been made: repeat the command ({error})"
            results.append(DeadLetterResult(ledger_id, DeadLetterOutcome.UNKNOWN, detail))
        except (PermanentError, ConflictError) as error:
            if not results:
                raise
            detail = f"an error ended the change, which may have been made: {error}"
            results.append(DeadLetterResult(ledger_id, DeadLetterOutcome.FAILED, detail))
    return results


def decision_document(actor: Actor, reason: str, results: Sequence[DeadLetterResult], *, is_dry_run: bool) -> Document:
    """Return the result for each ledger."""
    rows = [
        {
            "ledger_id": each.ledger_id,
            "outcome": each.outcome.value,
            "detail": each.detail,
            "lost": [fragment_row(fragment) for fragment in each.lost],
        }
        for each in results
    ]
    return {"dry_run": is_dry_run, "by": actor.name, "reason": reason, "ledgers": rows}


async def list_accepted(client: ClusterClient) -> Document:
    """Return the accepted losses.

    Raises:
        StoreUnavailableError: no answer.
    """
    accepted = await Decisions(client.store, client.cluster.root).accepted()
    return {"items": [_accepted_row(decision) for decision in accepted]}


def _accepted_row(decision: Decision) -> Document:
    return {
        "ledger_id": decision.ledger_id,
        "accepted": rfc3339(decision.at_ms),
        "by": decision.by,
        "reason": decision.reason,
        "park_reason": None if decision.park_reason is None else decision.park_reason.value,
        "lost": [fragment_row(fragment) for fragment in decision.lost],
    }


def fragment_row(fragment: LostFragment) -> Document:
    """Return a fragment with lost entries as a document. A record without entry ids has no ``entries``."""
    lost = fragment.lost_entries
    return {
        "first_entry_id": fragment.first_entry_id,
        "last_entry_id": fragment.last_entry_id,
        "positions": list(fragment.positions),
        "bookies": list(fragment.bookies),
        "denials": [
            {"position": denial.position, "bookie_id": denial.bookie, "entries": denial.entries}
            for denial in fragment.denials
        ],
        "entry_count": len(lost) if lost else None,
        "entries": [list(run) for run in itertools.islice(lost.runs, ENTRY_RANGES_SHOWN_MAX)],
        "shared_positions": list(fragment.shared),
    }


def _letters(client: ClusterClient, actor: Actor) -> DeadLetters:
    decisions = Decisions(client.store, client.cluster.root)
    return DeadLetters(client.ports, client.store, client.parked, decisions, actor.name)


def _named(ledgers: Sequence[LedgerId]) -> str:
    return "ledgers " + ", ".join(map(str, ledgers))
