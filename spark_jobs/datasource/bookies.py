"""``bk_bookies``: one row per bookie with a registration or a cookie.

``state`` is the label of a ``BookieState``: ``writable``, ``read_only`` or ``lost``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bookie.metadata.access import ZooKeeperAccess
from bookie.metadata.bookies.registration import Registrations, state_of
from bookie.metadata.uri import MetadataUri
from spark_jobs.connect import connected
from spark_jobs.datasource.options import source_access, source_uri

NAME: Final = "bk_bookies"
BOOKIES_DDL: Final = "bookie_id string, state string, is_registered boolean, has_cookie boolean"


class BookieSource(DataSource):
    """The registered bookies as a data source. Option: ``metadata_uri``."""

    @classmethod
    def name(cls) -> str:
        """Format name."""
        return NAME

    def schema(self) -> str:
        """Columns."""
        return BOOKIES_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return BookieReader(source_uri(self.options), source_access(self.options))


class BookieReader(DataSourceReader):
    """Reads all bookies in one partition: a cluster has hundreds."""

    def __init__(self, uri: MetadataUri, access: ZooKeeperAccess) -> None:
        self._uri = uri
        self._access = access

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str, bool, bool]]:
        """Read the registrations and the cookies.

        Raises:
            StoreUnavailableError: no answer.
        """
        return iter(asyncio.run(_rows(self._uri, self._access)))


async def _rows(uri: MetadataUri, access: ZooKeeperAccess) -> list[tuple[str, str, bool, bool]]:
    async with connected(uri, access=access) as connection:
        registrations = Registrations(connection.store, connection.cluster)
        known = await registrations.known()
        bookies = await registrations.list()
    return [
        (bookie, state_of(bookie, bookies).label, bookie in bookies.registered, bookie in known)
        for bookie in sorted(known | bookies.registered)
    ]
