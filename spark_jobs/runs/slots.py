"""The number of tasks that the executors of a run can work on at the same time, now and later in the run.

At the start of an application, not all executors have registered yet. With dynamic allocation, Spark starts more
executors only for waiting tasks, so a job with one task per slot would never get more slots. So jobs are divided for
the largest possible cluster, and executors take tasks as soon as they register. The number of registered executors is
never a maximum: on a cluster without a limit, more may register at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from spark_jobs.session import is_local

Setting = Callable[[str], str | None]
"""Returns a setting of Spark by name; None: it is not set."""

_UNLIMITED: Final = 2**31 - 1
"""Spark's default of ``spark.dynamicAllocation.maxExecutors``."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The number of tasks that can run at the same time."""

    now: int
    """With the registered executors; at least 1."""
    most: int | None
    """With all possible executors; None: no limit. At least ``now``."""

    def tasks(self, units: int, units_per_task: int, *, spare: int = 0) -> int:
        """Return the number of tasks into which to divide work, at least 1.

        The result is the largest possible number of slots. Without a limit, it depends on the amount of work, and is at
        least ``now``.

        Args:
            units: the amount of work, such as ledgers.
            units_per_task: the smallest amount of work that is worth a separate task.
            spare: number of slots to leave free.
        """
        suited = -(-units // units_per_task)
        wanted = max(self.now, suited) if self.most is None else self.most
        return max(1, wanted - spare)


def slots_of(setting: Setting, registered: int, master: str) -> Slots:
    """Return the slots of a cluster.

    Args:
        setting: Spark's settings.
        registered: number of tasks that the registered executors can work on at the same time.
        master: Spark's master.
    """
    now = max(1, registered)
    if is_local(master):
        return Slots(now, now)
    task_cores = _number(setting, "spark.task.cpus") or 1
    cores = _number(setting, "spark.executor.cores")
    cores_max = _number(setting, "spark.cores.max")
    executors_max = _executors_max(setting, master)
    limits = [] if cores_max is None else [cores_max // task_cores]
    if executors_max is not None and (cores is not None or not _is_standalone(master)):
        limits.append(executors_max * ((cores or 1) // task_cores))
    return Slots(now, max(now, min(limits)) if limits else None)


def _executors_max(setting: Setting, master: str) -> int | None:
    """Return the largest number of executors; None: no limit."""
    if (setting("spark.dynamicAllocation.enabled") or "").lower() == "true":
        executors_max = _number(setting, "spark.dynamicAllocation.maxExecutors")
        return None if executors_max is None or executors_max >= _UNLIMITED else executors_max
    # A standalone cluster does not use this setting.
    return None if _is_standalone(master) else _number(setting, "spark.executor.instances")


def _is_standalone(master: str) -> bool:
    """Return whether this is a standalone cluster.

    An executor of such a cluster has all cores of its worker, if ``spark.executor.cores`` is not set.
    """
    return master.startswith("spark://")


def session_slots(spark: SparkSession) -> Slots:
    """Return the slots of a session's cluster."""
    context = spark.sparkContext
    conf = context.getConf()
    # Not ``defaultParallelism``, because users can set it, and without executors it is at least 2.
    java = context._jsc.sc()
    registered = java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile())
    return slots_of(lambda name: conf.get(name), registered, conf.get("spark.master") or "")


def _number(setting: Setting, name: str) -> int | None:
    text = setting(name)
    return int(text) if text is not None and text.strip().isdecimal() else None
