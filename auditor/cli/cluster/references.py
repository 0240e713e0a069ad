"""``bkheal references``: ledgers that nothing in Pulsar refers to, and references to ledgers that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from auditor.cli.cluster.changing import connected, refuse, show
from auditor.cli.cluster.spans import span_s
from auditor.cli.output import OutputFormat, counting, print_note
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.exit_codes import ExitCode

_GRACE_S_MAX = 365 * 86_400


def references(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    roots: Annotated[
        list[str] | None,
        typer.Option(
            "--pulsar-root",
            help="Path of the brokers' metadata in the same ZooKeeper; once for each Pulsar cluster that uses these "
            "bookies. Default: the parent of the ledgers' root.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[str, typer.Option(help="Ledgers that are younger have no verdict: 72h, 3d.")] = "72h",
    export: Annotated[
        Path | None, typer.Option(help="Write the ids of unreferenced ledgers to this file, one in a line.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare the ledgers with what Pulsar's topics, subscriptions and schemas refer to. Deletes nothing.

    Ledgers that nothing refers to take up space: some remain when a deletion fails. References to ledgers that do not
    exist are lost data. Ledgers that are not closed, young, not Pulsar's, or of a topic with a node that
    cannot be decoded have no verdict. All Pulsar clusters that use these bookies must be named.

    Reads all metadata, changes nothing, needs no Spark.

    Exit codes: 0 done, 3 the store did not answer, 4 a reference names a ledger that does not exist, 5 some nodes could
    not be decoded.

    Example: `bkheal references --export unreferenced.txt`
    """
    seconds = span_s(grace, _GRACE_S_MAX, "--grace")
    document, ids = run(_compared(metadata_uri(uri, config), roots, seconds))
    if export is not None:
        export.write_text("".join(f"{ledger_id}\n" for ledger_id in sorted(ids)), encoding="ascii")
        print_note(f"{len(ids)} ids are in {export}")
    from auditor.operating.references import reference_lines

    show(output, "LedgerReferences", document, reference_lines(document))
    if document["lost"]:
        raise typer.Exit(ExitCode.DATA_LOSS)
    if not document["complete"]:
        raise typer.Exit(ExitCode.PARTIAL)


async def _compared(uri: str, roots: Sequence[str] | None, grace_s: int) -> tuple[dict[str, Any], Sequence[int]]:
    from auditor.operating.client import NotThereError
    from auditor.operating.references import compare_references
    from bookie.metadata.nodes import parent_of

    async with connected(uri) as client:
        named = roots or [parent_of(client.cluster.root)]
        try:
            return await compare_references(
                client, [root.rstrip("/") for root in named], grace_s, lambda total: counting("ledgers", total)
            )
        except NotThereError as error:
            refuse(str(error))
