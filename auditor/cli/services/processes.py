"""``bkheal bookie`` and ``bkheal replicator``. Their options are those of their settings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from auditor.cli.configuration.reloading import config_source
from auditor.cli.configuration.settings import bookie_settings, replicator_settings, with_options
from auditor.cli.output import OutputFormat
from auditor.cli.running import ConfigOption, MetadataUriOption, metadata_uri, run
from bookie.server.settings import BookieSettings
from replicator.settings import ReplicatorSettings


@with_options(BookieSettings)
def bookie(context: typer.Context, uri: MetadataUriOption = None, config: ConfigOption = None, **options: Any) -> None:
    """Run a bookie until SIGTERM. Prints one line once it is registered."""
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
    """Run a replicator until SIGTERM: lock, copy what is missing, swap the ensemble, delete the task."""
    from replicator.main import run_replicator

    settings = replicator_settings(metadata_uri(uri, config), {**options, "output": output})
    raise typer.Exit(run(run_replicator(settings, config_source(context, replicator_settings))))
