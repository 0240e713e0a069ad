"""The commands of ``bkheal dead-letters``: parked tasks, the reasons, and the decisions of operators about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.changing import DryRunOption, YesOption, refuse, require_utf8_text, show
from auditor.cli.dead_letters.decision import OperatorDecision, carry_out, checked_reason, distinct, holders, named
from auditor.cli.dead_letters.pages import accepted_losses, page_of_letters, part_of_letters
from auditor.cli.dead_letters.retry import retry_parked
from auditor.cli.ledgers.options import LedgerArgument
from auditor.cli.output import OutputFormat, StreamFormat
from auditor.cli.paging import LIMIT_DEFAULT, AfterOption, LimitOption, print_page
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, StreamOutputOption, metadata_uri
from auditor.operating.owners import owner_text
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import LEDGER_ID_MAX
from bookie.runtime.human import duration, printable

app = typer.Typer(help="Marked ledgers that cannot be repaired as the cluster is now.", no_args_is_help=True)

ReasonOption = Annotated[ParkReason | None, typer.Option(help="Only those with this reason.", show_default=False)]
LedgersArgument = Annotated[
    list[int], typer.Argument(min=0, max=LEDGER_ID_MAX, metavar="LEDGER", help="Ledger ids.", show_default=False)
]
SureOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask. Otherwise each ledger id must be typed at the terminal.")
]


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
        found = accepted_losses(service, uri, config)
        _show_accepted(found["items"], output, reason)
        return
    page = page_of_letters(service, uri, config, limit, after, reason)
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
    page = part_of_letters(service, uri, config, 1, ledger - 1 if ledger else None, None)
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
    retry_parked(service, uri, config, output, ledgers or (), reason, is_dry_run=is_dry_run, is_sure=is_sure)


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
    chosen = distinct(ledgers)
    question = f"Accept that the entries of these ledgers without any live copy are lost: {named(chosen)}?"
    reason = checked_reason(why, is_required=True)
    uri = None if service else metadata_uri(uri, config)
    request = OperatorDecision("accept-loss", chosen, reason, question, is_dry_run=is_dry_run, is_sure=is_sure)
    carry_out(service, uri, request, output)


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
    chosen = distinct(ledgers)
    question = f"Remove these dead letters and their tasks: {named(chosen)}?"
    reason = checked_reason(why, is_required=False)
    uri = None if service else metadata_uri(uri, config)
    request = OperatorDecision("drop", chosen, reason, question, is_dry_run=is_dry_run, is_sure=is_sure)
    carry_out(service, uri, request, output)


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
            " ".join(dict.fromkeys(name for part in row["lost"] for name in holders(part).split())),
            printable(row["reason"]),
        ),
        right=(0, 3),
        nothing="no loss is accepted",
    )
