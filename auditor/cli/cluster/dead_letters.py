"""``bkheal dead-letters``: tasks that replicators have set aside, why, and what an operator can decide about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from auditor.cli.cluster.changing import (
    DryRunOption,
    YesOption,
    age_s,
    confirm,
    confirm_ledgers,
    connected,
    refuse,
    show,
    whoami,
)
from auditor.cli.ledgers.options import LedgerArgument
from auditor.cli.output import OutputFormat, print_error, print_json, print_line, print_table
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.metadata.tasks.decisions import Decision, LostFragment
from bookie.metadata.tasks.parked import ParkedTask, ParkReason
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.model.times import rfc3339, rfc3339_if_known
from bookie.runtime.human import duration, printable

if TYPE_CHECKING:
    from auditor.safety.dead_letters import DeadLetterResult, DeadLetters
    from bookie.client.connect import ConnectedBookKeeper

app = typer.Typer(help="Marked ledgers that cannot be repaired as the cluster is now.", no_args_is_help=True)

ReasonOption = Annotated[ParkReason | None, typer.Option(help="Only those with this reason.", show_default=False)]
LedgersArgument = Annotated[
    list[int], typer.Argument(min=0, max=LEDGER_ID_MAX, metavar="LEDGER", help="Ledger ids.", show_default=False)
]
SureOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask. Otherwise each ledger id must be typed at the terminal.")
]

_WHY_MAX: Final = 500
"""Characters of an operator's reason that are recorded."""

_ADVICE: Final = {
    ParkReason.NO_CANDIDATE_BOOKIE: "add a writable bookie; the task is then tried again by itself",
    ParkReason.NO_LIVE_COPY: "bring back a bookie that holds a copy; the task is then tried again by itself. If "
    "every copy is lost permanently: `bkheal dead-letters accept-loss`",
    ParkReason.NEEDS_RECOVERY: "bring back bookies of the last ensemble; until then the end of the ledger is unknown",
    ParkReason.UNREADABLE_ENTRIES: "every reachable bookie lacks these entries; bring back another bookie that has "
    "them, or repair the disk, then `bkheal dead-letters retry`. If every copy is lost permanently: `bkheal "
    "dead-letters accept-loss`",
    ParkReason.UNREADABLE_METADATA: "look at the ledger's node in ZooKeeper: it cannot be read; or it is of format 1, "
    "which keeps no password, and not closed: `bkheal ledger recover` with the password it was created with",
    ParkReason.OPEN_LEDGER: "its writer replaces the bookie with the next write or on closing; if the writer ended, "
    "close the ledger with `bkheal ledger recover`, but not while the bookie lacks entries",
    ParkReason.TARGETS_REFUSE: "look at the refusals below: free space on the bookies, correct their access rules, or "
    "add a bookie; the task is tried again every five minutes",
    ParkReason.SILENT_BOOKIES: "restart the bookies named below, or stop them permanently: their copies are "
    "then replaced; the task is tried again every five minutes",
    ParkReason.MISPLACED: "no entry is at risk. Add bookies in the racks or groups that are missing, or correct the "
    "topology; the task is then tried again by itself",
    ParkReason.INTERNAL_ERROR: "report this with the detail below: it is a defect of bkheal, and nothing was changed; "
    "after an upgrade: `bkheal dead-letters retry`",
}


@app.command("list")
def list_parked(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    reason: ReasonOption = None,
    is_accepted: Annotated[
        bool, typer.Option("--accepted", help="List the ledgers whose losses were accepted instead.")
    ] = False,
) -> None:
    """List parked tasks with reason, age and evidence, the oldest first."""
    if is_accepted:
        _show_accepted(run(_list_accepted(metadata_uri(uri, config))), output, reason)
        return
    rows = [row for row in run(_list(metadata_uri(uri, config))) if reason is None or row["reason"] == reason.value]
    if output is OutputFormat.JSON:
        print_json("DeadLetterList", items=rows)
        return
    if not rows:
        print_line("no task is parked")
        return
    cells = [(row["ledger_id"], row["reason"], duration(row["age_seconds"] * 1000), row["detail"]) for row in rows]
    print_table(("LEDGER", "REASON", "AGE", "EVIDENCE"), cells, right=(0, 2))


