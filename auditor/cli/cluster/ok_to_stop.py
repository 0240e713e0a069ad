"""``bkheal ok-to-stop``: the check before each step of a rolling restart, an upgrade or a node drain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.changing import BookiesArgument, bookie_ids, connected, refuse, show
from auditor.cli.configuration.settings_options import with_options
from auditor.cli.output import OutputFormat, counting
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from auditor.operating.stopping import stop_lines
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.model.spread import PlacementPolicy
from bookie.runtime.configuration.options import build

_POLICY: Final = ("min_racks", "min_zones", "min_regions")
_OF_THIS_SIDE: Final = (*_POLICY, "topology_file", "worst")
"""Options that a service cannot follow."""


@reachable
@with_options(PlacementPolicy, only=_POLICY)
def ok_to_stop(
    context: typer.Context,
    names: BookiesArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_strict: Annotated[
        bool, typer.Option("--strict", help="Leave an ack quorum of copies of every entry, instead of one copy.")
    ] = False,
    worst: Annotated[int, typer.Option(min=1, max=1000, help="Most ledgers at risk to list.")] = 10,
    topology_file: Annotated[
        Path | None,
        typer.Option(help="Topology file (JSON): the rack of each bookie. Default: the topology in ZooKeeper."),
    ] = None,
    *,
    service: Service | None = None,
    **policy: Any,
) -> None:
    """Check whether these bookies may be stopped now, all at once.

    They may if every written entry keeps a live copy elsewhere, in every past and present ensemble of each ledger, and
    if enough writable bookies (and racks) are left for the widest ensemble of the open ledgers.

    The command reads all metadata, changes nothing, and needs no Spark. With --at, it uses the topology and the policy
    of that auditor, so options for them are refused.

    Exit codes: 0 they may be stopped, 1 they may not, 2 wrong usage, 3 the store did not answer, 5 some metadata could
    not be read.

    Example: `bkheal ok-to-stop bookie-2:3181 && systemctl stop bookie@2`
    """
    bookies = bookie_ids(names)
    if service is not None:
        _refuse_options(context)
        document = _asked(service, bookies, is_strict)
    else:
        placement = build(PlacementPolicy, policy)
        work = _verdict(metadata_uri(uri, config), bookies, is_strict, worst, topology_file, placement)
        document = run(work)
    show(output, "StopVerdict", document, stop_lines(document))
    if not document["ok"]:
        raise typer.Exit(ExitCode.PARTIAL if document["unreadable_ledgers"] and not _is_stop_unsafe(document) else 1)


def _refuse_options(context: typer.Context) -> None:
    """Refuse options that have no effect with ``--at``: with them, the answer could be no, and without them yes."""
    for name in _OF_THIS_SIDE:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}"
            raise typer.BadParameter("with --at, the auditor uses its own topology and policy", param_hint=flag)


def _is_stop_unsafe(document: dict[str, Any]) -> bool:
    return bool(document["ledgers_at_risk"] or document["placement_problems"])


def _asked(service: Service, bookies: Sequence[BookieId], is_strict: bool) -> dict[str, Any]:
    """Return the verdict of a service, which has its own topology and policy."""
    from auditor.cli.audit.remote import RemoteRefusedError

    try:
        return service.ask("GET", "/ok-to-stop", {"bookie": list(bookies), "strict": str(is_strict).lower()})
    except RemoteRefusedError as error:
        if isinstance(verdict := error.problem.get("verdict"), dict):
            return verdict
        raise


async def _verdict(
    uri: str,
    bookies: Sequence[BookieId],
    is_strict: bool,
    worst_max: int,
    topology_file: Path | None,
    policy: PlacementPolicy,
) -> dict[str, Any]:
    from auditor.operating.client import NoSuchObjectError
    from auditor.operating.stopping import stop_verdict

    async with connected(uri, topology_file=topology_file, placement_policy=policy) as client:
        try:
            return await stop_verdict(
                client,
                bookies,
                is_strict=is_strict,
                worst_max=worst_max,
                counting=lambda total: counting("ledgers", total),
            )
        except NoSuchObjectError as error:
            refuse(str(error))
