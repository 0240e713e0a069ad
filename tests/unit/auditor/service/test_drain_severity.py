"""The severity of a drain: none, as long as the drained bookie is registered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from auditor.service.watch.backlog import BacklogCounter, LedgerVerdict, judge
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.model.ids import BookieId, LedgerId
from bookie.model.severity import Severity, fragment_health
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import make_metadata, names
from tests.worlds.repair import a_world
from tests.worlds.virtual_time import in_virtual_time


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.integers(1, 6),
    st.integers(1, 6),
    st.none() | st.integers(-1, 20),
)
def test_a_drain_does_not_change_the_severity_of_lost_copies(
    positions: list[tuple[bool, bool]], write: int, ack: int, last: int | None
) -> None:
    is_live, leaving = zip(*positions, strict=True)
    write = min(write, len(is_live))
    ack = min(ack, write)
    before = fragment_health(is_live, write, ack, 0, last)
    after = fragment_health(is_live, write, ack, 0, last, leaving)
    assert after.copies_min == before.copies_min
    assert set(after.missing_positions) == {i for i, (live, left) in enumerate(positions) if not live or left}
    if before.severity is not None:
        assert after.severity is before.severity
    else:
        assert after.severity is (Severity.DRAIN if any(leaving) else None)


def test_bytes_that_a_drain_has_to_move_are_counted() -> None:
    ledger = make_metadata((0, "a b c"), quorum=(2, 2), last=9, length=1000)
    assert judge(ledger, frozenset(names("a b c"))) == LedgerVerdict(None, 0)
    assert judge(ledger, frozenset(names("a b c")), frozenset(names("b"))) == LedgerVerdict(Severity.DRAIN, 667)
    assert judge(ledger, frozenset(names("a b")), frozenset(names("b"))).severity is Severity.CRITICAL


@in_virtual_time
async def test_the_backlog_distinguishes_drained_ledgers_from_healthy_ones() -> None:
    async with a_world("a b c") as world:
        for ledger, members in ((1, "a b"), (2, "a c")):
            await world.ledgers.create(LedgerId(ledger), make_metadata((0, members), quorum=(2, 2), last=9, length=100))
            await world.tasks.marking.mark(LedgerId(ledger), names("b"))
        drains = Drains(world.store, ROOT)
        await drains.start(Drain(BookieId("b"), "test", 1))
        counter = BacklogCounter(world.tasks, world.ledgers, world.registrations, world.parked, world.clock, drains)
        backlog = await counter.count()
        assert {severity: part.ledgers for severity, part in backlog.severities.items()} == {Severity.DRAIN: 1}
        assert backlog.healthy.ledgers == 1
