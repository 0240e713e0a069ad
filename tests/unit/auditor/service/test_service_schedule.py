"""Texts of schedules, and when the first run of a new leader is due."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime

import pytest

from auditor.service.runs.schedule import (
    Cron,
    Every,
    InvalidScheduleError,
    Schedule,
    Scheduler,
    first_due_ms,
    parse_schedule,
    period_s,
)
from bookie.model.run import RunKind

DAY_MS = 86_400_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def cron(text: str) -> Cron:
    schedule = parse_schedule(text)
    assert isinstance(schedule, Cron)
    return schedule


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("off", None),
        (" OFF ", None),
        ("90s", Every(90)),
        ("15m", Every(900)),
        ("24h", Every(86_400)),
        ("7d", Every(604_800)),
    ],
)
def test_valid_schedules_are_parsed(text: str, expected: Every | None) -> None:
    assert parse_schedule(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a schedule"),
        ("daily", "not a schedule"),
        ("15", "not a schedule"),
        ("-5m", "not a schedule"),
        ("1s", "out of range"),
        ("400d", "out of range"),
        ("0 2 * *", "not a schedule"),
        ("0 25 * * *", "25"),
        ("99 2 * * *", "99"),
        ("0 2 1 * 1", "name one"),
        ("0 2 * * 8", "not a weekday"),
        ("0 2 * * mo", "not a weekday"),
        ("0 2 * * 1/0", "not a weekday"),
        ("@daily", "not a schedule"),
    ],
)
def test_invalid_schedules_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidScheduleError, match=why):
        parse_schedule(text)


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("0", "sun"),
        ("7", "sun"),
        ("1-5", "mon,tue,wed,thu,fri"),
        ("5-7", "fri,sat,sun"),
        ("fri-mon", "fri,sat,sun,mon"),
        ("1,3", "mon,wed"),
        ("*/3", "sun,wed,sat"),
        ("0-7", "sun,mon,tue,wed,thu,fri,sat"),
        ("sun-7", "sun,mon,tue,wed,thu,fri,sat"),
        ("1-1", "mon"),
        ("sun-sun", "sun"),
        ("7-7", "sun"),
        ("2-1", "tue,wed,thu,fri,sat,sun,mon"),
    ],
)
def test_days_of_the_week_follow_cron(field: str, days: str) -> None:
    assert cron(f"17 2 * * {field}").day_of_week == days


def test_a_cron_schedule_is_due_in_utc_on_the_right_day() -> None:
    saturday = ms("2026-11-21T00:00:00")
    assert first_due_ms(cron("17 2 * * 0"), 0, saturday, 3600, 0) == ms("2026-11-22T02:17:00")
    assert first_due_ms(cron("0 0 29 2 *"), 0, saturday, 3600, 0) == ms("2028-02-29T00:00:00")
    assert first_due_ms(cron("0 0 31 2 *"), 0, saturday, 3600, 0) is None


def test_the_first_run_of_an_interval_follows_from_the_last_success() -> None:
    now = 10 * DAY_MS
    hour = Every(3600)
    assert first_due_ms(hour, 0, now, 3600, 5) == now + 5000
    assert first_due_ms(hour, now - 600_000, now, 3600, 5) == now + 3_000_000
    assert first_due_ms(hour, now - DAY_MS, now, 3600, 5) == now + 5000
    assert first_due_ms(hour, now + DAY_MS, now, 3600, 5) == now + 5000  # a wrong clock must not stop audits


def test_a_cron_time_without_a_leader_is_made_up_for_within_the_grace_time() -> None:
    nightly, last = cron("0 2 * * *"), ms("2026-11-20T02:00:30")
    assert first_due_ms(nightly, last, ms("2026-11-21T02:30:00"), 3600, 0) == ms("2026-11-21T02:30:00")
    assert first_due_ms(nightly, last, ms("2026-11-21T03:30:00"), 3600, 0) == ms("2026-11-22T02:00:00")
    assert first_due_ms(nightly, ms("2026-11-21T02:00:30"), ms("2026-11-21T02:30:00"), 3600, 0) == ms(
        "2026-11-22T02:00:00"
    )


def test_a_success_from_the_future_does_not_delay_a_cron_schedule() -> None:
    now = ms("2026-11-21T03:00:00")
    assert first_due_ms(cron("0 2 * * *"), now + 365 * DAY_MS, now, 3600, 0) == ms("2026-11-22T02:00:00")


def test_the_period_is_the_longest_interval() -> None:
    now = ms("2026-11-21T00:00:00")
    assert period_s(Every(900), now) == 900
    assert period_s(cron("0 2 * * *"), now) == 86_400
    assert period_s(cron("0 2 * * 1-5"), now) == 3 * 86_400
    assert period_s(cron("0 8,18 * * *"), now) == 14 * 3600


async def test_the_scheduler_fires_overdue_runs_and_nothing_after_it_stopped() -> None:
    fired: asyncio.Queue[RunKind] = asyncio.Queue()
    schedules: dict[RunKind, Schedule] = {
        RunKind.BOOKIES: Every(86_400),
        RunKind.PLACEMENT: cron("0 0 1 1 *"),
        RunKind.REPLICAS: None,
    }
    scheduler = Scheduler(schedules, fired.put, jitter_s=0, misfire_grace_s=3600, rng=random.Random(1))
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    scheduler.start({}, now_ms)
    async with asyncio.timeout(10):
        assert await fired.get() is RunKind.BOOKIES
    planned = scheduler.next_run_ms()
    assert set(planned) == {RunKind.BOOKIES, RunKind.PLACEMENT}
    assert planned[RunKind.BOOKIES] == now_ms + DAY_MS
    scheduler.stop()
    scheduler.stop()
    assert scheduler.next_run_ms() == {}
    scheduler.start({RunKind.BOOKIES: now_ms}, now_ms)
    assert scheduler.next_run_ms()[RunKind.BOOKIES] == now_ms + DAY_MS
    scheduler.stop()
    await asyncio.sleep(0)
    assert fired.empty()
