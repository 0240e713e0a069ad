"""``bkheal underreplicated boost``: repair ledgers before others with as few copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.changing import DryRunOption, connected, refuse, show, whoami
from auditor.cli.cluster.status import underreplicated_app
from auditor.cli.output import OutputFormat, print_error
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from auditor.cli.spans import span_s
from auditor.operating.boosting import SPAN_S_MAX
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LEDGER_ID_MAX, LedgerId

__all__ = ["underreplicated_app"]

_NOT_DONE: Final = {
    "not_boosted": "not boosted",
    "not_ended": "its boost is not ended",
    "not_tried": "not tried",
    "unknown": "unknown, because the auditor did not answer: repeat the command",
}


@underreplicated_app.command("boost")
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
    """Repair marked ledgers before all others of the same severity, for a limited time.

    Workers order ledgers by the number of copies left. A boosted ledger comes before every ledger with the same number,
    and never before a ledger with fewer copies. Workers of bkheal apply the boost at their next listing, after a few
    seconds; copies in flight are not interrupted, and Apache's workers ignore boosts. A parked ledger stays parked: see
    `bkheal dead-letters retry`.

    At most 100 ledgers are boosted at a time. Boosting a ledger again moves the end of its boost. With --stop, ledgers
    without a boost are named and are no error.

    Exit codes: 0 boosted (or ended), 1 refused: a ledger is not marked (nothing was changed), or too many are boosted,
    2 wrong usage, 3 the store did not answer. With --at, the ledgers before a refused one stay boosted, and those after
    it are not boosted; 69 the auditor did not answer.

    Example: `bkheal underreplicated boost 17 18 --for 2h`
    """
    seconds = span_s(span, SPAN_S_MAX, "--for")
    ids = [LedgerId(ledger_id) for ledger_id in dict.fromkeys(ledgers)]
    wanted_s = None if is_stopping else seconds
    code = ExitCode.FAILED
    if service is None:
        document = run(_boost(metadata_uri(uri, config), ids, wanted_s, is_dry_run=is_dry_run))
    elif is_dry_run:
        raise typer.BadParameter("--dry-run cannot be used with --at", param_hint="--dry-run")
    else:
        document, code = _remote_boost_change(service, ids, wanted_s)
    problem = document.pop("problem", None)
    would = "would be " if is_dry_run else ""
    show(output, "Boost", document, [f"ledger {row['ledger_id']}: {_text(row, would)}" for row in document["ledgers"]])
    if problem:
        print_error(problem)
        raise typer.Exit(code)


def _remote_boost_change(
    service: Service, ledgers: Sequence[LedgerId], seconds: int | None
) -> tuple[dict[str, Any], ExitCode]:
    """Request the change of one ledger after the other, up to the first problem; also return its exit code.

    Raises:
        RemoteUnavailableError, RemoteRefusedError: the first ledger was refused, or there was no answer.
    """
    from auditor.cli.audit.remote import RemoteRefusedError, RemoteUnavailableError
    from auditor.cli.exit_codes import exit_code_of

    document: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for number, ledger_id in enumerate(ledgers):
        try:
            part = (
                service.ask("DELETE", f"/boosts/{ledger_id}")
                if seconds is None
                else service.ask("PUT", f"/boosts/{ledger_id}", body={"seconds": seconds})
            )
        except (RemoteRefusedError, RemoteUnavailableError) as error:
            if not rows:
                raise
            refused = "not_ended" if seconds is None else "not_boosted"
            rows.append(_unchanged(ledger_id, refused if isinstance(error, RemoteRefusedError) else "unknown"))
            left = ledgers[number + 1 :]
            rows += [_unchanged(each, "not_tried") for each in left]
            untried = f"; not tried: {', '.join(map(str, left))}" if left else ""
            return {**document, "ledgers": rows, "problem": f"ledger {ledger_id}: {error}{untried}"}, exit_code_of(
                error
            )
        document = {**document, **part}
        rows += part["ledgers"]
    return {**document, "ledgers": rows}, ExitCode.FAILED


def _unchanged(ledger_id: LedgerId, outcome: str) -> dict[str, Any]:
    return {"ledger_id": ledger_id, "outcome": outcome, "until": None, "parked": False}


def _text(row: dict[str, Any], would: str) -> str:
    if row["outcome"] in _NOT_DONE:
        return _NOT_DONE[row["outcome"]]
    if row["outcome"] == "ended":
        return f"its boost {would or 'is '}ended"
    parked = "; it is parked, and a boost does not end that" if row["parked"] else ""
    return f"{would}boosted until {row['until']}{parked}"


async def _boost(uri: str, ledgers: Sequence[LedgerId], seconds: int | None, *, is_dry_run: bool) -> dict[str, Any]:
    """Boost ledgers, or end their boosts if no span is given."""
    from auditor.operating.boosting import boost_ledgers, end_boosts
    from auditor.operating.client import Actor, NoSuchObjectError

    actor = Actor(whoami(), "command")
    async with connected(uri) as client:
        if seconds is None:
            return await end_boosts(client, actor, ledgers, is_dry_run=is_dry_run)
        try:
            return await boost_ledgers(client, actor, ledgers, seconds, is_dry_run=is_dry_run)
        except NoSuchObjectError as error:
            refuse(f"{error}; nothing was changed")
