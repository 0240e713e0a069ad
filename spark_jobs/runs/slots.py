"""The number of tasks the executors of a run can work on at the same time, now and later in the run.

Spark's ``defaultParallelism`` counts the executors registered by now. The number is too small at the start of an
application, before all executors have registered. It is also too small with dynamic allocation, which starts executors
only for waiting tasks: a job with one task per slot would never get more slots. So jobs are cut for the largest
possible cluster, and executors take tasks as soon as they register.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

Setting = Callable[[str], str | None]
"""A setting of Spark by name; None: it is not set."""

_UNLIMITED: Final = 2**31 - 1
"""Spark's default of ``spark.dynamicAllocation.maxExecutors``."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The number of tasks able to run at the same time."""

    now: int
    """With the registered executors; at least 1."""
    most: int | None
    """With all possible executors; None: no limit. At least ``now``."""

    def tasks(self, units: int, units_per_task: int, *, spare: int = 0) -> int:
        """Return the number of tasks to cut work into, at least 1.

        The result is the largest possible number of slots. Without a limit, it depends on the amount of work, and is at
        least ``now``.

        Args:
            units: the amount of work, such as ledgers.
            units_per_task: the smallest amount worth a separate task.
            spare: slots to leave free.
        """
        suited = -(-units // units_per_task)
        wanted = max(self.now, suited) if self.most is None else self.most
        return max(1, wanted - spare)


def slots_of(setting: Setting, registered: int) -> Slots:
    """Return the slots of a cluster.

    Args:
        setting: Spark's settings.
        registered: cores of the registered executors (``defaultParallelism``).
    """
    task_cores = _number(setting, "spark.task.cpus") or 1
    now = max(1, registered // task_cores)
    cores = _number(setting, "spark.executor.cores")
    cores_max = _number(setting, "spark.cores.max")
    limits = [] if cores_max is None else [cores_max // task_cores]
    if (setting("spark.dynamicAllocation.enabled") or "").lower() == "true":
        executors_max = _number(setting, "spark.dynamicAllocation.maxExecutors")
        if executors_max is not None and executors_max < _UNLIMITED:
            limits.append(executors_max * (cores or 1) // task_cores)
        return Slots(now, max(now, min(limits)) if limits else None)
    executors = _number(setting, "spark.executor.instances")
    if executors is not None:
        limits.append(executors * (cores or 1) // task_cores)
    return Slots(now, max(now, min(limits, default=now)))


def session_slots(spark: SparkSession) -> Slots:
    """The slots of a session's cluster."""
    context = spark.sparkContext
    conf = context.getConf()
    return slots_of(lambda name: conf.get(name), context.defaultParallelism)


def _number(setting: Setting, name: str) -> int | None:
    text = setting(name)
    return int(text) if text is not None and text.strip().isdecimal() else None
