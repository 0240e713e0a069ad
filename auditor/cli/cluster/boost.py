"""``bkheal underreplicated boost``: have ledgers repaired before others with as few copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from auditor.cli.cluster.changing import DryRunOption, connected, refuse, show, whoami
from auditor.cli.cluster.spans import span_s
from auditor.cli.output import OutputFormat, print_error
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.model.times import rfc3339

SPAN_S_MAX: Final = 7 * 86400
"""A boost that an operator forgets ends after a week at the latest."""


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
    rows, problem = run(_boost(metadata_uri(uri, config), ids, None if is_stopping else seconds, is_dry_run=is_dry_run))
    document = {"dry_run": is_dry_run, "by": whoami(), "ledgers": rows}
    would = "would be " if is_dry_run else ""
    show(output, "Boost", document, [f"ledger {row['ledger_id']}: {_text(row, would)}" for row in rows])
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


async def _boost(
    uri: str, ledgers: Sequence[LedgerId], seconds: int | None, *, is_dry_run: bool
) -> tuple[list[dict[str, Any]], str]:
    """Boost ledgers, or end their boosts if there is no span; also returns why it ended early, if it did."""
    from bookie.metadata.tasks.boosts import Boost, Boosts, TooManyBoostsError

    async with connected(uri) as client:
        boosts = Boosts(client.store, client.cluster.root)
        if seconds is None:
            for ledger_id in () if is_dry_run else ledgers:
                await boosts.stop(ledger_id)
            return [{"ledger_id": each, "outcome": "ended", "until": None, "parked": False} for each in ledgers], ""
        tasks = await client.ports.tasks.read_many(ledgers)
        unmarked = [str(each) for each, task in zip(ledgers, tasks, strict=True) if task is None]
        if unmarked:
            refuse(
                f"not marked for repair: {', '.join(unmarked)}; nothing was changed. `bkheal underreplicated list` "
                "lists the marked ledgers"
            )
        now_ms = client.ports.clock.epoch_ms()
        until_ms = now_ms + seconds * 1000
        rows: list[dict[str, Any]] = []
        problem = ""
        for ledger_id in ledgers:
            try:
                if not is_dry_run and not problem:
                    await boosts.start(Boost(ledger_id, whoami(), now_ms, until_ms))
            except TooManyBoostsError as error:
                problem = f"ledger {ledger_id} was not boosted: {error}"
            is_parked = await client.parked.get(ledger_id) is not None
            outcome, until = ("not_boosted", None) if problem else ("boosted", rfc3339(until_ms))
            rows.append({"ledger_id": ledger_id, "outcome": outcome, "until": until, "parked": is_parked})
        return rows, problem
