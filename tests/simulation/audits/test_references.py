"""The rules of the placement and the replicas check agree with the plain references, in many random cases."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

from auditor.safety.lost_entries import lost_fragments
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.bookies.topology import parse_topology
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.decisions import Decision, DecisionKind
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.isolation import isolation_of
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.severity import Severity
from bookie.model.spread import PlacementPolicy
from bookie.wire.port import Status
from bookie.wire.security import SecurityFiles
from spark_jobs.checks.placement_rules import PlacementRules
from spark_jobs.checks.replicas.asking import Asker
from spark_jobs.checks.replicas.expected import settled_metadata
from spark_jobs.checks.replicas.task import TaskSettings, accepted_entries, answer_rows
from tests.simulation.audits.holding import ENTRIES, HeldEntries, HeldEntriesTransport, ReplicaJudge
from tests.simulation.audits.placing import NO_WISH, POLICY_KEY, PlacementJudge, Places, policy_data, wish_of
from tests.worlds.clocks import ManualClock

CASES: Final = 200
BOOKIES: Final = tuple(BookieId(f"b{number}:1") for number in range(7))
RACKS: Final = (
    ("/r1",),
    ("/r1", "/r2"),
    ("/r1", "/r2", "/r3"),
    ("/eu/r1", "/eu/r2", "/us/r1"),
    ("/eu/z1/r1", "/eu/z2/r1", "/us/z1/r1", "/us/r9", "/r8"),
)
WISHES: Final = (("red", ""), ("red", "blue"), ("red,red2", ""), ("*", ""), ("", "blue"), ("nope", "blue"), ("", ""))


def some_of(rng: random.Random, share: float) -> frozenset[BookieId]:
    return frozenset(bookie for bookie in BOOKIES if rng.random() < share)


def drawn_members(rng: random.Random, size: int) -> tuple[BookieId, ...]:
    """Return an ensemble; some name a bookie twice."""
    return tuple(rng.choices(BOOKIES, k=size) if rng.random() < 0.1 else rng.sample(BOOKIES, size))


def drawn_topology(rng: random.Random) -> str:
    racks = rng.choice(RACKS)
    places: dict[str, str] = {bookie: rng.choice(racks) for bookie in sorted(some_of(rng, 0.95))}
    if rng.random() < 0.2:
        places = {bookie.split(":")[0]: where for bookie, where in places.items()}
    if rng.random() < 0.4:
        return json.dumps(places)
    groups: dict[str, dict[str, object]] = {}
    for bookie, where in places.items():
        for group in rng.sample(["red", "red2", "blue", "default"], rng.choice([1, 1, 1, 2])):
            groups.setdefault(group, {})[bookie] = {"rack": where}
    return json.dumps(groups)


def test_placement_rules_agree_with_the_reference() -> None:
    for seed in range(CASES):
        rng = random.Random(seed)
        text = drawn_topology(rng)
        topology, places = parse_topology(text), Places.read(text.encode())
        assert places is not None
        registered = some_of(rng, 0.8)
        writable = some_of(rng, 0.9) & registered
        bookies = Bookies(writable, registered - writable, some_of(rng, 0.15))
        racks, zones, regions = rng.choice([(2, 1, 1), (3, 1, 1), (2, 2, 1), (2, 1, 2), (3, 2, 2), (1, 1, 1)])
        policy = PlacementPolicy(racks, zones, regions, is_strict=rng.random() < 0.3)
        known = some_of(rng, 0.9) | bookies.registered
        rules = PlacementRules.of(policy, topology, sorted(known), bookies)
        judge = PlacementJudge(policy, places, known, bookies.writable, bookies.staying)
        for _ in range(5):
            size = rng.randrange(1, 6)
            quorum, members = rng.randrange(1, size + 1), drawn_members(rng, size)
            custom = {POLICY_KEY: policy_data(*rng.choice(WISHES))} if rng.random() < 0.7 else {}
            wish = isolation_of(custom.items()) if places.groups else None
            verdict = rules.judge(members, quorum, wish)
            expected = judge.judged(0, members, quorum, wish_of(custom) if places.groups else NO_WISH)
            found = verdict.spread.value, verdict.is_outside, verdict.is_fixable
            case = seed, text, members, quorum, policy, custom, bookies
            assert found == (expected.verdict, expected.is_outside, expected.is_fixable), case


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Ledgers that do not change between the two looks."""

    ledgers: Mapping[LedgerId, LedgerMetadata]

    async def current(self, ledger_id: LedgerId) -> Versioned | None:
        return Versioned(ledger_id, self.ledgers[ledger_id], 1)


def drawn_ledger(rng: random.Random) -> LedgerMetadata:
    size = rng.randrange(1, 6)
    write_quorum = rng.randrange(1, size + 1)
    firsts = (0, *sorted(rng.sample(range(1, 20), rng.choice([0, 0, 1, 2, 3]))))
    fragments = tuple(Fragment(EntryId(first), drawn_members(rng, size)) for first in firsts)
    ctime_ms, ack_quorum = rng.choice([None, 5]), rng.randrange(write_quorum + 1)
    metadata = LedgerMetadata(size, write_quorum, ack_quorum, fragments, ctime_ms=ctime_ms)
    return metadata.closed(EntryId(rng.choice([-1, 0, 3, 10, 20, 40])), 100) if rng.random() < 0.75 else metadata


