"""``bk_tasks``: one row per ledger that is marked for repair, in Apache's under-replication tree."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bookie.metadata.underreplication import UnderReplication
from bookie.metadata.uri import MetadataUri
from bookie.runtime.clock import SystemClock
from spark_jobs.connect import connected
from spark_jobs.datasource.options import source_uri

NAME: Final = "bk_tasks"
TASKS_DDL: Final = "ledger_id bigint, missing array<string>, ctime_ms bigint, version int, is_locked boolean"

_Row = tuple[int, list[str], int | None, int, bool]


class TaskSource(DataSource):
    """See the module docstring. Option: ``metadata_uri``. ``ctime_ms`` is null where a task does not say."""

    @classmethod
    def name(cls) -> str:
        """Format name."""
        return NAME

    def schema(self) -> str:
        """Columns."""
        return TASKS_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return TaskReader(source_uri(self.options))


class TaskReader(DataSourceReader):
    """Reads all tasks in one partition, in bulk."""

    def __init__(self, uri: MetadataUri) -> None:
        self._uri = uri

    def read(self, partition: InputPartition) -> Iterator[_Row]:
        """Read the tasks, then the locks.

        Raises:
            StoreUnavailableError: no answer.
        """
        return iter(asyncio.run(_rows(self._uri)))


async def _rows(uri: MetadataUri) -> list[_Row]:
    async with connected(uri) as connection:
        under_replication = UnderReplication(connection.store, connection.cluster, SystemClock())
        tasks = await under_replication.list()
        locked = await under_replication.locked()
    return [
        (
            task.ledger_id,
            list(task.missing),
            task.ctime_ms if task.ctime_ms >= 0 else None,
            task.version,
            task.ledger_id in locked,
        )
        for task in tasks
    ]
