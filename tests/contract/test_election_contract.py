"""The election of the auditor: the same on the twin, the simulator's store and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from bookie.metadata.migration import migration_path
from bookie.metadata.nodes import ensure_path, put
from bookie.metadata.port import Create, Delete, MetadataStore
from bookie.metadata.runs.election import Election, current_auditor, decode_vote, election_path, encode_vote
from bookie.metadata.runs.election import candidates as listed
from bookie.metadata.runs.pulsar_leader import leader_path
from bookie.model.ids import bookie_id
from bookie.runtime.clock import SystemClock
from bookie.runtime.tasks import cancel, guarded
from tests.contract.conftest import Backend

WithDeadline = Callable[[Awaitable[Any]], Awaitable[Any]]


class Candidates:
    def __init__(self, backend: Backend, root: str, stack: AsyncExitStack) -> None:
        self.backend = backend
        self.root = root
        self._stack = stack
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def stand(self, name: str) -> tuple[Election, MetadataStore]:
        store = await self.backend.open()
        election = Election(store, self.root, name, SystemClock(), session_timeout_s=10)
        self.tasks[name] = guarded(name, election.run())
        self._stack.push_async_callback(cancel, self.tasks[name])
        return election, store


@pytest.fixture
async def candidates(backend: Backend, base: str) -> AsyncIterator[Candidates]:
    async with AsyncExitStack() as stack:
        yield Candidates(backend, base, stack)


async def leads(election: Election) -> None:
    while not election.is_leader():
        await election.wait_changed(election.state)


async def knows(election: Election, leader: str) -> None:
    while election.state.leader != leader:
        await election.wait_changed(election.state)


async def test_the_first_candidate_leads_and_the_others_see_who_leads(
    candidates: Candidates, with_deadline: WithDeadline
) -> None:
    first, store = await candidates.stand("a:1")
    await with_deadline(leads(first))
    second, _ = await candidates.stand("b:1")
    await with_deadline(knows(second, "a:1"))
    assert not second.is_leader()
    assert first.state.term == 1
    assert await current_auditor(store, candidates.root) == "a:1"


async def test_every_candidate_is_listed_the_leader_first(
    candidates: Candidates, store: MetadataStore, with_deadline: WithDeadline
) -> None:
    assert await listed(store, candidates.root) == []
    first, _ = await candidates.stand("a:1")
    await with_deadline(leads(first))
    second, _ = await candidates.stand("b:1")
    await with_deadline(knows(second, "a:1"))
    assert await listed(store, candidates.root) == ["a:1", "b:1"]


async def test_the_winner_writes_its_id_into_the_election_node(
    candidates: Candidates, store: MetadataStore, with_deadline: WithDeadline
) -> None:
    first, _ = await candidates.stand("a:1")
    await with_deadline(leads(first))

    async def written() -> None:
        path = election_path(candidates.root)
        while (node := await store.get(path)).data != b'bookieId: "a:1"\n':
            await store.wait_node_changed(path, node.stat)

    await with_deadline(written())


async def test_a_resigned_leader_is_replaced_at_once(candidates: Candidates, with_deadline: WithDeadline) -> None:
    first, store = await candidates.stand("a:1")
    await with_deadline(leads(first))
    second, _ = await candidates.stand("b:1")
    await with_deadline(knows(second, "a:1"))
    await cancel(candidates.tasks["a:1"])
    await first.resign()
    await with_deadline(leads(second))
    assert not first.is_leader()
    assert await current_auditor(store, candidates.root) == "b:1"
    await first.resign()
    assert second.is_leader()


async def test_leadership_ends_with_the_session_and_the_next_candidate_takes_over(
    candidates: Candidates, with_deadline: WithDeadline
) -> None:
    first, store = await candidates.stand("a:1")
    await with_deadline(leads(first))
    second, _ = await candidates.stand("b:1")
    await with_deadline(knows(second, "a:1"))
    await candidates.backend.expire(store)
    assert not first.is_leader(1)
    await with_deadline(leads(second))
    await with_deadline(knows(first, "b:1"))
    assert not first.is_leader()


async def test_a_lone_candidate_leads_again_in_its_next_session(
    candidates: Candidates, with_deadline: WithDeadline
) -> None:
    first, store = await candidates.stand("a:1")
    await with_deadline(leads(first))
    await candidates.backend.expire(store)
    assert not first.is_leader(1)

    async def leads_anew() -> None:
        while not first.is_leader(2):
            await first.wait_changed(first.state)

    await with_deadline(leads_anew())
    assert len((await store.children(election_path(candidates.root))).names) == 1


async def test_an_interrupted_connection_does_not_end_the_leadership(
    candidates: Candidates, with_deadline: WithDeadline
) -> None:
    first, store = await candidates.stand("a:1")
    await with_deadline(leads(first))
    await candidates.backend.interrupt(store)
    await with_deadline(leads(first))
    assert first.state.term == 1


async def test_the_vote_of_an_apache_auditor_has_its_place_in_the_order(
    candidates: Candidates, backend: Backend, with_deadline: WithDeadline
) -> None:
    """Apache's auditor casts the same kind of vote: the first voter leads."""
    apache = await backend.open()
    path = election_path(candidates.root)
    await ensure_path(apache, path)
    vote = await apache.create(f"{path}/V_", encode_vote("apache:3181"), is_ephemeral=True, is_sequential=True)
    ours, store = await candidates.stand("a:1")
    await with_deadline(knows(ours, "apache:3181"))
    assert not ours.is_leader()
    assert await current_auditor(store, candidates.root) == "apache:3181"
    await apache.delete(vote)
    await with_deadline(leads(ours))


