"""The administration of a bookie over a real gRPC server: permissions, effects and limits."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.exit_codes import exit_code_of
from auditor.cli.main import app
from bookie.model.availability import EntryRuns
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.ports import free_loopback_port
from bookie.runtime.tasks import cancel, guarded
from bookie.server.administration import servicer
from bookie.server.administration.node import ServingBookie, TooManyInventoriesError, UnacceptableRequestError
from bookie.server.upkeep.collector import CollectorReport
from bookie.server.upkeep.operator_read_only import read_recorded_request
from bookie.storage.disks.memory import MemoryDisk
from bookie.storage.entry_logs.entry_log import HEADER_SIZE, RECORD_HEADER_SIZE, log_path
from bookie.storage.port import DiskError
from bookie.wire import administration_pb2 as pb
from bookie.wire.grpc.administration import (
    Administration,
    AdministrationAnswerError,
    AdministrationConflictError,
    AdministrationRefusedError,
    AdministrationUnavailableError,
    AdministrationUnknownError,
    HeldLedger,
    PlaintextTokenError,
)
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import ListEntries, Read
from bookie.wire.resolver import BookieAddress
from bookie.wire.security import PLAINTEXT, TlsSettings
from tests.deadlines import STATE_S
from tests.unit.bookie.storage.test_rebuilding import KEY
from tests.worlds.administered import OPERATE, READ, US, Administered, administered
from tests.worlds.entries import raw_entry

T = TypeVar("T")
L1, L2 = LedgerId(1), LedgerId(2)
SIZE = len(raw_entry(1, 0))
UNKNOWN: Any = 9
"""The number of an action that only a later version has."""


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Administered]:
    with administered(tmp_path) as made:
        yield made


def call(
    bookie: Administered, what: Callable[[Administration], Coroutine[Any, Any, T]], token: str | None = OPERATE.token
) -> T:
    async def within() -> T:
        async with bookie.client(token) as client:
            return await what(client)

    return bookie.thread.run(within())


def add(bookie: Administered, ledger_id: LedgerId, *entry_ids: int, is_recovery: bool = False) -> Status:
    batch = AddBatch(ledger_id, KEY, [raw_entry(ledger_id, entry_id) for entry_id in entry_ids], is_recovery)
    return bookie.thread.run(bookie.node.service.add("", batch)).status


def in_background(bookie: Administered, work: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], None]:
    """Start a task of the bookie; the returned function stops it."""

    async def begin() -> asyncio.Task[Any]:
        return guarded("of a test", work())

    task = bookie.thread.run(begin())
    return lambda: bookie.thread.run(cancel(task))


def until(bookie: Administered, is_reached: Callable[[], bool]) -> None:
    async def look() -> None:
        async with asyncio.timeout(STATE_S):
            while not is_reached():  # noqa: ASYNC110 (another task)
                await asyncio.sleep(0.01)

    bookie.thread.run(look())


def damage(bookie: Administered, record: int) -> None:
    """Flip a bit of a record of the first entry log."""
    disk = bookie.node.disks["ledgers"]
    assert isinstance(disk, MemoryDisk)
    disk.flip_bit(log_path(1), (HEADER_SIZE + record * (RECORD_HEADER_SIZE + SIZE) + RECORD_HEADER_SIZE + 35) * 8)


CHANGES: list[Callable[[Administration], Coroutine[Any, Any, Any]]] = [
    lambda client: client.force(),
    lambda client: client.scrub(pb.ScrubRequest(action="STOP")),
    lambda client: client.collect(pb.CollectRequest(action="MINOR")),
    lambda client: client.set_read_only(pb.SetReadOnlyRequest(action="SET")),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_needs_a_token_with_the_role_and_is_recorded_by_name(
    bookie: Administered, change: Callable[[Administration], Coroutine[Any, Any, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "bkheal.audit"):
        for token, why in ((None, "needs a token"), (READ.token, "role read"), ("bkheal_" + "x" * 43, "not known")):
            with pytest.raises(AdministrationRefusedError, match=why):
                call(bookie, change, token)
        node = bookie.node
        assert (node.read_only.wish, node.collector.is_pending, node.service.is_read_only) == (None, False, False)
        call(bookie, change)
    records = [record for record in caplog.records if record.name == "bkheal.audit"]
    assert [getattr(record, "who", "") for record in records] == ["anonymous", "anonymous", "anonymous", "olga"]
    assert [record.levelno for record in records] == [logging.WARNING] * 3 + [logging.INFO]
    assert all(OPERATE.token not in str(record.__dict__) for record in records)


def test_changes_without_a_token_are_refused_unless_the_bookie_allows_them(tmp_path: Path) -> None:
    with administered(tmp_path, allow_anonymous_write=True) as bookie:
        state = call(bookie, lambda client: client.set_read_only(pb.SetReadOnlyRequest(action="SET")), None)
        assert (state.is_read_only, state.asked_by) == (True, "anonymous at 127.0.0.1")
    with administered(tmp_path, allow_anonymous_read=False) as bookie:
        with pytest.raises(AdministrationRefusedError, match="role read"):
            call(bookie, lambda client: client.status(), None)
        assert call(bookie, lambda client: client.status(), READ.token).bookie_id == US


def test_a_token_is_never_sent_over_an_unencrypted_network() -> None:
    with pytest.raises(PlaintextTokenError, match="in the clear"):
        Administration(BookieAddress("bk1.example.org", 3181), PLAINTEXT, "secret")


@pytest.mark.needs("openssl")
def test_with_tls_a_client_needs_a_certificate_and_a_token_for_changes(
    tmp_path: Path, certificates: dict[str, TlsSettings]
) -> None:
    mine = certificates["client"]
    assert mine.cert is not None
    assert mine.key is not None
    files = ["--tls-ca", str(mine.ca), "--tls-cert", str(mine.cert), "--tls-key", str(mine.key)]
    with administered(tmp_path, tls=certificates["bookie"]) as bookie:
        words = ["bookie", "readonly", "set", "--at", bookie.at, "-o", "json"]
        done = CliRunner().invoke(app, [*files, *words], env={"BKHEAL_TOKEN": OPERATE.token})
        assert json.loads(done.stdout)["read_only"] is True
        refused = CliRunner().invoke(app, [*files, *words], env={"BKHEAL_TOKEN": ""})
        assert isinstance(refused.exception, AdministrationRefusedError)
        stranger = CliRunner().invoke(app, ["--tls-ca", str(mine.ca), "bookie", "status", "--at", bookie.at])
        assert isinstance(stranger.exception, AdministrationUnavailableError)


@pytest.mark.parametrize(
    "change",
    [
        lambda client: client.scrub(pb.ScrubRequest(action=UNKNOWN)),
        lambda client: client.scrub(pb.ScrubRequest(action="STOP", from_beginning=True)),
        lambda client: client.collect(pb.CollectRequest(action=UNKNOWN)),
        lambda client: client.set_read_only(pb.SetReadOnlyRequest(action=UNKNOWN)),
    ],
)
def test_a_wrong_request_changes_nothing(
    bookie: Administered, change: Callable[[Administration], Coroutine[Any, Any, Any]]
) -> None:
    with pytest.raises(AdministrationRefusedError):
        call(bookie, change)
    node = bookie.node
    assert (node.read_only.wish, node.collector.is_pending, node.service.is_read_only) == (None, False, False)


def test_calls_before_the_bookie_has_started_may_be_repeated(bookie: Administered) -> None:
    bookie.servicer.node = None
    with pytest.raises(AdministrationUnavailableError, match="still starting"):
        call(bookie, lambda client: client.status())


def test_the_status_shows_queues_disks_and_running_work(bookie: Administered) -> None:
    assert add(bookie, L1, *range(10)) is Status.OK
    found = call(bookie, lambda client: client.status(), None)
    assert (found.bookie_id, found.incarnation, found.ledgers) == (US, "uuid", 1)
    assert found.queues.write_cache_bytes > 10 * SIZE
    assert (found.queues.add_bytes, found.queues.requests, found.queues.unsent_bytes) == (0, 0, 0)
    assert [disk.role for disk in found.disks] == ["journal", "ledgers"]
    assert found.scrub.phase == pb.ScrubState.WAITING
    assert not found.collection.is_scheduled


def test_the_status_of_a_bookie_shows_a_disk_whose_space_is_unknown(
    bookie: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing() -> tuple[int, int]:
        raise DiskError("cannot stat /ledgers: Input/output error")

    monkeypatch.setattr(bookie.node.disks["ledgers"], "space", failing)
    found = call(bookie, lambda client: client.status(), None)
    assert [(disk.role, disk.problem) for disk in found.disks] == [
        ("journal", ""),
        ("ledgers", "cannot stat /ledgers: Input/output error"),
    ]


def test_force_moves_everything_to_the_entry_logs(bookie: Administered) -> None:
    assert add(bookie, L1, *range(10)) is Status.OK
    call(bookie, lambda client: client.force())
    assert bookie.node.storage.memory.cache_bytes == 0
    damage(bookie, 3)  # entries are read from there
    reply = bookie.thread.run(bookie.node.storage.read(L1, [EntryId(3)]))
    assert reply.results[0].status is Status.CORRUPT


def test_a_second_force_moves_what_was_added_after_the_first_began(
    bookie: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, first_is_done, may_end = bookie.node.storage, asyncio.Event(), asyncio.Event()
    checkpoint = storage.checkpoint

    async def slowly() -> None:
        await checkpoint()
        first_is_done.set()
        await may_end.wait()

    async def scenario() -> None:
        first = asyncio.ensure_future(bookie.node.force())
        await first_is_done.wait()
        batch = AddBatch(L1, KEY, [raw_entry(L1, 0)])
        assert (await bookie.node.service.add("", batch)).status is Status.OK
        second = asyncio.ensure_future(bookie.node.force())
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(first, second)

    monkeypatch.setattr(storage, "checkpoint", slowly)
    bookie.thread.run(scenario())
    assert storage.memory.cache_bytes == 0


def test_a_force_that_exceeds_its_deadline_continues_and_is_recorded(
    bookie: Administered, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage, may_end = bookie.node.storage, asyncio.Event()
    checkpoint = storage.checkpoint

    async def later() -> None:
        await may_end.wait()
        await checkpoint()

    add(bookie, L1, 0)
    monkeypatch.setattr(storage, "checkpoint", later)
    monkeypatch.setattr(servicer, "_FORCE_DEADLINE_S", 0.01)
    with caplog.at_level(logging.INFO, "bkheal.audit"):
        with pytest.raises(AdministrationUnknownError):
            call(bookie, lambda client: client.force())
        until(bookie, lambda: any(record.name == "bkheal.audit" for record in caplog.records))
    assert [getattr(each, "who", "") for each in caplog.records if each.name == "bkheal.audit"] == ["olga"]

    async def let_it_end() -> None:
        may_end.set()

    bookie.thread.run(let_it_end())
    until(bookie, lambda: storage.memory.cache_bytes == 0)


def inventory(bookie: Administered, **options: Any) -> dict[int, tuple[pb.InventoryLedger, EntryRuns]]:
    async def ask(client: Administration) -> dict[int, tuple[pb.InventoryLedger, EntryRuns]]:
        return {row.ledger_id: (row, runs) async for row, runs in client.inventory(**options)}

    return call(bookie, ask, None)


def test_an_inventory_has_every_ledger_with_its_entries(bookie: Administered) -> None:
    async def fill() -> None:
        for number in range(450):
            batch = AddBatch(LedgerId(number), KEY, [raw_entry(number, n) for n in range(number % 3 + 1)])
            assert (await bookie.node.service.add("", batch)).status is Status.OK
        await bookie.node.storage.set_limbo([LedgerId(1000)])

    bookie.thread.run(fill())
    found = inventory(bookie)
    assert list(found) == [*range(450), 1000]
    assert all(list(runs) == list(range(number % 3 + 1)) for number, (_, runs) in found.items() if number < 450)
    assert (found[1000][0].is_limbo, found[1000][0].is_fenced, len(found[1000][1])) == (True, True, 0)
    assert list(inventory(bookie, after=440, limit=5)) == [441, 442, 443, 444, 445]
    assert list(inventory(bookie, only_limbo=True)) == [1000]
    assert list(inventory(bookie, ledger_id=7)) == [7]
    row, runs = inventory(bookie, ledger_id=5000)[5000]
    assert (row.is_known, len(runs)) == (False, 0)


def test_a_long_list_is_sent_in_pieces_and_does_not_prevent_collection(bookie: Administered) -> None:
    entry_ids = [n * n for n in range(6_000)]  # no two distances are equal, so each entry is in a separate group

    async def pieces() -> tuple[list[pb.InventoryLedger], bool]:
        for start in range(0, len(entry_ids), 1000):
            batch = AddBatch(L1, KEY, [raw_entry(L1, entry_id) for entry_id in entry_ids[start : start + 1000]])
            assert (await bookie.node.service.add("", batch)).status is Status.OK
        mark = bookie.node.storage.mark(L1)
        batches = [batch async for batch in bookie.node.inventory(pb.InventoryRequest(ledger_id=L1))]
        return [row for batch in batches for row in batch.ledgers], bookie.node.storage.is_marked(L1, mark)

    rows, is_marked = bookie.thread.run(pieces())
    assert is_marked
    assert len(rows) > 1
    assert [row.is_complete for row in rows] == [*[False] * (len(rows) - 1), True]
    assert list(inventory(bookie, ledger_id=L1)[L1][1]) == entry_ids


def ends(bookie: Administered, after: int = -1) -> list[HeldLedger]:
    async def ask(client: Administration) -> list[HeldLedger]:
        return [held async for held in client.ends(after)]

    return call(bookie, ask, READ.token)


def test_an_inventory_of_ends_has_the_first_and_the_last_entry_of_each_ledger(bookie: Administered) -> None:
    for ledger_id in range(1, 450):
        add(bookie, LedgerId(ledger_id), 3, 7)
    add(bookie, LedgerId(450), *range(2, 60))
    bookie.thread.run(bookie.node.storage.checkpoint())
    add(bookie, LedgerId(5), 1)
    add(bookie, LedgerId(6), 9)
    bookie.thread.run(bookie.node.storage.fence(LedgerId(1000), KEY))
    found = {held.ledger_id: (held.first_entry_id, held.last_entry_id) for held in ends(bookie)}
    assert found == {**dict.fromkeys(range(1, 450), (3, 7)), 5: (1, 7), 6: (3, 9), 450: (2, 59), 1000: (None, None)}
    assert [held.ledger_id for held in ends(bookie, after=448)] == [449, 450, 1000]


def answering(bookie: Administered, monkeypatch: pytest.MonkeyPatch, *batches: pb.InventoryBatch) -> None:
    """Answer every call with these messages."""

    async def inventory(self: ServingBookie, request: pb.InventoryRequest) -> AsyncGenerator[pb.InventoryBatch, None]:
        for batch in batches:
            yield batch

    monkeypatch.setattr(ServingBookie, "inventory", inventory)


def listed(ledger_id: int, *entries: tuple[int, int]) -> pb.InventoryLedger:
    return pb.InventoryLedger(
        ledger_id=ledger_id, is_complete=True, availability=b"".join(EntryRuns.of_runs(entries).encoded())
    )


def test_an_earlier_version_sends_lists_instead_of_ends(bookie: Administered, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = b"".join(EntryRuns.of_runs([(2, 3), (8, 9)]).encoded())
    cut = pb.InventoryLedger(ledger_id=4, availability=piece[:30])
    rest = pb.InventoryLedger(ledger_id=4, availability=piece[30:], is_complete=True)
    batches = [pb.InventoryBatch(ledgers=[cut]), pb.InventoryBatch(ledgers=[rest, listed(5)], is_last=True)]
    answering(bookie, monkeypatch, *batches)
    assert ends(bookie) == [HeldLedger(LedgerId(4), 2, 9), HeldLedger(LedgerId(5))]


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (pb.InventoryBatch(ledgers=[listed(5, (0, 1)), listed(5, (0, 1))], is_last=True), "do not ascend"),
        (pb.InventoryBatch(ledgers=[listed(5, (0, 1)), listed(4, (0, 1))], is_last=True), "do not ascend"),
        (pb.InventoryBatch(ledgers=[listed(-3)], is_last=True), "do not ascend"),
        (pb.InventoryBatch(is_last=True, next_after=-1), "makes no progress"),
        (pb.InventoryBatch(ledgers=[listed(5)], is_last=True, next_after=3), "makes no progress"),
        (pb.InventoryBatch(ledgers=[listed(5)]), "cut off"),
        (pb.InventoryBatch(ledgers=[pb.InventoryLedger(ledger_id=5)], is_last=True), "cut off"),
        (
            pb.InventoryBatch(
                ledgers=[pb.InventoryLedger(ledger_id=5, is_complete=True, first_entry_id=4, last_entry_id=3)],
                is_last=True,
            ),
            "has the entries 4 to 3",
        ),
        (
            pb.InventoryBatch(
                ledgers=[pb.InventoryLedger(ledger_id=5, is_complete=True, availability=b"x")], is_last=True
            ),
            "cannot be read",
        ),
    ],
)
def test_an_impossible_answer_is_an_error_and_ends_the_call(
    bookie: Administered, monkeypatch: pytest.MonkeyPatch, batch: pb.InventoryBatch, why: str
) -> None:
    answering(bookie, monkeypatch, batch)
    with pytest.raises(AdministrationAnswerError, match=why):
        ends(bookie)


def test_an_inventory_is_refused_if_it_is_too_large_or_too_many_are_running(bookie: Administered) -> None:
    async def ask(request: pb.InventoryRequest) -> list[pb.InventoryBatch]:
        return [batch async for batch in bookie.node.inventory(request)]

    for request in (
        pb.InventoryRequest(limit=10_001),
        pb.InventoryRequest(after=-2),
        pb.InventoryRequest(ledger_id=-1),
    ):
        with pytest.raises(UnacceptableRequestError):
            bookie.thread.run(ask(request))

    async def three() -> list[bool]:
        running = [bookie.node.inventory(pb.InventoryRequest()) for _ in range(3)]
        seen = await asyncio.gather(*(anext(each) for each in running), return_exceptions=True)
        for each in running:
            await each.aclose()
        return [isinstance(each, TooManyInventoriesError) for each in seen]

    assert bookie.thread.run(three()) == [False, False, True]
    assert inventory(bookie) == {}


def test_read_only_mode_survives_a_restart_and_is_ended_by_an_operator(bookie: Administered) -> None:
    state = call(bookie, lambda client: client.set_read_only(pb.SetReadOnlyRequest(action="SET")))
    assert (state.is_read_only, list(state.reasons), state.asked_by) == (True, ["operator"], "olga")
    assert (add(bookie, L1, 0), add(bookie, L1, 0, is_recovery=True)) == (Status.READ_ONLY, Status.OK)
    assert US in bookie.thread.run(bookie.cluster.registrations.list()).read_only
    wish = bookie.thread.run(read_recorded_request(bookie.node.disks["ledgers"]))
    assert wish is not None
    assert wish.asked_by == "olga"
    state = call(bookie, lambda client: client.set_read_only(pb.SetReadOnlyRequest(action="CLEAR")))
    assert (state.is_read_only, list(state.reasons)) == (False, [])
    assert add(bookie, L1, 1) is Status.OK
    assert bookie.thread.run(read_recorded_request(bookie.node.disks["ledgers"])) is None


def test_a_scrub_starts_on_demand_and_lists_damage_until_it_is_repaired(bookie: Administered) -> None:
    assert add(bookie, L1, *range(20)) is Status.OK
    call(bookie, lambda client: client.force())
    read = Read(L1, list(map(EntryId, range(20))))
    assert bookie.thread.run(bookie.node.service.answer("", read)).status is Status.OK
    assert bookie.node.storage.read_cache.size, "the read cache is empty, so it could not hide the damage"
    damage(bookie, 3)
    scrubber = bookie.node.scrubber
    assert scrubber is not None
    end = in_background(bookie, scrubber.run)
    try:
        call(bookie, lambda client: client.scrub(pb.ScrubRequest(action="START")))
        until(bookie, lambda: scrubber.progress is not None and scrubber.progress.finished_ms > 0)
    finally:
        end()
    state = call(bookie, lambda client: client.scrub(pb.ScrubRequest()), None)
    assert (state.entries, state.damaged, state.unrepaired_count) == (20, 1, 1)
    assert [(each.ledger_id, list(each.entry_ids)) for each in state.unrepaired] == [(L1, [3])]
    assert command(bookie, "scrub").exit_code == ExitCode.FAILED
    for option in ("--start", "--stop"):
        assert command(bookie, "scrub", option).exit_code == ExitCode.OK
    reply = bookie.thread.run(bookie.node.service.answer("", ListEntries(L1)))
    assert (reply.status, list(reply.entries)) == (Status.CORRUPT, [0, 1, 2, *range(4, 20)])
    assert add(bookie, L1, 3, is_recovery=True) is Status.OK
    assert call(bookie, lambda client: client.scrub(pb.ScrubRequest()), None).unrepaired_count == 0
    reply = bookie.thread.run(bookie.node.service.answer("", ListEntries(L1)))
    assert (reply.status, list(reply.entries)) == (Status.OK, list(range(20)))


def test_a_collection_starts_on_demand_once(bookie: Administered) -> None:
    assert add(bookie, L1, *range(10)) is Status.OK  # the ledger has no metadata
    call(bookie, lambda client: client.collect(pb.CollectRequest(action="MAJOR")))
    with pytest.raises(AdministrationConflictError, match="already running"):
        call(bookie, lambda client: client.collect(pb.CollectRequest(action="MINOR")))
    collector = bookie.node.collector
    end = in_background(bookie, collector.run)
    try:
        until(bookie, lambda: collector.last is not None)
    finally:
        end()
    state = call(bookie, lambda client: client.collect(pb.CollectRequest()), None)
    assert (state.is_running, state.is_major, state.known, state.collected, state.stopped) == (False, True, 1, 1, "")


def test_the_counts_of_the_last_collection_are_shown_by_their_names(bookie: Administered) -> None:
    bookie.node.collector.last = CollectorReport(
        known=90,
        suspects=80,
        collected_deleted=20,
        collected_surplus=3,
        kept=7,
        locked=6,
        unknown=5,
        held=4,
        stopped="for a reason",
        begun_ms=1,
        ended_ms=2,
    )
    shown = document(bookie, "gc", token=None)
    assert (shown["known"], shown["suspects"], shown["collected"]) == (90, 80, 23)
    assert (shown["kept"], shown["locked"], shown["unknown"], shown["held"]) == (7, 6, 5, 4)
    assert shown["stopped"] == "for a reason"


def command(bookie: Administered, *words: str, token: str | None = OPERATE.token) -> Result:
    environment = {"BKHEAL_TOKEN": token or ""}
    return CliRunner().invoke(app, ["bookie", *words, "--at", bookie.at], env=environment)


def document(bookie: Administered, *words: str, token: str | None = OPERATE.token) -> dict[str, Any]:
    result = command(bookie, *words, "-o", "json", token=token)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_commands_show_a_running_bookie(bookie: Administered) -> None:
    assert add(bookie, L1, *range(10)) is Status.OK
    assert add(bookie, L2, 5) is Status.OK
    status = document(bookie, "status", token=None)
    assert (status["kind"], status["bookie_id"], status["ledgers"]) == ("RunningBookie", US, 2)
    rows = document(bookie, "ledgers", token=None)["items"]
    assert [(row["ledger_id"], row["entries"], row["last_entry_id"]) for row in rows] == [(1, 10, 9), (2, 1, 5)]
    lines = command(bookie, "ledgers", "--after", "1", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["ledger_id"] for line in lines] == [2]
    assert document(bookie, "entries", "1")["ranges"] == [{"first": 0, "last": 9}]
    assert document(bookie, "read", "1", "3")["status"] == "ok"
    assert command(bookie, "read", "1", "30").exit_code == ExitCode.FAILED
    assert "scrub waiting" in command(bookie, "scrub").stdout
    assert "none has ended" in command(bookie, "gc").stdout
    assert "writable" in command(bookie, "readonly").stdout


def test_the_commands_change_a_running_bookie(bookie: Administered) -> None:
    assert document(bookie, "readonly", "set")["read_only_asked_by"] == "olga"
    assert "read-only: operator (by olga" in command(bookie, "status", token=None).stdout
    assert document(bookie, "readonly", "clear")["read_only"] is False
    assert document(bookie, "force")["took_ms"] >= 0
    assert document(bookie, "gc", "--major")["running"] is True
    assert document(bookie, "scrub", "--stop")["phase"] == "waiting"  # no scrubber runs in this test
    refused = command(bookie, "readonly", "set", token=None).exception
    assert isinstance(refused, AdministrationRefusedError)
    assert (exit_code_of(refused), "--token-file" in str(refused)) == (ExitCode.FAILED, True)
    again = command(bookie, "gc", "--minor").exception
    assert isinstance(again, AdministrationConflictError)
    assert exit_code_of(again) is ExitCode.FAILED


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--at", "nonsense"),
        ("gc",),
        ("scrub", "--at", "h:1", "--after", "1:1"),
        ("readonly", "perhaps", "--at", "h:1"),
    ],
)
def test_wrong_usage_exits_with_code_2(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, ["bookie", *words]).exit_code == ExitCode.USAGE


def test_a_bookie_that_does_not_answer_is_unavailable() -> None:
    async def ask() -> None:
        address = BookieAddress("127.0.0.1", free_loopback_port(random.Random()))
        async with Administration(address, PLAINTEXT, None) as client:
            await client.status()

    with pytest.raises(AdministrationUnavailableError) as raised:
        asyncio.run(ask())
    assert exit_code_of(raised.value) is ExitCode.UNAVAILABLE
    assert re.fullmatch(r"bookie at 127\.0\.0\.1:\d+: no connection: [A-Z]\w+ \w+; check .*", str(raised.value))


def test_a_change_that_has_begun_is_finished_after_its_caller_left(
    bookie: Administered, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the next checkpoint could overtake one that was cancelled during a write to the index."""
    add(bookie, L1, 0)
    gates = {"force": asyncio.Event(), "read-only": asyncio.Event()}
    reached = {name: asyncio.Event() for name in gates}

    def held(name: str, real: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
        async def later(*arguments: Any) -> T:
            reached[name].set()
            await gates[name].wait()
            return await real(*arguments)

        return later

    index = bookie.node.storage._index
    monkeypatch.setattr(index, "write", held("force", index.write))
    disk = bookie.node.disks["ledgers"]
    monkeypatch.setattr(disk, "replace", held("read-only", disk.replace))

    async def leave() -> None:
        async with bookie.client() as client, asyncio.timeout(STATE_S):
            wish = client.set_read_only(pb.SetReadOnlyRequest(action=pb.SetReadOnlyRequest.SET))
            for name, call in (("force", client.force()), ("read-only", wish)):
                calling = asyncio.ensure_future(call)
                await reached[name].wait()
                await cancel(calling)
            await client.status()  # the bookie received it after the cancellations, which used the same connection
            for gate in gates.values():
                gate.set()

    with caplog.at_level(logging.INFO, "bkheal.audit"):
        bookie.thread.run(leave())
        until(bookie, lambda: not bookie.node.storage.memory.is_flushing and bookie.node.read_only.wish is not None)
        until(bookie, lambda: len([each for each in caplog.records if each.name == "bkheal.audit"]) == 2)
    assert {getattr(each, "who", "") for each in caplog.records if each.name == "bkheal.audit"} == {"olga"}
    call(bookie, lambda client: client.set_read_only(pb.SetReadOnlyRequest(action=pb.SetReadOnlyRequest.CLEAR)))
