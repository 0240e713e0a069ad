"""Which bookie gets the copy of a lost position: policy, free space, copies it already has, and earlier attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from bookie.client.placement.placement import Placement, PlacementPolicy
from bookie.metadata.bookies.topology import parse_topology
from bookie.model.ids import BookieId, EntryId, LedgerId
from replicator.knowledge.target_use import LEDGERS_MAX, TargetUse
from replicator.plan.steps import PositionKey
from replicator.plan.target_choice import Begun, target_chooser
from tests.worlds.ledgers import LEDGER, names

KEY = PositionKey(EntryId(0), 1, BookieId("b"))
GIB = 1 << 30


def chosen(
    ledger_id: int, spare: str, placement: Placement | None = None, begun: Begun | None = None, **positions: int
) -> str | None:
    counts = {BookieId(name): count for name, count in positions.items()}
    choose = target_chooser(LedgerId(ledger_id), 2, placement or Placement(), begun or {}, counts)
    return choose(KEY, names("a b"), names(spare))


def shares(placement: Placement) -> Mapping[str | None, int]:
    return Counter(chosen(ledger_id, "t u v", placement) for ledger_id in range(600))


def test_bookies_with_more_free_space_get_more_copies() -> None:
    free = dict(zip(names("t u v"), (100 * GIB, 50 * GIB, 10 * GIB), strict=True))
    counts = shares(Placement(free_bytes=free))
    assert counts["t"] > 1.5 * counts["u"] > 4 * counts["v"]


def test_a_bookie_without_free_space_gets_copies_only_without_an_alternative() -> None:
    placement = Placement(free_bytes=dict(zip(names("t u v"), (GIB, GIB, 0), strict=True)))
    assert shares(placement)["v"] < 10
    assert chosen(1, "v", placement) == "v"


def test_a_bookie_without_published_free_space_counts_as_the_median() -> None:
    counts = shares(Placement(free_bytes=dict(zip(names("t u"), (GIB, GIB), strict=True))))
    assert min(counts[name] for name in "tuv") > 120


def test_a_bookie_that_is_receiving_fewer_copies_is_preferred() -> None:
    for ledger_id in range(50):
        assert chosen(ledger_id, "t u", t=5) == "u"
        assert chosen(ledger_id, "t u", t=5, u=4) == "u"
        assert chosen(ledger_id, "t", t=5) == "t"


def test_choices_that_count_others_spread_the_copies() -> None:
    counts: Counter[BookieId] = Counter()
    for ledger_id in range(300):
        choose = target_chooser(LedgerId(ledger_id), 2, Placement(), {}, counts)
        target = choose(KEY, names("a b"), names("t u v w x"))
        assert target is not None
        counts[target] += 1
    assert max(counts.values()) - min(counts.values()) <= 6


def test_equal_counts_do_not_change_the_choice() -> None:
    for ledger_id in range(50):
        assert chosen(ledger_id, "t u v", t=3, u=3, v=3) == chosen(ledger_id, "t u v")


def test_a_started_copy_continues_at_its_target_however_busy_it_is() -> None:
    for ledger_id in range(50):
        assert chosen(ledger_id, "t u v", begun={(EntryId(0), 1): BookieId("t")}, t=100) == "t"


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_less_busy_bookie_in_the_wrong_rack_is_not_preferred(is_strict: bool) -> None:
    topology = parse_topology('{"a": "/r1", "b": "/r2", "t": "/r2", "u": "/r1"}')
    placement = Placement(PlacementPolicy(is_strict=is_strict), topology)
    for ledger_id in range(50):
        assert chosen(ledger_id, "t u", placement, t=100) == "t"


def test_positions_count_during_a_round_and_choices_until_the_ledger_is_repaired() -> None:
    use = TargetUse()
    targets = {(EntryId(0), 1): BookieId("t"), (EntryId(0), 2): BookieId("u"), (EntryId(9), 1): BookieId("t")}
    with use.copying(LEDGER, targets):
        assert dict(use.positions) == {"t": 2, "u": 1}
    assert dict(use.positions) == {}
    assert use.chosen(LEDGER) == targets
    with use.copying(LEDGER, {}):
        assert use.chosen(LEDGER) == targets
    use.forget(LEDGER)
    assert use.chosen(LEDGER) == {}


def test_remembered_choices_are_bounded() -> None:
    use = TargetUse()
    for number in range(LEDGERS_MAX + 10):
        with use.copying(LedgerId(number), {(EntryId(0), 1): BookieId("t")}):
            pass
    assert use.chosen(LedgerId(0)) == {}
    assert use.chosen(LedgerId(LEDGERS_MAX + 9)) != {}
