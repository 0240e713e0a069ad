"""Asking bookies for their entries: real storage in memory, faults on demand, and a second check before a report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager

import pytest

from auditor.safety.lost_entries import lost_fragments
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError
from bookie.metadata.port import AccessDeniedError
from bookie.metadata.tasks.decisions import Decision
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.severity import Severity
from bookie.wire.port import EntryResult, ListReply, Status
from bookie.wire.requests import ListEntries
from bookie.wire.security import SecurityFiles
from spark_jobs.checks.replicas import asking
from spark_jobs.checks.replicas.asking import (
    ATTEMPTS_MAX,
    LEDGERS_IN_FLIGHT,
    PER_BOOKIE_IN_FLIGHT,
    READ_AGAIN_AFTER_S,
    SILENT_LEDGERS_MAX,
    UNREAD_LEDGERS_MAX,
    Answers,
    Asker,
    LedgerAnswer,
)
from spark_jobs.checks.replicas.expected import SettledLedger, settled_metadata
from spark_jobs.checks.replicas.task import TaskSettings, accepted_entries, answer_rows
from tests.worlds.clocks import VirtualClock
from tests.worlds.ledgers import make_metadata, make_packets, should_hold, with_member
from tests.worlds.repair import RepairWorld, Tamper, a_world
from tests.worlds.repair import answers as answers_with
from tests.worlds.virtual_time import in_virtual_time


@asynccontextmanager
async def a_cluster() -> AsyncIterator[RepairWorld]:
    async with a_world("a b c d") as world:
        yield world


async def store(world: RepairWorld, number: int, metadata: LedgerMetadata, lost: dict[str, Iterable[int]]) -> None:
    """Create a ledger of ten entries; the bookies in ``lost`` never received their entries with these ids."""
    ledger = await world.ledgers.create(LedgerId(number), metadata)
    packets = make_packets(ledger.ledger_id, 10)
    for bookie in sorted(metadata.members()):
        kept = {entry: data for entry, data in packets.items() if entry not in set(lost.get(bookie, ()))}
        await world.bookies.put(bookie, ledger.ledger_id, [kept[e] for e in should_hold(metadata, bookie, kept)])


async def ask(world: RepairWorld, *numbers: int) -> Answers:
    ledgers = [settled_metadata(LedgerId(number), await world.metadata(number)) for number in numbers]

    async def registered() -> AbstractSet[BookieId]:
        return (await world.registrations.list()).registered

    asker = Asker(world.bookies.transport, world.ledgers, registered, VirtualClock())
    return await asker.ask_all(ledgers, await registered())


def missing(answers: Answers) -> dict[int, set[BookieId]]:
    return {ledger.ledger_id: {b for each in found for b in each.missing} for ledger, found in answers.found}


GROWING = make_metadata((0, "a b c"), (10, "a b c"), (20, "a b c"), quorum=(2, 2), last=None)
"""An open ledger whose first fragment is settled."""
CLOSED = make_metadata((0, "a b c"), quorum=(2, 2), last=9, length=100)


@in_virtual_time
async def test_stored_entries_are_not_reported() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        answers = await ask(world, 1)
        assert (answers.found, dict(answers.unknown)) == ([], {})
        assert (answers.ledgers, answers.requests, answers.expected) == (1, 3, 20)


@in_virtual_time
async def test_entries_that_a_bookie_never_received_are_reported() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {"b": [3], "c": range(10)})
        await store(world, 2, CLOSED, {})
        answers = await ask(world, 1, 2)
        assert missing(answers) == {1: {BookieId("b"), BookieId("c")}}
        ((_, (found,)),) = answers.found
        # Entry 3 is only on a and b; entries 1 and 2 of c have one copy on another bookie.
        assert (found.severity, found.positions, found.absent) == (Severity.CRITICAL, (1, 2), 1 + 6)
        assert answers.absent == 7


@in_virtual_time
async def test_the_denying_bookies_are_computed_once_for_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each computation visits all fragments for each bookie."""
    looks: list[set[BookieId]] = []
    real = asking._deniers

    def counted(ledger: SettledLedger, replies: Mapping[BookieId, LedgerAnswer]) -> set[BookieId]:
        looks.append(real(ledger, replies))
        return looks[-1]

    monkeypatch.setattr(asking, "_deniers", counted)
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {"b": [3]})
        assert missing(await ask(world, 1)) == {1: {BookieId("b")}}
    assert looks == [{BookieId("b")}] * 2


