"""A writer pauses while another client takes over its ledger, and continues afterwards (reliability, S4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.client.connect import connect
from bookie.client.errors import LedgerFencedError
from bookie.embedded.cluster import EmbeddedCluster
from bookie.model.metadata import LedgerState
from tests.deadlines import STATE_S
from tests.integration.writer_child import WriterProcess, payload
from tests.sessions import LONG_SESSION_S

pytestmark = pytest.mark.integration

ENOUGH = 300


async def test_a_writer_that_was_paused_through_a_recovery_acknowledges_nothing_beyond_the_end(tmp_path: Path) -> None:
    async with (
        await EmbeddedCluster.start(
            tmp_path / "cluster", bookies=3, is_zookeeper_durable=False, session_timeout_s=LONG_SESSION_S
        ) as cluster,
        await connect(cluster.metadata_uri, session_timeout_s=LONG_SESSION_S) as client,
    ):
        writer = WriterProcess(cluster.metadata_uri, tmp_path, ledgers=1)

        async def is_writing() -> bool:
            return any(len(entries) >= ENOUGH for entries in writer.acknowledged().values())

        async with writer.process:
            await writer.process.wait_until(is_writing, f"{ENOUGH} entries", STATE_S)
            writer.process.pause()
            [(ledger_id, before)] = writer.acknowledged().items()
            metadata = await client.recover_ledger(ledger_id)
            end = metadata.last_entry_id
            assert metadata.state is LedgerState.CLOSED
            assert end is not None
            assert end >= before[-1]

            async def is_over() -> bool:
                is_ended = not writer.process.is_running or bool(writer.ended())
                return is_ended or writer.acknowledged()[ledger_id][-1] > end

            writer.process.resume()
            await writer.process.wait_until(is_over, "the end of the writing", STATE_S)
        assert writer.ended() == {ledger_id: LedgerFencedError.__name__}
        [after] = writer.acknowledged().values()
        assert after == list(range(len(after)))
        assert after[-1] <= end
        assert (await client.ports.ledgers.read(ledger_id)).metadata == metadata
        reader = await client.open_ledger(ledger_id)
        found = [entry.payload async for entry in reader.read_all()]
        assert found == [payload(ledger_id, entry_id) for entry_id in range(end + 1)]
