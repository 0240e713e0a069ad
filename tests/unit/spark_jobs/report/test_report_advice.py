"""The next steps that a report recommends."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
import typer
from typer.core import TyperGroup

from auditor.cli.main import app
from bookie.model.run import RunKind
from spark_jobs.report.counts import PublishOutcome, PublishResult
from spark_jobs.report.page.advice import environment, next_steps
from spark_jobs.report.summary import ClusterName, RunSummary
from tests.worlds import report as world

COMMANDS = typer.main.get_command(app)
DISABLED = replace(world.UNDER_REPLICATED, published=PublishResult(PublishOutcome.DISABLED, 9, 9))
DRY_RUN = replace(world.UNDER_REPLICATED, is_dry_run=True, published=PublishResult(PublishOutcome.DRY_RUN))
UNREADABLE = replace(world.CLEAN, counts=replace(world.CLEAN.counts, unreadable=2))
SITUATIONS = [
    world.CLEAN, world.UNDER_REPLICATED, world.NO_LIVE_COPY, world.HELD, world.INCOMPLETE, world.WAITING,
    world.PLACEMENT, world.REPLICAS, world.ATTACK, DISABLED, DRY_RUN, UNREADABLE,
    replace(world.HELD, bookies=()), replace(DRY_RUN, kind=RunKind.PLACEMENT),
]  # fmt: skip


def reported(summary: RunSummary) -> str:
    return "\n".join(line for step in next_steps(summary) for line in (step.text, *step.commands))


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        (world.UNDER_REPLICATED, ["bkheal replicator", "bkheal underreplicated list", "Read-only: bookie-01"]),
        (world.NO_LIVE_COPY, [world.bookie_name(2), "old disks", "bkheal ledger show 42"]),
        (
            world.HELD,
            [
                "bkheal bookies",
                "Bring the missing bookies back: bookie-00",
                "and 2 more",
                "--missing-share-max 1.0 --dry-run",
            ],
        ),
        (world.INCOMPLETE, ["ZooKeeper stopped answering"]),
        (world.WAITING, ["not marked yet: bookie-00"]),
        (world.PLACEMENT, ["reported and not marked", "in /ledgers/../bookies: bookie-08"]),
        (world.REPLICAS, ["from a copy outside the cluster", "bkheal ledger show 11", "could not list their entries"]),
        (DISABLED, ["bkheal recovery enable"]),
        (DRY_RUN, ["run it for real"]),
        (UNREADABLE, ["UNREADABLE_METADATA"]),
        (replace(world.HELD, bookies=()), ["metadata root"]),
    ],
)
def test_each_situation_has_its_steps(summary: RunSummary, words: list[str]) -> None:
    for word in words:
        assert word in reported(summary)


def test_a_clean_run_has_no_steps() -> None:
    assert next_steps(world.CLEAN) == ()


def test_the_most_urgent_step_is_first_and_a_held_run_never_mentions_repair() -> None:
    assert next_steps(world.NO_LIVE_COPY)[0].text.startswith("Bring back a bookie")
    assert "replicator" not in reported(world.HELD)


def test_a_cluster_name_is_quoted_for_the_shell() -> None:
    hostile = replace(world.CLEAN, cluster=ClusterName("zk://a/l'; rm -rf /;'", "i"))
    assert shlex.split(environment(hostile)) == ["export", "BKHEAL_METADATA_URI=zk://a/l'; rm -rf /;'"]


@pytest.mark.parametrize("summary", SITUATIONS)
def test_every_recommended_command_exists_with_its_options(summary: RunSummary) -> None:
    for step in next_steps(summary):
        for line in step.commands:
            program, *words = shlex.split(line)
            assert program == "bkheal"
            command, context = COMMANDS, None
            while isinstance(command, TyperGroup):
                context = typer.Context(command, parent=context, info_name=program)
                found = command.get_command(context, words.pop(0))
                assert found is not None, line
                command = found
            command.make_parser(typer.Context(command, parent=context)).parse_args(list(words))
