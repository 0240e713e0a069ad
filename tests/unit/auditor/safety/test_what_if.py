"""The effect of a loss of bookies: the severity that an audit without them would report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from auditor.safety.stopping import worst_fragment_risk
from auditor.safety.what_if import LedgerLoss, WhatIfTotals, loss_of
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.severity import Severity
from tests.worlds.ledgers import make_metadata, name_set

LEDGER = LedgerId(7)


def closed(*fragments: tuple[int, str], last: int = 9, quorum: tuple[int, int] = (2, 2)) -> LedgerMetadata:
    return make_metadata(*fragments, quorum=quorum).closed(EntryId(last), 10 * (last + 1))


def loss(metadata: LedgerMetadata, live: str, going: str, doubted: str = "") -> LedgerLoss | None:
    return loss_of(LEDGER, metadata, name_set(live), name_set(going), name_set(doubted))


def levels(metadata: LedgerMetadata, live: str, going: str, doubted: str = "") -> tuple[Severity | None, Severity, int]:
    found = loss(metadata, live, going, doubted)
    assert found is not None
    return found.before, found.after, found.copies_left


def test_losing_one_of_two_copies_is_critical_and_both_leave_none() -> None:
    metadata = closed((0, "a b"))
    assert levels(metadata, "a b", "a") == (None, Severity.CRITICAL, 1)
    assert levels(metadata, "a b", "a b") == (None, Severity.NO_LIVE_COPY, 0)


def test_copies_that_are_already_missing_count_too() -> None:
    metadata = closed((0, "a b c"), quorum=(3, 2))
    assert levels(metadata, "a b c", "a") == (None, Severity.BELOW_WRITE_QUORUM, 2)
    assert levels(metadata, "a b", "a") == (Severity.BELOW_WRITE_QUORUM, Severity.CRITICAL, 1)


def test_a_marked_copy_does_not_count_as_left() -> None:
    metadata = closed((0, "a b c"), quorum=(3, 2))
    assert levels(metadata, "a b c", "a", "b") == (Severity.BELOW_WRITE_QUORUM, Severity.CRITICAL, 1)
    assert levels(metadata, "a b c", "a", "a") == (Severity.BELOW_WRITE_QUORUM, Severity.BELOW_WRITE_QUORUM, 2)


def test_losing_a_marked_copy_may_lose_the_only_one() -> None:
    metadata = closed((0, "a b"))
    assert levels(metadata, "a", "a", "a") == (Severity.CRITICAL, Severity.NO_LIVE_COPY, 0)
    assert levels(metadata, "a b", "a", "a b") == (Severity.CRITICAL, Severity.NO_LIVE_COPY, 0)
    assert levels(metadata, "a b", "a b", "a b") == (None, Severity.NO_LIVE_COPY, 0)
    assert levels(metadata, "b", "a", "a b") == (Severity.NO_LIVE_COPY, Severity.NO_LIVE_COPY, 0), "a is already lost"


@pytest.mark.parametrize("doubted", ["", "a", "b", "a b", "c", "a b c"])
@pytest.mark.parametrize("going", ["a", "b", "a b"])
@pytest.mark.parametrize("live", ["a", "a b", "a b c", "b c"])
def test_each_ledger_that_ok_to_stop_would_report_as_lost_is_worse_off(live: str, going: str, doubted: str) -> None:
    metadata = closed((0, "a b c"), quorum=(3, 2))
    stopping, doubts = name_set(going), name_set(doubted)
    risk = worst_fragment_risk(LEDGER, metadata, name_set(live), stopping, is_strict=False, doubted=doubts)
    found = loss(metadata, live, going, doubted)
    assert found is not None
    assert (found.is_worse and found.after is Severity.NO_LIVE_COPY) == (risk is not None)


def test_losing_a_bookie_without_entries_or_registration_changes_nothing() -> None:
    metadata = closed((0, "a b"))
    assert loss(metadata, "a b c", "c") is None
    gone = loss(metadata, "b", "a")
    assert gone is not None
    assert (gone.before, gone.after, gone.is_worse, gone.bytes_estimate) == (
        Severity.CRITICAL,
        Severity.CRITICAL,
        False,
        0,
    )


def test_the_worst_fragment_counts_and_one_without_entries_does_not_count() -> None:
    metadata = closed((0, "a b"), (10, "c d"))
    assert levels(metadata, "a b c d", "c d") == (None, Severity.METADATA_ONLY, 2)
    assert levels(metadata, "a b c d", "a c") == (None, Severity.CRITICAL, 1)


def test_bytes_are_estimated_for_the_bookies_that_would_be_lost() -> None:
    found = loss(closed((0, "a b c"), quorum=(2, 2)), "a b c", "a b")
    assert found is not None
    assert found.bytes_estimate == 133  # 100 bytes of payload; each of three positions stores two thirds of it


def test_positions_without_entries_have_no_bytes_to_copy() -> None:
    found = loss(closed((0, "a b"), last=0, quorum=(1, 1)), "a b", "b")
    assert found is not None
    assert (found.after, found.bytes_estimate) == (Severity.METADATA_ONLY, 0)


def test_sums_are_by_severity_and_topic_and_the_worst_are_the_largest() -> None:
    losses = WhatIfTotals(worst_max=2)
    custom = (("application", b"pulsar"), ("component", b"managed-ledger"))
    named = replace(
        closed((0, "a b")), custom=(*custom, ("pulsar/managed-ledger", b"public/default/persistent/orders"))
    )
    for number, (metadata, going) in enumerate(
        [(named, "a"), (named, "a b"), (closed((0, "a b"), last=99), "a"), (closed((0, "a b")), "a")]
    ):
        found = loss_of(LedgerId(number), metadata, name_set("a b"), name_set(going))
        assert found is not None
        losses.add(found, metadata)
    gone = loss_of(LedgerId(9), closed((0, "a b"), (5, "c d")), name_set("c d a"), name_set("c"))
    assert gone is not None
    assert not gone.is_worse, "an entry of the first fragment already has only one copy left"
    losses.add(gone, named)
    assert dict(losses.ledgers) == {Severity.CRITICAL: 3, Severity.NO_LIVE_COPY: 1}
    assert dict(losses.already) == {Severity.CRITICAL: 1}
    assert [each.ledger_id for each in losses.worst] == [1, 2]
    assert losses.topics == {"persistent://public/default/orders": (Severity.NO_LIVE_COPY, 2)}
    assert losses.unnamed == 2
