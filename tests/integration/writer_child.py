"""A process that writes ledgers and prints each acknowledgement, until it is stopped or loses its ledgers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bookie.client.bookkeeper import BookKeeper, LedgerOptions
from bookie.client.connect import connect
from bookie.embedded.process import ManagedProcess
from bookie.model.errors import BkhealError
from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.grpc_environment import prepare_grpc
from tests.worlds.entries import numbered_payload

SHAPE = LedgerOptions(3, 3, 2)
_ENTRIES_MAX = 1_000_000
_WAITING_MAX = 256
"""The most entries of a ledger that wait for their acknowledgement."""


def payload(ledger_id: int, entry_id: int) -> bytes:
    return numbered_payload(ledger_id, entry_id, 60)


class WriterProcess:
    """One writer process, and its output so far."""

    def __init__(self, metadata_uri: str, directory: Path, *, ledgers: int) -> None:
        self._log = directory / "writer.log"
        words = [sys.executable, "-m", "tests.integration.writer_child", metadata_uri, str(ledgers)]
        self.process = ManagedProcess.start("writer", words, log_path=self._log)

    def acknowledged(self) -> dict[LedgerId, list[EntryId]]:
        """The ids of the acknowledged entries of each ledger, in the order of the acknowledgements."""
        reported: dict[LedgerId, list[EntryId]] = {}
        for line in self._log.read_text().splitlines(keepends=True):
            word, *numbers = line.split()
            if word == "added" and line.endswith("\n"):
                reported.setdefault(LedgerId(int(numbers[0])), []).append(EntryId(int(numbers[1])))
        return reported

    def ended(self) -> dict[LedgerId, str]:
        """The name of the error that ended the writes to each ledger."""
        lines = (line.split() for line in self._log.read_text().splitlines())
        return {LedgerId(int(words[1])): words[2] for words in lines if words[0] == "ended"}


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def _write(client: BookKeeper) -> None:
    writer = await client.create_ledger(SHAPE)
    waiting: asyncio.Queue[asyncio.Future[EntryId]] = asyncio.Queue(_WAITING_MAX)

    async def submit() -> None:
        for entry_id in range(_ENTRIES_MAX):
            await waiting.put(await writer.submit(payload(writer.ledger_id, entry_id)))

    submitting = asyncio.create_task(submit())
    try:
        while not submitting.done() or not waiting.empty():
            _say("added", writer.ledger_id, await (await waiting.get()))
    except BkhealError as error:
        _say("ended", writer.ledger_id, type(error).__name__)
    submitting.cancel()
    await asyncio.gather(submitting, return_exceptions=True)
    await writer.abandon()


async def _main(metadata_uri: str, ledgers: int) -> None:
    async with await connect(metadata_uri) as client:
        await asyncio.gather(*(_write(client) for _ in range(ledgers)))


if __name__ == "__main__":
    prepare_grpc()
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
