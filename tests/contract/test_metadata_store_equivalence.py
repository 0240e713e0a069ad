"""The twin and the simulator's store give the same answers as a real ZooKeeper, on random histories of operations."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.port import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    MetadataStore,
    MultiFailedError,
    Operation,
    SetData,
    Stat,
)
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.errors import BkhealError
from tests.contract.conftest import SimulatedBackend

OPERATIONS = 250


@pytest.mark.parametrize("seed", range(8))
async def test_a_random_history_has_equal_answers_on_both_stores(zookeeper: EmbeddedZooKeeper, seed: int) -> None:
    base = f"/t-{uuid.uuid4().hex}"
    real = await ZooKeeperStore.connect(zookeeper.connect_string)
    try:
        twin = MemoryStore(MemoryCell())
        simulated = await SimulatedBackend().open()
        stores = (real, twin, simulated)
        for store in stores:
            await store.create(base)
        rng = random.Random(seed)
        for step in range(OPERATIONS):
            name, arguments = _any_request(rng, base)
            answers = [await _answer(store, name, arguments, base) for store in stores]
            assert answers[0] == answers[1] == answers[2], f"seed {seed}, step {step}: {name}{arguments}"
    finally:
        await real.close()


def _any_request(rng: random.Random, base: str) -> tuple[str, tuple[Any, ...]]:
    path = _path(rng, base)
    version = rng.choice((ANY_VERSION, 0, 0, 1, 2))
    match rng.randrange(10):
        case 0 | 1 | 2:
            return "create", (path, _data(rng), rng.random() < 0.2, rng.random() < 0.2)
        case 3:
            return "set", (path, _data(rng), version)
        case 4:
            return "delete", (path, version)
        case 5:
            return "children", (path,)
        case 6:
            return "get_many", ([_path(rng, base) for _ in range(rng.randrange(6))],)
        case 7:
            return "children_many", ([_path(rng, base) for _ in range(rng.randrange(6))],)
        case 8:
            return "stat", (path,)
        case _:
            return "multi", ([_operation(rng, base) for _ in range(rng.randrange(5))],)


def _operation(rng: random.Random, base: str) -> Operation:
    path, version = _path(rng, base), rng.choice((ANY_VERSION, 0, 1))
    return rng.choice(
        (
            Create(path, _data(rng), rng.random() < 0.2),
            SetData(path, _data(rng), version),
            Delete(path, version),
            Check(path, version),
        )
    )


def _path(rng: random.Random, base: str) -> str:
    return "/".join([base, *(rng.choice("abc") for _ in range(rng.randrange(1, 4)))])


def _data(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 40)))


async def _answer(store: MetadataStore, name: str, arguments: tuple[Any, ...], base: str) -> Any:
    """Return the answer without the variable parts: transaction ids, times, and the order of names."""
    try:
        if name == "create":
            path, data, is_ephemeral, is_sequential = arguments
            return await store.create(path, data, is_ephemeral=is_ephemeral, is_sequential=is_sequential)
        return _plain(await getattr(store, name)(*arguments), store)
    except MultiFailedError as error:
        return type(error), error.index, type(error.cause)
    except BkhealError as error:
        return type(error)


def _plain(value: Any, store: MetadataStore) -> Any:
    if isinstance(value, list):
        return [_plain(item, store) for item in value]
    if isinstance(value, Stat):
        is_ours = value.ephemeral_owner == store.session.session_id
        return value.version, value.children_count, value.children_version, is_ours, value.czxid == value.mzxid
    if hasattr(value, "stat"):
        return value.data, _plain(value.stat, store)
    if hasattr(value, "names"):
        return sorted(value.names), value.version
    return value
