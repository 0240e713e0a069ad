"""``bkheal ledger verify``: reads every copy of ledgers, and marks ledgers with bad copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from auditor.cli.changing import connected, refuse, whoami
from auditor.cli.cluster.throttle import number_of_bytes
from auditor.cli.output import OutputFormat, counting, print_json, print_line, print_table
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.runtime.human import agreeing, counted


def verify(
    ledgers: Annotated[list[int], typer.Argument(min=0, max=LEDGER_ID_MAX, metavar="LEDGER", help="Ledger ids.")],
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    is_marking: Annotated[
        bool, typer.Option("--mark", help="Mark the ledgers for repair of the bookies with damaged or absent copies.")
    ] = False,
    bytes_per_second: Annotated[
        int | None,
        typer.Option(
            parser=number_of_bytes,
            metavar="BYTES",
            help="Read no faster, from all bookies together. 0: no limit.",
            show_default="32MiB",
        ),
    ] = None,
) -> None:
    """Read every entry of ledgers on every bookie that should have it, and verify its digest.

    Apache's bookies do not verify the entries that they serve. So a flipped bit on a disk is found only when a client
    or a repair reads the entry. If the log of a client names a ledger, this command shows which copies are bad, and
    --mark requests the repair of exactly these copies.

    A copy is damaged if its digest or its ids are wrong, if the bookie itself reports damage, or if an Apache bookie
    answers with an I/O error for an entry of a closed ledger. It is absent if the bookie denies it. If there is no
    answer, or the bookie is lost or in limbo, it is unknown. A damaged last entry makes Apache's bookies fail to read
    all others of the ledger.

    If a ledger is not closed, only entries that cannot change any more are judged: those of former ensembles.

    Without --mark, nothing is changed. With it, the ledger is marked for the bookies with damaged or absent copies, and
    for lost ones whose delay has passed; never for a bookie whose answer is unknown, and never because of entries whose
    loss was accepted (`bkheal dead-letters accept-loss`). Replicators then store good copies in place, or on another
    bookie: an Apache bookie that served wrong bytes loses its position, because it may serve them again. Verify the
    ledger again after `bkheal underreplicated list` does not contain it any more.

    If a ledger is deleted during the command, or its metadata cannot be read any more, it is listed as not verified,
    and the other ledgers are verified. If the store stops answering, the results until then are printed, with the names
    of the remaining ledgers.

    Exit codes: 0 all judged copies are good, 1 some are damaged or absent (even if they are marked now), there is no
    such ledger, or it was deleted during the command, 2 wrong usage, 3 the store did not answer, 5 some are unknown and
    the others good, 69 it is unknown whether a ledger is marked.

    Example: `bkheal ledger verify 17 18 --mark`
    """
    from auditor.operating.verifying import heading, verified_lines

    def show(row: dict[str, Any]) -> None:
        print_line(heading(row))
        if row["bookies"]:
            columns = ("bookie_id", "state", "expected", "good", "damaged", "absent", "unknown")
            headings = ("BOOKIE", "STATE", "ENTRIES", "GOOD", "DAMAGED", "ABSENT", "UNKNOWN")
            cells = [[each[name] for name in columns] for each in row["bookies"]]
            print_table(headings, cells, right=(2, 3, 4, 5, 6))
        for line in verified_lines(row):
            print_line(f"  {line}")

    rows: list[dict[str, Any]] = []
    not_verified: dict[LedgerId, str] = {}

    def take(row: dict[str, Any]) -> None:
        rows.append(row)
        if output is OutputFormat.TABLE:
            show(row)

    def leave(ledger_id: LedgerId, reason: str) -> None:
        not_verified[ledger_id] = reason
        if output is OutputFormat.TABLE:
            print_line(f"ledger {ledger_id}: not verified: {reason}")

    ids = [LedgerId(ledger_id) for ledger_id in dict.fromkeys(ledgers)]
    ended: BkhealError | None = None
    try:
        run(_verify(metadata_uri(uri, config), ids, bytes_per_second, take, leave, is_marking=is_marking))
    except BkhealError as error:
        if not rows and not not_verified:
            raise
        ended = error
        for ledger_id in ids[len(rows) + len(not_verified) :]:
            leave(ledger_id, "the command ended before")
    if output is OutputFormat.JSON:
        left = [{"ledger_id": ledger_id, "reason": reason} for ledger_id, reason in not_verified.items()]
        print_json("LedgerVerification", marking=is_marking, ledgers=rows, not_verified=left)
    if ended is not None:
        raise ended
    if not_verified:
        are = f"{counted(len(not_verified), 'ledger')} {agreeing(len(not_verified), 'was', 'were')}"
        refuse(f"{are} not verified: {', '.join(map(str, not_verified))}")
    verdicts = {row["verdict"] for row in rows}
    if "bad" in verdicts:
        raise typer.Exit(ExitCode.FINDINGS)
    if "unknown" in verdicts:
        raise typer.Exit(ExitCode.PARTIAL)


async def _verify(
    uri: str,
    ledgers: Sequence[LedgerId],
    bytes_per_second: int | None,
    take: Callable[[dict[str, Any]], None],
    leave: Callable[[LedgerId, str], None],
    *,
    is_marking: bool,
) -> None:
    """Pass on the row of each ledger as soon as it is verified and marked, or the reason why it is not verified."""
    from auditor.operating.client import Actor
    from auditor.operating.verifying import BYTES_PER_SECOND_DEFAULT, Verifier, mark, verified_document
    from bookie.metadata.ledgers.ledgers import NoSuchLedgerError
    from bookie.metadata.ledgers.serde_message import UnreadableMetadataError

    async with connected(uri) as client:
        if is_marking and await client.ports.tasks.switches.is_disabled():
            refuse(
                "auto-recovery is disabled, so nothing would be repaired: run `bkheal recovery enable` first, or leave "
                "out --mark; nothing was verified"
            )
        for ledger_id in ledgers:
            await client.ports.ledgers.read(ledger_id)  # a wrong id ends the command before anything is read
        verifier = Verifier(client, BYTES_PER_SECOND_DEFAULT if bytes_per_second is None else bytes_per_second)
        for ledger_id in ledgers:
            try:
                result = await verifier.verify(ledger_id, partial(counting, f"ledger {ledger_id}"))
            except (NoSuchLedgerError, UnreadableMetadataError) as error:  # the other ledgers can still be verified
                leave(ledger_id, str(error))
                continue
            try:
                outcome = await mark(client, Actor(whoami(), "command"), result) if is_marking else None
            except BkhealError:
                take(verified_document(result, "unknown"))
                raise
            take(verified_document(result, outcome))
