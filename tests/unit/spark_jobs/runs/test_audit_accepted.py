"""Accepted losses: when they are valid, what is marked instead, and how a report shows them."""

from __future__ import annotations

from dataclasses import replace

from bookie.metadata.ledgers.serde import encode
from bookie.metadata.tasks.decisions import Decision, DecisionKind, LostFragment
from bookie.model.ids import EntryId, LedgerId
from spark_jobs.report.console import table
from spark_jobs.report.counts import AcceptedCounts
from spark_jobs.report.decoding import decode_summary
from spark_jobs.report.page.words import headline
from spark_jobs.runs.marking.accepted import accepted_losses, only_accepted
from tests.worlds.ledgers import make_metadata, name_set, names
from tests.worlds.report import CLEAN, UNDER_REPLICATED


def decision(ledger_id: int, bookies: str) -> Decision:
    lost = LostFragment(EntryId(0), EntryId(9), (0, 1), names(bookies))
    return Decision(LedgerId(ledger_id), DecisionKind.LOSS_ACCEPTED, "ops", 1, "fire", None, (lost, replace(lost)))


def test_an_accepted_loss_is_valid_while_none_of_its_bookies_is_registered() -> None:
    first, second, third = decision(1, "a b"), decision(2, "b c"), decision(3, "d e")
    losses = accepted_losses([first, second, third], name_set("c e x"))
    assert (losses.standing, losses.returned) == ((first,), (second, third))
    assert losses.bookies == name_set("a b")
    assert list(losses.markings()) == [(2, names("b c")), (3, names("d e"))]


def test_without_registered_bookies_every_accepted_loss_is_valid() -> None:
    assert accepted_losses([decision(1, "a b")], frozenset()).returned == ()
    assert accepted_losses([], name_set("a")).standing == ()


def test_a_bookie_is_given_up_if_every_copy_that_metadata_names_was_accepted_as_lost() -> None:
    first = encode(make_metadata((0, "a b"), quorum=(2, 2), last=9))
    second = encode(make_metadata((0, "a b c"), quorum=(3, 2), last=9))
    moved = encode(make_metadata((0, "a b"), (5, "a c"), quorum=(2, 2), last=9))
    decisions = [decision(1, "a b"), decision(2, "a b")]
    assert only_accepted(decisions, [first, second], {"a": 2, "b": 2, "c": 1}) == name_set("a b")
    assert only_accepted(decisions, [first, second], {"a": 3, "b": 2, "c": 1}) == name_set("b")
    assert only_accepted(decisions, [first, moved], {"a": 2, "b": 2, "c": 1}) == name_set("b")
    assert only_accepted(decisions, [first, None], {"a": 2, "b": 2}) == frozenset()
    assert only_accepted(decisions, [first, b"rubbish"], {"a": 2, "b": 1}) == name_set("b")


def test_a_bookie_is_not_given_up_because_of_a_deleted_ledger_with_the_same_id() -> None:
    made = make_metadata((0, "a b"), quorum=(2, 2), last=9)
    accepted = replace(decision(1, "a b"), ledger_ctime_ms=1000)
    for ctime_ms, is_given_up in ((1000, True), (2000, False), (None, False)):
        found = only_accepted([accepted], [encode(replace(made, ctime_ms=ctime_ms))], {"a": 1, "b": 1})
        assert found == (name_set("a b") if is_given_up else frozenset())


def test_a_report_counts_accepted_losses_and_not_their_ledgers_as_healthy() -> None:
    accepted = replace(CLEAN, accepted=AcceptedCounts(2, 3))
    assert "2 ledgers, 3 fragments: loss accepted, not marked" in table(accepted)
    assert "whose loss was accepted" in headline(accepted).text
    assert headline(CLEAN).text == "Every ledger has all of its copies."
    assert headline(replace(UNDER_REPLICATED, accepted=AcceptedCounts(2, 3))) == headline(UNDER_REPLICATED)
    returned = replace(CLEAN, accepted=AcceptedCounts(0, 0, 1))
    assert "1 ledger with an accepted loss: a bookie is back" in table(returned)


def test_a_summary_contains_accepted_losses_and_older_ones_have_none() -> None:
    document = dict(replace(CLEAN, accepted=AcceptedCounts(2, 3, 1)).to_json())
    assert decode_summary(document).accepted == AcceptedCounts(2, 3, 1)
    del document["accepted"]
    assert decode_summary(document).accepted == AcceptedCounts()
