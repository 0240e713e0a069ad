"""``bkheal dead-letters``: tasks that replicators parked, the reasons, and the decisions of operators about them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.changing import (
    DryRunOption,
    YesOption,
    confirm,
    confirm_ledgers,
    connected,
    refuse,
    require_utf8_text,
    show,
    whoami,
)
from auditor.cli.ledgers.options import LedgerArgument
from auditor.cli.output import OutputFormat, StreamFormat, print_error
from auditor.cli.paging import (
    AT_ONCE_MAX,
    LIMIT_DEFAULT,
    PAGE_ROWS_MAX,
    AfterOption,
    LimitOption,
    joined_pages,
    print_page,
)
from auditor.cli.running import (
    ConfigOption,
    MetadataUriOption,
    OutputOption,
    StreamOutputOption,
    metadata_uri,
    run,
)
from auditor.operating.owners import owner_text
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.runtime.human import counted, duration, printable

app = typer.Typer(help="Marked ledgers that cannot be repaired as the cluster is now.", no_args_is_help=True)

ReasonOption = Annotated[ParkReason | None, typer.Option(help="Only those with this reason.", show_default=False)]
LedgersArgument = Annotated[
    list[int], typer.Argument(min=0, max=LEDGER_ID_MAX, metavar="LEDGER", help="Ledger ids.", show_default=False)
]
SureOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask. Otherwise each ledger id must be typed at the terminal.")
]

_HTTP_NOT_FOUND: Final = 404
_SHOWN_MAX: Final = 20
"""Largest number of ledgers named in a line."""
_RANGES_MAX: Final = 5
"""Largest number of ranges of lost entries shown for a fragment."""
_DECISION_REASON_CHARS_MAX: Final = 500
"""Largest number of recorded characters of an operator's reason."""


@app.command("list")
@reachable
def list_parked(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    reason: ReasonOption = None,
    is_accepted: Annotated[
        bool, typer.Option("--accepted", help="List the ledgers whose losses were accepted instead.")
    ] = False,
    limit: LimitOption = LIMIT_DEFAULT,
    after: AfterOption = None,
    *,
    service: Service | None = None,
) -> None:
    """List parked tasks with reason, age and evidence, by ledger id.

    If there are more than --limit, a note on standard error names the value of --after for the next page.
    """
    if is_accepted:
        found = service.ask("GET", "/accepted-losses") if service else run(_list_accepted(metadata_uri(uri, config)))
        _show_accepted(found["items"], output, reason)
        return
    page = _page(service, uri, config, limit, after, reason)
    print_page(
        output,
        "DeadLetterList",
        page,
        ("LEDGER", "REASON", "AGE", "TOPIC", "EVIDENCE"),
        lambda row: (
            row["ledger_id"],
            row["reason"],
            duration(row["age_seconds"] * 1000),
            printable(owner_text(row)),
            row["detail"],
        ),
        right=(0, 2),
        nothing="no task is parked",
    )


