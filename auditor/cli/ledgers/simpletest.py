"""``bkheal simpletest``: check whether this cluster stores entries and returns them."""

from __future__ import annotations

import asyncio
import random
import shlex
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from auditor.cli.configuration.security_options import bookie_security
from auditor.cli.ledgers.new_ledger import check_quorums, digest_type_from_name
from auditor.cli.ledgers.options import (
    AckQuorumOption,
    DigestOption,
    EnsembleOption,
    WriteQuorumOption,
)
from auditor.cli.output import OutputFormat, counting, print_json, print_line, print_note
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri, run
from bookie.model.errors import BkhealError, FatalError, OutcomeUnknownError
from bookie.runtime.human import counted, size

if TYPE_CHECKING:
    from bookie.client.bookkeeper import BookKeeper
    from bookie.client.options import LedgerOptions
    from bookie.client.writer.writer import LedgerWriter
    from bookie.model.ids import LedgerId

_SEED: Final = 1
_DELETE_DEADLINE_S: Final = 10.0
"""Short, because a person waits for the end, and the ledger can be deleted later."""


class WrongEntryError(FatalError):
    """A read entry differs from the written one."""


class LedgerNotDeletedError(OutcomeUnknownError):
    """The ledger of the test could not be deleted, or its state is unknown."""


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

    The ledger is deleted even if the test fails or is interrupted; if that fails, a note contains the command for it.

    Example: `bkheal simpletest -e 3 -w 3 -a 2 -n 10000`.
    """
    shape, kind = check_quorums(ensemble_size, write_quorum, ack_quorum), digest_type_from_name(digest)
    row = run(_test(metadata_uri(uri, config), shape, kind, entries, entry_bytes, is_kept=keep))
    if output is OutputFormat.JSON:
        print_json("SimpleTest", **row)
        return
    for verb in ("written", "read"):
        rate, seconds = row[f"{verb}_entries_per_second"], row[f"{verb}_seconds"]
        print_line(
            f"{counted(entries, 'entry')} {verb} in {seconds:.2f} s: {rate:,.0f}/s, {size(rate * entry_bytes)}/s"
        )
    ending = "kept" if keep else "deleted"
    print_line(f"ledger {row['ledger_id']}: {_compared(entries)}; the ledger was {ending}")


def _compared(entries: int) -> str:
    return "the entry is as it was written" if entries == 1 else f"all {entries} entries are as they were written"


async def _test(
    uri: str, shape: tuple[int, int, int], digest: Any, entries: int, entry_bytes: int, *, is_kept: bool
) -> dict[str, Any]:
    from bookie.client.connect import connect
    from bookie.client.options import LedgerOptions

    async with await connect(uri, security=bookie_security()) as client:
        options = LedgerOptions(*shape, digest_type=digest)
        return await prove(client, options, entries, entry_bytes, uri=uri, is_kept=is_kept)


async def prove(
    client: BookKeeper, options: LedgerOptions, entries: int, entry_bytes: int, *, uri: str, is_kept: bool = False
) -> dict[str, Any]:
    """Run the test on a cluster, and return the row of results.

    Raises:
        WrongEntryError: a read entry differs from the written one.
        LedgerNotDeletedError: everything succeeded except the deletion of the ledger.
        BkhealError: an error of the client. In every case, the ledger is deleted, or standard error has the command.
    """
    writer = await client.create_ledger(options)
    ledger_id = writer.ledger_id
    try:
        written_s = await _write(writer, entries, entry_bytes)
        read_s = await _read(client, ledger_id, entries, entry_bytes)
    except BaseException:
        if not is_kept and (left := await _left(client, ledger_id, uri)):
            print_note(left)
        raise
    if not is_kept and (left := await _left(client, ledger_id, uri)):
        raise LedgerNotDeletedError(f"{_compared(entries)}, but {left}")
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


async def _write(writer: LedgerWriter, entries: int, entry_bytes: int) -> float:
    """Return the elapsed seconds."""
    rng, started_s = random.Random(_SEED), time.monotonic()
    with counting("writing", entries) as advance:
        async with writer:
            for _ in range(entries):
                added = await writer.submit(rng.randbytes(entry_bytes))
                advance(1)
            await added  # acknowledged in order: the last one completes all
    return time.monotonic() - started_s


async def _read(client: BookKeeper, ledger_id: LedgerId, entries: int, entry_bytes: int) -> float:
    """Return the elapsed seconds."""
    rng, started_s, count = random.Random(_SEED), time.monotonic(), 0
    reader = await client.open_ledger(ledger_id)
    with counting("reading", entries) as advance:
        async for entry in reader.read_all():
            if entry.payload != rng.randbytes(entry_bytes):
                raise WrongEntryError(f"entry {count} of ledger {ledger_id} is not what was written")
            count += 1
            advance(1)
    if count != entries:
        raise WrongEntryError(f"ledger {ledger_id} gave {counted(count, 'entry')} back of {entries} written")
    return time.monotonic() - started_s


async def _left(client: BookKeeper, ledger_id: LedgerId, uri: str) -> str:
    """Delete the ledger, and return the note to print after a failure; empty: it was deleted."""
    try:
        async with asyncio.timeout(_DELETE_DEADLINE_S):
            await client.delete_ledger(ledger_id)
    except TimeoutError:
        reason = f"no answer within {_DELETE_DEADLINE_S:g} s"
    except BkhealError as error:
        reason = str(error)
    else:
        return ""
    command = shlex.join(["bkheal", "ledger", "delete", str(ledger_id), "--yes", "--metadata-uri", uri])
    return f"ledger {ledger_id} may remain ({reason}); delete it with: {command}"
