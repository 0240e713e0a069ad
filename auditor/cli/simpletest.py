"""``bkheal simpletest``: does this cluster take entries and give them back?"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from auditor.cli.counting import counting
from auditor.cli.entry_format import check_quorums, digest_named
from auditor.cli.ledger_options import (
    AckQuorumOption,
    DigestOption,
    EnsembleOption,
    WriteQuorumOption,
)
from auditor.cli.output import OutputFormat, print_json, print_line, size
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.errors import FatalError

_SEED = 1


class WrongEntryError(FatalError):
    """An entry that was read is not what was written."""


def simpletest(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    ensemble_size: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 2,
    ack_quorum: AckQuorumOption = 2,
    entries: Annotated[int, typer.Option("--entries", "-n", min=1, help="Entries to write and read.")] = 1000,
    entry_bytes: Annotated[
        int, typer.Option("--entry-bytes", "--size", min=0, max=1 << 20, help="Bytes of each.")
    ] = 1024,
    digest: DigestOption = "CRC32C",
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the ledger afterwards.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write a ledger, read everything back, compare it, and delete the ledger: a quick proof that the cluster works.

    Example: `bkheal simpletest -e 3 -w 3 -a 2 -n 10000`.
    """
    shape, kind = check_quorums(ensemble_size, write_quorum, ack_quorum), digest_named(digest)
    row = run(_test(metadata_uri(uri, config), shape, kind, entries, entry_bytes, is_kept=keep))
    if output is OutputFormat.JSON:
        print_json("SimpleTest", **row)
        return
    for verb in ("written", "read"):
        rate, seconds = row[f"{verb}_entries_per_second"], row[f"{verb}_seconds"]
        print_line(f"{entries} entries {verb} in {seconds:.2f} s: {rate:,.0f}/s, {size(rate * entry_bytes)}/s")
    ending = "kept" if keep else "deleted"
    print_line(f"ledger {row['ledger_id']}: all {entries} entries are as they were written; the ledger was {ending}")


async def _test(
    uri: str, shape: tuple[int, int, int], digest: Any, entries: int, entry_bytes: int, *, is_kept: bool
) -> dict[str, Any]:
    import random

    from bookie.client.connect import connect
    from bookie.client.options import LedgerOptions

    async with await connect(uri) as client:
        writer = await client.create_ledger(LedgerOptions(*shape, digest_type=digest))
        ledger_id = writer.ledger_id
        try:
            rng, started_s = random.Random(_SEED), time.monotonic()
            with counting("writing", entries) as advance:
                async with writer:
                    for _ in range(entries):
                        added = await writer.submit(rng.randbytes(entry_bytes))
                        advance(1)
                    await added  # acknowledged in order: all are, once the last one is
            written_s = time.monotonic() - started_s

            rng, started_s, count = random.Random(_SEED), time.monotonic(), 0
            reader = await client.open_ledger(ledger_id)
            with counting("reading", entries) as advance:
                async for entry in reader.read_all():
                    if entry.payload != rng.randbytes(entry_bytes):
                        raise WrongEntryError(f"entry {count} of ledger {ledger_id} is not what was written")
                    count += 1
                    advance(1)
            if count != entries:
                raise WrongEntryError(f"ledger {ledger_id} gave {count} entries back of {entries} written")
            read_s = time.monotonic() - started_s
        finally:
            if not is_kept:
                await client.delete_ledger(ledger_id)
    return {
        "ledger_id": ledger_id,
        "entries": entries,
        "entry_bytes": entry_bytes,
        "written_seconds": written_s,
        "written_entries_per_second": entries / max(written_s, 1e-9),
        "read_seconds": read_s,
        "read_entries_per_second": entries / max(read_s, 1e-9),
        "is_deleted": not is_kept,
    }