@in_virtual_time
async def test_counts_beyond_64_bits_are_capped_at_the_largest_value_of_a_table() -> None:
    huge = (1 << 63) - 1
    metadata = make_metadata((0, "a b"), quorum=(2, 2), last=huge, length=100)
    async with a_cluster() as world:
        for number in (1, 2):
            await store(world, number, metadata, {"b": range(10)})
        answers = await ask(world, 1, 2)
    settings = TaskSettings("zk://nowhere/ledgers", 1, frozenset(), SecurityFiles())
    *found, last = answer_rows(answers, settings).to_pylist()
    assert [each["entries"] for each in found] == [huge, huge]
    assert (last["counts"]["ledgers"], last["counts"]["expected"], last["counts"]["absent"]) == (2, huge, huge)


@in_virtual_time
async def test_an_entry_that_every_holder_denies_is_lost() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {"a": [4], "b": [4], "c": [4]})
        ((_, (found,)),) = (await ask(world, 1)).found
        assert (found.severity, found.copies_min) == (Severity.LOST, 0)


@pytest.mark.parametrize("status", [Status.LIMBO, Status.IO_ERROR, Status.WRONG_INCARNATION, Status.SHUTTING_DOWN])
@in_virtual_time
async def test_only_a_denial_by_a_working_bookie_is_absence(status: Status) -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {"c": range(10)})
        world.bookies["c"].list_replies = [ListReply(status, detail="its own words" + "!" * 1000)] * 10
        answers = await ask(world, 1)
        assert answers.found == []
        assert answers.unknown == {(BookieId("c"), status.name): 1}
        assert answers.details[BookieId("c"), status.name].startswith("its own words!")
        assert len(answers.details[BookieId("c"), status.name]) == 200


@in_virtual_time
async def test_an_entry_left_out_as_damaged_is_its_own_kind_of_finding() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        whole = await world.bookies.transport.ask(BookieId("c"), ListEntries(LedgerId(1)), 1)
        damaged = whole.entries.without(EntryRuns.of([5]))
        world.bookies["c"].list_replies = [ListReply(Status.CORRUPT, damaged, "1 damaged: 5")] * 2
        answers = await ask(world, 1)
        assert (missing(answers), dict(answers.unknown)) == ({1: {BookieId("c")}}, {})
        ((_, (found,)),) = answers.found
        assert (found.is_damaged, found.absent, found.severity) == (True, 1, Severity.CRITICAL)
        assert found.detail == "c has damaged copies of 1 of 6 entries, the first is 5"


@in_virtual_time
async def test_an_entry_of_which_every_copy_is_damaged_is_not_lost() -> None:
    """Its bytes exist, and can perhaps be read in another way."""
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        for name in ("b", "c"):
            whole = await world.bookies.transport.ask(BookieId(name), ListEntries(LedgerId(1)), 1)
            damaged = ListReply(Status.CORRUPT, whole.entries.without(EntryRuns.of([4])))
            world.bookies[name].list_replies = [damaged] * 2
        ((_, (found,)),) = (await ask(world, 1)).found
        assert (found.severity, found.copies_min, found.is_damaged) == (Severity.NO_LIVE_COPY, 0, True)


@in_virtual_time
async def test_a_bookie_in_limbo_that_lists_everything_is_complete() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        whole = await world.bookies.transport.ask(BookieId("c"), ListEntries(LedgerId(1)), 1)
        world.bookies["c"].list_replies = [ListReply(Status.LIMBO, whole.entries)]
        answers = await ask(world, 1)
        assert (answers.found, dict(answers.unknown)) == ([], {})


@in_virtual_time
async def test_an_unreachable_bookie_is_no_longer_queried_after_a_while() -> None:
    async with a_cluster() as world:
        count = LEDGERS_IN_FLIGHT + 40
        for number in range(count):
            await store(world, number, make_metadata((0, "a b"), quorum=(2, 2), last=9), {})
        world.bookies.stop_listening("b")
        answers = await ask(world, *range(count))
        assert answers.unknown == {(BookieId("b"), "UNREACHABLE"): count}
        assert "no server answers for bookie b" in answers.details[BookieId("b"), "UNREACHABLE"]
        asked_of_b = answers.requests - count
        assert asked_of_b <= 3 * (PER_BOOKIE_IN_FLIGHT + SILENT_LEDGERS_MAX)


