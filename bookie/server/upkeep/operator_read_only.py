"""An operator's request that a bookie be read-only, which is a file in the ledger directory and survives a restart.

The record is durable before the bookie acts on it, both when the mode begins and when it ends. An unreadable record
counts as a request: the bookie is read-only, and an operator decides.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from bookie.model.records import UnreadableRecordError, decode_record, encode_record
from bookie.storage.port import Disk, DiskError, DiskFullError, StalledDiskError

_log = logging.getLogger(__name__)

READ_ONLY_FILE: Final = "read-only"
"""The file in the ledger directory."""


@dataclass(frozen=True, slots=True)
class ReadOnlyRequest:
    """The author of the request, and its time (epoch milliseconds; 0: unknown)."""

    asked_by: str = ""
    asked_ms: int = 0


async def read_recorded_request(ledgers: Disk) -> ReadOnlyRequest | None:
    """Return the recorded request, or None if there is none.

    Raises:
        DiskFullError: too many files are open.
        StalledDiskError: the disk does not answer.
    """
    try:
        return decode_record(await _read_record(ledgers), ReadOnlyRequest)
    except FileNotFoundError:
        return None
    except (DiskFullError, StalledDiskError):
        raise
    except (UnreadableRecordError, DiskError) as error:  # the latter: for example a bad sector
        _log.warning("the record of the read-only mode is unreadable", extra={"error": str(error)})
        return ReadOnlyRequest()


async def _read_record(ledgers: Disk) -> bytes:
    file = await ledgers.open(READ_ONLY_FILE)
    try:
        [data] = await file.read([(0, await file.size())])
        return data
    finally:
        await file.close()


async def write_recorded_request(ledgers: Disk, wish: ReadOnlyRequest | None) -> None:
    """Record a request, or remove the record. Durable on return.

    Raises:
        DiskFullError: there is no space for the record.
        DiskError: the disk failed.
    """
    if wish is not None:
        await ledgers.replace(READ_ONLY_FILE, encode_record(wish))
        return
    await ledgers.unlink(READ_ONLY_FILE)
    await ledgers.sync_directory("")


class OperatorReadOnly:
    """An operator's request to one running bookie."""

    def __init__(self, ledgers: Disk, wish: ReadOnlyRequest | None) -> None:
        """Begin with ``wish``, the recorded request."""
        self._ledgers = ledgers
        self.wish = wish
        """The current request; None if there is none."""

    async def set(self, wish: ReadOnlyRequest | None) -> None:
        """Record a request and act on it, or end it.

        Raises the errors of ``write_recorded_request``; then nothing was changed.
        """
        await write_recorded_request(self._ledgers, wish)
        self.wish = wish
