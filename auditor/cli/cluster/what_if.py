"""``bkheal what-if``: the ledgers that would be lost or would lack copies if some bookies or a rack failed now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.changing import connected, refuse, show
from auditor.cli.output import OutputFormat, counting
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from auditor.operating.maintenance import window_target
from bookie.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from auditor.operating.what_if import NamedLedgers
    from bookie.client.connect import ConnectedBookKeeper
    from bookie.model.ids import BookieId

TargetsArgument = Annotated[
    list[str], typer.Argument(metavar="BOOKIE|rack:RACK", help="Bookies, or all bookies of racks such as rack:/r1.")
]


@reachable
def what_if(
    targets: TargetsArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    worst: Annotated[int, typer.Option(min=0, max=1000, help="Most ledgers to list, the worst first.")] = 10,
    topics: Annotated[
        int, typer.Option(min=0, max=10_000, help="Most topics of Pulsar to list, the worst first.")
    ] = 10,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|ADDRESS",
            help="Read only the ledgers that the image of an audit names: fast, and without newer ledgers. Not with "
            "--at.",
            show_default=False,
        ),
    ] = None,
    topology_file: Annotated[
        Path | None,
        typer.Option(
            help="Topology file (JSON): the rack of each bookie. Default: the topology in ZooKeeper. Not with --at."
        ),
    ] = None,
    *,
    service: Service | None = None,
) -> None:
    """Show what would be lost if these bookies failed now, all at once: ledgers by severity, the worst, and topics.

    The severities are those of an audit. Ledgers whose severity would stay the same count as `already`, such as those
    that lack copies on bookies that are not running. All metadata is read and nothing is changed; no Spark is needed.
    With --image, the ledgers are taken from the image that audits write, and only they are read: the answer contains
    the age of the image.

    Exit codes: 0 the answer is complete, 1 a bookie or rack does not exist, 2 wrong usage, 3 the store did not answer,
    5 some metadata could not be read, 78 the image or the topology cannot be used.

    Example: `bkheal what-if rack:/r1`
    """
    named = [window_target(target) for target in targets]
    if service is not None:
        if image is not None or topology_file is not None:
            raise typer.BadParameter("with --at, the auditor reads all metadata and uses its own topology")
        document = service.ask("GET", "/what-if", {"target": named, "worst": worst, "topics": topics})
    else:
        _check_image(image)
        document = run(_answer(metadata_uri(uri, config), named, worst, topics, image, topology_file))
    from auditor.operating.what_if import what_if_lines

    show(output, "WhatIf", document, what_if_lines(document))
    if document["unreadable_ledgers"]:
        raise typer.Exit(ExitCode.PARTIAL)


async def _answer(
    uri: str, targets: Sequence[str], worst: int, topics: int, image: str | None, topology_file: Path | None
) -> dict[str, Any]:
    from auditor.operating.client import NoSuchObjectError, RefusedError
    from auditor.operating.what_if import bookies_of, what_if

    async with connected(uri, topology_file=topology_file) as client:
        try:
            topology = None if topology_file is None else client.ports.placement.topology
            bookies = await bookies_of(client, targets, topology)
        except (NoSuchObjectError, RefusedError) as error:
            refuse(str(error))
        return await what_if(
            client,
            bookies,
            worst_max=worst,
            topics_max=topics,
            named=None if image is None else _named(client, image, bookies),
            counting=lambda total: counting("ledgers", total),
        )


def _check_image(image: str | None) -> None:
    from spark_jobs.options.image import image_dir_problems

    if problems := image_dir_problems(image or ""):
        refuse(f"the image of ledger metadata cannot be used: {problems[0]}", ExitCode.CONFIGURATION)


def _named(client: ConnectedBookKeeper, image: str, bookies: Sequence[BookieId]) -> NamedLedgers:
    """Return the ledgers that the image names for the bookies."""
    from auditor.operating.named_by_image import named_by_image
    from spark_jobs.image.manifest import ImageError

    try:
        return named_by_image(client, image, bookies)
    except ImageError as error:
        refuse(f"the image of ledger metadata cannot be used: {error}; leave out --image", ExitCode.CONFIGURATION)
