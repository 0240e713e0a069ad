"""``bkheal bookie`` and ``bkheal replicator``. Their options are those of their settings."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override

from auditor.cli.configuration.reloading import config_source
from auditor.cli.configuration.settings import bookie_settings, replicator_settings
from auditor.cli.configuration.settings_options import with_options
from auditor.cli.output import OutputFormat
from auditor.cli.running import ConfigOption, MetadataUriOption, log_no_attempts_to_connect, metadata_uri, run
from bookie.server.settings import BookieSettings
from replicator.settings import ReplicatorSettings

_HAS_SUBCOMMAND_KEY: Final = "bkheal.command_below"


class _ProcessOrCommand(TyperGroup):
    """A command with its own options, which are used only if no subcommand is called."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_HAS_SUBCOMMAND_KEY] = bool(args) and args[0] in self.commands
        if args and not args[0].startswith("-"):
            self.resolve_command(ctx, args)  # refuses a misspelt one, rather than the absence of the process's options
        return super().parse_args(ctx, args)

    @override
    def get_params(self, ctx: Any) -> list[Any]:
        is_below = ctx.meta.get(_HAS_SUBCOMMAND_KEY, False)
        return [option for option in super().get_params(ctx) if not is_below or option.name == "help"]


bookie_app = typer.Typer(
    cls=_ProcessOrCommand,
    invoke_without_command=True,
    help="Run a bookie until SIGTERM, look into a running one, or work on the directories of a stopped one.\n\n"
    "Without a command it runs, and prints one line once it is registered.",
)


@bookie_app.callback()
@with_options(BookieSettings)
def bookie(context: typer.Context, uri: MetadataUriOption = None, config: ConfigOption = None, **options: Any) -> None:
    """The command; its help is above."""
    if context.invoked_subcommand is not None:
        log_no_attempts_to_connect()
        return
    from bookie.server.main import run_bookie

    settings = bookie_settings(metadata_uri(uri, config), options)
    raise typer.Exit(run(run_bookie(settings, config_source(context, bookie_settings))))


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
    """Run a replicator until SIGTERM: lock ledgers, make missing copies, change ensembles, delete tasks."""
    from replicator.main import run_replicator

    settings = replicator_settings(metadata_uri(uri, config), {**options, "output": output})
    raise typer.Exit(run(run_replicator(settings, config_source(context, replicator_settings))))
