"""``bkheal recovery``: the cluster-wide switch that Apache's tools share."""

from __future__ import annotations

import typer

from auditor.cli.output import OutputFormat, print_json, print_line
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run

app = typer.Typer(
    help="Switch repair on and off for the whole cluster (the same switch as `bookkeeper shell autorecovery`).",
    no_args_is_help=True,
)


@app.command("enable")
def enable(uri: MetadataUriOption = None, config: ConfigOption = None) -> None:
    """Let audits publish tasks and replicators copy again. Fails if it is on already."""
    run(_switch(metadata_uri(uri, config), is_on=True))
    print_line("recovery is enabled")


@app.command("disable")
def disable(uri: MetadataUriOption = None, config: ConfigOption = None) -> None:
    """Stop publishing and copying everywhere, promptly; nothing is lost. Fails if it is off already."""
    run(_switch(metadata_uri(uri, config), is_on=False))
    print_line("recovery is disabled; enable it again with `bkheal recovery enable`")


@app.command("status")
def status(
    uri: MetadataUriOption = None, config: ConfigOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show whether repair is on, and the lost-bookie delay."""
    is_enabled, delay_s = run(_status(metadata_uri(uri, config)))
    if output is OutputFormat.JSON:
        print_json("RecoveryStatus", enabled=is_enabled, lost_bookie_delay_seconds=delay_s)
        return
    print_line(f"recovery: {'enabled' if is_enabled else 'disabled'}")
    print_line(f"lost-bookie delay: {delay_s} s")


async def _switch(uri: str, *, is_on: bool) -> None:
    from bookie.client.connect import connect

    async with await connect(uri) as client:
        await client.ports.tasks.initialize()
        await (client.ports.tasks.enable() if is_on else client.ports.tasks.disable())


async def _status(uri: str) -> tuple[bool, int]:
    from bookie.client.connect import connect

    async with await connect(uri) as client:
        tasks = client.ports.tasks
        return not await tasks.is_disabled(), await tasks.lost_bookie_delay_s()
