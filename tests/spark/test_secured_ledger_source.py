"""The data sources on a ZooKeeper with TLS and logins: executors receive the names of files, and never a secret."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle

from bookie.metadata.access import ZooKeeperAccess, set_current_access
from bookie.metadata.cluster import format_cluster, open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.own_state import claim_state_root
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from spark_jobs.datasource.ledgers import LedgerReader, LedgerTasks
from spark_jobs.datasource.options import ACCESS, METADATA_URI, ledger_options
from tests.worlds.secured import PASSWORD, Secured, start_secured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.needs("openssl")]

LEDGERS = 5


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    """A cluster whose nodes only their creator may read."""
    made = asyncio.run(start_secured(tmp_path))
    try:
        asyncio.run(_fill(made))
        yield made
    finally:
        asyncio.run(made.server.stop())


async def _fill(secured: Secured) -> None:
    store = await ZooKeeperStore.connect(secured.server.secure_connect_string, access=secured.both)
    try:
        await format_cluster(store, "/ledgers", rng=random.Random(1))
        ledgers = LedgerStore(store, await open_cluster(store, "/ledgers"), random.Random(1))
        for number in range(LEDGERS):
            fragment = Fragment(EntryId(0), (BookieId("a:1"), BookieId("b:1")))
            await ledgers.create(LedgerId(number), LedgerMetadata(2, 2, 2, (fragment,)).closed(EntryId(9), 100))
    finally:
        await store.close()


def _options(secured: Secured, access: ZooKeeperAccess) -> dict[str, str]:
    uri = f"zk://{secured.server.secure_connect_string}/ledgers"
    return {METADATA_URI: uri, ACCESS: access.to_text()}


def _table(spark: SparkSession, secured: Secured, access: ZooKeeperAccess) -> DataFrame:
    return spark.read.format("bk_ledgers").options(**_options(secured, access)).load()


def test_tasks_read_with_tls_and_a_login_and_no_plan_contains_the_password(
    spark: SparkSession, secured: Secured
) -> None:
    table = _table(spark, secured, secured.both)
    assert sorted(row.ledger_id for row in table.select("ledger_id").collect()) == list(range(LEDGERS))
    options = ledger_options(_options(secured, secured.both))
    assert cloudpickle.loads(_sent(LedgerReader(options)))._options.access == secured.both
    tasks = LedgerTasks(options, spark.sparkContext.broadcast(()))
    plan = table._jdf.queryExecution().toString()
    for text in (plan.encode(), _sent(LedgerReader(options)), _sent(tasks)):
        assert PASSWORD.encode() not in text


def _sent(work: object) -> bytes:
    sent: bytes = cloudpickle.dumps(work)  # type: ignore[no-untyped-call]
    return sent


def test_tasks_use_the_state_root_of_the_driver(spark: SparkSession, secured: Secured) -> None:
    """R90: the record of the cluster would refuse a task with the default root."""
    access = replace(secured.both, state_root="/secured/bkheal")
    asyncio.run(_claim(secured, access))
    assert _table(spark, secured, access).count() == LEDGERS
    with pytest.raises(Exception, match="--state-root /secured/bkheal"):
        _table(spark, secured, secured.both).collect()


async def _claim(secured: Secured, access: ZooKeeperAccess) -> None:
    set_current_access(access)
    store = await ZooKeeperStore.connect(secured.server.secure_connect_string)
    try:
        await claim_state_root(store, "/ledgers")
    finally:
        await store.close()


def test_a_refused_login_is_named_in_the_error_of_the_task(
    spark: SparkSession, secured: Secured, tmp_path: Path
) -> None:
    (tmp_path / "wrong").write_text("wrong-secret")
    access = replace(secured.both, sasl_password_file=tmp_path / "wrong")
    with pytest.raises(Exception, match="refused the login") as caught:
        _table(spark, secured, access).collect()
    assert "wrong-secret" not in str(caught.value)
