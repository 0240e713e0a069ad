"""``bkheal bookie cookie``: the cookies in a bookie's directories, and their comparison with ZooKeeper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auditor.cli.changing import refuse
from auditor.cli.output import OutputFormat, print_json, print_line
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, bookie_id
from bookie.runtime.human import printable

if TYPE_CHECKING:
    from bookie.metadata.bookies.cookies import Cookie
    from bookie.server.joining.cookie_check import DirectoryCookie, Mismatch

app = typer.Typer(help="The identity of the directories of a bookie, bkheal's or Apache's.", no_args_is_help=True)

JournalDirsOption = Annotated[
    list[Path],
    typer.Option("--journal-dir", help="A journal directory; may be repeated.", file_okay=False, exists=True),
]
LedgerDirsOption = Annotated[
    list[Path], typer.Option("--ledger-dir", help="A ledger directory; may be repeated.", file_okay=False, exists=True)
]


@app.command("show")
def show_cookies(
    journal_dir: JournalDirsOption, ledger_dir: LedgerDirsOption, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show the cookie of each directory. The bookie may run; ZooKeeper is not read, and nothing is changed.

    Exit codes: 0 every directory has a cookie, 1 one has none or a damaged one, 2 wrong usage.
    """
    from bookie.server.joining.cookie_check import directory_cookies

    found = run(directory_cookies([*journal_dir, *ledger_dir]))
    if output is OutputFormat.JSON:
        print_json("BookieCookies", items=[_row(each) for each in found])
    else:
        for each in found:
            print_line(f"{each.directory}:")
            for name, value in _row(each).items():
                if name != "directory" and value is not None:
                    shown = ", ".join(value) if isinstance(value, list) else str(value)
                    print_line(f"  {name.replace('_', ' ')}: {printable(shown)}")
    if any(each.cookie is None for each in found):
        raise typer.Exit(ExitCode.FAILED)


@app.command("verify")
def verify_cookies(
    journal_dir: JournalDirsOption,
    ledger_dir: LedgerDirsOption,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    name: Annotated[
        str | None,
        typer.Option("--bookie-id", help="The bookie. Default: the one that the directories name.", show_default=False),
    ] = None,
) -> None:
    """Compare the cookie of each directory with the one in ZooKeeper, field by field. Nothing is changed.

    The bookie may run. The instance id of the cluster is compared as well, and for directories of bkheal the
    incarnation, the paths and their order: give them as the bookie's options do. Some of them may be left out.

    Exit codes: 0 all are equal, 1 they differ, or ZooKeeper has no cookie of this bookie or a damaged one, 2 wrong
    usage, 3 the store did not answer.

    Example: `bkheal bookie cookie verify --journal-dir /journal --ledger-dir /ledgers`
    """
    bookie, stored, found = run(_verify(metadata_uri(uri, config), journal_dir, ledger_dir, name))
    if output is OutputFormat.JSON:
        print_json("BookieCookieCheck", bookie_id=bookie, registered=stored is not None, mismatches=_rows(found))
    elif stored is None:
        print_line(f"ZooKeeper has no cookie of bookie {bookie}")
    elif not found:
        print_line(f"the directories belong to bookie {bookie} as ZooKeeper has it")
    else:
        for each in found:
            here, there = (printable(value or "(none)") for value in (each.found, each.expected))
            print_line(f"{each.directory}: {each.field} is {here}, ZooKeeper has {there}")
    if stored is None or found:
        raise typer.Exit(ExitCode.FAILED)


def _row(found: DirectoryCookie) -> dict[str, Any]:
    cookie = found.cookie
    return {
        "directory": found.directory,
        "bookie_id": None if cookie is None else cookie.bookie_id,
        "journal_dirs": None if cookie is None else list(cookie.journal_dirs),
        "ledger_dirs": None if cookie is None else list(cookie.ledger_dirs),
        "index_dirs": None if cookie is None or cookie.index_dirs is None else list(cookie.index_dirs),
        "instance_id": None if cookie is None else cookie.instance_id,
        "layout": None if cookie is None else cookie.layout,
        "incarnation": found.incarnation,
        "problem": (found.problem or "there is no file VERSION") if cookie is None else None,
    }


def _rows(found: list[Mismatch]) -> list[dict[str, Any]]:
    return [
        {"directory": each.directory, "field": each.field, "found": each.found, "expected": each.expected}
        for each in found
    ]


async def _verify(
    uri: str, journal_dirs: list[Path], ledger_dirs: list[Path], name: str | None
) -> tuple[BookieId, Cookie | None, list[Mismatch]]:
    from bookie.metadata.bookies.cookies import CookieStore
    from bookie.metadata.bookies.incarnations import Incarnations
    from bookie.metadata.cluster import open_cluster
    from bookie.metadata.store.zookeeper import ZooKeeperStore
    from bookie.metadata.uri import parse_uri
    from bookie.server.joining.cookie_check import directory_cookies, mismatches, misplaced

    found = await directory_cookies([*journal_dirs, *ledger_dirs])
    named = [each.cookie.bookie_id for each in found if each.cookie is not None]
    if name is None and not named:
        refuse("no directory has a cookie: name the bookie with --bookie-id", ExitCode.USAGE)
    bookie = bookie_id(name) if name is not None else named[0]
    parsed = parse_uri(uri)
    store = await ZooKeeperStore.connect(parsed.hosts)
    try:
        cluster = await open_cluster(store, parsed)
        stored = await CookieStore(store, cluster).read(bookie)
        history = await Incarnations(store, cluster.root).read(bookie)
    finally:
        await store.close()
    if stored is None:
        return bookie, None, []
    last, cookie = history[-1].uuid if history else None, stored.cookie
    wrong = [mismatch for each in found for mismatch in mismatches(each, cookie, cluster.instance_id, last)]
    if last is not None:
        wrong += misplaced("journal_dirs", journal_dirs, cookie.journal_dirs)
        wrong += misplaced("ledger_dirs", ledger_dirs, cookie.ledger_dirs)
    return bookie, cookie, wrong
