"""Shared fixtures of this ring."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bookie.embedded.cluster import EmbeddedCluster
from tests.integration.clusters import start_cluster
from tests.integration.command_process import CommandProcess


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Three bookies for all tests that stop no bookie. They also have the ledgers and logs of other tests."""
    started = asyncio.run(start_cluster(tmp_path_factory.mktemp("shared-cluster"), 3))
    yield started
    asyncio.run(started.stop())


@pytest.fixture(scope="session")
def command_process() -> Iterator[CommandProcess]:
    """A process for the commands of tests with their own event loop."""
    process = CommandProcess()
    yield process
    process.close()
