"""Schedules of the checks: their texts, and the scheduler that starts runs while this process leads.

The first run of an interval is computed from the last success in the store. So restarts and changes of leader
neither skip nor repeat a run. A cron time that passed without a leader is made up for within the grace time.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeAlias

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from bookie.model.errors import PermanentError
from bookie.model.run import RunKind

_log = logging.getLogger(__name__)

INTERVAL_MIN_S: Final = 10
"""The shortest interval. A check takes longer than this, so a smaller number was meant in another unit."""
INTERVAL_MAX_S: Final = 366 * 86_400
_JITTER_SHARE_MAX: Final = 0.1
"""Longest jitter as a share of the interval, so that a short interval is not mostly jitter."""
_FIRINGS_EXAMINED: Final = 400
"""Firings that are computed to find the longest gap of a cron schedule: more than a year of daily runs."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_INTERVAL: Final = re.compile(r"([0-9]{1,9})([smhd])")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_CRON_FIELDS: Final = ("minute", "hour", "day of month", "month", "day of week")


class InvalidScheduleError(PermanentError):
    """The text is not a valid schedule; the message contains the reason."""


@dataclass(frozen=True, slots=True)
class Every:
    """A run after each interval, in seconds."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Cron:
    """A run at the times of a cron expression, in UTC. Days of the week are names here."""

    minute: str
    hour: str
    day: str
    month: str
    day_of_week: str


Schedule: TypeAlias = Every | Cron | None
"""An interval or a cron expression; None: off."""


def parse_schedule(text: str) -> Schedule:
    """Parse ``off``, an interval (``90s``, ``15m``, ``24h``, ``7d``), or a cron expression of five fields in UTC.

    Raises:
        InvalidScheduleError: it is none of these.
    """
    words = text.split()
    if text.strip().lower() == "off":
        return None
    if len(words) == 1 and (match := _INTERVAL.fullmatch(words[0])):
        seconds = int(match[1]) * _UNITS[match[2]]
        if not INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S:
            raise InvalidScheduleError(f"{text!r} is out of range: an interval is {INTERVAL_MIN_S}s to 366d")
        return Every(seconds)
    if len(words) != len(_CRON_FIELDS):
        raise InvalidScheduleError(
            f'{text!r} is not a schedule: write "off", an interval such as "15m" or "24h", or five cron fields '
            f'({", ".join(_CRON_FIELDS)}) in UTC such as "17 2 * * 0"'
        )
    if words[2] != "*" and words[4] != "*":
        raise InvalidScheduleError(
            f"{text!r} names a day of the month and a day of the week; programs disagree on what that means: name one"
        )
    minute, hour, day, month, day_of_week = words
    cron = Cron(minute, hour, day, month, _weekdays(day_of_week, text))
    _cron_trigger(cron, text)
    return cron


def period_s(schedule: Every | Cron, now_ms: int) -> float:
    """Return the longest time between two runs, in seconds and without jitter."""
    if isinstance(schedule, Every):
        return float(schedule.seconds)
    trigger, at = _cron_trigger(schedule), _time(now_ms)
    longest = timedelta()
    previous = trigger.get_next_fire_time(None, at)
    for _ in range(_FIRINGS_EXAMINED):
        if previous is None:
            break
        following = trigger.get_next_fire_time(previous, previous + timedelta(seconds=1))
        if following is None:
            break
        longest, previous = max(longest, following - previous), following
    return longest.total_seconds()


def first_due_ms(
    schedule: Every | Cron, last_success_ms: int, now_ms: int, misfire_grace_s: int, spread_s: float
) -> int | None:
    """Return when the first run of a new leader is due; None: never.

    Args:
        schedule: the schedule.
        last_success_ms: when the last successful run began, 0 if there was none; a time in the future, from a wrong
            clock, counts as none.
        now_ms: now.
        misfire_grace_s: how late a cron time may still be made up for.
        spread_s: longest delay of an overdue run.
    """
    overdue_ms = now_ms + int(spread_s * 1000)
    if last_success_ms > now_ms:
        last_success_ms = 0
    if isinstance(schedule, Every):
        if not last_success_ms:
            return overdue_ms
        return max(last_success_ms + schedule.seconds * 1000, overdue_ms)
    trigger = _cron_trigger(schedule)
    since_ms = max(last_success_ms + 1000, now_ms - misfire_grace_s * 1000) if last_success_ms else now_ms
    due: datetime | None = trigger.get_next_fire_time(None, _time(since_ms))
    return None if due is None else max(int(due.timestamp() * 1000), overdue_ms)


class SchedulerPort(Protocol):
    """The schedules of the service (``Scheduler``)."""

    def start(self, last_success_ms: Mapping[RunKind, int], now_ms: int) -> None:
        """Start the schedules."""
        ...

    def stop(self) -> None:
        """Stop the schedules."""
        ...

    def next_run_ms(self) -> Mapping[RunKind, int]:
        """Return the next time of each kind."""
        ...


class Scheduler:
    """Starts runs while this process leads: from ``start`` to ``stop``. Times are the machine's, in UTC."""

    def __init__(
        self,
        schedules: Mapping[RunKind, Schedule],
        fire: Callable[[RunKind], Awaitable[None]],
        *,
        jitter_s: int,
        misfire_grace_s: int,
        rng: random.Random,
    ) -> None:
        self._schedules = schedules
        self._fire = fire
        self._jitter_s = jitter_s
        self._misfire_grace_s = misfire_grace_s
        self._rng = rng
        self._scheduler: Any = None

    def start(self, last_success_ms: Mapping[RunKind, int], now_ms: int) -> None:
        """Start the schedules. ``last_success_ms`` is the last success of each kind, under any leader."""
        self.stop()
        logging.getLogger("apscheduler").setLevel(logging.WARNING)  # at INFO it logs every job
        self._scheduler = AsyncIOScheduler(
            timezone=UTC,
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": self._misfire_grace_s},
        )
        for kind, schedule in self._schedules.items():
            if schedule is not None:
                self._add(kind, schedule, last_success_ms.get(kind, 0), now_ms)
        self._scheduler.start()

    def stop(self) -> None:
        """Stop the schedules. Runs that have started continue. Idempotent."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None and scheduler.running:
            scheduler.remove_all_jobs()
            scheduler.shutdown(wait=False)

    def next_run_ms(self) -> Mapping[RunKind, int]:
        """When each kind runs next; empty while stopped."""
        jobs = [] if self._scheduler is None else self._scheduler.get_jobs()
        return {RunKind(job.id): int(job.next_run_time.timestamp() * 1000) for job in jobs if job.next_run_time}

    def _add(self, kind: RunKind, schedule: Every | Cron, last_success_ms: int, now_ms: int) -> None:
        jitter_s = self._jitter(schedule)
        spread_s = self._rng.uniform(0, jitter_s)
        due_ms = first_due_ms(schedule, last_success_ms, now_ms, self._misfire_grace_s, spread_s)
        if due_ms is None:
            _log.warning("schedule never comes due", extra={"kind": kind.value})
            return
        due = _time(due_ms)
        if isinstance(schedule, Every):
            trigger = IntervalTrigger(seconds=schedule.seconds, start_date=due, timezone=UTC, jitter=jitter_s or None)
        else:
            trigger = _cron_trigger(schedule, jitter_s=jitter_s)
        self._scheduler.add_job(self._fire, trigger, args=(kind,), id=kind.value, next_run_time=due)

    def _jitter(self, schedule: Every | Cron) -> int:
        if isinstance(schedule, Every):
            return min(self._jitter_s, int(schedule.seconds * _JITTER_SHARE_MAX))
        return self._jitter_s


def _cron_trigger(cron: Cron, text: str = "", jitter_s: int = 0) -> Any:
    try:
        return CronTrigger(
            minute=cron.minute,
            hour=cron.hour,
            day=cron.day,
            month=cron.month,
            day_of_week=cron.day_of_week,
            timezone=UTC,
            jitter=jitter_s or None,
        )
    except (ValueError, TypeError) as error:
        raise InvalidScheduleError(f"{text!r} is not a schedule: {error}") from error


def _weekdays(field: str, text: str) -> str:
    """Return the days as a list of names, because cron counts from Sunday, but APScheduler 3 from Monday."""
    if field == "*":
        return field
    days: list[str] = []
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        try:
            start, end = (0, 6) if span == "*" else (_weekday(first), _weekday(last) if last else _weekday(first))
            if step and not last and span != "*":
                end = 6
            is_whole_week = start == 0 and first != "7" and last == "7"
            end += 7 if end < start or is_whole_week else 0
            days += [_DAYS[day % 7] for day in range(start, end + 1, int(step or 1))]
        except ValueError:
            raise InvalidScheduleError(
                f"{text!r} is not a schedule: {part!r} is not a weekday; use 0-7 (0 and 7 are Sunday) or sun-sat"
            ) from None
    return ",".join(dict.fromkeys(days))


def _weekday(word: str) -> int:
    if word in _DAYS:
        return _DAYS.index(word)
    if word.isascii() and word.isdigit() and int(word) <= len(_DAYS):
        return int(word) % 7
    raise ValueError(word)


def _time(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)