@in_virtual_time
async def test_a_bookie_with_occasional_timeouts_is_queried_to_the_end() -> None:
    """A bookie counts as unresponsive only after several ledgers in sequence without an answer."""
    lost = [ListReply(Status.TIMEOUT)] * ATTEMPTS_MAX
    async with a_cluster() as world:
        count = 3 * SILENT_LEDGERS_MAX
        for number in range(count):
            await store(world, number, CLOSED, {})

        async def registered() -> AbstractSet[BookieId]:
            return (await world.registrations.list()).registered

        asker = Asker(world.bookies.transport, world.ledgers, registered, VirtualClock())
        for number in range(count):
            world.bookies["b"].list_replies = [] if number % 2 else list(lost)
            ledger = settled_metadata(LedgerId(number), await world.metadata(number))
            answers = await asker.ask_all([ledger], await registered())
            unknown = {} if number % 2 else {(BookieId("b"), "TIMEOUT"): 1}
            assert (number, dict(answers.unknown)) == (number, unknown)


@in_virtual_time
async def test_a_busy_bookie_is_queried_again() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        world.bookies["a"].list_replies = [ListReply(Status.TOO_MANY_REQUESTS)] * 2
        answers = await ask(world, 1)
        assert (answers.found, dict(answers.unknown)) == ([], {})


@in_virtual_time
async def test_a_ledger_deleted_meanwhile_is_not_a_finding() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {"c": range(10)})

        async def delete() -> None:
            await world.ledgers.delete(LedgerId(1))

        world.bookies["c"].before_list = delete
        answers = await ask(world, 1)
        assert (answers.found, answers.vanished) == ([], 1)
        with pytest.raises(NoSuchLedgerError):
            await world.ledgers.read(LedgerId(1))


@in_virtual_time
async def test_a_ledger_that_may_no_longer_be_read_does_not_prevent_the_check_of_others() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {"c": range(10)})
        await store(world, 2, CLOSED, {"c": range(10)})

        async def deny() -> None:
            world.cell.deny(world.ledgers.path(LedgerId(1)))

        world.bookies["c"].before_list = deny
        assert missing(await ask(world, 1, 2)) == {2: {BookieId("c")}}


@in_virtual_time
async def test_a_decision_that_may_no_longer_be_read_accepts_nothing() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {name: [4] for name in "abc"})
        metadata = await world.metadata(1)
        everything = EntryRuns.of(range(10))
        lost = lost_fragments(
            metadata, (), {each: everything.without(EntryRuns.of([4])) for each in metadata.members()}
        )

        async def registered() -> AbstractSet[BookieId]:
            return (await world.registrations.list()).registered

        async def denied(ledger_id: LedgerId) -> Decision | None:
            raise AccessDeniedError("may not be read")

        accepted = accepted_entries({LedgerId(1): lost})
        asker = Asker(world.bookies.transport, world.ledgers, registered, VirtualClock(), accepted, denied)
        ((_, (found,)),) = (await asker.ask_all([settled_metadata(LedgerId(1), metadata)], await registered())).found
        assert (found.severity, found.is_accepted) == (Severity.LOST, False)


@in_virtual_time
async def test_a_ledger_moved_meanwhile_is_checked_at_its_new_bookies() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {"c": range(10)})
        packets = make_packets(LedgerId(1), 10)

        async def move() -> None:
            ledger = await world.ledgers.read(LedgerId(1))
            await world.bookies.put("d", LedgerId(1), list(packets.values()))
            await world.ledgers.write(LedgerId(1), with_member(ledger.metadata, 0, 2, BookieId("d")), ledger.version)

        world.bookies["c"].before_list = move
        answers = await ask(world, 1)
        assert answers.found == []


@in_virtual_time
async def test_a_member_added_meanwhile_is_queried_too() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {"b": [1]})
        packets = make_packets(LedgerId(1), 10)

        async def move() -> None:
            ledger = await world.ledgers.read(LedgerId(1))
            await world.bookies.put("d", LedgerId(1), list(packets.values()))
            await world.ledgers.write(LedgerId(1), with_member(ledger.metadata, 0, 2, BookieId("d")), ledger.version)

        world.bookies["b"].before_list = move
        answers = await ask(world, 1)
        ((_, (found,)),) = answers.found
        # Entry 1 is on b and on d, which replaced c.
        assert (found.missing, found.copies_min, found.severity) == ((BookieId("b"),), 1, Severity.CRITICAL)


@in_virtual_time
async def test_entries_that_arrive_before_the_second_check_are_not_missing() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        world.bookies["c"].list_replies = [ListReply(Status.NO_LEDGER)]
        assert (await ask(world, 1)).found == []


@in_virtual_time
async def test_a_bookie_that_unregisters_before_the_second_check_is_not_reported() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {"c": range(10)})

        async def leave() -> None:
            await world.registrations.unregister(BookieId("c"))

        world.bookies["c"].before_list = leave
        assert (await ask(world, 1)).found == []


