"""``bkheal bench``: how fast, beside a baseline measured in the same run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from auditor.cli.output import OutputFormat, print_json, print_line
from auditor.cli.running import OutputOption, run

app = typer.Typer(
    help="Measure this machine: each benchmark prints ratios against a baseline of the same run.", no_args_is_help=True
)


@app.command("add")
def add(
    entries: Annotated[int, typer.Option(min=1, help="Entries to write.")] = 200_000,
    entry_bytes: Annotated[int, typer.Option(min=1, max=1 << 20, help="Payload bytes.")] = 1024,
    ensemble_size: Annotated[int, typer.Option("-e", min=1)] = 1,
    write_quorum: Annotated[int, typer.Option("-w", min=1)] = 1,
    ack_quorum: Annotated[int, typer.Option("-a", min=1)] = 1,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Durable adds with one writer, beside a plain file with fdatasync."""
    from auditor.bench.add import run as measure

    shape = (ensemble_size, write_quorum, ack_quorum)
    _show("AddBenchmark", run(measure(entries, entry_bytes, shape)), output)


@app.command("repair")
def repair(
    entries: Annotated[int, typer.Option(min=1, help="Entries lost with the bookie.")] = 100_000,
    entry_bytes: Annotated[int, typer.Option(min=1, max=1 << 20, help="Payload bytes.")] = 1024,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """One replicator restoring what a killed bookie held, beside a plain file copy."""
    from auditor.bench.repair import run as measure

    _show("RepairBenchmark", run(measure(entries, entry_bytes)), output)


@app.command("scan")
def scan(
    ledgers: Annotated[int, typer.Option(min=1, help="Ledgers in the embedded ZooKeeper.")] = 200_000,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Reading all ledger metadata: kazoo one by one, our bulk reader, and the whole Spark audit."""
    from auditor.bench.scan import run as measure

    _show("ScanBenchmark", run(measure(ledgers)), output)


def _show(kind: str, figures: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(kind, **figures)
        return
    width = max(map(len, figures))
    for name, value in figures.items():
        print_line(f"{name.replace('_', ' '):<{width}}  {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    return f"{value:,}" if isinstance(value, int | float) else str(value)
