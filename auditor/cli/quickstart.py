"""``bkheal quickstart``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auditor.cli.running import run


def quickstart(
    keep: Annotated[Path | None, typer.Option(help="Keep all data and logs in this (new) directory.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Keep the cluster running afterwards, until Ctrl-C.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the ledgers' shapes and contents.")] = 1,
) -> None:
    """See it heal: a real ZooKeeper and seven bookies lose one, are audited by Spark, repaired, and proved whole.

    Needs nothing installed. Leaves no process and no directory behind.
    """
    from auditor.progress import Display
    from auditor.quickstart.run import STEPS, quickstart
    from auditor.quickstart.settings import QuickstartSettings

    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise typer.BadParameter(f"{keep} is not empty; choose a new directory for --keep")
    settings = QuickstartSettings(keep=keep, is_serving=serve, seed=seed)
    run(quickstart(settings, Display(STEPS)))
