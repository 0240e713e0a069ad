"""The election with lost answers, suspended processes and hanging stores. Virtual time."""

from __future__ import annotations

import asyncio
import math

from bookie.metadata.nodes import ensure_path
from bookie.metadata.port import Delete
from bookie.metadata.runs.election import FRESH_SHARE, Election, candidates, current_auditor, election_path
from bookie.metadata.runs.pulsar_leader import leader_path
from bookie.metadata.store.memory import Fault, MemoryCell, MemoryStore
from bookie.runtime.tasks import cancel, guarded
from tests.worlds.clocks import VirtualClock
from tests.worlds.virtual_time import in_virtual_time, until

ROOT = "/ledgers"
TIMEOUT_S = 10.0


class Candidate:
    def __init__(self, cell: MemoryCell, name: str, hook: Hook | None = None, *, granted_s: float = math.inf) -> None:
        self.hook = hook or Hook()
        self.store = MemoryStore(cell, fault_hook=self.hook, session_timeout_s=granted_s)
        self.clock = SkippingClock()
        self.election = Election(self.store, ROOT, name, self.clock, session_timeout_s=TIMEOUT_S)
        self.task = guarded(name, self.election.run())

    async def leads(self) -> bool:
        return self.election.is_leader()


class Hook:
    """Faults by operation, each of which occurs once; a hanging operation waits until it is released."""

    def __init__(self, *faults: tuple[str, Fault]) -> None:
        self.faults = list(faults)
        self.hanging: str | None = None

    async def __call__(self, operation: str, path: str) -> Fault | None:
        await asyncio.sleep(0)
        while operation == self.hanging:  # noqa: ASYNC110  # virtual time: looking costs nothing
            await asyncio.sleep(0.1)
        for fault in self.faults:
            if fault[0] == operation:
                self.faults.remove(fault)
                return fault[1]
        return None


class SkippingClock(VirtualClock):
    """The clock of a suspended process: ``skipped_s`` passed on the machine, but not on the event loop.

    Neither clock of ``tests.worlds.clocks`` can separate the two, and these tests need exactly this difference.
    """

    skipped_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.skipped_s


async def cluster() -> MemoryCell:
    cell = MemoryCell()
    await ensure_path(MemoryStore(cell), ROOT)
    return cell


def votes(cell: MemoryCell) -> int:
    return len(cell.children(election_path(ROOT)).names)


@in_virtual_time
async def test_a_vote_whose_answer_was_lost_is_found_and_not_cast_twice() -> None:
    cell = await cluster()
    await ensure_path(MemoryStore(cell), election_path(ROOT))
    candidate = Candidate(cell, "a", Hook(("create", Fault.LOSE_ANSWER), ("create", Fault.LOSE_ANSWER)))
    await until(candidate.leads)
    assert votes(cell) == 1
    await cancel(candidate.task)


@in_virtual_time
async def test_a_vote_that_was_not_sent_is_cast_again() -> None:
    cell = await cluster()
    await ensure_path(MemoryStore(cell), election_path(ROOT))
    candidate = Candidate(cell, "a", Hook(("create", Fault.FAIL_BEFORE), ("children", Fault.FAIL_BEFORE)))
    await until(candidate.leads)
    assert votes(cell) == 1
    await cancel(candidate.task)


@in_virtual_time
async def test_a_process_that_was_suspended_no_longer_leads_when_it_resumes() -> None:
    """The server may have elected another leader by then.

    Only a new read of its own vote may make this one leader again.
    """
    cell = await cluster()
    candidate = Candidate(cell, "a")
    await until(candidate.leads)
    candidate.clock.skipped_s += TIMEOUT_S * FRESH_SHARE
    assert not candidate.election.is_leader()
    assert not candidate.election.is_leader(1)
    await until(candidate.leads)
    assert candidate.election.state.term == 2
    assert not candidate.election.is_leader(1)
    await cancel(candidate.task)


@in_virtual_time
async def test_a_hanging_store_ends_the_leadership_within_the_session_timeout() -> None:
    cell = await cluster()
    candidate = Candidate(cell, "a")
    await until(candidate.leads)
    candidate.hook.hanging = "stat"
    seen = candidate.election.state
    since_s = candidate.clock.monotonic_s()
    async with asyncio.timeout(TIMEOUT_S):
        ended = await candidate.election.wait_changed(seen)
    assert not ended.is_leader
    assert candidate.clock.monotonic_s() - since_s <= TIMEOUT_S * FRESH_SHARE
    candidate.hook.hanging = None
    await until(candidate.leads)
    assert candidate.election.state.term == 2
    await cancel(candidate.task)


@in_virtual_time
async def test_a_late_answer_confirms_only_from_the_time_of_its_request() -> None:
    cell = await cluster()
    candidate = Candidate(cell, "a")
    await until(candidate.leads)
    candidate.hook.hanging = "stat"
    await asyncio.sleep(TIMEOUT_S * FRESH_SHARE * 0.9)
    candidate.hook.hanging = "sync"  # the requests under way are answered, and no others
    await asyncio.sleep(0.2)
    assert candidate.election.is_leader(1)
    async with asyncio.timeout(TIMEOUT_S * FRESH_SHARE * 0.5):
        await candidate.election.wait_changed(candidate.election.state)
    assert not candidate.election.is_leader()
    candidate.hook.hanging = None
    await cancel(candidate.task)


