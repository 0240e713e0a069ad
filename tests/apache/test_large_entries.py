"""Bookies with a larger frame limit than Apache's default, like Pulsar's with a raised `maxMessageSize`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.model.ids import BookieId, LedgerId
from bookie.wire.security import BookieSecurity
from tests.apache.conftest import OwnCluster
from tests.apache.driver import expected, payloads
from tests.apache.programs import Replicator, bkheal
from tests.apache.waiting import until
from tests.apache.worlds import PASSWORD, connect, gone, held, on
from tests.sessions import kill9

pytestmark = pytest.mark.apache

FRAME_BYTES = 20 << 20
LARGE = 9_000_000
SIZES = (100, 100, LARGE, 100, 3000, 0, LARGE, 1)
"""The two large entries are placed so that each member of an ensemble of 3 stores one of them at least."""
MESSAGE = "exceeds the limit of 5304096: raise --frame-bytes-max"


async def test_large_entries_are_repaired_with_the_option_and_reported_without_it(
    own_cluster: OwnCluster, tmp_path: Path
) -> None:
    frames = {"nettyMaxFrameSizeBytes": str(FRAME_BYTES)}
    cluster, java = await own_cluster(bookies=0)
    uri = cluster.metadata_uri
    await cluster.add_bookies(4, extra=frames)
    for name, is_v2 in (("v3-large", False), ("v2-large", True)):
        await java.new_client(name, v2=is_v2, settings=frames)
    ledgers: list[int] = []
    victim = cluster.bookies[0].bookie_id
    for _ in range(2):
        handle = await on(java, {victim}, 3, 2, 2, password=PASSWORD, client="v2-large")
        await handle.write(len(SIZES), seed="large", sizes=SIZES)
        await handle.close()
        ledgers.append(handle.ledger_id)
    await kill9(cluster.zookeeper, cluster.bookies[0])
    option = ("--frame-bytes-max", str(FRAME_BYTES))
    contents = payloads("large", range(len(SIZES)), SIZES)
    async with await connect(uri, security=BookieSecurity(frame_bytes_max=FRAME_BYTES)) as client:
        await gone(client, BookieId(victim))

        read = ("ledger", "read", str(ledgers[0]), "--password", PASSWORD.decode(), "--to", str(tmp_path / "read"))
        ended = await bkheal(*read, uri=uri)
        assert ended.exit_code != 0
        assert "entry 2 could not be read" in ended.errors  # the entries before it could be read
        assert MESSAGE in ended.errors
        ended = await bkheal(*option, *read, uri=uri)
        assert ended.exit_code == 0, ended.errors
        assert (tmp_path / "read").read_bytes() == b"".join(contents)

        for ledger_id in ledgers:
            await java.call("mark", ledger=ledger_id, missing=[victim])
        without = await Replicator.start(uri, tmp_path / "without")
        await until(
            lambda: _details(without),
            lambda found: any(MESSAGE in detail for detail in found),
            "the reason is recorded",
        )
        await without.stop()
        assert len(await client.ports.tasks.list()) == len(ledgers)
        assert not await client.parked.list()  # the repair will be retried

        replicator = await Replicator.start(uri, tmp_path / "with", "--once", *option)
        assert await replicator.wait() == 0
        assert sorted(replicator.repaired) == sorted(ledgers)
        assert await client.ports.tasks.list() == []
        for ledger_id in ledgers:
            members = (await java.call("metadata", ledger=ledger_id))["ensembles"]["0"]
            assert victim not in members
            assert sum([await held(java, member, ledger_id) for member in members]) == 2 * len(SIZES)
            for name in ("v2-large", "v3-large"):
                assert await java.read_all(ledger_id, password=PASSWORD, client=name) == expected(contents)
            reader = await client.open_ledger(LedgerId(ledger_id), password=PASSWORD)
            assert [entry.payload async for entry in reader.read_all()] == contents


async def _details(replicator: Replicator) -> list[str]:
    return [str(event.get("detail", "")) for event in replicator.events()]