async def test_ours_waits_while_pulsars_auditor_leads_and_leads_after_it(
    candidates: Candidates, backend: Backend, with_deadline: WithDeadline
) -> None:
    """Auditors of Pulsar's driver do not read votes (R87). The displayed name is that of Pulsar's auditor."""
    pulsars, theirs = await backend.open(), leader_path(candidates.root)
    await ensure_path(pulsars, election_path(candidates.root))
    await pulsars.create(theirs, b'"pulsar-1:3181"', is_ephemeral=True)
    ours, store = await candidates.stand("a:1")
    await with_deadline(knows(ours, "pulsar-1:3181"))
    second, _ = await candidates.stand("b:1")
    await with_deadline(knows(second, "pulsar-1:3181"))
    assert not ours.is_leader()
    assert await current_auditor(store, candidates.root) == "pulsar-1:3181"
    assert (await store.get(theirs)).data == b'"pulsar-1:3181"'
    await pulsars.close()
    await with_deadline(leads(ours))
    await with_deadline(knows(second, "a:1"))
    assert await current_auditor(store, candidates.root) == "a:1"


async def test_pulsars_auditor_does_not_start_while_ours_leads(
    candidates: Candidates, with_deadline: WithDeadline
) -> None:
    """Pulsar's auditor finds a JSON string in an ephemeral node, which is not the id of a bookie."""
    ours, store = await candidates.stand("host 1/x:4711")
    await with_deadline(leads(ours))
    node = await store.get(leader_path(candidates.root))
    assert json.loads(node.data) == bookie_id("bkheal-host-1-x:4711")
    assert node.stat.ephemeral_owner == store.session.session_id
    await cancel(candidates.tasks["host 1/x:4711"])
    await ours.resign()
    assert await store.stat(leader_path(candidates.root)) is None


async def test_our_auditor_has_the_same_name_with_and_without_its_vote(
    candidates: Candidates, with_deadline: WithDeadline
) -> None:
    """A reader that lists the votes just before ours is cast reads our name from Pulsar's node."""
    ours, store = await candidates.stand("a:1")
    await with_deadline(leads(ours))
    await cancel(candidates.tasks["a:1"])
    path = election_path(candidates.root)
    await store.delete(f"{path}/{min((await store.children(path)).names)}")
    assert await current_auditor(store, candidates.root) == "a:1"


async def test_a_pulsar_auditor_may_have_a_name_with_our_prefix(candidates: Candidates, backend: Backend) -> None:
    pulsars = await backend.open()
    await ensure_path(pulsars, election_path(candidates.root))
    await pulsars.create(leader_path(candidates.root), b'"bkheal-0:3181"', is_ephemeral=True)
    assert await current_auditor(pulsars, candidates.root) == "bkheal-0:3181"