@in_virtual_time
async def test_the_tail_of_an_open_ledger_is_not_queried() -> None:
    async with a_cluster() as world:
        growing = make_metadata((0, "a b"), (4, "a c"), (8, "a d"), quorum=(2, 2), last=None)
        await store(world, 1, growing, {"c": range(10), "d": range(10), "b": [EntryId(2)]})
        answers = await ask(world, 1)
        assert missing(answers) == {1: {BookieId("b")}}
        assert answers.requests == 3, "a and b, and b a second time"


def without_lists(world: RepairWorld) -> None:
    for name in "abcd":
        world.bookies[name].has_no_lists = True


STRIPED = make_metadata((0, "a b c"), (4, "b d a"), quorum=(2, 2), last=9, length=100)


@in_virtual_time
async def test_from_bookies_without_lists_the_first_and_last_entries_are_read() -> None:
    async with a_cluster() as world:
        await store(world, 1, STRIPED, {})
        await store(world, 2, CLOSED, {})
        without_lists(world)
        answers = await ask(world, 1, 2)
        assert (answers.found, dict(answers.unknown)) == ([], {})
        assert answers.sampled == {BookieId("a"): 2, BookieId("b"): 2, BookieId("c"): 2, BookieId("d"): 1}
        # In fragment 0-3, the position of a has entries 0, 2 and 3; in 4-9, its position 2 has 4, 5, 7 and 8.
        assert world.bookies["a"].reads == [(0, 3, 4, 8), (0, 9)]
        assert answers.expected == 2 * 10 + 2 * 10


@in_virtual_time
async def test_a_complete_list_is_not_counted_as_a_sample() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        world.bookies["b"].has_no_lists = True
        answers = await ask(world, 1)
        assert (answers.found, dict(answers.unknown), dict(answers.sampled)) == ([], {}, {BookieId("b"): 1})


@pytest.mark.parametrize(("lost", "absent"), [([0], 1), ([9], 1), (range(10), 7)])
@in_virtual_time
async def test_an_end_that_a_bookie_denies_twice_is_absent(lost: Iterable[int], absent: int) -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {"a": lost})
        without_lists(world)
        answers = await ask(world, 1)
        assert missing(answers) == {1: {BookieId("a")}}
        assert answers.absent == absent
        assert dict(answers.unknown) == {}


@in_virtual_time
async def test_an_end_that_arrives_before_the_second_check_is_not_missing() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        without_lists(world)
        world.bookies["a"].results[EntryId(0)] = once(world, "a")
        answers = await ask(world, 1)
        assert (answers.found, dict(answers.unknown)) == ([], {})


def once(world: RepairWorld, name: str, status: Status = Status.NO_ENTRY) -> Tamper:
    """Answer once with this status for an entry."""

    def answer(result: EntryResult) -> EntryResult:
        del world.bookies[name].results[result.entry_id]
        return EntryResult(result.entry_id, status)

    return answer


@pytest.mark.parametrize(
    ("status", "metadata"),
    [(Status.LIMBO, CLOSED), (Status.LIMBO, GROWING), (Status.IO_ERROR, GROWING), (Status.CORRUPT, GROWING)],
)
@in_virtual_time
async def test_an_end_that_cannot_be_read_makes_the_bookie_unknown(status: Status, metadata: LedgerMetadata) -> None:
    async with a_cluster() as world:
        await store(world, 1, metadata, {})
        without_lists(world)
        world.bookies["a"].results[EntryId(0)] = answers_with(status)
        answers = await ask(world, 1)
        assert answers.found == []
        assert dict(answers.unknown) == {(BookieId("a"), status.name): 1}
        assert BookieId("a") not in answers.sampled


@pytest.mark.parametrize(("unreadable", "count"), [([0], 1), ([0, 9], 2)])
@in_virtual_time
async def test_an_end_of_a_closed_ledger_that_an_apache_bookie_cannot_read_is_a_damaged_copy(
    unreadable: Iterable[int], count: int
) -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        without_lists(world)
        world.bookies["a"].unreadable = set(map(EntryId, unreadable))
        answers = await ask(world, 1)
        assert (missing(answers), dict(answers.unknown)) == ({1: {BookieId("a")}}, {})
        ((_, (found,)),) = answers.found
        assert (found.is_damaged, found.absent, found.severity) == (True, count, Severity.CRITICAL)
        what = f"a has damaged copies of {count} of 7 entries, the first is 0"
        assert found.detail == f"{what} (reading entry 0: damaged or unreadable: IO_ERROR)"


