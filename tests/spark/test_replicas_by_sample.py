"""The replicas check with Apache bookies without lists: it reads first and last entries, as the report shows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.service_info import Endpoint, ServiceInfo
from bookie.model.ids import BookieId
from bookie.model.run import RunKind
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.resolver import APACHE_PROTOCOL
from spark_jobs.report.counts import SampledBookie
from spark_jobs.report.summary import Verdict
from tests.contract.scripted_apache_bookie import Received, entry, scripted_bookie
from tests.deadlines import STATE_S
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]

LAST = 9
A, B, C = map(BookieId, ("a:3181", "b:3181", "c:3181"))
LEDGERS = {1: closed(A, B, last=LAST), 2: closed(A, B, last=LAST), 3: closed(A, C, last=LAST)}


class Unlisted:
    """Serves every entry of the ledgers except those in ``lost``, and leaves a request for a list unanswered."""

    def __init__(self, lost: set[tuple[int, int]]) -> None:
        self.lost = lost

    def __call__(self, received: Received) -> None:
        if received.operation != pb.READ_ENTRY:
            return
        ledger_id, entry_id = received.request.readRequest.ledgerId, received.request.readRequest.entryId
        if (ledger_id, entry_id) in self.lost:
            received.answer(pb.ENOENTRY)
        else:
            received.answer(body=entry(LAST if entry_id < 0 else entry_id, ledger_id=ledger_id))


@contextmanager
def serving(*bookies: Unlisted) -> Iterator[list[int]]:
    """Serve on a separate thread, because that of the test waits for Spark; yield the ports."""
    ports: list[int] = []
    is_ready, loop = threading.Event(), asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve(rest: tuple[Unlisted, ...]) -> None:
        if not rest:
            is_ready.set()
            await over.wait()
            return
        async with scripted_bookie() as bookie:
            bookie.react = rest[0]
            ports.append(bookie.port)
            await serve(rest[1:])

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(bookies)))
    thread.start()
    try:
        assert is_ready.wait(STATE_S)
        yield ports
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(STATE_S)
        loop.close()


def register(place: Place, ports: list[int]) -> None:
    registrations = Registrations(place.store, place.cluster)
    for bookie, port in zip((A, B, C), ports, strict=True):
        info = ServiceInfo((Endpoint("bookie", "127.0.0.1", port, APACHE_PROTOCOL),), ())
        place.do(registrations.register(bookie, info, is_read_only=False, takeover_deadline_s=5))


def test_ledgers_on_bookies_without_lists_are_checked_by_their_first_and_last_entries(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    served = [Unlisted(set()) for _ in range(3)]
    with serving(*served) as ports, opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.create(LEDGERS)
        register(place, ports)
        whole = place.check(spark, RunKind.REPLICAS).summary
        assert (whole.verdict, whole.is_complete) == (Verdict.CLEAN, True)
        assert whole.replicas is not None
        assert whole.replicas.sampled == (SampledBookie(A, 3), SampledBookie(B, 2), SampledBookie(C, 1))
        assert whole.replicas.unknown == ()

        served[1].lost = {(1, 0), (2, 5)}
        found = place.check(spark, RunKind.REPLICAS).summary
        assert place.marked() == {1: [B]}, "an entry between the ends must not be read"
        assert (found.verdict, found.is_complete) == (Verdict.UNDER_REPLICATED, True)
        assert found.replicas is not None
        assert (found.replicas.absent, len(found.replicas.sampled)) == (1, 3)
