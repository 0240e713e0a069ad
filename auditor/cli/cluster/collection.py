"""``bkheal collection``: garbage collections that bookies hold back because too much would be deleted."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from auditor.cli.changing import YesOption, confirm, connected, exit_if_unknown, refuse, show, whoami
from auditor.cli.output import OutputFormat, StreamFormat
from auditor.cli.paging import print_page
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, StreamOutputOption, metadata_uri, run
from auditor.cli.spans import span_s
from bookie.metadata.bookies.collections import ALLOWANCE_S_MAX, default_allowance
from bookie.model.ids import LEDGER_ID_MAX, BookieId, bookie_id
from bookie.runtime.human import counted

app = typer.Typer(
    help="Garbage collections that bookies hold back because too much would be deleted.", no_args_is_help=True
)

BookieArgument = Annotated[str, typer.Argument(metavar="BOOKIE", help="A bookie of `bkheal collection list`.")]


@app.command("list")
def list_held(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
) -> None:
    """List the bookies that hold back a garbage collection, and the allowances.

    A bookie deletes nothing if more than half of its ledgers (`--collect-ratio-max`) would be deleted: if the metadata
    of the ledgers was lost by accident, the entries are needed to restore them.

    Exit codes: 0 listed, 2 wrong usage, 3 the store did not answer.
    """
    rows = run(_list(metadata_uri(uri, config)))
    print_page(
        output,
        "HeldCollectionList",
        {"items": rows},
        ("BOOKIE", "LEDGERS", "OF", "SINCE", "ALLOWED UNTIL", "ALLOWED LEDGERS", "BY"),
        lambda row: (
            row["bookie_id"],
            row["ledgers"],
            row["known"],
            row["since"],
            row["allowed_until"] or "-",
            "-" if row["allowed_ledgers"] is None else row["allowed_ledgers"],
            row["allowed_by"] or "-",
        ),
        right=(1, 2, 5),
        nothing="no bookie holds a collection back",
    )


@app.command("allow")
def allow(
    bookie: BookieArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
    span: Annotated[str, typer.Option("--for", help="When the allowance ends: 2h, 1d; at most 7d.")] = "1d",
    ledgers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LEDGER_ID_MAX,
            help="Most ledgers that may be deleted. Default: those held back and a tenth more.",
            show_default=False,
        ),
    ] = None,
    is_sure: YesOption = False,
) -> None:
    """Allow a bookie to delete the ledgers that it holds back.

    Allow it only if these ledgers were deleted on purpose, or moved to other bookies. The bookie continues with its
    next collection, which begins within `--collect-interval`, without a restart. It still checks each ledger by itself:
    it deletes ledgers without metadata in two reads under one mark, and closed ones that neither name nor reserve it.

    Exit codes: 0 allowed, 1 refused: the bookie holds nothing back (nothing was changed), 2 wrong usage, 3 the store
    did not answer.

    Example: `bkheal collection allow bk1:3181 --for 1d`
    """
    seconds, name = span_s(span, ALLOWANCE_S_MAX, "--for"), bookie_id(bookie)
    at = metadata_uri(uri, config)
    held = next((row for row in run(_list(at)) if row["bookie_id"] == name), None)
    if held is None:
        refuse(f"{name} holds back no collection: `bkheal collection list` shows which bookies do")
    most = f"at most {counted(ledgers, 'ledger')}" if ledgers else "these, or up to a tenth more"
    confirm(
        f"{name} would delete {held['ledgers']} of its {counted(held['known'], 'ledger')} permanently. Allow {most}?",
        is_sure=is_sure,
    )
    # The allowance is for the number in the question, because the number may have grown since.
    document = run(_allow(at, name, seconds, default_allowance(held["ledgers"]) if ledgers is None else ledgers))
    allowed = counted(document["allowed_ledgers"], "ledger")
    line = f"{name} may delete up to {allowed} until {document['allowed_until']}"
    show(output, "HeldCollection", document, [line])


@app.command("deny")
def deny(
    bookie: BookieArgument,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Withdraw an allowance, and remove the record of the bookie.

    A running collection is not interrupted. A bookie that still holds ledgers back records it again.

    Exit codes: 0 withdrawn, or there was none, 1 no such bookie, 2 wrong usage, 3 the store did not answer.
    """
    name = bookie_id(bookie)
    run(_deny(metadata_uri(uri, config), name))
    show(output, "HeldCollectionDenied", {"bookie_id": name}, [f"nothing is allowed to {name}"])


async def _list(uri: str) -> list[dict[str, Any]]:
    from auditor.operating.collections import list_collections

    async with connected(uri) as client:
        return list((await list_collections(client))["items"])


async def _allow(uri: str, name: BookieId, seconds: int, ledgers: int) -> dict[str, Any]:
    from auditor.operating.client import Actor
    from auditor.operating.collections import allow_collection
    from bookie.metadata.bookies.collections import NothingHeldError

    async with connected(uri) as client:
        try:
            return await allow_collection(client, Actor(whoami(), "command"), name, seconds, ledgers)
        except NothingHeldError as error:
            refuse(str(error))


async def _deny(uri: str, name: BookieId) -> None:
    from auditor.operating.client import Actor
    from auditor.operating.collections import deny_collection

    async with connected(uri) as client:
        if not await deny_collection(client, Actor(whoami(), "command"), name):
            registrations = client.ports.registrations
            exit_if_unknown([name], await registrations.known() | (await registrations.list()).registered)
