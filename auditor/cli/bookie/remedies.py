"""``bkheal bookie rebuild-index`` and ``salvage-journal``: they make damaged directories usable again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from auditor.cli.bookie.place import JournalDirOption, LedgerDirOption, journal_dirs_of, ledger_dirs_of
from auditor.cli.output import OutputFormat, print_json, print_line
from auditor.cli.running import OutputOption, run
from bookie.runtime.human import agreeing, counted

if TYPE_CHECKING:
    from bookie.storage.findings import Findings
    from bookie.storage.rebuilding import RebuiltIndex
    from bookie.storage.salvaging import SalvagedJournal


def rebuild_index(
    journal_dir: JournalDirOption,
    ledger_dir: LedgerDirOption,
    output: OutputOption = OutputFormat.TABLE,
    may_replace: Annotated[
        bool, typer.Option("--replace", help="Rebuild also an index that could be used.", show_default=False)
    ] = False,
) -> None:
    """Rebuild the lost index of a stopped bookie from its entry logs.

    The index also had the ledgers' keys, fences and the record of collected entries, which are not in the entry logs.
    So the disks become a new incarnation that keeps its entries: at its next start the bookie answers "unknown" for all
    other entries, and every ledger that names it is marked for repair, which copies only missing entries. Entries of
    deleted ledgers reappear until the next garbage collection.

    Damaged parts of the entry logs are listed and skipped. The directories need space for a second index. The old
    index is kept as `index.lost-…`; delete it when the bookie is complete again.

    Exit codes: 0 rebuilt, 1 refused, also while the bookie runs (nothing was changed), 2 wrong usage, 70 a disk failed;
    it is safe to try again.

    Example: `bkheal bookie rebuild-index --journal-dir /journal --ledger-dir /ledgers`
    """
    import random

    from bookie.runtime.clock import SystemClock
    from bookie.server.joining.rebuilt import rebuild_index as rebuilt

    found = run(
        rebuilt(
            journal_dirs_of(journal_dir),
            ledger_dirs_of(ledger_dir),
            SystemClock(),
            random.SystemRandom(),
            may_replace=may_replace,
        )
    )
    if output is OutputFormat.JSON:
        print_json("RebuiltIndex", **_rebuilt_document(found))
        return
    held = f"{counted(found.entries, 'entry')} of {counted(found.ledgers, 'ledger')}"
    print_line(f"the index has {held}, from {counted(found.logs, 'entry log')}")
    _print_findings(found)
    print_line("start the bookie: the ledgers that name it are marked for repair")


def salvage_journal(
    journal_dir: JournalDirOption,
    ledger_dir: LedgerDirOption,
    output: OutputOption = OutputFormat.TABLE,
    is_lost: Annotated[
        bool,
        typer.Option("--lost", help="The journal's disk is lost, and this directory is empty.", show_default=False),
    ] = False,
) -> None:
    """Keep the readable part of a stopped bookie's damaged journal, so the bookie can start again.

    The readable entries are moved to the entry logs. The other contents of the journal are unknown: entries, keys and
    fences of any ledger. So the disks become a new incarnation that keeps its entries: at its next start the bookie
    answers "unknown" for all other entries, accepts no more adds from the writers of its ledgers, and every ledger that
    names it is marked for repair, which copies only missing entries.

    If there is a copy of the damaged files, or the right disk can be mounted, use it instead. The old journal is kept
    as `journal.damaged-…`; delete it when the bookie is complete again.

    Exit codes: 0 salvaged, 1 refused, also while the bookie runs (nothing was changed), 2 wrong usage, 70 a disk
    failed; it is safe to try again.

    Example: `bkheal bookie salvage-journal --journal-dir /journal --ledger-dir /ledgers`
    """
    import random

    from bookie.runtime.clock import SystemClock
    from bookie.server.joining.salvaged import salvage_journal as salvaged

    found = run(
        salvaged(
            journal_dirs_of(journal_dir, may_be_new=True),
            ledger_dirs_of(ledger_dir),
            SystemClock(),
            random.SystemRandom(),
            is_lost=is_lost,
        )
    )
    if output is OutputFormat.JSON:
        print_json("SalvagedJournal", **_salvaged_document(found))
        return
    kept = f"{counted(found.records, 'record')} of the journal {agreeing(found.records, 'is', 'are')} in the entry logs"
    limbo = f"{counted(found.ledgers, 'ledger')} {agreeing(found.ledgers, 'is', 'are')} in limbo"
    print_line(f"{kept}; {limbo}")
    _print_findings(found.findings)
    print_line("start the bookie: the ledgers that name it are marked for repair")


def _salvaged_document(found: SalvagedJournal) -> dict[str, Any]:
    return {"records": found.records, "ledgers": found.ledgers, **_findings_document(found.findings)}


def _print_findings(found: Findings) -> None:
    for finding in found.findings:
        print_line(f"damaged: {finding.path} offset {finding.offset}: {finding.what}")
    if found.finding_count > len(found.findings):
        print_line(f"damaged: {found.finding_count - len(found.findings)} more")


def _findings_document(found: Findings) -> dict[str, Any]:
    return {
        "finding_count": found.finding_count,
        "findings": [{"path": each.path, "offset": each.offset, "what": each.what} for each in found.findings],
    }


def _rebuilt_document(found: RebuiltIndex) -> dict[str, Any]:
    return {
        "entries": found.entries,
        "ledgers": found.ledgers,
        "entry_logs": found.logs,
        "superseded": found.superseded,
        **_findings_document(found),
    }
