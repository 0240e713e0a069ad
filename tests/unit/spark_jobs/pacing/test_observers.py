"""Tasks read from observers if observers are configured and answer, otherwise from the servers in the metadata URI."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from bookie.metadata.access import PLAIN_ACCESS
from bookie.metadata.cluster import NotAClusterError
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.uri import parse_uri
from bookie.runtime.configuration.settings import ConfigurationError
from spark_jobs.connect import connected_at_pace
from spark_jobs.pacing.budget import Budget, task_budget
from spark_jobs.settings import AuditSettings
from tests.worlds.cluster import formatted

VOTERS = "zk1:2181,zk2:2181"
OBSERVERS = "o1:2181,o2:2182"
URI = "zk://zk1,zk2/ledgers"


@pytest.fixture
async def connected_to(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the hosts of each attempt to connect; hosts with ``down`` in their name do not answer."""
    hosts_tried: list[str] = []
    cell = MemoryCell()
    await formatted(MemoryStore(cell))

    async def connect(hosts: str, **_: Any) -> MemoryStore:
        hosts_tried.append(hosts)
        if "down" in hosts:
            raise StoreUnavailableError(f"no ZooKeeper session from {hosts}")
        return MemoryStore(cell)

    monkeypatch.setattr(ZooKeeperStore, "connect", connect)
    return hosts_tried


async def read(observers: str) -> None:
    budget = AuditSettings(URI, metadata_observers=observers).budget.share(1, 1)
    async with connected_at_pace(parse_uri(URI), 15, PLAIN_ACCESS, budget) as connection:
        assert await connection.store.stat(connection.cluster.root) is not None


async def test_observers_are_preferred(connected_to: list[str]) -> None:
    await read("o1, o2:2182")
    assert connected_to == [OBSERVERS]


async def test_servers_of_another_cluster_are_refused(connected_to: list[str]) -> None:
    """R131: the ledgers of another cluster may have the same paths."""
    async with connected_at_pace(parse_uri(URI), 15, PLAIN_ACCESS, Budget().whole) as connection:
        ours = connection.cluster.instance_id
    for instance_id, is_refused in (("", False), (ours, False), ("another", True)):
        budget = task_budget(Budget(observers=OBSERVERS, instance_id=instance_id).share(1, 1).to_text())
        with pytest.raises(NotAClusterError, match="metadata_observers") if is_refused else nullcontext():
            async with connected_at_pace(parse_uri(URI), 15, PLAIN_ACCESS, budget):
                pass


async def test_without_an_answer_from_observers_the_servers_of_the_uri_are_read(connected_to: list[str]) -> None:
    await read("down:2181")
    assert connected_to == ["down:2181", VOTERS]


async def test_by_default_the_servers_of_the_uri_are_read(connected_to: list[str]) -> None:
    await read("")
    assert connected_to == [VOTERS]


def test_observers_are_part_of_the_budget_of_each_task() -> None:
    assert Budget(observers=OBSERVERS).share(4, 2).observers == OBSERVERS


@pytest.mark.parametrize("wrong", ["o1:port", "a b", "o1,,o2", "zk://o1:2181"])
def test_invalid_observers_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="metadata_observers"):
        AuditSettings(URI, metadata_observers=wrong)
