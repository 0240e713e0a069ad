"""Which topics a drain unloads next."""

from __future__ import annotations

import pytest

from auditor.safety.unloading import (
    FAILURES_MAX,
    TOPICS_PER_ROUND_MAX,
    UNLOAD_INTERVAL_S_MIN,
    UNLOADS_MAX,
    Attempts,
    UnloadIneffectiveError,
    after,
    due,
    kept,
    unload_path,
    unloading_failure,
)
from bookie.model.errors import BkhealError, ConflictError, OutcomeUnknownError, PermanentError, TransientError

A, B = "persistent://t/n/a", "persistent://t/n/b"


@pytest.mark.parametrize(
    ("topic", "path"),
    [
        ("persistent://t/n/a-partition-3", "/admin/v2/persistent/t/n/a-partition-3/unload"),
        ("persistent://t/n/a b+c%2F?#é", "/admin/v2/persistent/t/n/a+b%2Bc%252F%3F%23%C3%A9/unload"),
        ("persistent://t x/n?/a", "/admin/v2/persistent/t%20x/n%3F/a/unload"),
        ("persistent://t/%2e%2e/a", "/admin/v2/persistent/t/%252e%252e/a/unload"),
        ("persistent://t/n/..%2F..", "/admin/v2/persistent/t/n/..%252F../unload"),
        ("persistent://t/cluster/n/a", ""),  # topic names of version 1 are not supported
        ("persistent://t/../a", ""),
        ("persistent://../n/a", ""),
        ("persistent://t/n/..", ""),
        ("persistent://t/n/.", ""),
        ("persistent://t//a", ""),
        ("persistent://t/n/", ""),
        ("non-persistent://t/n/a", ""),
        ("segment://t/n/a/0", ""),
        ("t/n/a", ""),
        ("", ""),
    ],
)
def test_only_a_valid_topic_has_an_unload_path(topic: str, path: str) -> None:
    assert unload_path(topic) == path


def test_a_topic_is_requested_once_per_period_whatever_the_answer() -> None:
    for error in (None, TransientError("x"), OutcomeUnknownError("x"), ConflictError("x")):
        attempts = {A: after(None, 100.0, error)}
        assert due({A, B}, attempts, 100.0 + UNLOAD_INTERVAL_S_MIN - 1) == (B,)
        assert due({A, B}, attempts, 100.0 + UNLOAD_INTERVAL_S_MIN) == (B, A)


def test_a_round_is_bounded_and_includes_every_topic_in_turn() -> None:
    topics = {f"persistent://t/n/{number:03}" for number in range(3 * TOPICS_PER_ROUND_MAX)}
    attempts: dict[str, Attempts] = {}
    seen: list[str] = []
    for now_s in range(3):
        chosen = due(topics, attempts, float(now_s))
        assert len(chosen) == TOPICS_PER_ROUND_MAX
        attempts |= {topic: after(None, float(now_s), TransientError("x")) for topic in chosen}
        seen += chosen
    assert sorted(seen) == sorted(topics)
    assert due(topics, attempts, UNLOAD_INTERVAL_S_MIN + 0.5) == tuple(seen[:TOPICS_PER_ROUND_MAX])


@pytest.mark.parametrize(
    ("error", "requests"),
    [
        (None, UNLOADS_MAX),
        (TransientError("x"), FAILURES_MAX),
        (OutcomeUnknownError("x"), FAILURES_MAX),
        (ConflictError("x"), FAILURES_MAX),
        (PermanentError("x"), 1),
    ],
)
def test_requests_for_a_topic_are_bounded(error: BkhealError | None, requests: int) -> None:
    attempts: dict[str, Attempts] = {}
    asked, now_s = 0, 0.0
    while topics := due({A}, attempts, now_s):
        assert unloading_failure({A}, attempts, now_s) is None
        attempts = kept({A: after(attempts.get(topics[0]), now_s, error)}, {A}, now_s)
        asked, now_s = asked + 1, now_s + UNLOAD_INTERVAL_S_MIN
    assert asked == requests
    reason = unloading_failure({A}, attempts, now_s)
    assert isinstance(reason, UnloadIneffectiveError) if error is None else reason is error


def test_failures_before_a_success_are_forgotten() -> None:
    record = None
    for _ in range(FAILURES_MAX - 1):
        record = after(record, 0.0, TransientError("x"))
    record = after(after(record, 0.0, None), 0.0, TransientError("x"))
    assert (record.unloads, record.failures, record.is_over) == (1, 1, False)


def test_waiting_goes_on_while_one_topic_may_still_be_unloaded() -> None:
    refused = PermanentError("x")
    attempts = {A: after(None, 0.0, refused)}
    assert unloading_failure({A, B}, attempts, 0.0) is None
    assert unloading_failure({A, "non-persistent://t/n/a"}, attempts, 0.0) is refused
    assert unloading_failure({"non-persistent://t/n/a"}, attempts, 0.0) is None
    assert unloading_failure(set(), attempts, 0.0) is None
    last = Attempts(100.0, unloads=UNLOADS_MAX)
    assert (
        unloading_failure({A}, {A: last}, 100.0 + UNLOAD_INTERVAL_S_MIN - 1) is None
    )  # its ledger may have been closed just now


def test_records_are_kept_as_long_as_they_matter() -> None:
    attempts = {A: after(None, 0.0, None), B: after(None, UNLOAD_INTERVAL_S_MIN, None)}
    assert kept(attempts, set(), UNLOAD_INTERVAL_S_MIN + 1).keys() == {B}
    assert kept(attempts, {A}, 10 * UNLOAD_INTERVAL_S_MIN).keys() == {A}
