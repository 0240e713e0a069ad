"""The records of runs, through a connection of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bookie.metadata.runs.records import Runs
from bookie.metadata.uri import parse_uri
from spark_jobs.connect import connected


@asynccontextmanager
async def opened_runs(metadata_uri: str) -> AsyncIterator[Runs]:
    """Connect to the cluster, and disconnect at the end.

    Raises:
        StoreUnavailableError: no answer from the hosts.
        NotAClusterError: there is no cluster at the root.
    """
    async with connected(parse_uri(metadata_uri)) as connection:
        yield Runs(connection.store, connection.cluster.root)
