"""Decisions about dead letters: each is confirmed by the operator, carried out, and shown ledger by ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer

from auditor.cli.at import Service
from auditor.cli.changing import confirm_ledgers, connected, show, whoami
from auditor.cli.output import OutputFormat, print_error
from auditor.cli.paging import AT_ONCE_MAX
from auditor.cli.running import run
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LedgerId
from bookie.runtime.human import counted, printable

_RANGES_MAX: Final = 5
"""Largest number of ranges of lost entries shown for a fragment."""
_FRAGMENTS_MAX: Final = 5
"""Largest number of fragments shown for a ledger."""
_REASON_CHARS_MAX: Final = 500
"""Largest number of recorded characters of an operator's reason."""
_DONE: Final = {
    "accepted": "the loss {is} accepted, and the task {is} closed",
    "accepted_task_stays": "the loss {is} accepted",
    "already_accepted": "the loss was accepted before",
    "dropped": "the dead letter and its task {are} removed",
    "already_dropped": "it was dropped before, and no audit has marked it again",
    "withdrawn": "the accepted loss {is} withdrawn; the next audit may mark the ledger again",
    "locked": "not changed",
    "changed": "not changed",
    "refused": "refused",
    "unknown": "unknown",
    "failed": "failed",
    "not_tried": "not tried",
}


@dataclass(frozen=True, slots=True)
class OperatorDecision:
    """What an operator decides about dead letters."""

    verb: str
    """The name of the command."""
    ledgers: Sequence[LedgerId]
    """Each one once."""
    reason: str
    question: str
    """Shown before the change; the operator then types each ledger id."""
    is_dry_run: bool
    is_sure: bool
    """Do not ask."""


def distinct(ledgers: Sequence[int]) -> Sequence[LedgerId]:
    """Return the ledgers in their order, each one once. Pure."""
    return [LedgerId(ledger_id) for ledger_id in dict.fromkeys(ledgers)]


def named(ledgers: Sequence[LedgerId]) -> str:
    """Return the ledgers as a part of a sentence. Pure."""
    return ", ".join(map(str, ledgers))


def checked_reason(why: str, *, is_required: bool) -> str:
    """Return the reason of an operator as one line.

    Raises:
        typer.BadParameter: it is too long, or required and empty.
    """
    reason = " ".join(why.split())
    if is_required and not reason:
        raise typer.BadParameter(
            "the reason is empty: write one sentence for those who read the record", param_hint="--reason"
        )
    if len(reason) > _REASON_CHARS_MAX:
        raise typer.BadParameter(
            f"the reason has {len(reason)} characters; at most {_REASON_CHARS_MAX}", param_hint="--reason"
        )
    return reason


def carry_out(service: Service | None, uri: str | None, request: OperatorDecision, output: OutputFormat) -> None:
    """Ask the operator to confirm, make the change, and show the outcome of each ledger.

    Args:
        service: the service that does the work; None: this process does it.
        uri: of the metadata, for this process.
        request: the decision.
        output: of the document.

    Raises:
        typer.Exit: a ledger was not changed; its code is of the worst outcome.
    """
    document = _remote_decision(service, request) if service else run(_decided(uri or "", request))
    show(output, "DeadLetterDecision", document, [_line(row, request.is_dry_run) for row in document["ledgers"]])
    outcomes = {row["outcome"] for row in document["ledgers"]}
    if "unknown" in outcomes:
        raise typer.Exit(ExitCode.STORE_UNREACHABLE)
    failed = [
        f"ledger {row['ledger_id']}: {row['detail']}" for row in document["ledgers"] if row["outcome"] == "failed"
    ]
    if failed:
        print_error("; ".join(failed))
        raise typer.Exit(ExitCode.FAILED)
    if outcomes & {"refused", "changed"}:
        repeated = f"`bkheal dead-letters {request.verb}`"
        print_error(f"not every ledger could be changed; correct the command, or repeat {repeated}")
        raise typer.Exit(ExitCode.FAILED)
    if "locked" in outcomes:
        raise typer.Exit(ExitCode.BUSY)


def _remote_decision(service: Service, request: OperatorDecision) -> dict[str, Any]:
    """Request a dry run from a service, ask the operator to confirm, and then request the change."""
    ledgers, path = request.ledgers, f"/dead-letters/{request.verb}"
    if len(ledgers) > AT_ONCE_MAX:
        raise typer.BadParameter(f"with --at, name at most {AT_ONCE_MAX} ledgers")
    asked: dict[str, Any] = {"ledgers": ledgers, "reason": request.reason}
    expected = service.ask("POST", path, body={**asked, "dry_run": True})
    outcomes = {row["outcome"] for row in expected["ledgers"]}
    if request.is_dry_run or "refused" in outcomes or outcomes <= {"already_accepted", "already_dropped"}:
        return expected
    confirm_ledgers(request.question, ledgers, is_sure=request.is_sure)
    return service.ask("POST", path, body={**asked, "confirm": ledgers})


async def _decided(uri: str, request: OperatorDecision) -> dict[str, Any]:
    from auditor.operating.client import Actor
    from auditor.operating.dead_letters import decide, decision_document, expected_decisions, is_final

    actor = Actor(whoami(), "command")
    async with connected(uri) as client:
        found = await expected_decisions(client, actor, request.verb, request.ledgers)
        if not request.is_dry_run and not is_final(found):
            confirm_ledgers(request.question, request.ledgers, is_sure=request.is_sure)
            found = await decide(client, actor, request.verb, request.ledgers, request.reason)
    return decision_document(actor, request.reason, found, is_dry_run=request.is_dry_run)


def holders(fragment: dict[str, Any]) -> str:
    """Return the bookies that lack the lost entries of a fragment: lost ones first, then those that deny them."""
    return " ".join((*fragment["bookies"], *(denial["bookie_id"] for denial in fragment["denials"])))


def _entries(fragment: dict[str, Any]) -> str:
    """Return the lost entries of a fragment, or the fragment if they are not named."""
    if not fragment.get("entry_count"):
        return f"{fragment['first_entry_id']}..{fragment['last_entry_id']}"
    runs = [str(first) if first == last else f"{first}..{last}" for first, last in fragment["entries"][:_RANGES_MAX]]
    count = counted(fragment["entry_count"], "entry")
    return f"{count} of {fragment['first_entry_id']}..{fragment['last_entry_id']}: {', '.join(runs)}" + (
        ", ..." if len(fragment["entries"]) > _RANGES_MAX else ""
    )


def _line(row: dict[str, Any], is_dry_run: bool) -> str:
    words = {"is": "would be", "are": "would be"} if is_dry_run else {"is": "is", "are": "are"}
    text = f"ledger {row['ledger_id']}: {_DONE[row['outcome']].format(**words)}"
    if row["lost"]:
        parts = [f"{_entries(part)} on {printable(holders(part))}" for part in row["lost"][:_FRAGMENTS_MAX]]
        others = len(row["lost"]) - len(parts)
        more = f" and {counted(others, 'more fragment')}" if others else ""
        text += f" (lost: {'; '.join(parts)}{more})"
    return f"{text}; {row['detail']}" if row["detail"] else text
