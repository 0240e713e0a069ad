"""``bkheal quickstart``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auditor.cli.running import run
from bookie.metadata.access import use_plain_access


def quickstart(
    keep: Annotated[Path | None, typer.Option(help="Keep all data and logs in this (new) directory.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Keep the cluster running afterwards, until Ctrl-C.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the ledgers' shapes and contents.")] = 1,
) -> None:
    """See it heal: a real ZooKeeper and seven bookies lose one, are audited by Spark, repaired, and proved whole.

    Needs nothing installed. No process and no directory remains.
    """
    from auditor.progress import Display
    from auditor.quickstart.run import STEPS, quickstart
    from auditor.quickstart.settings import QuickstartSettings

    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise typer.BadParameter(f"{keep} is not empty; choose a new directory for --keep")
    settings = QuickstartSettings(keep=keep, is_serving=serve, seed=seed)
    use_plain_access()
    run(quickstart(settings, Display(STEPS)))


def demo(
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the status page; 0 picks one.")] = 8080,
    ui_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of Spark's UI; 0 picks one.")] = 4040,
    keep: Annotated[Path | None, typer.Option(help="Keep all data and logs in this (new) directory.")] = None,
) -> None:
    """Try the service: a cluster with auditor, Spark UI tab and replicators on this machine, until Ctrl-C.

    Prints the addresses to open, and a command to kill a bookie. All listeners use the loopback address only, and any
    user of this machine can press the buttons.
    """
    from auditor.progress import Display
    from auditor.quickstart.demo import STEPS, DemoSettings, chosen_port, demo

    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise typer.BadParameter(f"{keep} is not empty; choose a new directory for --keep")
    use_plain_access()
    run(demo(DemoSettings(chosen_port(http_port), chosen_port(ui_port), keep), Display(STEPS)))
