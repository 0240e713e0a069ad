"""Limits on the reads of all tasks of a run from ZooKeeper, its servers, and the share of one task.

Tasks do not communicate. A run divides its limits by the number of tasks that can run at the same time, so their sum
stays below the limits, also while other runs of the session are under way. Runs of other sessions count by the latency
that they cause (``feedback``).
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace
from typing import Final

LATENCY_FACTOR: Final = 2.0
"""Default of the latency above which tasks read less, as a multiple of the latency when ZooKeeper is idle."""
LEAST_NODES_PER_S: Final = 40_000.0
"""Rate that feedback never goes below, of all tasks together: overload by other clients must not stop audits."""
NICE: Final = 5
"""Default of the nice value of Spark's processes: a ZooKeeper on a busy machine, and sessions, run first."""
NICE_MAX: Final = 19


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """Limits of one task; 0: there is none."""

    nodes_per_s: float = 0.0
    bytes_per_s: float = 0.0
    """Of the contents of nodes, and of the names in lists of children."""
    latency_factor: float = 0.0
    """The task reads less if the latency of small reads exceeds this multiple of the latency of an idle ZooKeeper."""
    least_nodes_per_s: float = 0.0
    """Rate that feedback never goes below."""
    observers: str = ""
    """Servers to read from, if one of them answers: ``host:port`` joined with commas; empty: those of the URI."""
    instance_id: str = ""
    """Of the cluster that is read, which the observers must have as well; empty: it is not known, or has none."""

    @property
    def is_free(self) -> bool:
        """Whether there is no limit at all."""
        return not (self.nodes_per_s or self.bytes_per_s or self.latency_factor)

    def divided(self, tasks: int) -> TaskBudget:
        """Return the share of each of ``tasks``, of which there may be none."""
        together = max(1, tasks)
        return replace(
            self,
            nodes_per_s=self.nodes_per_s / together,
            bytes_per_s=self.bytes_per_s / together,
            least_nodes_per_s=self.least_nodes_per_s / together,
        )

    def to_text(self) -> str:
        """Return it as an option of a data source."""
        return json.dumps(astuple(self))


FREE: Final = TaskBudget()


def task_budget(text: str) -> TaskBudget:
    """Return what ``to_text`` was called for.

    Raises:
        ValueError: the text is another one.
    """
    try:
        *numbers, observers, instance_id = json.loads(text)
        values = [float(number) for number in numbers]
    except TypeError as error:
        raise ValueError(str(error)) from error
    if len(values) != len(astuple(FREE)) - 2 or not all(0 <= value < float("inf") for value in values):
        raise ValueError("need four numbers of at least 0, the observers, and the instance id")
    nodes_per_s, bytes_per_s, latency_factor, least_nodes_per_s = values
    return TaskBudget(nodes_per_s, bytes_per_s, latency_factor, least_nodes_per_s, str(observers), str(instance_id))


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of all tasks of a run together; 0: there is none."""

    nodes_per_s: float = 0.0
    bytes_per_s: float = 0.0
    connections: int = 0
    """Tasks that may read at the same time: each has one connection."""
    latency_factor: float = LATENCY_FACTOR
    observers: str = ""
    instance_id: str = ""

    @property
    def whole(self) -> TaskBudget:
        """The limits of a task that is alone."""
        return TaskBudget(
            self.nodes_per_s,
            self.bytes_per_s,
            self.latency_factor,
            LEAST_NODES_PER_S,
            self.observers,
            self.instance_id,
        )

    def tasks(self, wanted: int) -> int:
        """Return the number of tasks of a job, at most ``wanted``."""
        return max(1, min(wanted, self.connections or wanted))

    def share(self, tasks: int, slots_max: int | None) -> TaskBudget:
        """Return the limits of one task.

        Args:
            tasks: of the job.
            slots_max: tasks that may run at the same time; None: unknown, so all tasks of the job may.
        """
        return self.whole.divided(tasks if slots_max is None else slots_max)
