"""The mass-loss brake."""

from __future__ import annotations

import pytest

from spark_jobs.runs.marking.brake import held_because

BOOKIES = frozenset("abcd")


@pytest.mark.parametrize(
    ("registered", "share"), [("abcd", 0.0), ("abc", 0.5), ("ab", 0.5), ("a", 0.75), ("abcd", 0.5), ("abcdefgh", 0.0)]
)
def test_a_loss_within_the_limit_does_not_activate_the_brake(registered: str, share: float) -> None:
    assert held_because(BOOKIES, frozenset(registered), 10, None, share) is None


@pytest.mark.parametrize(
    ("registered", "share", "text"),
    [
        ("a", 0.5, "3 of 4 known bookies are not registered, more than the limit of 50%"),
        ("a", 0.5, "bring them back, or raise the limit (--missing-share-max) if they are lost permanently"),
        ("abc", 0.0, "1 of 4 known bookies"),
        ("", 1.0, "none of 4 known bookies is registered"),
        ("x", 0.5, "4 of 4 known bookies"),
    ],
)
def test_a_loss_beyond_the_limit_activates_the_brake(registered: str, share: float, text: str) -> None:
    reason = held_because(BOOKIES, frozenset(registered), 10, None, share)
    assert reason is not None
    assert text in reason


@pytest.mark.parametrize(
    ("ledgers", "earlier", "holds"), [(0, 100, True), (0, 99, False), (0, None, False), (1, 10**6, False)]
)
def test_a_listing_that_is_suddenly_empty_activates_the_brake(ledgers: int, earlier: int | None, holds: bool) -> None:
    assert (held_because(BOOKIES, BOOKIES, ledgers, earlier, 0.5) is not None) == holds


def test_a_cluster_without_bookies_does_not_activate_the_brake() -> None:
    assert held_because(frozenset(), frozenset(), 0, None, 0.5) is None
