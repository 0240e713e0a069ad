"""Inventory requests of a run over a real gRPC server: every bookie results in an answer and never in an error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.access import PLAIN_ACCESS
from bookie.metadata.bookies.service_info import encode_service_info
from bookie.metadata.cluster import format_cluster
from bookie.metadata.layout import bookie_path
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.access.tokens import Role, make_token
from bookie.runtime.ports import free_loopback_port
from bookie.server.administration.node import ServingBookie, TooManyInventoriesError
from bookie.server.upkeep.registration_keeper import service_info
from bookie.wire import administration_pb2 as pb
from bookie.wire.grpc.administration import Administration, AdministrationMissingError, AdministrationUnavailableError
from bookie.wire.resolver import APACHE_PROTOCOL, BookieAddress, Resolver
from bookie.wire.security import NO_FILES, SecurityFiles
from spark_jobs.checks.inventory import asking
from spark_jobs.checks.inventory.asking import ATTEMPTS_MAX, InventoryState, InventoryTasks, inventory
from spark_jobs.checks.inventory.second_look import InventoryLookSettings, checking
from spark_jobs.checks.inventory.verdict import Grace
from tests.contract.test_administration import L1, L2, add, damage
from tests.sessions import LONG_SESSION_S
from tests.unit.bookie.storage.test_rebuilding import KEY
from tests.worlds.administered import READ, US, Administered, administered
from tests.worlds.clocks import ManualClock


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Administered]:
    with administered(tmp_path) as made:
        yield made


class At(Resolver):
    """Resolves every bookie to one address, or to none."""

    def __init__(self, address: BookieAddress | None) -> None:
        self.address = address

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        return self.address


def asked(
    bookie: Administered,
    address: BookieAddress | None = None,
    *,
    is_found: bool = True,
    files: SecurityFiles = NO_FILES,
    token_file: Path | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows before the answer, and the answer."""
    address = address or BookieAddress("127.0.0.1", bookie.port)

    async def ask() -> list[dict[str, Any]]:
        resolver = At(address if is_found else None)
        return [row async for row in inventory(US, resolver, files, ManualClock(turns=1), token_file)]

    *rows, last = bookie.thread.run(ask())
    assert all(row["bookie_id"] == US for row in (*rows, last))
    return rows, last["answer"]


def raising(error: Exception) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(*_: Any) -> Any:
        raise error

    return call


def test_a_bookie_lists_its_ledgers_and_its_known_damage(bookie: Administered) -> None:
    add(bookie, L1, 0, 1, 2)
    add(bookie, L2, 5)
    bookie.thread.run(bookie.node.storage.fence(LedgerId(9), KEY))
    bookie.thread.run(bookie.node.storage.checkpoint())
    damage(bookie, 1)
    bookie.thread.run(bookie.node.service.verify(L1, [EntryId(1)]))
    rows, answer = asked(bookie)
    assert rows == [
        {"bookie_id": US, "ledger_id": 1, "damaged": [1]},
        {"bookie_id": US, "ledger_id": 1, "first_entry_id": 0, "last_entry_id": 2},
        {"bookie_id": US, "ledger_id": 2, "first_entry_id": 5, "last_entry_id": 5},
    ]
    assert answer == {
        "state": "listed",
        "detail": "",
        "ledgers": 3,
        "damaged": 1,
        "scrub": "waiting",
        "scrub_finished_ms": 0,
        "collection_finished_ms": 0,
    }


