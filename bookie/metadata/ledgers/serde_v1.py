"""Ledger metadata of format 1, a plain text without passwords (docs/formats.md#format-1).

Peculiarities: a ledger in recovery is written as ``CLOSED`` with the last entry -102; that line has no line feed; there
is one quorum size.
"""

from __future__ import annotations

import re
from typing import Final

from bookie.metadata.ledgers.serde_message import UnreadableMetadataError, UnwritableMetadataError, members_of
from bookie.model.ids import EntryId
from bookie.model.metadata import Fragment, InvalidMetadataError, LedgerMetadata, LedgerState

_CLOSED: Final = "CLOSED"
_IN_RECOVERY_LAST_ENTRY: Final = -102
_INTEGER_PATTERN: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER_LIMIT: Final = 1 << 63


def encode_body(metadata: LedgerMetadata) -> bytes:
    """Encode the part after the header.

    Raises:
        UnwritableMetadataError: it contains something unknown to format 1.
    """
    if metadata.password is not None or metadata.ctime_ms is not None or metadata.custom:
        raise UnwritableMetadataError("format 1 has no place for a password, a creation time or custom metadata")
    if metadata.ack_quorum != metadata.write_quorum:
        raise UnwritableMetadataError("format 1 has no ack quorum of its own")
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length or 0)]
    lines += ["\t".join([str(fragment.first_entry_id), *fragment.members]) for fragment in metadata.fragments]
    text = "\n".join(lines) + "\n"
    if metadata.state is LedgerState.IN_RECOVERY:
        text += f"{_IN_RECOVERY_LAST_ENTRY}\t{_CLOSED}"
    elif metadata.state is LedgerState.CLOSED:
        text += f"{metadata.last_entry_id}\t{_CLOSED}"
    return text.encode()


def decode_body(body: bytes) -> LedgerMetadata:
    """Read the part after the header, up to the closing line of the ledger.

    Raises:
        UnreadableMetadataError: not such text.
    """
    try:
        quorum, ensemble_size, length, *lines = body.decode().removesuffix("\n").split("\n")
    except ValueError as error:
        raise UnreadableMetadataError("ledger metadata of format 1 is truncated or not text") from error
    fragments: list[Fragment] = []
    state = LedgerState.OPEN
    last_entry_id = None
    for line in lines:
        first, *words = line.removesuffix("\r").split("\t")
        if words[:1] == [_CLOSED]:
            is_closed = _number(first) != _IN_RECOVERY_LAST_ENTRY
            state = LedgerState.CLOSED if is_closed else LedgerState.IN_RECOVERY
            last_entry_id = EntryId(_number(first)) if is_closed else None
            break
        fragments.append(Fragment(EntryId(_number(first)), members_of(tuple(words))))
    try:
        return LedgerMetadata(
            ensemble_size=_number(ensemble_size),
            write_quorum=_number(quorum),
            ack_quorum=_number(quorum),
            fragments=tuple(fragments),
            state=state,
            last_entry_id=last_entry_id,
            length=_number(length) if state is LedgerState.CLOSED else None,
            digest_type=None,
            password=None,
            format_version=1,
        )
    except InvalidMetadataError as error:
        raise UnreadableMetadataError(str(error)) from error


def _number(text: str) -> int:
    value = int(text) if _INTEGER_PATTERN.fullmatch(text.removesuffix("\r")) else _NUMBER_LIMIT
    if not -_NUMBER_LIMIT <= value < _NUMBER_LIMIT:
        raise UnreadableMetadataError(f"{text[:40]!r} in ledger metadata of format 1 is not a number")
    return value
