"""``bkheal quickstart``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from auditor.cli.configuration.sources import ENVIRONMENT_PREFIX
from auditor.cli.running import run
from bookie.embedded.apache_jars import LIB_VARIABLE
from bookie.metadata.access import use_plain_access
from bookie.runtime.configuration.settings import CONFIG_VARIABLE
from spark_jobs.class_archive import VARIABLE as SPARK_CLASSES_VARIABLE

_TOOLS: Final = frozenset({LIB_VARIABLE, SPARK_CLASSES_VARIABLE})
"""Variables with paths on this machine; other variables with the prefix are settings of clusters and services."""


def quickstart(
    keep: Annotated[Path | None, typer.Option(help="Keep all data and logs in this (new) directory.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Keep the cluster running afterwards, until Ctrl-C.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the ledgers' shapes and contents.")] = 1,
) -> None:
    """See a repair: start a ZooKeeper and seven bookies, kill a bookie, audit with Spark, repair, verify every copy.

    Nothing has to be installed. No process remains, and no directory, except with --keep and after a failure.
    """
    from auditor.progress import Display
    from auditor.quickstart.run import STEPS, quickstart
    from auditor.quickstart.settings import QuickstartSettings

    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise typer.BadParameter(f"{keep} is not empty; choose a new directory for --keep")
    settings = QuickstartSettings(keep=keep, is_serving=serve, seed=seed)
    _use_defaults()
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
    from auditor.quickstart.demo import STEPS, DemoSettings, demo, wanted_or_free_port

    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise typer.BadParameter(f"{keep} is not empty; choose a new directory for --keep")
    _use_defaults()
    ports = wanted_or_free_port(http_port, "the status page"), wanted_or_free_port(ui_port, "Spark's UI", "--ui-port")
    run(demo(DemoSettings(*ports, keep), Display(STEPS)))


def _use_defaults() -> None:
    """Ignore the operator's configuration in this process and its children, because it is for other clusters."""
    use_plain_access()
    for name in [name for name in os.environ if name.startswith(f"{ENVIRONMENT_PREFIX}_") and name not in _TOOLS]:
        del os.environ[name]
    os.environ[CONFIG_VARIABLE] = os.devnull
