"""A bookie with small write caches, whose ledger disk takes a second per sync. ``test_our_bookies.py`` runs it."""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import Final

from bookie.runtime.grpc_environment import prepare_grpc
from bookie.server import __main__ as bookie_process
from bookie.server.start import opening
from bookie.storage.entry_logs.entry_log import EntryLogWriter
from bookie.storage.settings import StorageSettings

CACHE_BYTES: Final = 1 << 20
SYNC_S: Final = 1.0


def _slow_down() -> None:
    sync = EntryLogWriter.sync

    async def slow_sync(self: EntryLogWriter) -> None:
        await asyncio.sleep(SYNC_S)
        await sync(self)

    EntryLogWriter.sync = slow_sync  # type: ignore[method-assign]
    small = functools.partial(StorageSettings, cache_bytes_max=CACHE_BYTES)
    opening.StorageSettings = small  # type: ignore[assignment,attr-defined]


if __name__ == "__main__":
    prepare_grpc()
    _slow_down()
    sys.exit(bookie_process.main())