def test_a_bookie_without_an_inventory_is_unknown(bookie: Administered, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, answer = asked(bookie, BookieAddress("127.0.0.1", 1, APACHE_PROTOCOL))
    assert (rows, answer["state"], answer["ledgers"]) == ([], InventoryState.NOT_OFFERED.value, 0)
    monkeypatch.setattr(Administration, "status", raising(AdministrationMissingError("of an earlier version")))
    rows, answer = asked(bookie)
    assert (rows, answer["state"]) == ([], InventoryState.NOT_OFFERED.value)


def test_a_bookie_that_does_not_answer_is_retried_a_few_times(bookie: Administered) -> None:
    assert asked(bookie, is_found=False)[1]["detail"] == "its address could not be found"
    rows, answer = asked(bookie, BookieAddress("127.0.0.1", free_loopback_port(random.Random())))
    assert (rows, answer["state"], answer["scrub"]) == ([], InventoryState.NO_ANSWER.value, "")


def test_a_bookie_that_requires_a_token_is_named(tmp_path: Path) -> None:
    with administered(tmp_path, allow_anonymous_read=False) as bookie:
        _, answer = asked(bookie)
    assert answer["state"] == InventoryState.REFUSED.value
    assert "inventory_token_file" in answer["detail"]


def test_a_token_file_is_read_again_for_each_bookie(tmp_path: Path) -> None:
    file, other = tmp_path / "token", make_token("somebody", Role.READ)
    file.write_text(f"{READ.token}\n")
    with administered(tmp_path, allow_anonymous_read=False) as bookie:
        add(bookie, L1, 0)
        rows, answer = asked(bookie, token_file=file)
        assert ([row["ledger_id"] for row in rows], answer["state"]) == ([L1], InventoryState.LISTED.value)
        file.write_text(other.token)
        rows, answer = asked(bookie, token_file=file)
        assert (rows, answer["state"], answer["ledgers"]) == ([], InventoryState.REFUSED.value, 0)
        assert other.token not in answer["detail"]
        with (tmp_path / "tokens").open("a") as tokens:
            tokens.write(other.line)
        assert asked(bookie, token_file=file)[1]["state"] == InventoryState.LISTED.value


def test_an_unusable_token_leaves_the_bookie_uncontacted(tmp_path: Path) -> None:
    """This includes a bookie that would list its ledgers without a token."""
    file = tmp_path / "token"
    with administered(tmp_path) as bookie:
        add(bookie, L1, 0)
        rows, answer = asked(bookie, token_file=file)
        assert (rows, answer["state"]) == ([], InventoryState.NOT_ASKED.value)
        assert answer["detail"] == f"cannot read the token in {file}: No such file or directory"
        file.write_text(READ.token)
        elsewhere = BookieAddress("bookie.invalid", bookie.port)
        rows, answer = asked(bookie, elsewhere, token_file=file)
        assert (rows, answer["state"]) == ([], InventoryState.NOT_ASKED.value)
        assert "in the clear" in answer["detail"]


def test_what_is_sent_to_spark_tasks_contains_only_the_path_of_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(READ.token)
    tasks = InventoryTasks("zk://h:1/ledgers", 15.0, PLAIN_ACCESS, NO_FILES, (US,), file)
    assert READ.token not in repr(tasks)
    sent: bytes = cloudpickle.dumps(tasks)  # type: ignore[no-untyped-call]
    assert READ.token.encode() not in sent


def test_missing_files_are_named(bookie: Administered) -> None:
    _, answer = asked(bookie, files=SecurityFiles(tls_ca=Path("/nowhere/ca.pem")))
    assert answer["state"] == InventoryState.NOT_ASKED.value
    assert "/nowhere/ca.pem" in answer["detail"]


def test_a_list_resumes_where_a_call_ended(bookie: Administered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call lists two ledgers and is then refused. Later the bookie refuses every call."""
    for ledger_id in range(1, 6):
        add(bookie, LedgerId(ledger_id), 0)
    real, calls = ServingBookie.inventory, list[int]()

    async def two(self: ServingBookie, request: pb.InventoryRequest) -> AsyncGenerator[pb.InventoryBatch, None]:
        calls.append(request.after)
        async for batch in real(self, request):
            if len(batch.ledgers) > 2:
                del batch.ledgers[2:]
                batch.is_last = False
                yield batch
                raise TooManyInventoriesError("too busy")
            yield batch

    monkeypatch.setattr(ServingBookie, "inventory", two)
    rows, answer = asked(bookie)
    assert [row["ledger_id"] for row in rows] == [1, 2, 3, 4, 5]
    assert (calls, answer["state"], answer["ledgers"]) == ([-1, 2, 4], "listed", 5)

    async def busy(self: ServingBookie, request: pb.InventoryRequest) -> AsyncGenerator[pb.InventoryBatch, None]:
        calls.append(request.after)
        for _ in range(1):
            raise TooManyInventoriesError("too busy")
        yield pb.InventoryBatch()

    calls.clear()
    monkeypatch.setattr(ServingBookie, "inventory", busy)
    rows, answer = asked(bookie)
    assert (rows, len(calls), answer["state"]) == ([], ATTEMPTS_MAX, InventoryState.NO_ANSWER.value)


def test_a_list_that_makes_progress_may_be_interrupted_any_number_of_times(
    bookie: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3 * ATTEMPTS_MAX
    for ledger_id in range(1, count + 1):
        add(bookie, LedgerId(ledger_id), 0)
    real = ServingBookie.inventory

    async def one(self: ServingBookie, request: pb.InventoryRequest) -> AsyncGenerator[pb.InventoryBatch, None]:
        async for batch in real(self, request):
            if len(batch.ledgers) > 1:
                del batch.ledgers[1:]
                batch.is_last = False
                yield batch
                raise TooManyInventoriesError("too busy")
            yield batch

    monkeypatch.setattr(ServingBookie, "inventory", one)
    rows, answer = asked(bookie)
    assert [row["ledger_id"] for row in rows] == list(range(1, count + 1))
    assert (answer["state"], answer["ledgers"]) == (InventoryState.LISTED.value, count)


def test_a_bookie_that_does_not_report_its_damage_is_not_asked_to_list_ledgers(
    bookie: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its status, the bookie would appear to have no damage."""
    add(bookie, L1, 0)
    monkeypatch.setattr(Administration, "status", raising(AdministrationUnavailableError("too busy")))
    rows, answer = asked(bookie)
    assert (rows, answer["state"], answer["detail"]) == ([], InventoryState.NO_ANSWER.value, "too busy")


def test_a_list_that_takes_too_long_is_given_up(bookie: Administered, monkeypatch: pytest.MonkeyPatch) -> None:
    add(bookie, L1, 0)
    add(bookie, L2, 0)
    monkeypatch.setattr(asking, "BOOKIE_S_MAX", 0.0)
    rows, answer = asked(bookie)
    assert [row["ledger_id"] for row in rows] == [1]
    assert (answer["state"], "took longer" in answer["detail"]) == (InventoryState.NO_ANSWER.value, True)


def test_a_bad_answer_is_named_and_earlier_ones_are_used(bookie: Administered, monkeypatch: pytest.MonkeyPatch) -> None:
    async def twice(self: ServingBookie, request: pb.InventoryRequest) -> AsyncGenerator[pb.InventoryBatch, None]:
        ledger = pb.InventoryLedger(ledger_id=7, is_complete=True, first_entry_id=0, last_entry_id=4)
        yield pb.InventoryBatch(ledgers=[ledger, ledger], is_last=True)

    monkeypatch.setattr(ServingBookie, "inventory", twice)
    rows, answer = asked(bookie)
    assert [row["ledger_id"] for row in rows] == [7]
    assert (answer["state"], answer["ledgers"]) == (InventoryState.BAD_ANSWER.value, 1)


def test_tasks_query_bookies_and_check_again_on_a_real_zookeeper(
    bookie: Administered, zookeeper: EmbeddedZooKeeper, fresh_root: str
) -> None:
    """The test calls the two functions that Spark calls, with batches as input and output."""
    add(bookie, L1, 0, 1)
    uri = f"zk://{zookeeper.connect_string}{fresh_root}"

    async def found() -> ZooKeeperStore:
        store = await ZooKeeperStore.connect(zookeeper.connect_string, session_timeout_s=LONG_SESSION_S)
        await format_cluster(store, fresh_root, rng=random.Random(1))
        info = encode_service_info(service_info("127.0.0.1", bookie.port, "uuid"))
        await store.create(bookie_path(fresh_root, US, is_read_only=False), info, is_ephemeral=True)
        return store

    with asyncio.Runner() as runner:
        store = runner.run(found())
        try:
            bookies = (US, BookieId("gone:3181"))
            tasks = InventoryTasks(uri, 15.0, PLAIN_ACCESS, NO_FILES, bookies)
            held = pa.Table.from_batches(tasks(iter([pa.record_batch({"id": [0, 1]})]))).to_pylist()
            assert [(row["bookie_id"], row["ledger_id"], row["answer"] and row["answer"]["state"]) for row in held] == [
                (US, 1, None),
                (US, None, "listed"),
                ("gone:3181", None, "no answer"),
            ]
            copies = [{"bookie_id": US, "first_entry_id": 0, "last_entry_id": 1}]
            suspects = pa.RecordBatch.from_pylist([{"ledger_id": 1, "copies": copies}])
            check = checking(InventoryLookSettings(uri, 15.0, Grace(0, None)))
            (seen,) = pa.Table.from_batches(check([suspects])).to_pylist()
            assert (seen["ledger_id"], seen["verdict"], seen["bookies"]) == (1, "unowned", [US])
        finally:
            runner.run(store.close())
