"""``bk_tasks``: one row per ledger marked for repair, in Apache's under-replication tree."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bookie.metadata.access import ZooKeeperAccess
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.underreplication import UnderReplication, UnreadableTask
from bookie.metadata.uri import MetadataUri
from bookie.runtime.clock import SystemClock
from spark_jobs.connect import connected
from spark_jobs.datasource.options import source_access, source_uri

NAME: Final = "bk_tasks"
TASKS_DDL: Final = "ledger_id bigint, missing array<string>, ctime_ms bigint, version int, is_locked boolean"

WITH_UNREADABLE: Final = "with_unreadable"
"""Option: ``true`` adds a row for each unreadable task, with null in ``missing`` and ``version``."""

_Row = tuple[int, list[str] | None, int | None, int | None, bool]


class TaskSource(DataSource):
    """The under-replication tasks as a data source. Options: ``metadata_uri``, ``with_unreadable``.

    ``ctime_ms`` is null if a task has none.
    """

    @classmethod
    def name(cls) -> str:
        """Format name."""
        return NAME

    def schema(self) -> str:
        """Columns."""
        return TASKS_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        is_all = self.options.get(WITH_UNREADABLE, "false").lower() == "true"
        return TaskReader(source_uri(self.options), source_access(self.options), is_all=is_all)


class TaskReader(DataSourceReader):
    """Reads all tasks in one partition, in bulk."""

    def __init__(self, uri: MetadataUri, access: ZooKeeperAccess, *, is_all: bool) -> None:
        self._uri = uri
        self._access = access
        self._is_all = is_all

    def read(self, partition: InputPartition) -> Iterator[_Row]:
        """Read the tasks, then the locks.

        Raises:
            StoreUnavailableError: no answer.
        """
        return iter(asyncio.run(_rows(self._uri, self._access, is_all=self._is_all)))


async def _rows(uri: MetadataUri, access: ZooKeeperAccess, *, is_all: bool) -> list[_Row]:
    async with connected(uri, access=access) as connection:
        under_replication = UnderReplication(connection.store, connection.cluster, SystemClock())
        tasks = await under_replication.list_all()
        locked = await under_replication.locks.locked()
    return [
        _row(task, is_locked=task.ledger_id in locked)
        for task in tasks
        if is_all or not isinstance(task, UnreadableTask)
    ]


def _row(task: Task | UnreadableTask, *, is_locked: bool) -> _Row:
    if isinstance(task, UnreadableTask):
        return task.ledger_id, None, None, None, is_locked
    return task.ledger_id, list(task.missing), task.ctime_ms if task.ctime_ms >= 0 else None, task.version, is_locked