def take_some(held: HeldEntries, ledger_id: LedgerId, metadata: LedgerMetadata, rng: random.Random) -> None:
    at = rng.randrange(21)
    entries = rng.choice([range(ENTRIES), [at], [at, rng.randrange(21)], range(at, 30), [0]])
    copy = rng.choice(sorted(metadata.members())), ledger_id
    held.take(copy, frozenset(entries), is_damage=rng.random() < 0.25)


def drawn_decision(
    held: HeldEntries,
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    registered: AbstractSet[BookieId],
    rng: random.Random,
) -> Decision | None:
    everything = EntryRuns.of(range(ENTRIES))
    listed = {
        bookie: everything.without(EntryRuns.of(sorted(entries)))
        for (bookie, of_ledger), entries in held.absent.items()
        if of_ledger == ledger_id and bookie in registered
    }
    lost = lost_fragments(metadata, metadata.members() - registered, listed)
    if not lost:
        return None
    if rng.random() < 0.3:
        lost = tuple(replace(each, entries=(), shared=()) for each in lost)
    ctime_ms = rng.choice([None, metadata.ctime_ms, 6])
    return Decision(ledger_id, DecisionKind.LOSS_ACCEPTED, "me", 1, "", lost=lost, ledger_ctime_ms=ctime_ms)


async def test_the_replicas_check_agrees_with_the_reference() -> None:
    reached: Counter[str] = Counter()
    for seed in range(CASES):
        rng = random.Random(seed)
        registered = some_of(rng, 0.8)
        held = HeldEntries(apache=set(some_of(rng, 0.3)))
        if rng.random() < 0.4:
            held.answers[rng.choice(BOOKIES)] = rng.choice([Status.LIMBO, Status.IO_ERROR, Status.TIMEOUT])
        ledgers = {LedgerId(number): drawn_ledger(rng) for number in range(1, 4)}
        accepted: dict[LedgerId, Decision] = {}
        for ledger_id, metadata in ledgers.items():
            for _ in range(rng.randrange(6)):
                take_some(held, ledger_id, metadata, rng)
            decision = drawn_decision(held, ledger_id, metadata, registered, rng) if metadata.is_closed else None
            if decision is not None and rng.random() < 0.7:
                accepted[ledger_id] = decision
                if rng.random() < 0.4:
                    take_some(held, ledger_id, metadata, rng)
                if rng.random() < 0.3 and held.absent:
                    del held.absent[rng.choice(sorted(held.absent))]
        registered |= some_of(rng, 0.05)
        rows = await asked(ledgers, held, registered, accepted)
        expected, unknown = judged(ledgers, ReplicaJudge(held, registered), accepted)
        found = {
            (row["ledger_id"], row["fragment_index"]): (
                row["kind"],
                row["severity"],
                row["missing_positions"],
                frozenset(row["missing"]),
            )
            for row in rows[:-1]
        }
        case = seed, ledgers, held, registered, accepted
        assert found == expected, case
        counted: Counter[str] = Counter()
        for each in rows[-1]["counts"]["unknown"]:
            counted[each["bookie_id"]] += each["ledgers"]
        assert counted == unknown, case
        reached.update(str(each[0]) for each in expected.values())
    assert min(reached[kind] for kind in ("MISSING_ENTRIES", "DAMAGED_ENTRIES", "LOSS_ACCEPTED")) > CASES / 20


async def asked(
    ledgers: Mapping[LedgerId, LedgerMetadata],
    held: HeldEntries,
    registered: AbstractSet[BookieId],
    accepted: Mapping[LedgerId, Decision],
) -> list[dict[str, Any]]:
    """Return the rows of a task: its findings, and its counts as the last one."""

    async def now_registered() -> AbstractSet[BookieId]:
        return registered

    async def decision(ledger_id: LedgerId) -> Decision | None:
        return accepted.get(ledger_id)

    asker = Asker(
        HeldEntriesTransport(held, lambda: registered),
        Unchanged(ledgers),
        now_registered,
        ManualClock(turns=0),
        accepted_entries({ledger_id: each.lost for ledger_id, each in accepted.items()}),
        decision,
    )
    answers = await asker.ask_all([settled_metadata(*each) for each in ledgers.items()], registered)
    settings = TaskSettings("", 1, frozenset(registered), SecurityFiles(), accepted=accepted)
    return [*answer_rows(answers, settings).to_pylist()]


def judged(
    ledgers: Mapping[LedgerId, LedgerMetadata], judge: ReplicaJudge, accepted: Mapping[LedgerId, Decision]
) -> tuple[dict[tuple[int, int], tuple[object, ...]], Counter[BookieId]]:
    """Return the findings and the numbers of unknown answers of the reference."""
    found: dict[tuple[int, int], tuple[object, ...]] = {}
    unknown: Counter[BookieId] = Counter()
    for ledger_id, metadata in ledgers.items():
        unknown.update(judge.unknown(metadata, ledger_id))
        for each in judge.lacking(metadata, ledger_id):
            kind, severity = "DAMAGED_ENTRIES" if each.is_damaged else "MISSING_ENTRIES", each.severity
            if judge.is_accepted(metadata, ledger_id, each, accepted.get(ledger_id)):
                kind, severity = "LOSS_ACCEPTED", Severity.LOST
            found[ledger_id, each.number] = kind, severity.label, list(each.positions), each.missing
    return found, unknown
