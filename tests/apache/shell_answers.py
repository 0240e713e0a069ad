"""The output of Apache's shell about ledgers, for comparison with our client's reads."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.embedded.apache import ApacheCluster
from bookie.model.metadata import DigestType, LedgerMetadata

_METADATA: Final = re.compile(r"^(?:log entry \{metadata=)?(LedgerMetadata\{.*?\}\})\}?$", re.MULTILINE)
"""How the shell prints metadata: on its own, and since 4.18 as an attribute. Both end with empty custom metadata."""
_ENTRIES: Final = (
    re.compile(r"--------- Lid=(?P<ledger>\d+), Eid=(?P<entry>\d+), EntrySize=(?P<length>\d+) ---------"),
    re.compile(r"Entry \{entryId=(?P<entry>\d+), entrySize=(?P<length>\d+), ledgerId=(?P<ledger>\d+)\}"),  # 4.18
)
_DUMPED: Final = re.compile(r"([0-9A-F]{8}) ((?:[0-9A-F]{2} ){1,16})")
_HMAC: Final = "MAC"


@dataclass(frozen=True)
class PrintedEntry:
    """An entry as ``readledger`` prints it."""

    ledger_id: int
    entry_id: int
    length: int
    """Sum of the payload sizes up to and including this entry."""
    payload: bytes


async def printed_metadata(cluster: ApacheCluster, ledger_id: int) -> str:
    """Return the line in which ``ledgermetadata`` shows every field."""
    printed = await cluster.shell("ledgermetadata", "-ledgerid", str(ledger_id))
    (line,) = _METADATA.findall(printed)
    return str(line)


def as_printed(metadata: LedgerMetadata) -> str:
    """Return the line that Apache's shell must print for metadata that we read, without custom metadata."""
    fields: list[tuple[str, object]] = [
        ("formatVersion", metadata.format_version),
        ("ensembleSize", metadata.ensemble_size),
        ("writeQuorumSize", metadata.write_quorum),
        ("ackQuorumSize", metadata.ack_quorum),
        ("state", metadata.state.name),
    ]
    if metadata.is_closed:
        fields += [("length", metadata.length), ("lastEntryId", metadata.last_entry_id)]
    if metadata.digest_type is not None and metadata.password is not None:
        digest = _HMAC if metadata.digest_type is DigestType.HMAC else metadata.digest_type.name
        fields += [("digestType", digest), ("password", f"base64:{base64.b64encode(metadata.password).decode()}")]
    ensembles = (f"{part.first_entry_id}=[{', '.join(part.members)}]" for part in metadata.fragments)
    fields += [("ensembles", f"{{{', '.join(ensembles)}}}"), ("customMetadata", "{}")]
    return f"LedgerMetadata{{{', '.join(f'{name}={value}' for name, value in fields)}}}"


async def printed_entries(cluster: ApacheCluster, ledger_id: int, password: bytes) -> list[PrintedEntry]:
    """Return every entry that ``readledger`` printed, with the bytes of its dump."""
    printed = await cluster.shell(
        *("-entryformat", "hex", "readledger", "-msg", "-ledgerid", str(ledger_id)),
        extra={"passwd": password.decode()},
    )
    return list(_entries(printed.splitlines()))


def entry_ids_in(printed: str, ledger_id: int) -> list[int]:
    """Return the entries of a ledger that ``readledger`` printed without their bytes."""
    found = (_header(line) for line in printed.splitlines())
    return [int(each["entry"]) for each in found if each and int(each["ledger"]) == ledger_id]


def entries_of(ledger_id: int, payloads: Sequence[bytes]) -> Iterator[PrintedEntry]:
    """Yield the expected output of ``readledger`` for a ledger of these payloads."""
    length = 0
    for entry_id, payload in enumerate(payloads):
        length += len(payload)
        yield PrintedEntry(ledger_id, entry_id, length, payload)


def _entries(lines: Sequence[str]) -> Iterator[PrintedEntry]:
    starts = [(number, found) for number, line in enumerate(lines) if (found := _header(line))]
    ends = [number for number, _ in starts[1:]]
    for (start, found), end in zip(starts, [*ends, len(lines)], strict=True):
        payload = _dumped(lines[start + 1 : end])
        yield PrintedEntry(int(found["ledger"]), int(found["entry"]), int(found["length"]), payload)


def _header(line: str) -> re.Match[str] | None:
    return next((found for pattern in _ENTRIES if (found := pattern.fullmatch(line))), None)


def _dumped(lines: Sequence[str]) -> bytes:
    """Return the bytes of a dump, whose lines begin with their offsets. An empty entry has no line."""
    data = bytearray()
    for line in lines:
        if found := _DUMPED.match(line):
            assert int(found[1], 16) == len(data), line
            data += bytes.fromhex(found[2])
    return bytes(data)
