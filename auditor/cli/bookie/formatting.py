"""``bkheal bookie format``: erase the directories of a stopped bookie."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auditor.cli.bookie.place import JournalDirOption, LedgerDirOption, journal_dirs_of, ledger_dirs_of
from auditor.cli.changing import DryRunOption, YesOption, confirm, whoami
from auditor.cli.output import OutputFormat, print_json, print_line, print_note
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.errors import BkhealError
from bookie.runtime.human import counted, size

if TYPE_CHECKING:
    from bookie.server.joining.stopped import StoppedDisks


def format_directories(
    journal_dir: JournalDirOption,
    ledger_dir: LedgerDirOption,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    may_delete_cookie: Annotated[
        bool,
        typer.Option("--delete-cookie", help="Delete the bookie's cookie in ZooKeeper as well.", show_default=False),
    ] = False,
    is_dry_run: DryRunOption = False,
    is_sure: YesOption = False,
) -> None:
    """Erase the directories of a stopped bookie, so they are like new. The data that will be lost is printed first.

    As long as ZooKeeper has the bookie's cookie, the cluster expects its entries, and the command is refused. To lose
    no copy, use a drain and then `bkheal decommission`, which deletes the cookie. With --delete-cookie, the copies are
    lost: audits then mark the ledgers that name the bookie, and `bkheal changes` has a record of it. If the bookie id
    is used again, the bookie answers "unknown" for its former entries.

    Exit codes: 0 erased, or there was nothing to erase, 1 refused (also while the bookie runs) or not confirmed, and
    nothing was changed, 2 wrong usage, 3 the store did not answer, 70 a disk failed: call it again.

    Example: `bkheal bookie format --journal-dir /journal --ledger-dir /ledgers`
    """
    document = run(
        _format(
            metadata_uri(uri, config),
            journal_dirs_of(journal_dir),
            ledger_dirs_of(ledger_dir),
            may_delete_cookie=may_delete_cookie,
            is_dry_run=is_dry_run,
            is_sure=is_sure,
        )
    )
    if output is OutputFormat.JSON:
        print_json("FormattedBookie", **document)
    elif document["bookie_id"] is None:
        print_line("the directories are empty: there is nothing to erase")
    elif is_dry_run:
        print_line("nothing was changed")
    else:
        cookie = ", and its cookie in ZooKeeper was deleted" if document["cookie_deleted"] else ""
        print_line(f"the directories of bookie {document['bookie_id']} are empty now{cookie}")


async def _format(
    uri: str,
    journal_dirs: Sequence[Path],
    ledger_dirs: Sequence[Path],
    *,
    may_delete_cookie: bool,
    is_dry_run: bool,
    is_sure: bool,
) -> dict[str, Any]:
    from bookie.metadata.cluster import open_cluster
    from bookie.metadata.store.zookeeper import ZooKeeperStore
    from bookie.metadata.tasks.changes import ChangeRecords
    from bookie.metadata.uri import parse_uri
    from bookie.runtime.clock import SystemClock
    from bookie.server.joining.directories import CURRENT
    from bookie.server.joining.formatting import check_all_can_be_opened, erase, owner, release_cookie
    from bookie.server.joining.stopped import stopped_disks

    async with stopped_disks(journal_dirs, ledger_dirs) as disks:
        check_all_can_be_opened(disks.directories)
        cookie = owner(disks.directories)
        if cookie is None:
            return {"bookie_id": None, "lost": None, "cookie_deleted": False, "dry_run": is_dry_run}
        lost = await _content(disks)
        print_note(
            f"bookie {cookie.bookie_id} in {', '.join(map(str, (*journal_dirs, *ledger_dirs)))}: "
            f"{_lost_content_text(lost)}"
        )
        document = {"bookie_id": cookie.bookie_id, "lost": lost, "cookie_deleted": False, "dry_run": is_dry_run}
        if is_dry_run:
            return document
        confirm("All of this is erased. Continue?", is_sure=is_sure)
        parsed = parse_uri(uri)
        store = await ZooKeeperStore.connect(parsed.hosts)
        try:
            cluster = await open_cluster(store, parsed)
            document["cookie_deleted"] = await release_cookie(
                store,
                cluster,
                cookie,
                disks.directories,
                may_delete=may_delete_cookie,
                record=partial(
                    ChangeRecords(store, cluster.root, SystemClock()).record,
                    whoami(),
                    "command",
                    "bookie format",
                    f"{cookie.bookie_id}: its cookie is deleted",
                ),
            )
        finally:
            await store.close()
        currents = [path / CURRENT for path in (*journal_dirs, *ledger_dirs)]
        await erase(list(zip(currents, (*disks.journals, *disks.ledger_disks), strict=True)))
        return document


async def _content(disks: StoppedDisks) -> dict[str, Any]:
    """Return the amount of data in the directories, or a reason if their storage cannot be opened."""
    from bookie.server.joining.stopped import stopped_storage

    try:
        async with stopped_storage(disks) as storage:
            found = await storage.status()
    except BkhealError as error:
        return {"ledgers": None, "entry_log_bytes": None, "journal_records": None, "problem": str(error)}
    return {
        "ledgers": found.ledgers,
        "entry_log_bytes": found.entry_log_bytes,
        "journal_records": found.journal_records,
        "problem": None,
    }


def _lost_content_text(lost: dict[str, Any]) -> str:
    if lost["problem"] is not None:
        return f"how much they have is not known ({lost['problem']})"
    return (
        f"{counted(lost['ledgers'], 'ledger')}, {size(lost['entry_log_bytes'])} of entry logs, "
        f"{counted(lost['journal_records'], 'record')} only in the journal"
    )
