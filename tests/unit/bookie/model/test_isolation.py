"""Bookie groups of a ledger: which bookies may store its entries (Pulsar's rule), and how repair uses them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.client.errors import AddOutcomeUnknownError
from bookie.client.options import LedgerOptions
from bookie.client.placement.groups import log_targets_outside_groups, writable_candidates
from bookie.client.placement.placement import Placement
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.bookies.topology import parse_topology
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.isolation import (
    NO_GROUPS,
    POLICY_KEY,
    BookieGroups,
    Isolation,
    UnreadableIsolationError,
    allowed_bookies,
    forbidden_members,
    forbidden_members_text,
    isolation_of,
    isolation_problem,
)
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.wire.port import Status
from replicator.plan.planner import Plan, plan_repair
from replicator.plan.target_choice import target_chooser
from replicator.queue.parking import Memory, circumstances_of
from tests.worlds import recovery as recovery_world
from tests.worlds.clocks import VirtualClock
from tests.worlds.ledgers import make_metadata, name_set
from tests.worlds.virtual_time import in_virtual_time
from tests.worlds.writer import WriterWorld, in_world

CLASS = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
OLD_CLASS = "org.apache.pulsar.zookeeper.ZkIsolatedBookieEnsemblePlacementPolicy"
LEDGER = LedgerId(7)
TOPOLOGY = parse_topology(
    json.dumps(
        {
            "red": {name: {"rack": "/r1"} for name in ("a", "b", "c")},
            "blue": {name: {"rack": "/r1"} for name in ("c", "x", "y")},
            "green": {"g": {"rack": "/r1"}},
        }
    )
)


def wish(primary: object, secondary: object = None, policy_class: object = CLASS) -> tuple[tuple[str, bytes], ...]:
    properties = {"isolationBookieGroups": primary, "secondaryIsolationBookieGroups": secondary}
    written = {"policyClass": policy_class, "properties": properties}
    return ("application", b"pulsar"), (POLICY_KEY, json.dumps(written, indent=2).encode())


@pytest.mark.parametrize(
    ("custom", "expected"),
    [
        ((), None),
        ((("application", b"pulsar"),), None),
        (wish("red"), Isolation(frozenset({"red"}))),
        (wish("red", policy_class=OLD_CLASS), Isolation(frozenset({"red"}))),
        (wish("red,blue", "green"), Isolation(frozenset({"red", "blue"}), frozenset({"green"}))),
        (wish(["red", "blue"], []), Isolation(frozenset({"red", "blue"}))),
        (wish("", ""), Isolation(frozenset())),
        (wish(None), Isolation(frozenset())),
        (wish("red, blue"), Isolation(frozenset({"red", " blue"}))),
        (wish("*", "green"), None),
        (wish("red", policy_class="org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy"), None),
    ],
)
def test_an_isolation_policy_is_read_as_pulsar_reads_it(
    custom: tuple[tuple[str, bytes], ...], expected: Isolation | None
) -> None:
    assert isolation_of(custom) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\x00",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"policyClass": null}',
        json.dumps({"policyClass": CLASS, "properties": None}).encode(),
        wish(5)[1][1],
        wish([["red"]])[1][1],
    ],
)
def test_an_unreadable_policy_restricts_nothing_and_is_reported(data: bytes) -> None:
    custom = ((POLICY_KEY, data),)
    with pytest.raises(UnreadableIsolationError):
        isolation_of(custom)
    assert allowed_bookies(custom, TOPOLOGY.groups, name_set("a x g"), 1) == name_set("a x g")
    assert POLICY_KEY in (isolation_problem(custom, TOPOLOGY.groups) or "")


@given(st.recursive(st.none() | st.integers() | st.text(), lambda t: st.lists(t) | st.dictionaries(st.text(), t)))
def test_any_json_is_a_policy_or_unreadable(content: object) -> None:
    for written in (content, {"policyClass": CLASS, "properties": content}):
        with contextlib.suppress(UnreadableIsolationError):
            isolation_of(((POLICY_KEY, json.dumps(written).encode()),))
    with contextlib.suppress(UnreadableIsolationError):
        isolation_of(wish(content, content))


@pytest.mark.parametrize(
    ("custom", "bookies", "ensemble_size", "expected"),
    [
        ((), "a x g free", 3, "a x g free"),
        (wish("red"), "a b c x g free", 3, "a b c"),
        (wish("red"), "a b c x g free", 2, "a b c"),
        (wish("red", "blue"), "a b c x g", 3, "a b c"),
        (wish("red", "blue"), "a b x g free", 3, "a b x"),
        (wish("red", "blue"), "a x g free", 3, "a x free"),  # if nothing else is left, bookies without a group
        (wish("red"), "a x g", 3, "a"),  # but never bookies of another group
        (wish("red,green"), "a b x g", 3, "a b g"),
        (wish("red", "nobody"), "a b x", 3, "a b"),
        (wish("nobody"), "a x g free", 1, "free"),
        (wish(""), "a x g free", 2, "free"),
        (wish("*"), "a x g free", 3, "a x g free"),
    ],
)
def test_primary_groups_come_first_then_secondary_ones_then_ungrouped_bookies(
    custom: tuple[tuple[str, bytes], ...], bookies: str, ensemble_size: int, expected: str
) -> None:
    assert allowed_bookies(custom, TOPOLOGY.groups, name_set(bookies), ensemble_size) == name_set(expected)


_GROUPS = st.sampled_from("rstu")
_BOOKIES = st.frozensets(st.sampled_from([BookieId(name) for name in "abcdefgh"]))


@given(st.dictionaries(_GROUPS, _BOOKIES), st.frozensets(_GROUPS), st.frozensets(_GROUPS), _BOOKIES, st.integers(1, 6))
def test_allowed_bookies_are_those_that_pulsar_does_not_exclude(
    groups: dict[str, frozenset[BookieId]],
    primary: frozenset[str],
    secondary: frozenset[str],
    bookies: frozenset[BookieId],
    ensemble_size: int,
) -> None:
    """A slow twin that does the same as Pulsar: exclude bookies, and take some back."""
    excluded = {each for name, members in groups.items() if name not in primary for each in members}
    first = {each for name in primary for each in groups.get(name, ())}
    second = {each for name in secondary for each in groups.get(name, ())}
    grouped = {each for members in groups.values() for each in members}
    excluded |= bookies - first
    excluded -= first
    if len(bookies & first) < ensemble_size:
        excluded -= second
        if len(bookies & (first | second)) < ensemble_size:
            excluded -= bookies - grouped
    expected = bookies - excluded if groups else bookies
    custom = wish(",".join(sorted(primary)), ",".join(sorted(secondary)))
    known = BookieGroups({name: frozenset(map(str, members)) for name, members in groups.items()})
    assert allowed_bookies(custom, known, bookies, ensemble_size) == expected


@given(
    st.dictionaries(_GROUPS, _BOOKIES),
    st.frozensets(_GROUPS, min_size=1),
    st.frozensets(_GROUPS),
    st.frozensets(st.sampled_from([BookieId(name) for name in "abcdefghij"]), min_size=1, max_size=4),
)
def test_misplaced_members_are_those_that_repair_would_never_choose(
    groups: dict[str, frozenset[BookieId]],
    primary: frozenset[str],
    secondary: frozenset[str],
    members: frozenset[BookieId],
) -> None:
    known = BookieGroups({name: frozenset(map(str, of)) for name, of in groups.items()})
    asked = Isolation(primary, secondary)
    everyone = members.union(*groups.values())
    custom = wish(",".join(sorted(primary)), ",".join(sorted(secondary)))
    allowed = allowed_bookies(custom, known, everyone, len(members))
    found = forbidden_members(members, asked, known)
    assert set(found) == members - allowed
    assert all(each in forbidden_members_text(found, asked, known) for each in found)


def test_a_misplaced_member_is_named_with_the_reason() -> None:
    asked = Isolation(frozenset({"red"}), frozenset({"blue"}))
    found = forbidden_members(name_set("a x g"), asked, TOPOLOGY.groups)
    assert forbidden_members_text(found, asked, TOPOLOGY.groups) == (
        "g outside the bookie groups red; secondary blue; "
        "x in the secondary bookie groups blue, and the primary groups red have enough bookies"
    )
    assert forbidden_members(name_set("a x"), None, TOPOLOGY.groups) == ()
    assert forbidden_members(name_set("a x"), asked, NO_GROUPS) == ()
    assert forbidden_members(name_set("a x"), Isolation(frozenset(), frozenset({"blue"})), TOPOLOGY.groups) == ()


def test_groups_are_read_from_pulsars_topology_and_a_host_means_all_its_bookies() -> None:
    topology = parse_topology('{"red": {"bk1": {"rack": "/"}, "bk2:3181": "/r2"}, "bk3:3181": "/r3", "none": {}}')
    assert topology.groups.names == {"red": {"bk1", "bk2:3181"}, "none": frozenset()}
    bookies = name_set("bk1:3181 bk1:3182 bk2:3181 bk2:3182 bk3:3181")
    assert topology.groups.among(bookies, ["red"]) == name_set("bk1:3181 bk1:3182 bk2:3181")
    assert topology != parse_topology('{"blue": {"bk1": {"rack": "/"}, "bk2:3181": "/r2"}, "bk3:3181": "/r3"}')
    assert parse_topology('{"bk1": "/r1"}').groups == NO_GROUPS


def plan(custom: tuple[tuple[str, bytes], ...], members: str, bookies: Bookies, size: int = 2) -> Plan:
    ensemble = tuple(map(BookieId, members.split()))
    metadata = LedgerMetadata(size, size, size, (Fragment(EntryId(0), ensemble),), custom=custom)
    ledger = Versioned(LEDGER, metadata.closed(EntryId(9), 10), 0)
    return plan_repair(ledger, bookies, target_chooser(LEDGER, size, Placement(topology=TOPOLOGY)))


def registered(writable: str, read_only: str = "", draining: str = "") -> Bookies:
    listed = Bookies(name_set(writable), name_set(read_only)).with_groups(TOPOLOGY.groups)
    return listed.with_draining(name_set(draining)) if draining else listed


def test_repair_keeps_a_ledger_in_its_groups() -> None:
    (step,) = plan(wish("red"), "a b", registered("a c x y g free")).steps
    assert step.target == "c"
    targets = {step.target for step in plan((), "a b", registered("a x")).steps}
    assert targets == {"x"}


def test_a_drain_keeps_a_ledger_in_its_groups() -> None:
    (step,) = plan(wish("red"), "a b", registered("a b c x y g free", draining="b")).steps
    assert step.target == "c"
    (step,) = plan(wish("red", "green"), "a b", registered("a b x y g free", draining="b")).steps
    assert step.target == "g"


def test_secondary_groups_get_copies_only_if_the_primary_ones_are_too_small() -> None:
    (step,) = plan(wish("red", "blue"), "a b", registered("a c x y")).steps
    assert step.target == "c"
    (step,) = plan(wish("red", "green"), "a b", registered("a x y g")).steps
    assert step.target == "g"


def test_a_read_only_member_counts_toward_the_group_size_but_no_other_read_only_bookie() -> None:
    (step,) = plan(wish("red", "green"), "a b", registered("c g", "a")).steps
    assert step.target == "c"
    (step,) = plan(wish("red", "green"), "a b", registered("a g", "c")).steps
    assert step.target == "g"


def test_a_ledger_whose_groups_have_no_bookie_left_waits_and_names_the_groups() -> None:
    (blocked,) = plan(wish("red", "blue"), "a b", registered("a g")).blocked
    assert blocked.reason is ParkReason.NO_CANDIDATE_BOOKIE
    assert "outside the ensemble in bookie groups that the ledger may have: red; secondary blue" in blocked.detail
    assert plan(wish("red", "blue"), "a b", registered("a g x")).steps


def test_an_ensemble_change_chooses_among_the_groups_of_its_ledger(caplog: pytest.LogCaptureFixture) -> None:
    metadata = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), (BookieId("a"), BookieId("b"))),), custom=wish("red"))
    placement = Placement(topology=TOPOLOGY)
    listed = registered("a c x y g free")
    assert writable_candidates(placement, LEDGER, metadata, name_set("a b"), listed) == name_set("a c")
    placement.draining = name_set("c")
    assert writable_candidates(placement, LEDGER, metadata, name_set("a b"), listed) == name_set("a free")
    assert not caplog.records


def test_a_policy_that_cannot_be_kept_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metadata = LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (BookieId("a"),)),), custom=wish("red"))
    placement = Placement()
    with caplog.at_level(logging.INFO):
        for ledger_id in (7, 8):
            listed = Bookies(name_set("a x"), frozenset())
            assert writable_candidates(placement, LedgerId(ledger_id), metadata, name_set("a"), listed) == name_set(
                "a x"
            )
            log_targets_outside_groups(placement, LedgerId(ledger_id), metadata, [BookieId("x")])
    (record,) = caplog.records
    assert "the topology has no bookie groups, and the ledger asks for red" in str(record.__dict__["reason"])


def test_a_copy_outside_the_primary_groups_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    custom = wish("red", "green")
    metadata = LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (BookieId("a"),)),), custom=custom)
    with caplog.at_level(logging.INFO):
        log_targets_outside_groups(Placement(topology=TOPOLOGY), LEDGER, metadata, name_set("c g"))
    (record,) = caplog.records
    assert record.__dict__["bookies"] == ["g"]


@in_world(6)
async def test_a_writer_stays_in_the_groups_of_its_ledger(world: WriterWorld) -> None:
    world.ports.placement.topology = parse_topology(
        '{"red": {"b1": "/r", "b3": "/r", "b5": "/r"}, "blue": {"b0": "/r"}}'
    )
    writer = await world.client.create_ledger(LedgerOptions(2, 2, 2), custom=dict(wish("red")))
    began = set(writer.metadata.last_fragment.members)
    assert began < name_set("b1 b3 b5")
    await world.fill(writer, 2)
    world.member(writer, 0).refusal = Status.IO_ERROR
    await world.fill(writer, 2)
    went_on = set(writer.metadata.last_fragment.members)
    assert went_on < name_set("b1 b3 b5")
    assert went_on != began
    world.member(writer, 0).refusal = world.member(writer, 1).refusal = Status.IO_ERROR
    with pytest.raises(AddOutcomeUnknownError, match="3 registered in its bookie groups"):
        await world.fill(writer, 1)


@in_virtual_time
async def test_a_recovery_replaces_a_bookie_within_the_groups_of_its_ledger() -> None:
    async with recovery_world.a_world("a b c x y z") as world:
        world.ports.placement.topology = TOPOLOGY
        metadata = dataclasses.replace(make_metadata((0, "a b"), quorum=(2, 2)), custom=wish("red"))
        ledger = await world.ledgers.create(LEDGER, metadata)
        await world.put_all(ledger, 0, 3)
        await world.put("a", recovery_world.packet(4))
        world.stop_listening("b")
        closed = await world.recover()
        assert closed.members() <= name_set("a b c")
        assert "c" in closed.members()


@in_virtual_time
async def test_changed_groups_make_a_parked_ledger_due_again() -> None:
    memory, task = Memory(VirtualClock(), random.Random(1)), Task(LEDGER, (BookieId("b"),), 0, 0)
    ledger = Versioned(LEDGER, LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (BookieId("b"),)),)), 0)
    memory.record_parked(LEDGER, circumstances_of(task, ledger, registered("a x")), 0)
    assert memory.is_resting(LEDGER, circumstances_of(task, ledger, registered("a x")), ParkReason.NEEDS_RECOVERY)
    regrouped = dataclasses.replace(registered("a x"), groups=BookieGroups({"red": frozenset({"x"})}))
    assert not memory.is_resting(LEDGER, circumstances_of(task, ledger, regrouped), ParkReason.NEEDS_RECOVERY)
