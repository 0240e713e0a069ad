"""The pass over all ledgers for the decisions of the safety verbs: what it yields and counts; it hides no problem."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.safety import scan as scanning
from auditor.safety.draining import holdings_of, judge, mark, mark_unmarked, read_holdings_of_ledgers
from auditor.safety.holdings import HeldLedgers, unloadable_topic
from auditor.safety.recovering import brake, refusal
from auditor.safety.scan import Shape, count, scan, scan_ids
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.partial import PartialMetadata, decode_partial
from bookie.metadata.ledgers.serde import decode, encode
from bookie.metadata.tasks.decisions import Decision, DecisionKind, LostFragment
from bookie.metadata.tasks.parked import ParkedTask, ParkReason
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from tests.worlds.ledgers import make_metadata, names
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time


async def filled(world: RepairWorld) -> None:
    for ledger_id, metadata in {
        1: make_metadata((0, "a b"), (5, "b c"), quorum=(2, 2), last=9, length=1000),
        2: make_metadata((0, "a c"), quorum=(2, 2), last=9),
        3: make_metadata((0, "b a c"), quorum=(3, 2), last=None),
        4: replace(make_metadata((0, "c b"), quorum=(2, 2), last=-1), format_version=2),
    }.items():
        await world.ledgers.create(LedgerId(ledger_id), metadata)


@in_virtual_time
async def test_only_ledgers_of_the_given_bookies_are_returned_and_all_are_counted() -> None:
    async with a_world("a b c") as world:
        await filled(world)
        found: dict[LedgerId, LedgerMetadata] = {}
        done: list[int] = []
        result = await scan(world.ledgers, names("b"), found.__setitem__, done.append)
        assert sorted(found) == [1, 3, 4]
        assert (result.ledgers, sum(done), await count(world.ledgers)) == (4, 4, 4)
        assert result.unclosed == {Shape(3, 3): 1}
        assert result.is_complete


@in_virtual_time
async def test_no_ledger_is_left_out_between_two_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "CHUNK", 2)
    monkeypatch.setattr(scanning, "_PARENTS", 1)
    async with a_world("a b c") as world:
        ids = [LedgerId(ledger_id) for ledger_id in (*range(5), 10_000, 20_000, 20_001)]
        for ledger_id in ids:
            await world.ledgers.create(ledger_id, make_metadata((0, "a b"), quorum=(2, 2), last=9))
        for reading in (
            scan(world.ledgers, names("b"), lambda *_: None, lambda _: None),
            scan_ids(world.ledgers, ids, names("b"), lambda *_: None, lambda _: None),
        ):
            assert (await reading).ledgers == len(ids)


@in_virtual_time
async def test_unreadable_ledgers_are_listed() -> None:
    async with a_world("a b c") as world:
        await filled(world)
        await world.store.set(world.ledgers.path(LedgerId(2)), b"nonsense", -1)
        result = await scan(world.ledgers, names("b"), lambda *_: None, lambda _: None)
        assert (result.unreadable, result.unreadable_count, result.is_complete) == ([2], 1, False)
        assert result.ledgers == 3


@in_virtual_time
async def test_a_ledger_that_may_not_be_read_is_listed_as_unreadable_and_the_others_count() -> None:
    async with a_world("a b c") as world:
        await filled(world)
        world.cell.deny(world.ledgers.path(LedgerId(2)))
        found: dict[LedgerId, LedgerMetadata] = {}
        ids = [LedgerId(number) for number in range(1, 6)]
        for reading in (
            scan(world.ledgers, names("b"), found.__setitem__, lambda _: None),
            scan_ids(world.ledgers, ids, names("b"), found.__setitem__, lambda _: None),
        ):
            result = await reading
            assert (result.unreadable, result.unreadable_count, result.ledgers) == ([2], 1, 3)
            assert sorted(found) == [1, 3, 4]
            found.clear()


@in_virtual_time
async def test_ledgers_left_to_drain_are_counted_by_what_they_wait_for() -> None:
    async with a_world("a b c") as world:
        await filled(world)
        holdings, scanned = await holdings_of(world.ledgers, names("b"), lambda _: None)
        assert (sorted(holdings.ledgers), holdings.unclosed, holdings.fragments) == ([1, 3, 4], {3}, 4)
        assert holdings.bytes == 1000
        await mark(world.tasks, {LedgerId(1): names("b"), LedgerId(3): names("b"), LedgerId(4): names("z")})
        await world.parked.park(
            ParkedTask(
                ledger_id=LedgerId(3),
                reason=ParkReason.OPEN_LEDGER,
                detail="open",
                since_ms=1,
                bookies_seen=frozenset(),
                task_version=0,
            )
        )
        left = await judge(holdings, scanned, world.tasks, world.parked)
        assert (left.unmarked, dict(left.parked), left.moving) == ([4], {"open_ledger": 1}, 1)
        assert not left.is_certainly_empty
        again, _ = await read_holdings_of_ledgers(world.ledgers, names("b"), [LedgerId(2), LedgerId(3), LedgerId(9)])
        assert sorted(again.ledgers) == [3]


@in_virtual_time
async def test_an_unreadable_ledger_does_not_count_as_one_without_the_bookie() -> None:
    async with a_world("a b c") as world:
        ledger_id = LedgerId(1)
        await world.ledgers.create(ledger_id, make_metadata((0, "a c"), quorum=(2, 2), last=9))
        path = world.ledgers.path(ledger_id)
        readable = (await world.store.get(path)).data
        await world.store.set(path, b"nonsense", -1)
        for found in (
            await holdings_of(world.ledgers, names("b"), lambda _: None),
            await read_holdings_of_ledgers(world.ledgers, names("b"), [ledger_id]),
        ):
            left = await judge(*found, world.tasks, world.parked)
            assert (left.moving, left.unmarked, left.is_certainly_empty) == (0, [], False)
        await world.store.set(path, readable, -1)
        found = await holdings_of(world.ledgers, names("b"), lambda _: None)
        assert (await judge(*found, world.tasks, world.parked)).is_certainly_empty


@in_virtual_time
async def test_a_ledger_whose_task_names_one_of_its_two_drained_bookies_is_marked_for_both() -> None:
    async with a_world("a b c") as world:
        await world.ledgers.create(LedgerId(1), make_metadata((0, "a b"), (5, "a c"), quorum=(2, 2), last=9))
        await mark(world.tasks, {LedgerId(1): names("b")})
        found = await holdings_of(world.ledgers, names("b c"), lambda _: None)
        left = await judge(*found, world.tasks, world.parked)
        assert (left.unmarked, left.moving) == ([1], 0)
        client = world.ports(world.store).client()
        assert await mark_unmarked(client, left, frozenset()) == 0
        assert await mark_unmarked(client, left, frozenset(names("b c"))) == 1
        task = await world.task(LedgerId(1))
        assert task is not None
        assert set(task.missing) == set(names("b c"))
        left = await judge(*found, world.tasks, world.parked)
        assert (left.unmarked, left.moving) == ([], 1)


@given(st.sets(st.sampled_from("abcde")), st.integers(0, 40), st.integers(1, 5), st.integers(0, 100))
def test_only_bytes_of_entries_on_the_bookies_are_counted(
    bookies: set[str], entries: int, quorum: int, seed: int
) -> None:
    rng = random.Random(seed)
    first = " ".join(rng.sample("abcde", 5))
    second = " ".join(rng.sample("abcde", 5))
    metadata = make_metadata((0, first), (7, second), quorum=(quorum, 1), last=entries - 1, length=10 * entries)
    holdings = HeldLedgers()
    holdings.add(LedgerId(1), metadata, frozenset(map(BookieId, bookies)))
    expected = 0
    for entry in range(entries):
        members = metadata.fragments[0 if entry < 7 else 1].members
        expected += sum(10 for i in range(quorum) if members[(entry + i) % 5] in bookies)
    assert holdings.bytes == expected


@given(st.integers(1, 3), st.booleans(), st.integers(0, 3), st.binary(max_size=12))
def test_a_glance_at_metadata_agrees_with_a_full_decode(version: int, is_closed: bool, cut: int, tail: bytes) -> None:
    metadata = make_metadata((0, "a:1 b:1"), quorum=(2, 1), last=5 if is_closed else None)
    data = encode(replace(metadata, format_version=3 if version == 1 else version))
    seen = decode_partial(data)
    if data.split(b"\n")[0].endswith(b"3"):
        assert seen == PartialMetadata(is_closed, 2, 2)
        assert (decode(data).is_closed, decode(data).ensemble_size) == (is_closed, 2)
    else:
        assert seen is None
    assert decode_partial(data[: len(data) - 1 - cut]) is None
    assert decode_partial(tail) is None


def test_running_bookies_are_refused() -> None:
    assert "drain start b" in (refusal(names("a b"), Bookies(frozenset(names("b c")), frozenset())) or "")
    assert refusal(names("a"), Bookies(frozenset(), frozenset(names("b")))) is None


def test_the_brake_holds_when_most_bookies_are_missing() -> None:
    some = Bookies(frozenset(names("a b")), frozenset())
    assert brake(frozenset(names("a b c d")), some, 0.5) is None
    reason = brake(frozenset(names("a b c d e")), some, 0.5) or ""
    assert "3 of 5" in reason
    assert reason.endswith("or raise --missing-share-max if they are lost permanently")


@pytest.mark.parametrize(
    ("custom", "topic"),
    [
        ({"component": b"managed-ledger", "pulsar/managed-ledger": b"a/b/persistent/x%2Fy"}, "persistent://a/b/x/y"),
        (
            {"component": b"managed-ledger", "pulsar/managed-ledger": b"a/b/persistent/t", "pulsar/cursor": b"sub"},
            "persistent://a/b/t",
        ),
        ({"component": b"compacted-ledger", "pulsar/compactedTopic": b"persistent://a/b/t"}, "persistent://a/b/t"),
        ({"component": b"schema", "pulsar/schemaId": b"a/b/t"}, ""),
        ({"component": b"managed-ledger", "pulsar/managed-ledger": b"\xff/persistent/"}, ""),
        ({}, ""),
    ],
)
def test_unloading_a_topic_closes_its_message_ledgers_and_not_its_schema_ledger(
    custom: dict[str, bytes], topic: str
) -> None:
    pulsars = tuple({"application": b"pulsar", **custom}.items()) if custom else ()
    assert unloadable_topic(replace(make_metadata((0, "a b"), quorum=(2, 2)), custom=pulsars)) == topic


@in_virtual_time
async def test_an_accepted_loss_of_a_deleted_ledger_does_not_hide_another_ledger_with_its_id() -> None:
    lost = LostFragment(EntryId(0), EntryId(9), (0,), (BookieId("b"),))
    made = replace(make_metadata((0, "b a"), quorum=(2, 2), last=9), ctime_ms=2000)
    async with a_world("a b c") as world:
        ids = [LedgerId(1), LedgerId(2)]
        await world.ledgers.create_many([(ledger_id, made) for ledger_id in ids])
        accepted = {
            ledger_id: Decision(
                ledger_id, DecisionKind.LOSS_ACCEPTED, "ops", 1, "fire", lost=(lost,), ledger_ctime_ms=ms
            )
            for ledger_id, ms in zip(ids, (1000, 2000), strict=True)
        }
        for found, _ in (
            await holdings_of(world.ledgers, names("b"), lambda _: None, accepted),
            await read_holdings_of_ledgers(world.ledgers, names("b"), ids, accepted),
        ):
            assert (list(found.ledgers), found.accepted) == ([1], {2})