@in_virtual_time
async def test_a_single_failed_read_of_an_end_on_an_apache_bookie_is_not_a_finding() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        without_lists(world)
        world.bookies["a"].results[EntryId(0)] = once(world, "a", Status.IO_ERROR)
        answers = await ask(world, 1)
        assert (answers.found, dict(answers.unknown)) == ([], {})


@pytest.mark.parametrize("count", [1, UNREAD_LEDGERS_MAX - 1, LEDGERS_IN_FLIGHT + 40])
@in_virtual_time
async def test_an_apache_bookie_that_fails_all_reads_for_a_few_seconds_has_no_findings(count: int) -> None:
    async with a_cluster() as world:
        for number in range(count):
            await store(world, number, CLOSED, {})
        without_lists(world)
        bookie = world.bookies["a"]
        bookie.read_status = Status.IO_ERROR
        asyncio.get_running_loop().call_later(READ_AGAIN_AFTER_S - 1, setattr, bookie, "read_status", None)
        answers = await ask(world, *range(count))
        assert (answers.ledgers, answers.found, dict(answers.unknown)) == (count, [], {})


@pytest.mark.parametrize(
    ("count", "is_failing"), [(UNREAD_LEDGERS_MAX - 1, False), (UNREAD_LEDGERS_MAX, True), (100, True)]
)
@in_virtual_time
async def test_an_apache_bookie_that_fails_the_samples_of_many_ledgers_is_unknown(count: int, is_failing: bool) -> None:
    async with a_cluster() as world:
        for number in range(count):
            await store(world, number, CLOSED, {"b": [3]} if number == 0 else {})
        world.bookies["a"].has_no_lists = True
        world.bookies["a"].read_status = Status.IO_ERROR
        answers = await ask(world, *range(count))
        if is_failing:
            assert missing(answers) == {0: {BookieId("b")}}
            assert answers.unknown == {(BookieId("a"), "IO_ERROR"): count}
            detail = answers.details[BookieId("a"), "IO_ERROR"]
            assert detail.startswith("cannot read its entries: check its disk (reading entry 0:")
        else:
            assert {number for number, bookies in missing(answers).items() if "a" in bookies} == set(range(count))
            assert dict(answers.unknown) == {}


@in_virtual_time
async def test_many_damaged_ledgers_of_an_apache_bookie_that_reads_others_are_reported() -> None:
    """The loss of an entry log damages all ledgers of several minutes."""
    other = make_metadata((0, "b c d"), (4, "a b c"), quorum=(2, 2), last=8, length=100)
    count = 3 * UNREAD_LEDGERS_MAX
    async with a_cluster() as world:
        for number in range(count):
            await store(world, number, CLOSED, {})
        await store(world, count, other, {})
        without_lists(world)
        world.bookies["a"].unreadable = {EntryId(0), EntryId(9)}
        answers = await ask(world, *range(count + 1))
        assert missing(answers) == {number: {BookieId("a")} for number in range(count)}
        assert dict(answers.unknown) == {}


@in_virtual_time
async def test_an_end_that_an_apache_bookie_denies_first_and_then_cannot_read_is_unknown() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        without_lists(world)
        bookie = world.bookies["a"]

        def denied_first(result: EntryResult) -> EntryResult:
            bookie.results[result.entry_id] = answers_with(Status.IO_ERROR)
            return EntryResult(result.entry_id, Status.NO_ENTRY)

        bookie.results[EntryId(0)] = denied_first
        answers = await ask(world, 1)
        assert answers.found == []
        assert dict(answers.unknown) == {(BookieId("a"), "IO_ERROR"): 1}


@in_virtual_time
async def test_an_end_without_a_readable_copy_is_not_lost() -> None:
    async with a_cluster() as world:
        await store(world, 1, CLOSED, {})
        without_lists(world)
        for name in "ab":
            world.bookies[name].unreadable = {EntryId(0)}
        ((_, (found,)),) = (await ask(world, 1)).found
        assert (found.severity, found.copies_min, found.is_damaged) == (Severity.NO_LIVE_COPY, 0, True)


@pytest.mark.parametrize("metadata", [CLOSED, STRIPED, make_metadata((0, "a b"), quorum=(2, 2), last=0, length=1)])
def test_everything_but_excludes_exactly_the_missing_entries(metadata: LedgerMetadata) -> None:
    settled = settled_metadata(LedgerId(1), metadata)
    last = metadata.last_entry_id or 0
    for gaps in ([], [0], [last], [0, last], [3, 4], list(range(last + 1))):
        missing = sorted({EntryId(gap) for gap in gaps if gap <= last})
        assert list(settled.all_entries_except(missing)) == [e for e in range(last + 1) if e not in missing]
