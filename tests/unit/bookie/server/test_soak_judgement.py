"""What the soak test counts as growth, and which deleted ledgers a bookie may still hold."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import pytest

from tests.soak.judgement import (
    DISK_CONSTANT_BYTES,
    HANDLES_SLACK,
    HEADER,
    MEMORY_SLACK_BYTES,
    Sample,
    Waiting,
    lives,
    problem_of,
    row,
)

MB = 1_000_000
COLD = Sample(
    at_s=10,
    life=0,
    ledgers=5,
    written_bytes=30 * MB,
    rss_bytes=200 * MB,
    handles=50,
    disk_bytes=40 * MB,
    live_bytes=20 * MB,
    waiting_bytes=10 * MB,
    is_warm=False,
)
WARM = replace(COLD, at_s=80, is_warm=True)


def test_a_bookie_within_its_warm_up_maximum_and_slack_has_no_problem() -> None:
    at_the_bound = replace(WARM, rss_bytes=COLD.rss_bytes + MEMORY_SLACK_BYTES, handles=COLD.handles + HANDLES_SLACK)
    assert problem_of([COLD, replace(COLD, rss_bytes=0, handles=0), WARM, at_the_bound]) is None


def test_memory_above_the_warm_up_maximum_and_slack_is_growth() -> None:
    found = problem_of([COLD, replace(WARM, rss_bytes=COLD.rss_bytes + MEMORY_SLACK_BYTES + 1)])
    assert found is not None
    assert "memory" in found


def test_file_handles_above_the_warm_up_maximum_and_slack_are_growth() -> None:
    found = problem_of([COLD, replace(WARM, handles=COLD.handles + HANDLES_SLACK + 1)])
    assert found is not None
    assert "handles" in found


def test_growth_during_the_warm_up_is_allowed() -> None:
    assert problem_of([COLD, replace(COLD, rss_bytes=10 * COLD.rss_bytes, handles=1000)]) is None


@pytest.mark.parametrize("sample", [COLD, WARM])
def test_the_disk_may_hold_twice_the_uncollected_bytes_plus_a_constant(sample: Sample) -> None:
    most = 2 * (sample.live_bytes + sample.waiting_bytes) + DISK_CONSTANT_BYTES
    assert problem_of([COLD, replace(sample, disk_bytes=most)]) is None
    found = problem_of([COLD, replace(sample, disk_bytes=most + 1)])
    assert found is not None
    assert "disk" in found


def test_the_first_collection_after_a_start_frees_what_was_deleted_before_it() -> None:
    waiting = Waiting()
    waiting.deleted(5, 100)
    waiting.bookie_started(10)
    waiting.deleted(12, 20)
    assert not waiting.looked(13, 0)
    assert waiting.bytes == 120
    assert waiting.looked(80, 7)
    assert waiting.bytes == 20


def test_a_later_collection_frees_what_was_deleted_before_the_previous_one_ended() -> None:
    waiting = Waiting()
    waiting.bookie_started(10)
    waiting.deleted(70, 1)
    assert not waiting.looked(77, 0)
    waiting.deleted(79, 20)  # possibly after the end of the first collection and the start of the second
    assert waiting.looked(80, 7)
    assert not waiting.looked(100, 7)
    assert waiting.bytes == 21
    assert waiting.looked(150, 8)
    assert waiting.bytes == 20


def test_a_restarted_bookie_counts_collections_from_0() -> None:
    waiting = Waiting()
    waiting.bookie_started(0)
    assert waiting.looked(70, 7)
    waiting.deleted(75, 20)
    waiting.bookie_started(80)
    assert not waiting.looked(83, 0)
    assert waiting.looked(150, 3)
    assert waiting.bytes == 0


def test_bookie_processes_of_each_length_end_by_both_signals() -> None:
    ends = {(life.collections, life.is_killed) for life in islice(lives(random.Random(0)), 14)}
    assert ends == {(collections, is_killed) for collections in (0, 1, 3, 6) for is_killed in (True, False)}


def test_the_columns_of_a_row_are_aligned_with_their_titles() -> None:
    assert len(row(COLD)) == len(HEADER)
    assert row(COLD).split() == [
        "0:10",
        "0",
        "5",
        "30",
        "200",
        "50",
        "40",
        "20",
        "10",
        f"{(60 * MB + DISK_CONSTANT_BYTES) / 1e6:.0f}",
    ]