@app.command("show")
@reachable
def show_parked(
    ledger: LedgerArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """Show all facts about one parked task, and what would help."""
    page = _part(service, uri, config, 1, ledger - 1 if ledger else None, None)
    row = next((row for row in page["items"] if row["ledger_id"] == ledger), None)
    if ledger in page.get("unreadable", ()):
        refuse(
            f"the record of ledger {ledger} cannot be read: it is damaged, or of a newer version of bkheal. "
            f"Replicators do not use it; `bkheal dead-letters retry {ledger}` removes it"
        )
    if row is None:
        refuse(f"ledger {ledger} is not parked; `bkheal underreplicated list` shows all that is marked")
    show(output, "DeadLetter", row, letter_lines(row))


def letter_lines(row: dict[str, Any]) -> list[str]:
    """A parked task for people; facts that are not known are left out. Pure."""
    shown = {name: value for name, value in row.items() if value is not None}
    shown = {**shown, "age_seconds": duration(row["age_seconds"] * 1000), "missing": ", ".join(row["missing"])}
    labels = {"age_seconds": "age"}
    return [f"{labels.get(name, name.replace('_', ' '))}: {printable(str(value))}" for name, value in shown.items()]


@app.command("retry")
@reachable
def retry(
    ledgers: Annotated[
        list[int] | None,
        typer.Argument(min=0, max=LEDGER_ID_MAX, metavar="LEDGER", help="Which ones.", show_default=False),
    ] = None,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    reason: ReasonOption = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every parked task.")] = False,
    is_dry_run: DryRunOption = False,
    is_sure: YesOption = False,
    *,
    service: Service | None = None,
) -> None:
    """Let replicators retry parked tasks: by ledger, by reason, or all. Another failure parks them again.

    Records of parked tasks that cannot be read are removed as well, except with --reason. With --all and --reason,
    tasks that are not parked any more are skipped.

    After an error, the ledgers whose records were removed before it are shown, and the others are named.

    Exit codes: 0 done (or nothing to do), 1 one of the named ledgers is not parked, 2 no task was chosen, 3 no answer.

    Example, after the repair of a disk: `bkheal dead-letters retry --reason unreadable_entries --yes`
    """
    if not ledgers and reason is None and not is_all:
        raise typer.BadParameter("name ledgers, or use --reason or --all")
    chosen = _chosen(*_all(service, uri, config), ledgers or (), reason)
    if is_dry_run or not chosen:
        show(output, "DeadLetterRetry", {"dry_run": is_dry_run, "ledgers": chosen}, [_retry_line(chosen, is_dry_run)])
        return
    confirm(f"Have {counted(len(chosen), 'parked ledger')} tried again?", is_sure=is_sure)
    done: list[int] = []
    problem: BkhealError | None = None
    try:
        if service is None:
            run(_unpark(metadata_uri(uri, config), chosen, done, is_skipping=not ledgers))
        else:
            _remote_unpark(service, chosen, done, is_skipping=not ledgers)
    except BkhealError as error:
        if not done:
            raise
        problem = error
    lines = [_retry_line(done, is_dry_run)]
    left = sorted(set(chosen).difference(done))
    if left and problem is None:
        are, their = ("is", "its record") if len(left) == 1 else ("are", "their records")
        lines.append(f"{len(left)} {are} not parked any more, or {their} cannot be deleted: {_shown(left)}")
    show(output, "DeadLetterRetry", {"dry_run": is_dry_run, "ledgers": done}, lines)
    if problem is not None:
        from auditor.cli.exit_codes import exit_code_of

        not_removed = (
            f"the records of {counted(len(left), 'chosen ledger')} were not removed, or their state is unknown"
        )
        print_error(f"{problem}; {not_removed}: {_named(left) if ledgers else _shown(left)}")
        raise typer.Exit(exit_code_of(problem))
    if left and ledgers:
        raise typer.Exit(ExitCode.FAILED)


def _chosen(
    rows: Sequence[dict[str, Any]], unreadable: Sequence[int], ledgers: Sequence[int], reason: ParkReason | None
) -> list[int]:
    """Return the parked tasks to retry. Refuses the command if one of ``ledgers`` is not parked."""
    parked = {row["ledger_id"] for row in rows}.union(unreadable)
    if absent := sorted(set(ledgers) - parked):
        shown = ", ".join(map(str, absent))
        refuse(f"not parked: {shown} (`bkheal dead-letters list` lists the parked ledgers); nothing was changed")
    if reason is not None:
        parked = {row["ledger_id"] for row in rows if row["reason"] == reason.value}
    return sorted(parked.intersection(ledgers) if ledgers else parked)


def _retry_line(ledgers: Sequence[int], is_dry_run: bool) -> str:
    return f"{counted(len(ledgers), 'parked ledger')} {'would be' if is_dry_run else 'will be'} tried again"


@app.command("accept-loss")
@reachable
def accept_loss(
    ledgers: LedgersArgument,
    why: Annotated[
        str,
        typer.Option(
            "--reason", callback=require_utf8_text, help="Why the loss is accepted; recorded.", show_default=False
        ),
    ],
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    is_sure: SureOption = False,
    *,
    service: Service | None = None,
) -> None:
    """Accept the loss of the entries of dead letters without a live copy, and close the tasks.

    The record contains who accepted it, when, why, and the lost entries and their bookies. The command changes no
    metadata and no entry. If the ledger lacks copies of other entries, its task stays: workers make these copies, and
    replace the bookies of positions that also store other entries. So a bookie that returns later does not give its
    copies any more. Audits report the rest as "loss accepted", and mark the ledger again only if it loses anything
    else, or if one of its lost bookies returns.

    An entry can be accepted as lost if each of its bookies is lost, or is registered and denies it. Repeating the
    command is safe. `bkheal dead-letters drop` withdraws an accepted loss.

    Exit codes: 0 accepted, also before, 1 refused or failed, 2 wrong usage, 3 the store did not answer, 75 a worker
    holds a lock. If one ledger is refused before the confirmation, nothing is changed.

    Example: `bkheal dead-letters accept-loss 17 --reason "both disks were destroyed"`
    """
    question = f"Accept that the entries of these ledgers without any live copy are lost: {_named(ledgers)}?"
    reason = _checked_reason(why, is_required=True)
    uri = None if service else metadata_uri(uri, config)
    _decide(service, uri, ledgers, reason, output, question, "accept-loss", is_dry_run, is_sure)


@app.command("drop")
@reachable
def drop(
    ledgers: LedgersArgument,
    why: Annotated[
        str, typer.Option("--reason", callback=require_utf8_text, help="Why; recorded.", show_default=False)
    ] = "",
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_dry_run: DryRunOption = False,
    is_sure: SureOption = False,
    *,
    service: Service | None = None,
) -> None:
    """Remove dead letters and their tasks without accepting a loss, for instance before the ledger is deleted.

    The next audit marks the ledger again if it still lacks copies. If the loss of the ledger was accepted and it has no
    task, the acceptance is withdrawn. Metadata and entries are not changed. The operator is recorded. Repeating the
    command is safe.

    Exit codes: 0 dropped, also before, 1 refused or failed, 2 wrong usage, 3 the store did not answer, 75 a worker
    holds a lock. If one ledger is refused before the confirmation, nothing is changed.

    Example: `bkheal dead-letters drop 17 18 --reason "tests, to be deleted"`
    """
    question = f"Remove these dead letters and their tasks: {_named(ledgers)}?"
    reason = _checked_reason(why, is_required=False)
    uri = None if service else metadata_uri(uri, config)
    _decide(service, uri, ledgers, reason, output, question, "drop", is_dry_run, is_sure)


def _page(
    service: Service | None,
    uri: str | None,
    config: Path | None,
    limit: int,
    after: int | None,
    reason: ParkReason | None,
) -> dict[str, Any]:
    """Return a page of ``limit`` dead letters, joined from the smaller pages of a service if necessary."""
    return joined_pages(lambda size, begin: _part(service, uri, config, size, begin, reason), limit, after)


def _part(
    service: Service | None,
    uri: str | None,
    config: Path | None,
    size: int,
    begin: int | None,
    reason: ParkReason | None,
) -> dict[str, Any]:
    """Return a page of dead letters; it may be short."""
    if service is None:
        return run(_list(metadata_uri(uri, config), size, begin, reason))
    wanted = reason.value if reason else None
    query = {"limit": min(size, PAGE_ROWS_MAX), "after": begin, "reason": wanted}
    return service.ask("GET", "/dead-letters", query)


def _all(service: Service | None, uri: str | None, config: Path | None) -> tuple[list[dict[str, Any]], list[int]]:
    """Return all dead letters, and the ledgers with an unreadable record (an older auditor reports none)."""
    unreadable: list[int] = []

    def ask(size: int, begin: int | None) -> dict[str, Any]:
        part = _part(service, uri, config, size, begin, None)
        unreadable.extend(part.get("unreadable", ()))
        return part

    return joined_pages(ask, sys.maxsize, None)["items"], unreadable


def _remote_unpark(service: Service, chosen: Sequence[int], done: list[int], *, is_skipping: bool) -> None:
    """Request a service to remove records, in parts, and add the ledgers of each part to ``done`` at once.

    After an error in the middle of a request, the ledgers of this request that are not parked any more count as done.

    Args:
        service: the service.
        chosen: the ledgers.
        done: receives the ledgers whose records were removed.
        is_skipping: skip ledgers that are not parked any more.

    Raises:
        RemoteUnavailableError, RemoteRefusedError: a request was refused, or there was no answer.
    """
    from auditor.cli.audit.remote import RemoteRefusedError, RemoteUnavailableError

    left = list(chosen)
    while left:
        part = left[:AT_ONCE_MAX]
        try:
            done += service.ask("POST", "/dead-letters/retry", body={"ledgers": part})["ledgers"]
            left = left[AT_ONCE_MAX:]
        except (RemoteRefusedError, RemoteUnavailableError) as error:
            is_absent = isinstance(error, RemoteRefusedError) and error.status == _HTTP_NOT_FOUND  # nothing was changed
            if is_absent and not is_skipping:
                raise
            try:
                rows, unreadable = _all(service, None, None)
            except (RemoteRefusedError, RemoteUnavailableError):
                raise error from None
            parked = {row["ledger_id"] for row in rows}.union(unreadable)
            if not is_absent:
                done += [each for each in part if each not in parked]
                raise
            if parked.issuperset(part):  # no ledger was removed, so a retry would not end
                raise
            left = [each for each in left if each in parked]


def _shown(ledgers: Sequence[int]) -> str:
    more = f" and {len(ledgers) - _SHOWN_MAX} more" if len(ledgers) > _SHOWN_MAX else ""
    return ", ".join(map(str, ledgers[:_SHOWN_MAX])) + more


async def _list(uri: str, limit: int, after: int | None, reason: ParkReason | None) -> dict[str, Any]:
    from auditor.operating.dead_letters import list_dead_letters

    async with connected(uri) as client:
        return await list_dead_letters(client, limit, None if after is None else LedgerId(after), reason)


async def _list_accepted(uri: str) -> dict[str, Any]:
    from auditor.operating.dead_letters import list_accepted

    async with connected(uri) as client:
        return await list_accepted(client)


def _show_accepted(items: Sequence[dict[str, Any]], output: StreamFormat, reason: ParkReason | None) -> None:
    chosen = [row for row in items if reason is None or row["park_reason"] == reason.value]
    print_page(
        output,
        "AcceptedLossList",
        {"items": chosen},
        ("LEDGER", "ACCEPTED", "BY", "FRAGMENTS", "BOOKIES", "REASON"),
        lambda row: (
            row["ledger_id"],
            row["accepted"],
            printable(row["by"]),
            len(row["lost"]),
            " ".join(dict.fromkeys(name for part in row["lost"] for name in _holders(part).split())),
            printable(row["reason"]),
        ),
        right=(0, 3),
        nothing="no loss is accepted",
    )


def _checked_reason(why: str, *, is_required: bool) -> str:
    reason = " ".join(why.split())
    if is_required and not reason:
        raise typer.BadParameter(
            "the reason is empty: write one sentence for those who read the record", param_hint="--reason"
        )
    if len(reason) > _DECISION_REASON_CHARS_MAX:
        raise typer.BadParameter(
            f"the reason has {len(reason)} characters; at most {_DECISION_REASON_CHARS_MAX}", param_hint="--reason"
        )
    return reason


def _named(ledgers: Sequence[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(ledgers)))


def _decide(
    service: Service | None,
    uri: str | None,
    ledgers: Sequence[int],
    reason: str,
    output: OutputFormat,
    question: str,
    verb: str,
    is_dry_run: bool,
    is_sure: bool,
) -> None:
    ids = [LedgerId(ledger_id) for ledger_id in dict.fromkeys(ledgers)]
    if service is not None:
        document = _remote_decision(service, ids, reason, question, verb, is_dry_run, is_sure)
    else:
        document = run(_decided(uri or "", ids, reason, question, verb, is_dry_run, is_sure))
    show(output, "DeadLetterDecision", document, [_line(row, is_dry_run) for row in document["ledgers"]])
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
        print_error(f"not every ledger could be changed; correct the command, or repeat `bkheal dead-letters {verb}`")
        raise typer.Exit(ExitCode.FAILED)
    if "locked" in outcomes:
        raise typer.Exit(ExitCode.BUSY)


def _remote_decision(
    service: Service,
    ledgers: Sequence[LedgerId],
    reason: str,
    question: str,
    verb: str,
    is_dry_run: bool,
    is_sure: bool,
) -> dict[str, Any]:
    """Request a dry run from a service, ask the operator to confirm, and then request the change."""
    if len(ledgers) > AT_ONCE_MAX:
        raise typer.BadParameter(f"with --at, name at most {AT_ONCE_MAX} ledgers")
    asked: dict[str, Any] = {"ledgers": ledgers, "reason": reason}
    expected = service.ask("POST", f"/dead-letters/{verb}", body={**asked, "dry_run": True})
    outcomes = {row["outcome"] for row in expected["ledgers"]}
    if is_dry_run or "refused" in outcomes or outcomes <= {"already_accepted", "already_dropped"}:
        return expected
    confirm_ledgers(question, ledgers, is_sure=is_sure)
    return service.ask("POST", f"/dead-letters/{verb}", body={**asked, "confirm": ledgers})


async def _decided(
    uri: str, ledgers: Sequence[LedgerId], reason: str, question: str, verb: str, is_dry_run: bool, is_sure: bool
) -> dict[str, Any]:
    from auditor.operating.client import Actor
    from auditor.operating.dead_letters import decide, decision_document, expected_decisions, is_final

    actor = Actor(whoami(), "command")
    async with connected(uri) as client:
        found = await expected_decisions(client, actor, verb, ledgers)
        if not is_dry_run and not is_final(found):
            confirm_ledgers(question, ledgers, is_sure=is_sure)
            found = await decide(client, actor, verb, ledgers, reason)
    return decision_document(actor, reason, found, is_dry_run=is_dry_run)


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


def _holders(fragment: dict[str, Any]) -> str:
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
        parts = [f"{_entries(part)} on {printable(_holders(part))}" for part in row["lost"][:5]]
        more = f" and {counted(len(row['lost']) - 5, 'more fragment')}" if len(row["lost"]) > 5 else ""
        text += f" (lost: {'; '.join(parts)}{more})"
    return f"{text}; {row['detail']}" if row["detail"] else text


async def _unpark(uri: str, ledgers: Sequence[int], done: list[int], *, is_skipping: bool) -> None:
    """Remove records, and add each ledger to ``done`` at once."""
    from auditor.operating.client import Actor, NoSuchObjectError
    from auditor.operating.dead_letters import retry_dead_letters

    ids, actor = [LedgerId(each) for each in ledgers], Actor(whoami(), "command")
    async with connected(uri) as client:
        try:
            await retry_dead_letters(client, actor, ids, is_skipping=is_skipping, on_unparked=done.append)
        except NoSuchObjectError as error:
            refuse(f"{error}; nothing was changed")
