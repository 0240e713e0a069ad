"""Options shared by several commands about ledgers and logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bookie.model.ids import LEDGER_ID_MAX

LedgerArgument = Annotated[int, typer.Argument(min=0, max=LEDGER_ID_MAX, help="Ledger id.")]
PasswordOption = Annotated[
    str, typer.Option(envvar="BKHEAL_PASSWORD", help="Ledger password; safer in the environment.", show_envvar=True)
]
EnsembleOption = Annotated[
    int, typer.Option("--ensemble-size", "-e", min=1, help="Number of bookies over which the entries are spread.")
]
WriteQuorumOption = Annotated[int, typer.Option("--write-quorum", "-w", min=1, help="Copies of each entry.")]
AckQuorumOption = Annotated[
    int, typer.Option("--ack-quorum", "-a", min=1, help="Durable copies before an add is acknowledged.")
]
DigestOption = Annotated[str, typer.Option(help="CRC32C, CRC32, HMAC or DUMMY.")]
EntriesOption = Annotated[
    int, typer.Option("--entries", "--count", "-n", min=0, help="Write this many random entries instead of lines.")
]
EntryBytesOption = Annotated[
    int, typer.Option("--entry-bytes", "--size", min=0, max=1 << 20, help="Bytes of a random entry.")
]
FileArgument = Annotated[
    Path | None, typer.Argument(help="File with one entry a line; '-' or nothing: standard input.", show_default=False)
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
