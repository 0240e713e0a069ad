"""``bkheal bookie`` and ``bkheal replicator``. Their options are those of their settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override

from auditor.cli.configuration.reloading import config_source
from auditor.cli.configuration.settings import bookie_settings, replicator_settings, with_options
from auditor.cli.output import OutputFormat, print_json, print_line
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.server.settings import BookieSettings
from replicator.settings import ReplicatorSettings

if TYPE_CHECKING:
    from bookie.storage.rebuilding import RebuiltIndex


_IS_BELOW: Final = "bkheal.command_below"


class _ProcessOrCommand(TyperGroup):
    """A command with options of its own, which count only if no command below it is called."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_IS_BELOW] = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args)

    @override
    def get_params(self, ctx: Any) -> list[Any]:
        is_below = ctx.meta.get(_IS_BELOW, False)
        return [option for option in super().get_params(ctx) if not is_below or option.name == "help"]


bookie_app = typer.Typer(
    cls=_ProcessOrCommand,
    invoke_without_command=True,
    help="Run a bookie until SIGTERM, or work on the directories of a stopped one.\n\n"
    "Without a command it runs, and prints one line once it is registered.",
)

JournalDirOption = Annotated[Path, typer.Option(help="The bookie's journal directory.", file_okay=False, exists=True)]
LedgerDirOption = Annotated[Path, typer.Option(help="The bookie's ledger directory.", file_okay=False, exists=True)]


@bookie_app.callback()
@with_options(BookieSettings)
def bookie(context: typer.Context, uri: MetadataUriOption = None, config: ConfigOption = None, **options: Any) -> None:
    """The command; its help is above."""
    if context.invoked_subcommand is not None:
        return
    from bookie.server.main import run_bookie

    settings = bookie_settings(metadata_uri(uri, config), options)
    raise typer.Exit(run(run_bookie(settings, config_source(context, bookie_settings))))


@bookie_app.command("rebuild-index")
def rebuild_index(
    journal_dir: JournalDirOption,
    ledger_dir: LedgerDirOption,
    output: OutputOption = OutputFormat.TABLE,
    may_replace: Annotated[
        bool, typer.Option("--replace", help="Rebuild also an index that could be used.", show_default=False)
    ] = False,
) -> None:
    """Make the lost index of a stopped bookie again from its entry logs.

    The index also held the ledgers' keys, fences and what was collected, which are not in the entry logs. So the disks
    become a new incarnation that keeps its entries: at its next start the bookie answers "unknown" for what it does not
    have, and every ledger that names it is marked for repair, which copies only what is missing. Entries of deleted
    ledgers come back until the next garbage collection.

    What is damaged in the entry logs is listed and left out. The directories need space for a second index. The index
    that was there is kept as `index.lost-…`; delete it when the bookie is whole.

    Exit codes: 0 rebuilt, 1 refused (nothing was changed), 2 wrong usage, 70 a disk failed, or the bookie runs; it is
    safe to try again.

    Example: `bkheal bookie rebuild-index --journal-dir /journal --ledger-dir /ledgers`
    """
    import random

    from bookie.runtime.clock import SystemClock
    from bookie.server.joining.rebuilt import rebuild_index as rebuilt

    found = run(rebuilt(journal_dir, ledger_dir, SystemClock(), random.SystemRandom(), may_replace=may_replace))
    if output is OutputFormat.JSON:
        print_json("RebuiltIndex", **_rebuilt_document(found))
        return
    print_line(f"the index has {found.entries} entries of {found.ledgers} ledgers, from {found.logs} entry logs")
    for finding in found.findings:
        print_line(f"damaged: {finding.path} offset {finding.offset}: {finding.what}")
    if found.finding_count > len(found.findings):
        print_line(f"damaged: {found.finding_count - len(found.findings)} more")
    print_line("start the bookie: the ledgers that name it are marked for repair")


def _rebuilt_document(found: RebuiltIndex) -> dict[str, Any]:
    return {
        "entries": found.entries,
        "ledgers": found.ledgers,
        "entry_logs": found.logs,
        "superseded": found.superseded,
        "finding_count": found.finding_count,
        "findings": [{"path": each.path, "offset": each.offset, "what": each.what} for each in found.findings],
    }


@with_options(ReplicatorSettings)
def replicator(
    context: typer.Context,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: Annotated[
        OutputFormat,
        typer.Option("--output", "-o", help="A line for people when it is ready, or a line of JSON for each event."),
    ] = OutputFormat.TABLE,
    **options: Any,
) -> None:
    """Run a replicator until SIGTERM: lock, copy what is missing, swap the ensemble, delete the task."""
    from replicator.main import run_replicator

    settings = replicator_settings(metadata_uri(uri, config), {**options, "output": output})
    raise typer.Exit(run(run_replicator(settings, config_source(context, replicator_settings))))