@in_virtual_time
async def test_a_leadership_that_begins_with_a_late_answer_lasts() -> None:
    """Otherwise an outage would end the leadership twice, and with it the run that began in between."""
    candidate = Candidate(await cluster(), "a")
    await until(candidate.leads)
    candidate.hook.hanging = "stat"
    ended = await candidate.election.wait_changed(candidate.election.state)
    assert not ended.is_leader
    await asyncio.sleep(TIMEOUT_S * 0.1)  # the answer is not stale yet, and will be before the usual interval
    candidate.hook.hanging = None
    await asyncio.sleep(2 * TIMEOUT_S)
    assert candidate.election.is_leader(2)
    await cancel(candidate.task)


@in_virtual_time
async def test_the_leadership_lasts_no_longer_than_the_negotiated_session_timeout() -> None:
    candidate = Candidate(await cluster(), "a", granted_s=TIMEOUT_S / 2)
    await until(candidate.leads)
    candidate.hook.hanging = "stat"
    async with asyncio.timeout(TIMEOUT_S / 2):
        await candidate.election.wait_changed(candidate.election.state)
    assert not candidate.election.is_leader()
    candidate.hook.hanging = None
    await cancel(candidate.task)


@in_virtual_time
async def test_a_server_without_a_zookeeper_leader_confirms_nothing() -> None:
    candidate = Candidate(await cluster(), "a")
    await until(candidate.leads)
    candidate.hook.hanging = "sync"  # reads still work
    await asyncio.sleep(TIMEOUT_S * (FRESH_SHARE + 0.2))
    assert not candidate.election.is_leader()
    candidate.hook.hanging = None
    await cancel(candidate.task)


@in_virtual_time
async def test_two_candidates_never_lead_at_once() -> None:
    cell = await cluster()
    candidates = [Candidate(cell, name) for name in "abc"]
    for round_ in range(30):
        await until(lambda: _any_leads(candidates))
        leader = next(each for each in candidates if each.election.is_leader())
        assert sum(each.election.is_leader() for each in candidates) == 1
        leader.store.suspend()
        for _ in range(int(TIMEOUT_S * 10)):
            await asyncio.sleep(0.1)
            assert sum(each.election.is_leader() for each in candidates) <= 1
        assert not leader.election.is_leader()
        leader.store.expire()  # the server's session timeout, counted from the last message that it received
        if round_ % 2:
            await asyncio.sleep(3)
        leader.store.resume()
    for candidate in candidates:
        await cancel(candidate.task)


async def _any_leads(candidates: list[Candidate]) -> bool:
    return any(each.election.is_leader() for each in candidates)


@in_virtual_time
async def test_resigning_leaves_no_vote_and_succeeds_after_a_lost_session() -> None:
    cell = await cluster()
    candidate = Candidate(cell, "a")
    await until(candidate.leads)
    await cancel(candidate.task)
    assert not candidate.election.is_leader()
    await candidate.election.resign()
    assert votes(cell) == 0
    other = Candidate(cell, "b")
    await until(other.leads)
    other.store.expire()
    await cancel(other.task)
    await other.election.resign()
    assert await current_auditor(MemoryStore(cell), ROOT) == ""


@in_virtual_time
async def test_one_check_without_an_answer_does_not_end_the_term() -> None:
    candidate = Candidate(await cluster(), "a")
    await until(candidate.leads)
    for operation in ("sync", "stat"):
        candidate.hook.faults.append((operation, Fault.FAIL_BEFORE))
        await asyncio.sleep(TIMEOUT_S)
        assert not candidate.hook.faults
        assert candidate.election.is_leader(1)
    await cancel(candidate.task)


@in_virtual_time
async def test_the_oldest_vote_leads_even_after_sequence_numbers_overflow() -> None:
    cell = await cluster()
    await ensure_path(MemoryStore(cell), election_path(ROOT))
    cell.skip_sequence(election_path(ROOT), 2**31)
    first = Candidate(cell, "a")
    await until(first.leads)
    second = Candidate(cell, "b")
    await asyncio.sleep(TIMEOUT_S)
    assert await candidates(MemoryStore(cell), ROOT) == ["a", "b"]
    assert [first.election.is_leader(1), second.election.is_leader()] == [True, False]
    await cancel(first.task)
    await cancel(second.task)


@in_virtual_time
async def test_of_several_votes_of_a_session_the_oldest_is_kept() -> None:
    cell = await cluster()
    await ensure_path(MemoryStore(cell), election_path(ROOT))
    candidate = Candidate(cell, "a")
    candidate.hook.hanging = "children"
    path = f"{election_path(ROOT)}/V_"
    oldest, *_ = [await candidate.store.create(path, is_ephemeral=True, is_sequential=True) for _ in range(3)]
    candidate.hook.hanging = None
    await until(candidate.leads)
    assert [f"{election_path(ROOT)}/{name}" for name in cell.children(election_path(ROOT)).names] == [oldest]
    await cancel(candidate.task)


@in_virtual_time
async def test_a_leader_whose_vote_is_deleted_stops_before_the_next_one_begins() -> None:
    cell = await cluster()
    first = Candidate(cell, "a")
    await until(first.leads)
    second = Candidate(cell, "b")
    await asyncio.sleep(TIMEOUT_S)
    vote = min(cell.children(election_path(ROOT)).names)
    await MemoryStore(cell).multi([Delete(f"{election_path(ROOT)}/{vote}"), Delete(leader_path(ROOT))])
    while not second.election.is_leader():
        await asyncio.sleep(0.01)
        assert not (first.election.is_leader() and second.election.is_leader())
    for _ in range(200):
        await asyncio.sleep(0.01)
        assert not first.election.is_leader()
    await cancel(first.task)
    await cancel(second.task)
