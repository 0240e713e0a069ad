"""When a loss of bookies counts as an outage of their rack."""

from __future__ import annotations

import json

import pytest

from bookie.metadata.bookies.first_seen_down import Down
from bookie.metadata.bookies.marking_policy import MarkingPolicies
from bookie.metadata.bookies.marking_times import HoldReason, MarkingPolicy
from bookie.metadata.bookies.rack_outage import AT_ONCE_S, RACK_OUTAGE_DELAY_S_MAX, Losses, rack_outages
from bookie.metadata.bookies.topology import TopologyStore
from bookie.metadata.nodes import put
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId
from bookie.model.topology import Location, Topology
from bookie.runtime.clock import SystemClock
from tests.worlds.cluster import formatted

A, B, C, D, E = map(BookieId, ("a:1", "b:1", "c:1", "d:1", "e:1"))
R1, R2, R3 = Location("/r1"), Location("/r2"), Location("/r3")
TOPOLOGY = Topology({A: R1, B: R1, C: R2, D: R2, E: R3})
NOW_MS = 1_000_000_000


def losses(registered: set[BookieId], **noted_s: float) -> Losses:
    """Return losses: every unregistered bookie was lost at ``NOW_MS``, or this many seconds later."""
    known = {A, B, C, D, E}
    lost = {bookie: Down(NOW_MS + int(noted_s.get(bookie[0], 0) * 1000)) for bookie in known - registered}
    return Losses(known, registered, lost)


def held(given: Losses, topology: Topology = TOPOLOGY, delay_s: float = 3600) -> dict[BookieId, int]:
    return {bookie: outage.until_ms - NOW_MS for bookie, outage in rack_outages(given, topology, delay_s).items()}


def test_a_rack_is_down_if_all_its_bookies_are() -> None:
    assert held(losses({C, D, E})) == {A: 3_600_000, B: 3_600_000}
    assert held(losses({B, C, D, E})) == {}
    assert held(losses({C, D, E}, b=20)) == {A: 3_620_000, B: 3_620_000}, "the time counts from the last loss"


def test_losses_one_by_one_are_not_an_outage() -> None:
    assert held(losses({C, D, E}, b=AT_ONCE_S)) != {}
    assert held(losses({C, D, E}, b=AT_ONCE_S + 1)) == {}


def test_a_rack_of_one_bookie_does_not_count() -> None:
    assert held(losses({A, B, C, D})) == {}


def test_bookies_without_a_location_are_in_no_rack() -> None:
    assert held(losses({C, D, E}), Topology({C: R2, D: R2})) == {}
    assert held(losses({C, D, E}), Topology()) == {}


def test_a_cluster_with_one_rack_has_no_rack_outage() -> None:
    assert held(losses(set())) == {}
    assert held(losses({C, D, E}), Topology({A: R1, B: R1})) == {}


def test_two_racks_can_be_down() -> None:
    assert set(held(losses({E}, c=5))) == {A, B, C, D}


def test_an_operator_can_waive_the_hold_for_a_bookie() -> None:
    given = losses({C, D, E})
    waived = Losses(given.known, given.registered, {**given.noted, A: Down(NOW_MS, is_delay_waived=True)})
    assert set(held(waived)) == {B}


def test_the_rule_can_be_disabled_and_is_bounded() -> None:
    assert held(losses({C, D, E}), delay_s=0) == {}
    assert held(losses({C, D, E}), delay_s=10**9)[A] == RACK_OUTAGE_DELAY_S_MAX * 1000


def test_an_outage_holds_back_critical_ledgers_too_and_is_the_reason() -> None:
    policy = MarkingPolicy(600, 60, outages=rack_outages(losses({C, D, E}), TOPOLOGY, 3600))
    times = policy.times(A, Down(NOW_MS))
    assert times.due_ms == times.critical_due_ms == NOW_MS + 3_600_000
    assert (times.reason, times.detail) == (HoldReason.RACK_OUTAGE, "rack /r1")
    assert policy.held_until_ms == {A: NOW_MS + 3_600_000, B: NOW_MS + 3_600_000}
    longer = MarkingPolicy(7200, 60, outages=policy.outages).times(A, Down(NOW_MS))
    assert (longer.due_ms, longer.reason) == (NOW_MS + 7_200_000, HoldReason.DELAY)


def test_workers_respect_a_recorded_hold_for_a_bounded_time() -> None:
    assert Down(NOW_MS, held_until_ms=NOW_MS + 5000).due_ms(0) == NOW_MS + 5000
    assert Down(NOW_MS, held_until_ms=NOW_MS + 5000).due_ms(60) == NOW_MS + 60_000
    assert Down(NOW_MS, held_until_ms=NOW_MS + 5000, is_delay_waived=True).due_ms(60) == NOW_MS
    assert Down(NOW_MS, held_until_ms=10**18).due_ms(0) == NOW_MS + 8 * 86_400_000


async def test_a_topology_that_stays_unreadable_holds_nothing_back_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore(MemoryCell())
    cluster = await formatted(store)
    path = TopologyStore(store, cluster).own_path
    policies = MarkingPolicies(store, cluster, UnderReplication(store, cluster, SystemClock()))
    racks = json.dumps(dict(TOPOLOGY.locations))
    for text, is_held in ((racks, True), ("nonsense", False), ("nonsense", False), (racks, True), ("[]", False)):
        await put(store, path, text.encode())
        policy = await policies.read(NOW_MS, losses({C, D, E}))
        assert bool(policy.outages) is is_held
    messages = [record.message for record in caplog.records]
    assert messages == ["topology cannot be read, no outage of a rack is recognized"] * 2


async def test_a_topology_that_may_not_be_read_holds_nothing_back() -> None:
    """Otherwise no ledger would be marked after the loss of two bookies."""
    cell = MemoryCell()
    store = MemoryStore(cell)
    cluster = await formatted(store)
    path = TopologyStore(store, cluster).own_path
    await put(store, path, json.dumps(dict(TOPOLOGY.locations)).encode())
    cell.deny(path)
    policies = MarkingPolicies(store, cluster, UnderReplication(store, cluster, SystemClock()))
    assert (await policies.read(NOW_MS, losses({C, D, E}))).outages == {}
