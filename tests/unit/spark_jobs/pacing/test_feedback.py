"""The number of nodes that a task requests at a time, based on its measured latency."""

from __future__ import annotations

import pytest

from spark_jobs.pacing.feedback import MEASURE_INTERVAL_S, SLACK_S, SOON_S, WINDOW_MAX_NODES, Feedback

IDLE_S = 0.004
LIMIT_S = 0.008
AIM_S = 0.005


def begun(factor: float = 2.0, idle_s: float = IDLE_S, least_nodes_per_s: float = 0.0) -> Feedback:
    feedback = Feedback(factor, least_nodes_per_s)
    for latency_s in (3 * idle_s, idle_s, 2 * idle_s):
        feedback.begin(latency_s)
    return feedback


def seen(feedback: Feedback, latency_s: float, times: int = 1) -> Feedback:
    for _ in range(times):
        feedback.seen(latency_s)
    return feedback


def at_full_speed(idle_s: float = IDLE_S) -> Feedback:
    feedback = seen(begun(idle_s=idle_s), idle_s, 10)
    assert feedback.window == feedback.window_max
    return feedback


def test_a_new_task_begins_with_one_small_request_and_doubles_while_the_latency_stays_low() -> None:
    feedback = begun()
    windows = [feedback.window]
    for _ in range(5):
        windows.append(seen(feedback, AIM_S).window)
    assert windows == [20, 41, 83, 167, 335, 671]
    assert not feedback.nodes_per_s


def test_the_limit_is_a_multiple_of_the_shortest_latency() -> None:
    assert begun(2).limit_s == pytest.approx(LIMIT_S)
    assert begun(2).aim_s == pytest.approx(AIM_S)
    assert begun(5).limit_s == pytest.approx(5 * IDLE_S)
    assert seen(begun(2), IDLE_S / 4).limit_s == pytest.approx(IDLE_S / 4 + SLACK_S)


def test_a_few_slow_answers_do_not_reduce_the_window() -> None:
    feedback = at_full_speed()
    for latency_s in (*[LIMIT_S] * 4, AIM_S, *[100 * LIMIT_S] * 4, AIM_S):
        assert seen(feedback, latency_s).window == feedback.window_max


def test_at_the_limit_the_window_is_halved_every_five_measurements() -> None:
    feedback = at_full_speed()
    most = feedback.window
    assert seen(feedback, LIMIT_S, 4).window == most
    assert seen(feedback, LIMIT_S).window == pytest.approx(most / 2)
    assert seen(feedback, 10 * LIMIT_S, 4).window == pytest.approx(most / 2)
    assert seen(feedback, 10 * LIMIT_S).window == pytest.approx(most / 4)


def test_near_the_target_latency_the_window_hardly_changes() -> None:
    feedback = at_full_speed()
    assert seen(feedback, 1.1 * AIM_S, 5).window == pytest.approx(0.92 * feedback.window_max, rel=0.01)
    before = feedback.window
    assert seen(feedback, 0.99 * AIM_S).window == pytest.approx(1.0125 * before + 1, rel=0.01)


def test_a_slowed_task_recovers_when_the_latency_falls() -> None:
    feedback = seen(begun(), LIMIT_S, 60)
    assert feedback.window == 1
    looks = 0
    while feedback.window < feedback.window_max:
        seen(feedback, IDLE_S)
        looks += 1
    assert looks * MEASURE_INTERVAL_S < 3


def test_below_three_concurrent_requests_the_task_waits_between_requests() -> None:
    feedback = seen(begun(), LIMIT_S, 5)
    assert feedback.window == 10
    assert feedback.nodes_per_s == pytest.approx(10 / LIMIT_S)


def test_reading_never_stops_however_slow_the_server_is() -> None:
    feedback = seen(begun(least_nodes_per_s=500), 10.0, 100)
    assert feedback.nodes_per_s == 500


def test_a_distant_server_has_more_requests_in_flight() -> None:
    assert begun(idle_s=0.0003).window_max < 600
    assert begun(idle_s=0.020).window_max > 2_500
    assert begun(idle_s=1.0).window_max == WINDOW_MAX_NODES


def test_a_task_measures_more_often_while_its_window_may_have_to_change() -> None:
    assert begun().next_measurement_s == SOON_S
    feedback = at_full_speed()
    assert feedback.next_measurement_s == MEASURE_INTERVAL_S
    assert seen(feedback, LIMIT_S).next_measurement_s == SOON_S
    assert seen(feedback, AIM_S).next_measurement_s == MEASURE_INTERVAL_S
