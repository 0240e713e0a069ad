"""``bkheal ok-to-stop``: what a rolling restart, an upgrade or a node drain should ask before each step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auditor.cli.cluster.changing import BookiesArgument, bookie_ids, connected, show, unknown_names
from auditor.cli.configuration.settings import with_options
from auditor.cli.output import OutputFormat, counting
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.spread import PlacementPolicy
from bookie.runtime.configuration.options import build

if TYPE_CHECKING:
    from auditor.safety.scan import ScanResult
    from auditor.safety.stopping import Risk, Worst
    from bookie.client.connect import ConnectedBookKeeper
    from bookie.metadata.bookies.registration import Bookies


@with_options(PlacementPolicy, only=("min_racks", "min_zones", "min_regions"))
def ok_to_stop(
    names: BookiesArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_strict: Annotated[
        bool, typer.Option("--strict", help="Leave an ack quorum of copies of every entry, instead of one copy.")
    ] = False,
    worst: Annotated[int, typer.Option(min=1, max=1000, help="Name so many of the ledgers at risk.")] = 10,
    topology_file: Annotated[
        Path | None,
        typer.Option(help="Topology file (JSON): the rack of each bookie. Default: the topology in ZooKeeper."),
    ] = None,
    **policy: Any,
) -> None:
    """Check whether these bookies may be stopped now, all at once.

    Yes if every written entry keeps a live copy elsewhere, in every ensemble that a ledger ever had, and if enough
    writable bookies (and racks) are left for the widest ensemble of the ledgers that are open.

    Reads all metadata, changes nothing, needs no Spark.

    Exit codes: 0 they may be stopped, 1 they may not, 3 the store did not answer, 5 some metadata could not be read.

    Example: `bkheal ok-to-stop bookie-2:3181 && systemctl stop bookie@2`
    """
    placement = build(PlacementPolicy, policy)
    work = _verdict(
        metadata_uri(uri, config), bookie_ids(names), is_strict, worst, topology_file=topology_file, policy=placement
    )
    document = run(work)
    show(output, "StopVerdict", document, _lines(document))
    if not document["ok"]:
        raise typer.Exit(ExitCode.PARTIAL if document["unreadable_ledgers"] and not _is_no(document) else 1)


def _is_no(document: dict[str, Any]) -> bool:
    return bool(document["ledgers_at_risk"] or document["placement_problems"])


async def _verdict(
    uri: str, bookies: tuple[BookieId, ...], is_strict: bool, worst_max: int, **options: Any
) -> dict[str, Any]:
    from auditor.safety.stopping import room_problems

    async with connected(uri, topology_file=options["topology_file"], placement_policy=options["policy"]) as client:
        before = await client.ports.registrations.list()
        unknown_names(bookies, await client.ports.registrations.known() | before.registered)
        worst, scanned = await _risks(client, bookies, before, is_strict, worst_max)
        registered = await client.ports.registrations.list()
        problems = room_problems(scanned.unclosed, registered, bookies, client.ports.placement)
        if gone := sorted(before.registered - registered.registered - set(bookies)):
            problems.append(f"{', '.join(gone)} went away while ledgers were read: ask again")
    return {
        "ok": not worst.count and not problems and scanned.is_complete,
        "bookies": list(bookies),
        "strict": is_strict,
        "ledgers": scanned.ledgers,
        "unreadable_ledgers": scanned.unreadable_count,
        "ledgers_at_risk": worst.count,
        "worst": [_fields(risk) for risk in worst.risks],
        "placement_problems": problems,
        "not_registered": sorted(set(bookies) - registered.registered),
    }


async def _risks(
    client: ConnectedBookKeeper, bookies: tuple[BookieId, ...], before: Bookies, is_strict: bool, worst_max: int
) -> tuple[Worst, ScanResult]:
    from auditor.safety.scan import count, scan
    from auditor.safety.stopping import Worst, risk_of
    from bookie.metadata.bookies.drains import Drains

    worst, stopping = Worst(worst_max), frozenset(bookies)
    ports = client.ports
    tasks = {task.ledger_id: frozenset(task.missing) for task in await ports.tasks.list()}
    drained = frozenset(await Drains(client.store, client.cluster.root).read())

    def visit(ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        doubted = tasks.get(ledger_id, frozenset()) - drained  # it may have come back with other disks
        risk = risk_of(ledger_id, metadata, before.registered - doubted, stopping, is_strict=is_strict)
        if risk is not None:
            worst.add(risk)

    with counting("ledgers", await count(ports.ledgers)) as advance:
        return worst, await scan(ports.ledgers, stopping, visit, advance)


def _fields(risk: Risk) -> dict[str, Any]:
    return {
        "ledger_id": risk.ledger_id,
        "fragment_first_entry_id": risk.first_entry_id,
        "copies_left": risk.copies_left,
        "copies_needed": risk.copies_needed,
        "growing": risk.is_growing,
        "bookies": list(risk.members),
    }


def _lines(document: dict[str, Any]) -> list[str]:
    names = ", ".join(document["bookies"])
    verdict = f"yes: {names} may be stopped" if document["ok"] else f"no: do not stop {names} now"
    lines = [f"{verdict} ({document['ledgers']} ledgers looked at)"]
    for name in document["not_registered"]:
        lines.append(f"  {name} is not running: its stop changes nothing")
    if document["ledgers_at_risk"]:
        lines.append(f"  {document['ledgers_at_risk']} ledgers would be left with too few copies, the worst:")
    for risk in document["worst"]:
        growing = ", still written to" if risk["growing"] else ""
        lines.append(
            f"    ledger {risk['ledger_id']} from entry {risk['fragment_first_entry_id']}: "
            f"{risk['copies_left']} copies left, {risk['copies_needed']} needed{growing}"
        )
    lines += [f"  {problem}" for problem in document["placement_problems"]]
    if document["unreadable_ledgers"]:
        lines.append(
            f"  the metadata of {document['unreadable_ledgers']} ledgers cannot be read: `bkheal audit run` names them"
        )
    return lines