async def test_an_auditor_whose_node_was_replaced_by_pulsars_stops_leading(
    candidates: Candidates, backend: Backend, with_deadline: WithDeadline
) -> None:
    """A closing auditor of Pulsar's driver deletes the node unconditionally; ours never deletes theirs."""
    ours, store = await candidates.stand("a:1")
    await with_deadline(leads(ours))
    pulsars, theirs = await backend.open(), leader_path(candidates.root)
    await pulsars.multi([Delete(theirs), Create(theirs, b'"pulsar-1:3181"', is_ephemeral=True)])
    await with_deadline(knows(ours, "pulsar-1:3181"))
    assert not ours.is_leader()
    await cancel(candidates.tasks["a:1"])
    await ours.resign()
    assert (await store.get(theirs)).data == b'"pulsar-1:3181"'
    assert (await store.children(election_path(candidates.root))).names == ()


async def test_a_resignation_does_not_delete_the_node_of_pulsars_auditor(
    candidates: Candidates, backend: Backend, with_deadline: WithDeadline
) -> None:
    ours, store = await candidates.stand("a:1")
    await with_deadline(leads(ours))
    await cancel(candidates.tasks["a:1"])
    pulsars, theirs = await backend.open(), leader_path(candidates.root)
    await pulsars.multi([Delete(theirs), Create(theirs, b'"pulsar-1:3181"', is_ephemeral=True)])
    await ours.resign()
    assert (await store.get(theirs)).data == b'"pulsar-1:3181"'
    assert (await store.children(election_path(candidates.root))).names == ()


async def test_a_candidate_whose_vote_was_deleted_hands_pulsars_node_to_the_next(
    candidates: Candidates, with_deadline: WithDeadline
) -> None:
    first, store = await candidates.stand("a:1")
    await with_deadline(leads(first))
    second, second_store = await candidates.stand("b:1")
    await with_deadline(knows(second, "a:1"))
    path = election_path(candidates.root)
    await store.delete(f"{path}/{min((await store.children(path)).names)}")
    await with_deadline(leads(second))
    held = await store.stat(leader_path(candidates.root))
    assert held is not None
    assert held.ephemeral_owner == second_store.session.session_id


async def test_no_auditor_leads_while_the_metadata_migrates(
    candidates: Candidates, with_deadline: WithDeadline
) -> None:
    """R88: neither the previous leader nor a new auditor leads. The pause ends if the migration fails."""
    first, store = await candidates.stand("a:1")
    await with_deadline(leads(first))
    await put(store, migration_path(candidates.root), b'{"phase":"PREPARATION","targetUrl":"oxia://o"}')

    async def leads_no_more() -> None:
        while first.is_leader():
            await first.wait_changed(first.state)

    await with_deadline(leads_no_more())
    second, _ = await candidates.stand("b:1")

    async def reported() -> None:
        while not (first.problem and second.problem):  # noqa: ASYNC110  # a property, without a signal
            await asyncio.sleep(0.01)

    await with_deadline(reported())
    assert "oxia://o" in first.problem
    assert (await store.children(election_path(candidates.root))).names == ()
    assert await store.stat(leader_path(candidates.root)) is None
    await put(store, migration_path(candidates.root), b'{"phase":"FAILED"}')

    async def one_leads() -> None:
        while first.is_leader() == second.is_leader():  # noqa: ASYNC110  # either may win
            await asyncio.sleep(0.01)

    await with_deadline(one_leads())


async def test_a_deleted_vote_is_cast_again_after_the_others(
    candidates: Candidates, with_deadline: WithDeadline
) -> None:
    first, store = await candidates.stand("a:1")
    await with_deadline(leads(first))
    second, _ = await candidates.stand("b:1")
    await with_deadline(knows(second, "a:1"))
    path = election_path(candidates.root)
    await store.delete(f"{path}/{min((await store.children(path)).names)}")
    await with_deadline(leads(second))
    await with_deadline(knows(first, "b:1"))
    assert not first.is_leader()


async def test_other_nodes_below_the_election_node_are_not_votes(candidates: Candidates, store: MetadataStore) -> None:
    path = election_path(candidates.root)
    assert await current_auditor(store, candidates.root) == ""
    await ensure_path(store, path)
    await store.create(f"{path}/A_0000000000", encode_vote("nobody:1"))
    assert await current_auditor(store, candidates.root) == ""


def test_the_format_of_a_vote_is_apaches() -> None:
    assert encode_vote("bk1.example.com:3181") == b'bookieId: "bk1.example.com:3181"\n'
    assert decode_vote(b'bookieId: "bk1.example.com:3181"\n') == "bk1.example.com:3181"
    assert decode_vote(b"") == ""
    assert decode_vote(b"\xff nonsense") == ""
