"""``bkheal underreplicated boost``: repair ledgers before others with as few copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from auditor.cli.cluster.at import Service, reachable
from auditor.cli.cluster.changing import DryRunOption, connected, refuse, show, whoami
from auditor.cli.cluster.spans import span_s
from auditor.cli.output import OutputFormat, print_error
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from auditor.operating.boosting import SPAN_S_MAX
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LEDGER_ID_MAX, LedgerId


@reachable
def boost(
    ledgers: Annotated[
        list[int],
        typer.Argument(min=0, max=LEDGER_ID_MAX, metavar="LEDGER", help="Marked ledgers.", show_default=False),
    ],
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    span: Annotated[str, typer.Option("--for", help="When the boost ends: 30m, 1h, 2d; at most 7d.")] = "1h",
    is_stopping: Annotated[bool, typer.Option("--stop", help="End the boosts of these ledgers instead.")] = False,
    is_dry_run: DryRunOption = False,
    *,
    service: Service | None = None,
) -> None:
    """Have marked ledgers repaired before all others of their own severity, for a limited time.

    Workers order ledgers by the number of copies left. A boosted ledger comes before every ledger with the same number,
    and never before a ledger with fewer copies. Workers of bkheal follow the boost with their next listing, after a few
    seconds; copies in flight are not interrupted, and Apache's workers ignore boosts. A boost does not end the park of
    a ledger: see `bkheal dead-letters retry`.

    At most 100 ledgers are boosted at a time. Boosting a ledger again moves the end of its boost.

    Exit codes: 0 boosted (or ended), 1 refused: a ledger is not marked (nothing was changed), or too many are boosted,
    2 wrong usage, 3 the store did not answer.

    Example: `bkheal underreplicated boost 17 18 --for 2h`
    """
    seconds = span_s(span, SPAN_S_MAX, "--for")
    ids = [LedgerId(ledger_id) for ledger_id in dict.fromkeys(ledgers)]
    if service is None:
        wanted_s = None if is_stopping else seconds
        document = run(_boost(metadata_uri(uri, config), ids, wanted_s, is_dry_run=is_dry_run))
    elif is_dry_run:
        raise typer.BadParameter("with --at there is no dry run", param_hint="--dry-run")
    else:
        parts = [
            service.ask("DELETE", f"/boosts/{ledger_id}")
            if is_stopping
            else service.ask("PUT", f"/boosts/{ledger_id}", body={"seconds": seconds})
            for ledger_id in ids
        ]
        document = {**parts[0], "ledgers": [row for part in parts for row in part["ledgers"]]}
    problem = document.pop("problem", None)
    would = "would be " if is_dry_run else ""
    show(output, "Boost", document, [f"ledger {row['ledger_id']}: {_text(row, would)}" for row in document["ledgers"]])
    if problem:
        print_error(problem)
        raise typer.Exit(ExitCode.FAILED)


def _text(row: dict[str, Any], would: str) -> str:
    if row["outcome"] == "not_boosted":
        return "not boosted"
    if row["outcome"] == "ended":
        return f"its boost {would or 'is '}ended"
    parked = "; it is parked, and a boost does not end that" if row["parked"] else ""
    return f"{would}boosted until {row['until']}{parked}"


async def _boost(uri: str, ledgers: Sequence[LedgerId], seconds: int | None, *, is_dry_run: bool) -> dict[str, Any]:
    """Boost ledgers, or end their boosts if there is no span."""
    from auditor.operating.boosting import boost_ledgers, end_boosts
    from auditor.operating.client import Actor, NotThereError

    actor = Actor(whoami(), "command")
    async with connected(uri) as client:
        if seconds is None:
            return await end_boosts(client, actor, ledgers, is_dry_run=is_dry_run)
        try:
            return await boost_ledgers(client, actor, ledgers, seconds, is_dry_run=is_dry_run)
        except NotThereError as error:
            refuse(str(error))
