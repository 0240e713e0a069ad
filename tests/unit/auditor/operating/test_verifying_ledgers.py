"""``bkheal ledger verify``: the result of reading every copy, and which bookies it marks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from auditor.operating.client import Actor, changes_of
from auditor.operating.ledger_copies import RANGES_MAX
from auditor.operating.stopping import silent
from auditor.operating.verifying import Verifier, heading, mark, verified_document, verified_lines
from bookie.client.settings import ClientSettings
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.maintenance import MaintenanceWindow, MaintenanceWindows
from bookie.metadata.layout import task_path
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError
from bookie.metadata.tasks.decisions import Decision, DecisionKind, Decisions, Denial, LostFragment
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, LedgerMetadata
from bookie.wire.port import ListReply, Status
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, make_metadata, names, with_member
from tests.worlds.repair import RepairWorld, a_world, answers, flipped
from tests.worlds.virtual_time import in_virtual_time

ACTOR = Actor("me@host", "test")
CLOSED = make_metadata((0, "a b c"), quorum=(3, 2), last=9)


def client_of(world: RepairWorld) -> Any:
    store = world.session()
    ports = world.client_ports(world.bookies.transport, ClientSettings(), store)
    return SimpleNamespace(ports=ports, store=store, cluster=world.cluster, parked=world.parked)


async def verified(world: RepairWorld, *, is_marking: bool = False, rate: int = 0) -> dict[str, Any]:
    client = client_of(world)
    result = await Verifier(client, rate).verify(LEDGER, silent)
    return verified_document(result, await mark(client, ACTOR, result) if is_marking else None)


def of(document: dict[str, Any], bookie: str) -> dict[str, Any]:
    (row,) = [row for row in document["bookies"] if row["bookie_id"] == bookie]
    return dict(row)


def counts(document: dict[str, Any], bookie: str) -> tuple[int, ...]:
    """Return the numbers of good, damaged, absent and unknown entries."""
    row = of(document, bookie)
    assert row["expected"] == sum(row[name] for name in ("good", "damaged", "absent", "unknown"))
    return tuple(row[name] for name in ("good", "damaged", "absent", "unknown"))


async def marked(world: RepairWorld) -> tuple[str, ...]:
    task = await world.task(LEDGER)
    return () if task is None else task.missing


def text(document: dict[str, Any]) -> str:
    return "\n".join([heading(document), *verified_lines(document)])


async def clear(world: RepairWorld, bookie: str) -> None:
    """Replace the disks of a bookie with empty ones."""
    await world.bookies.start([bookie])


@in_virtual_time
async def test_an_undamaged_ledger_is_good_and_is_not_marked() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        document = await verified(world, is_marking=True)
        assert document["verdict"] == "good"
        assert [counts(document, name) for name in "abc"] == [(10, 0, 0, 0)] * 3
        assert document["mark"]["outcome"] == "nothing"
        assert "10 entries; each copy is compared with its digest (CRC32C)" in text(document)
        assert "every copy is good" in text(document)
        assert await marked(world) == ()
        assert await changes_of(client_of(world)).newest(9) == []


@in_virtual_time
async def test_flipped_bits_are_found_marked_and_repaired() -> None:
    async with a_world("a b c") as world:
        packets = await world.ledger(LEDGER, CLOSED, 10)
        world.bookies["b"].has_no_lists = True
        await world.bookies.put("b", LEDGER, [packets[EntryId(n)][:-1] + b"?" for n in (0, 3, 4, 9)])
        document = await verified(world)
        assert (document["verdict"], counts(document, "b")) == ("bad", (6, 4, 0, 0))
        assert of(document, "b")["damaged_ranges"] == [
            {"first": 0, "last": 0, "entries": 1},
            {"first": 3, "last": 4, "entries": 2},
            {"first": 9, "last": 9, "entries": 1},
        ]
        assert document["without_good_copy"]["entries"] == 0
        assert "b: damaged: 0, 3-4 (2), 9" in text(document)
        assert "--mark would mark ledger 7 for repair of b" in text(document)
        assert await marked(world) == ()

        document = await verified(world, is_marking=True)
        assert (document["mark"]["outcome"], await marked(world)) == ("marked", names("b"))
        assert [change.action for change in await changes_of(client_of(world)).newest(9)] == ["ledger verify"]
        assert (await verified(world, is_marking=True))["mark"]["outcome"] == "marked_already"
        await world.heal()
        assert (await verified(world))["verdict"] == "good"
        assert await world.is_clean()


@in_virtual_time
async def test_a_bookie_with_an_entry_list_is_read_too_and_absent_entries_are_copied() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        await clear(world, "b")
        document = await verified(world, is_marking=True)
        assert counts(document, "b") == (0, 0, 10, 0)
        assert of(document, "b")["absent_ranges"] == [{"first": 0, "last": 9, "entries": 10}]
        assert await marked(world) == names("b")
        await world.heal()
        assert (await verified(world))["verdict"] == "good"


@in_virtual_time
async def test_damage_that_a_bookie_lists_as_good_is_left_to_its_scrub() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        world.bookies["b"].results[EntryId(3)] = answers(Status.CORRUPT)
        document = await verified(world)
        assert (counts(document, "b"), of(document, "b")["damage_listed"]) == ((9, 1, 0, 0), True)
        assert "bkheal bookie scrub --at BOOKIE --start" in text(document)
        world.bookies["b"].list_replies = [ListReply(Status.NO_LEDGER)]
        document = await verified(world)
        assert not of(document, "b")["damage_listed"]
        assert "scrub" not in text(document)


@pytest.mark.parametrize("is_apache", [True, False])
@in_virtual_time
async def test_an_unreadable_entry_counts_as_damaged_only_on_a_bookie_without_lists(is_apache: bool) -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        world.bookies["b"].has_no_lists = is_apache
        world.bookies["b"].results[EntryId(3)] = answers(Status.IO_ERROR)
        document = await verified(world, is_marking=True)
        assert counts(document, "b") == ((9, 1, 0, 0) if is_apache else (9, 0, 0, 1))
        assert document["verdict"] == ("bad" if is_apache else "unknown")
        assert await marked(world) == (names("b") if is_apache else ())
        assert ("reading entry 3: IO_ERROR" in text(document)) is not is_apache


@pytest.mark.parametrize("status", [Status.UNREACHABLE, Status.LIMBO, Status.TOO_MANY_REQUESTS, Status.UNAUTHORIZED])
@in_virtual_time
async def test_a_bookie_that_does_not_answer_is_unknown_and_never_marked(status: Status) -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        world.bookies["b"].read_status = status
        document = await verified(world, is_marking=True)
        assert (document["verdict"], counts(document, "b")) == ("unknown", (0, 0, 0, 10))
        assert "b: unknown: reading entries from 0 on" in text(document)
        assert status.name in of(document, "b")["detail"]
        assert "every entry has a good copy" in text(document)
        assert await marked(world) == ()


@in_virtual_time
async def test_entries_in_limbo_next_to_damage_are_unknown() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        tampering = world.bookies["b"]
        tampering.results = {EntryId(n): answers(Status.LIMBO) for n in range(5)} | {EntryId(7): flipped}
        document = await verified(world, is_marking=True)
        assert counts(document, "b") == (4, 1, 0, 5)
        assert await marked(world) == names("b")


@in_virtual_time
async def test_absent_entries_next_to_damage_are_absent() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        world.bookies["b"].results = {EntryId(n): answers(Status.NO_ENTRY) for n in (1, 2, 6)} | {EntryId(5): flipped}
        document = await verified(world)
        assert counts(document, "b") == (6, 1, 3, 0)
        assert "b: absent: 1-2 (2), 6" in text(document)


@in_virtual_time
async def test_an_unresponsive_bookie_is_skipped_after_its_first_requests() -> None:
    async with a_world("a b c") as world:
        last = 9999
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=last), last + 1)
        world.bookies["b"].read_status = Status.TIMEOUT
        document = await verified(world)
        assert counts(document, "b") == (0, 0, 0, last + 1)
        assert len(world.bookies["b"].reads) <= 6
        assert counts(document, "a") == (last + 1, 0, 0, 0)


@in_virtual_time
async def test_entries_without_a_good_copy_are_listed_with_the_bookies_that_may_have_one() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        for bookie in "abc":
            world.bookies[bookie].results[EntryId(4)] = flipped
        document = await verified(world)
        without = document["without_good_copy"]
        assert (without["entries"], without["perhaps_on"]) == (1, [])
        assert "1 entry (id 4) has no good copy on the bookies that answered; all bookies" in text(document)
        await world.kill("c")
        document = await verified(world)
        assert document["without_good_copy"]["perhaps_on"] == ["c"]
        assert "answered; c may have one" in text(document)


@in_virtual_time
async def test_a_striped_ledger_in_several_fragments_and_windows_is_read_completely() -> None:
    last = 9_999
    metadata = make_metadata((0, "a b c d"), (5_001, "a b e d"), quorum=(2, 2), last=last)
    async with a_world("a b c d e") as world:
        packets = await world.ledger(LEDGER, metadata, last + 1)
        await clear(world, "e")
        document = await verified(world)
        expected = {name: metadata.stripe.count(index, 0, last) for index, name in enumerate("ab")}
        assert {name: of(document, name)["good"] for name in "ab"} == expected
        absent = metadata.stripe.count(2, 5_001, last)
        assert counts(document, "e") == (0, 0, absent, 0)
        (everything,) = of(document, "e")["absent_ranges"]
        assert everything["entries"] == absent
        assert document["entries"] == len(packets)
        assert document["without_good_copy"]["entries"] == 0


@in_virtual_time
async def test_reported_ranges_are_bounded_and_counts_are_not() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=99), 100)
        world.bookies["b"].results = {EntryId(n): flipped for n in range(0, 100, 2)}
        row = of(await verified(world), "b")
        assert (row["damaged"], len(row["damaged_ranges"]), row["ranges_cut"]) == (50, RANGES_MAX, True)
        assert f"and {50 - RANGES_MAX} more" in text(await verified(world))


@in_virtual_time
async def test_only_final_fragments_of_an_open_ledger_are_judged() -> None:
    async with a_world("a b c d") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), (6, "a b d"), quorum=(3, 2)), 10)
        world.bookies["c"].has_no_lists = True
        world.bookies["c"].results = {EntryId(2): flipped, EntryId(4): answers(Status.IO_ERROR)}
        world.bookies["d"].results[EntryId(7)] = flipped
        document = await verified(world)
        assert (document["not_judged_from"], document["entries"]) == (6, 6)
        assert counts(document, "c") == (4, 1, 0, 1)  # R139: an I/O error counts as damage only in a closed ledger
        assert [row["bookie_id"] for row in document["bookies"]] == ["a", "b", "c"]
        assert "entries from 6 on may still change, and are not judged" in text(document)
        assert "verify and mark it again after its end" in text(document)


@in_virtual_time
async def test_the_fragment_before_an_unwritten_tail_of_an_open_ledger_is_not_judged() -> None:
    async with a_world("a b c d") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), (6, "a b d"), quorum=(3, 2)), 6)
        document = await verified(world)
        assert (document["not_judged_from"], document["entries"], document["bookies"]) == (0, 0, [])
        assert document["verdict"] == "good"
        assert "there is no copy to verify" in text(document)


@pytest.mark.parametrize("kind", ["format 1", "DUMMY"])
@in_virtual_time
async def test_without_a_digest_only_the_entry_ids_are_verified(kind: str) -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, ids_only(kind), 10)
        world.bookies["b"].results = {
            EntryId(2): flipped,
            EntryId(5): lambda result: replace(result, packet=bytes(len(result.packet))),
        }
        document = await verified(world)
        assert (document["verified"], counts(document, "b")) == ("ids", (9, 1, 0, 0))
        assert "only the ids of entries are verified (its" in text(document)
        assert kind in text(document)


def ids_only(kind: str) -> LedgerMetadata:
    if kind == "DUMMY":
        return make_metadata((0, "a b c"), quorum=(3, 2), last=9, digest_type=DigestType.DUMMY)
    return replace(CLOSED, ack_quorum=3, digest_type=None, password=None, format_version=1)


Hold = Callable[[RepairWorld], Any]


async def _delayed(world: RepairWorld) -> None:
    await world.tasks.switches.set_lost_bookie_delay_s(600)
    await FirstSeenDown(world.store, ROOT).reconcile(
        {BookieId("b")}, world.clock.epoch_ms(), registered=frozenset(names("a c"))
    )


async def _not_noted(world: RepairWorld) -> None:
    await world.tasks.switches.set_lost_bookie_delay_s(600)


async def _maintenance(world: RepairWorld) -> None:
    now_ms = world.clock.epoch_ms()
    window = MaintenanceWindow("b", names("b"), "me", now_ms, now_ms + 600_000)
    await MaintenanceWindows(world.store, ROOT).start(window)


async def _accepted(world: RepairWorld) -> None:
    await accept(world, LostFragment(EntryId(0), EntryId(9), (1,), names("b")))


async def accept(world: RepairWorld, lost: LostFragment) -> None:
    """Record the loss as accepted."""
    decisions = Decisions(world.store, ROOT)
    await world.store.create("/bkheal", b"")
    for part in ("/bkheal/decisions", "/bkheal/decisions/ledgers"):
        await world.store.create(part, b"")
    decision = Decision(LEDGER, DecisionKind.LOSS_ACCEPTED, "me", world.clock.epoch_ms(), "gone", lost=(lost,))
    await world.store.multi([await decisions.writing(decision)])


async def _nothing(world: RepairWorld) -> None:
    pass


@pytest.mark.parametrize(
    ("hold", "reason"),
    [
        (_nothing, ""),
        (_delayed, "delay has not passed"),
        (_not_noted, "delay has not passed"),
        (_maintenance, "in maintenance"),
        (_accepted, "was accepted"),
    ],
)
@in_virtual_time
async def test_a_lost_bookie_is_marked_unless_it_is_expected_back(hold: Hold, reason: str) -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        await cookies(world, "a b c")
        await world.kill("b")
        await hold(world)
        document = await verified(world, is_marking=True)
        assert (of(document, "b")["state"], counts(document, "b")) == ("lost", (0, 0, 0, 10))
        assert document["verdict"] == "unknown"
        assert await marked(world) == (() if reason else names("b"))
        assert reason in text(document)


async def cookies(world: RepairWorld, bookies: str) -> None:
    if await world.store.stat(f"{ROOT}/cookies") is None:
        await world.store.create(f"{ROOT}/cookies", b"")
    for name in bookies.split():
        await world.store.create(f"{ROOT}/cookies/{name}", b"")


@in_virtual_time
async def test_absent_entries_are_not_marked_if_their_loss_was_accepted() -> None:
    lost = EntryRuns.of([0, 3, 6, 9])
    denials = (Denial(0, BookieId("a"), 4), Denial(1, BookieId("b"), 4))
    async with a_world("a b c") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(2, 2), last=9), 10)
        await world.bookies.start(["a", "b"])
        for bookie, position in (("a", 0), ("b", 1)):
            kept = [n for n in range(10) if n not in lost and position in (n % 3, (n + 1) % 3)]
            await world.bookies.put(bookie, LEDGER, [packets[EntryId(n)] for n in kept])
        assert (await verified(world))["mark"]["bookies"] == ["a", "b"]
        await accept(world, LostFragment(EntryId(0), EntryId(9), (), (), denials, lost.groups))
        document = await verified(world, is_marking=True)
        assert (document["verdict"], document["without_good_copy"]["entries"]) == ("bad", 4)
        assert (document["mark"]["outcome"], await marked(world)) == ("nothing", ())
        assert "a is not to be marked: the loss of its absent entries was accepted" in text(document)
        assert "--mark" not in text(await verified(world))

        world.bookies["b"].results[EntryId(1)] = answers(Status.NO_ENTRY)
        document = await verified(world, is_marking=True)
        assert await marked(world) == names("b")
        assert [each["bookie_id"] for each in document["mark"]["held_back"]] == ["a"]


@in_virtual_time
async def test_no_mark_is_offered_for_copies_that_a_loss_without_ids_accepts() -> None:
    denials = (Denial(0, BookieId("a"), 4), Denial(1, BookieId("b"), 4))
    async with a_world("a b c") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(2, 2), last=9), 10)
        await world.bookies.start(["a", "b"])
        for bookie, position in (("a", 0), ("b", 1)):
            kept = [n for n in range(10) if n % 3 and position in (n % 3, (n + 1) % 3)]
            await world.bookies.put(bookie, LEDGER, [packets[EntryId(n)] for n in kept])
        assert (await verified(world))["mark"]["bookies"] == ["a", "b"]
        await accept(world, LostFragment(EntryId(0), EntryId(9), (), (), denials))
        document = await verified(world, is_marking=True)
        assert (document["verdict"], document["mark"]["outcome"], await marked(world)) == ("bad", "nothing", ())
        assert "a is not to be marked: the loss of its absent entries was accepted" in text(document)

        world.bookies["b"].results[EntryId(1)] = answers(Status.NO_ENTRY)  # more than the record accepts
        assert (await verified(world))["mark"]["bookies"] == ["a", "b"]


@in_virtual_time
async def test_copies_of_a_loss_without_ids_are_marked_if_other_bookies_have_all_of_them() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        await clear(world, "a")
        denials = tuple(Denial(position, BookieId(name), 10) for position, name in enumerate("abc"))
        await accept(world, LostFragment(EntryId(0), EntryId(9), (), (), denials))
        await verified(world, is_marking=True)
        assert await marked(world) == names("a")


@in_virtual_time
async def test_an_accepted_entry_of_which_a_bookie_has_a_copy_is_marked() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        await clear(world, "a")
        denials = tuple(Denial(position, BookieId(name), 10) for position, name in enumerate("abc"))
        lost = EntryRuns([(0, 9)])
        await accept(world, LostFragment(EntryId(0), EntryId(9), (), (), denials, lost.groups))
        await verified(world, is_marking=True)
        assert await marked(world) == names("a")


@in_virtual_time
async def test_lost_bookies_are_not_marked_while_most_bookies_are_missing() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        await cookies(world, "a b c")
        await world.kill("b", "c")
        document = await verified(world, is_marking=True)
        assert document["mark"]["bookies"] == []
        assert "the brake is held" in text(document)


@in_virtual_time
async def test_states_match_the_list_of_bookies() -> None:
    async with a_world("a b c d") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c d"), quorum=(4, 2), last=9), 10)
        await world.register("b", is_read_only=True)
        await Drains(world.store, ROOT).start(Drain(BookieId("c"), "me", 1))
        await world.kill("d")
        document = await verified(world)
        assert [row["state"] for row in document["bookies"]] == ["writable", "read_only", "draining", "lost"]


@in_virtual_time
async def test_a_bookie_that_is_no_longer_in_the_metadata_is_not_marked() -> None:
    async with a_world("a b c d") as world:
        packets = await world.ledger(LEDGER, CLOSED, 10)
        ledger = await world.ledgers.read(LEDGER)
        world.bookies["b"].results[EntryId(9)] = flipped

        async def move() -> None:
            await world.bookies.put("d", LEDGER, list(packets.values()))
            await world.ledgers.write(LEDGER, with_member(ledger.metadata, 0, 1, BookieId("d")), ledger.version)

        world.bookies["b"].before_list = move  # the list is requested when damage is found
        document = await verified(world, is_marking=True)
        assert (document["metadata_changed"], counts(document, "b")) == (True, (9, 1, 0, 0))
        assert await marked(world) == ()
        assert "the metadata changed during the verification" in text(document)


@in_virtual_time
async def test_a_ledger_deleted_during_the_verification_is_not_marked() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        world.bookies["b"].results[EntryId(9)] = flipped

        async def delete() -> None:
            await world.ledgers.delete(LEDGER)

        world.bookies["b"].before_list = delete
        document = await verified(world, is_marking=True)
        assert (document["metadata_changed"], document["mark"]["outcome"]) == (True, "nothing")
        with pytest.raises(NoSuchLedgerError):
            await verified(world)


@in_virtual_time
async def test_an_unreadable_task_is_left_unchanged() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        world.bookies["b"].results[EntryId(3)] = flipped
        await world.tasks.marking.mark(LEDGER, names("a"))
        path = task_path(ROOT, LEDGER)
        await world.store.set(path, b"\xff", 0)
        document = await verified(world, is_marking=True)
        assert document["mark"]["outcome"] == "unreadable_task"
        assert (await world.store.get(path)).data == b"\xff"
        assert "cannot be read" in text(document)


@in_virtual_time
async def test_the_byte_rate_limits_all_bookies_together() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=199), 200, payload_bytes=1000)
        begun_s = world.clock.monotonic_s()
        await verified(world, rate=10_000)
        assert 25 < world.clock.monotonic_s() - begun_s < 80
        begun_s = world.clock.monotonic_s()
        await verified(world)
        assert world.clock.monotonic_s() - begun_s < 1


@in_virtual_time
async def test_progress_counts_copies() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, CLOSED, 10)
        totals: list[int] = []
        done: list[int] = []

        def counting(total: int) -> Any:
            totals.append(total)
            return nullcontext(done.append)

        await Verifier(client_of(world)).verify(LedgerId(LEDGER), counting)
        assert (totals, sum(done)) == ([30], 30)