@app.command("show")
def show_parked(
    ledger: LedgerArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show all that is known of one parked task, and what would help."""
    row = next((row for row in run(_list(metadata_uri(uri, config))) if row["ledger_id"] == ledger), None)
    if row is None:
        refuse(f"ledger {ledger} is not parked; `bkheal underreplicated list` shows all that is marked")
    lines = [f"{name.replace('_', ' ')}: {', '.join(v) if isinstance(v, list) else v}" for name, v in row.items()]
    show(output, "DeadLetter", row, lines)


@app.command("retry")
def retry(
    ledgers: Annotated[
        list[int] | None, typer.Argument(min=0, metavar="LEDGER", help="Which ones.", show_default=False)
    ] = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    reason: ReasonOption = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every parked task.")] = False,
    is_dry_run: DryRunOption = False,
    is_sure: YesOption = False,
) -> None:
    """Have replicators try parked tasks again: by ledger, by reason, or all. They are parked again if it is no use.

    Exit codes: 0 done (or nothing to do), 1 one of the ledgers is not parked, 2 none was chosen, 3 no answer.

    Example, after a disk was mended: `bkheal dead-letters retry --reason unreadable_entries --yes`
    """
    if not ledgers and reason is None and not is_all:
        raise typer.BadParameter("name ledgers, or use --reason or --all")
    rows = run(_list(metadata_uri(uri, config)))
    absent = sorted(set(ledgers or ()) - {row["ledger_id"] for row in rows})
    if absent:
        refuse(f"not parked: {', '.join(map(str, absent))}; nothing was changed")
    chosen = [
        row["ledger_id"]
        for row in rows
        if (not ledgers or row["ledger_id"] in ledgers) and (reason is None or row["reason"] == reason.value)
    ]
    if chosen and not is_dry_run:
        confirm(f"Have {len(chosen)} parked ledgers tried again?", is_sure=is_sure)
        run(_unpark(metadata_uri(uri, config), chosen))
    done = "would be" if is_dry_run else "will be"
    lines = [f"{len(chosen)} parked ledgers {done} tried again"]
    show(output, "DeadLetterRetry", {"dry_run": is_dry_run, "ledgers": chosen}, lines)


@app.command("accept-loss")
def accept_loss(
    ledgers: LedgersArgument,
    why: Annotated[str, typer.Option("--reason", help="Why the loss is accepted; recorded.", show_default=False)],
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    is_sure: SureOption = False,
) -> None:
    """Accept that the entries of dead letters that have no live copy are lost, and close the tasks.

    The record contains who accepted it, when, why, and the fragments, positions and bookies. Metadata and entries stay
    as they are. Audits then report the ledger as "loss accepted", and mark it again only if it loses anything else, or
    if one of these bookies returns. An entry that shares a position with a lost one keeps only the copies that it has.

    An entry can be accepted as lost if each of its bookies is lost, or is registered and denies it. A ledger that lacks
    other copies too keeps its task: when they are made, it is parked again, and this command closes the task. Repeating
    the command is safe. `bkheal dead-letters drop` withdraws an accepted loss.

    Exit codes: 0 accepted, also before, 1 refused, 2 wrong usage, 3 the store did not answer, 75 a worker holds a lock.
    If one ledger is refused before the confirmation, nothing is changed.

    Example: `bkheal dead-letters accept-loss 17 --reason "both disks were destroyed"`
    """
    question = f"Accept that the entries of these ledgers without any live copy are lost: {_named(ledgers)}?"
    reason = _checked_reason(why, is_required=True)
    _decide(metadata_uri(uri, config), ledgers, reason, output, question, "accept-loss", is_dry_run, is_sure)


@app.command("drop")
def drop(
    ledgers: LedgersArgument,
    why: Annotated[str, typer.Option("--reason", help="Why; recorded.", show_default=False)] = "",
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    is_sure: SureOption = False,
) -> None:
    """Remove dead letters and their tasks without accepting a loss, for instance before the ledger is deleted.

    The next audit marks the ledger again if it still lacks copies. If the loss of the ledger was accepted and it has
    no task, the acceptance is withdrawn. Metadata and entries stay as they are. Who dropped it is recorded. Repeating
    the command is safe.

    Exit codes: 0 dropped, also before, 1 refused, 2 wrong usage, 3 the store did not answer, 75 a worker holds a lock.
    If one ledger is refused before the confirmation, nothing is changed.

    Example: `bkheal dead-letters drop 17 18 --reason "tests, to be deleted"`
    """
    question = f"Remove these dead letters and their tasks: {_named(ledgers)}?"
    reason = _checked_reason(why, is_required=False)
    _decide(metadata_uri(uri, config), ledgers, reason, output, question, "drop", is_dry_run, is_sure)


async def _list(uri: str) -> list[dict[str, Any]]:
    async with connected(uri) as client:
        tasks = {task.ledger_id: task for task in await client.ports.tasks.list()}
        parked = sorted(await client.parked.list(), key=lambda record: record.since_ms)
    return [_row(record, tasks[record.ledger_id].missing) for record in parked if record.ledger_id in tasks]


def _row(record: ParkedTask, missing: tuple[str, ...]) -> dict[str, Any]:
    return {
        "ledger_id": record.ledger_id,
        "reason": record.reason.value,
        "since": rfc3339_if_known(record.since_ms, "seconds"),
        "age_seconds": age_s(record.since_ms),
        "missing": list(missing),
        "detail": record.detail,
        "advice": _ADVICE[record.reason],
    }


async def _list_accepted(uri: str) -> list[Decision]:
    from bookie.metadata.tasks.decisions import Decisions

    async with connected(uri) as client:
        return await Decisions(client.store, client.cluster.root).accepted()


def _show_accepted(decisions: Sequence[Decision], output: OutputFormat, reason: ParkReason | None) -> None:
    chosen = [decision for decision in decisions if reason is None or decision.park_reason is reason]
    if output is OutputFormat.JSON:
        print_json("AcceptedLossList", items=[_accepted_row(decision) for decision in chosen])
        return
    if not chosen:
        print_line("no loss is accepted")
        return
    cells = [
        (
            decision.ledger_id,
            rfc3339(decision.at_ms),
            printable(decision.by),
            len(decision.lost),
            " ".join(dict.fromkeys(name for part in decision.lost for name in _holders(part).split())),
            printable(decision.reason),
        )
        for decision in chosen
    ]
    print_table(("LEDGER", "ACCEPTED", "BY", "FRAGMENTS", "BOOKIES", "REASON"), cells, right=(0, 3))


def _accepted_row(decision: Decision) -> dict[str, Any]:
    return {
        "ledger_id": decision.ledger_id,
        "accepted": rfc3339(decision.at_ms),
        "by": decision.by,
        "reason": decision.reason,
        "park_reason": None if decision.park_reason is None else decision.park_reason.value,
        "lost": [_fragment(fragment) for fragment in decision.lost],
    }


def _fragment(fragment: LostFragment) -> dict[str, Any]:
    return {
        "first_entry_id": fragment.first_entry_id,
        "last_entry_id": fragment.last_entry_id,
        "positions": list(fragment.positions),
        "bookies": list(fragment.bookies),
        "denials": [
            {"position": denial.position, "bookie_id": denial.bookie, "entries": denial.entries}
            for denial in fragment.denials
        ],
    }


def _checked_reason(why: str, *, is_required: bool) -> str:
    reason = " ".join(why.split())
    if is_required and not reason:
        raise typer.BadParameter(
            "the reason is empty: write one sentence for those who read the record", param_hint="--reason"
        )
    if len(reason) > _WHY_MAX:
        raise typer.BadParameter(f"the reason has {len(reason)} characters; at most {_WHY_MAX}", param_hint="--reason")
    return reason


def _named(ledgers: Sequence[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(ledgers)))


def _decide(
    uri: str,
    ledgers: Sequence[int],
    reason: str,
    output: OutputFormat,
    question: str,
    verb: str,
    is_dry_run: bool,
    is_sure: bool,
) -> None:
    from auditor.safety.dead_letters import Outcome

    ids = [LedgerId(ledger_id) for ledger_id in dict.fromkeys(ledgers)]
    results = run(_decided(uri, ids, reason, question, verb, is_dry_run, is_sure))
    rows = [
        {
            "ledger_id": each.ledger_id,
            "outcome": each.outcome.value,
            "detail": each.detail,
            "lost": [_fragment(fragment) for fragment in each.lost],
        }
        for each in results
    ]
    document = {"dry_run": is_dry_run, "by": whoami(), "reason": reason, "ledgers": rows}
    show(output, "DeadLetterDecision", document, [_line(each, is_dry_run) for each in results])
    outcomes = {each.outcome for each in results}
    if Outcome.UNKNOWN in outcomes:
        raise typer.Exit(ExitCode.STORE_UNREACHABLE)
    if outcomes & {Outcome.REFUSED, Outcome.CHANGED}:
        print_error(f"not every ledger could be changed; correct the command, or repeat `bkheal dead-letters {verb}`")
        raise typer.Exit(ExitCode.FAILED)
    if Outcome.LOCKED in outcomes:
        raise typer.Exit(ExitCode.BUSY)


async def _decided(
    uri: str, ledgers: Sequence[LedgerId], reason: str, question: str, verb: str, is_dry_run: bool, is_sure: bool
) -> list[DeadLetterResult]:
    from auditor.safety.dead_letters import DeadLetterResult, Outcome

    async with connected(uri) as client:
        letters = _dead_letters(client)
        is_accepting = verb == "accept-loss"
        check = letters.check_accept if is_accepting else letters.check_drop
        expected = [await check(ledger_id) for ledger_id in ledgers]
        if any(each.outcome is Outcome.REFUSED for each in expected):
            nothing = "nothing was changed, because another ledger is refused"
            return [
                each
                if each.outcome is Outcome.REFUSED
                else DeadLetterResult(each.ledger_id, Outcome.NOT_TRIED, nothing)
                for each in expected
            ]
        is_nothing_to_do = all(each.outcome in (Outcome.ALREADY_ACCEPTED, Outcome.ALREADY_DROPPED) for each in expected)
        if is_dry_run or is_nothing_to_do:
            return expected
        confirm_ledgers(question, ledgers, is_sure=is_sure)
        return await _changed(letters, ledgers, reason, is_accepting=is_accepting)


async def _changed(
    letters: DeadLetters, ledgers: Sequence[LedgerId], reason: str, *, is_accepting: bool
) -> list[DeadLetterResult]:
    """Change one ledger after the other, and stop when the store does not answer."""
    from auditor.safety.dead_letters import DeadLetterResult, Outcome

    results: list[DeadLetterResult] = []
    for ledger_id in ledgers:
        if results and results[-1].outcome in (Outcome.UNKNOWN, Outcome.NOT_TRIED):
            detail = "the command ended before, because the store did not answer"
            results.append(DeadLetterResult(ledger_id, Outcome.NOT_TRIED, detail))
            continue
        try:
            decide = letters.accept if is_accepting else letters.drop
            results.append(await decide(ledger_id, reason))
        except (TransientError, OutcomeUnknownError) as error:
            detail = f"the store did not answer, and the change may have been made: repeat the command ({error})"
            results.append(DeadLetterResult(ledger_id, Outcome.UNKNOWN, detail))
    return results


def _dead_letters(client: ConnectedBookKeeper) -> DeadLetters:
    from auditor.safety.dead_letters import DeadLetters
    from bookie.metadata.tasks.decisions import Decisions

    decisions = Decisions(client.store, client.cluster.root)
    return DeadLetters(client.ports, client.store, client.parked, decisions, whoami())


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
    "not_tried": "not tried",
}


def _holders(fragment: LostFragment) -> str:
    return " ".join((*fragment.bookies, *(denial.bookie for denial in fragment.denials)))


def _line(result: DeadLetterResult, is_dry_run: bool) -> str:
    words = {"is": "would be", "are": "would be"} if is_dry_run else {"is": "is", "are": "are"}
    text = f"ledger {result.ledger_id}: {_DONE[result.outcome.value].format(**words)}"
    if result.lost:
        parts = [f"{part.first_entry_id}..{part.last_entry_id} on {_holders(part)}" for part in result.lost[:5]]
        more = f" and {len(result.lost) - 5} more fragments" if len(result.lost) > 5 else ""
        text += f" (entries in {'; '.join(parts)}{more})"
    return f"{text}; {result.detail}" if result.detail else text


async def _unpark(uri: str, ledgers: list[Any]) -> None:
    async with connected(uri) as client:
        for ledger_id in ledgers:
            await client.parked.unpark(ledger_id)
