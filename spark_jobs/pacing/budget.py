"""Limits on the reads of all tasks of a run from ZooKeeper, and the share of one task. Also the servers to read from.

A run divides its limits by the largest number of concurrent tasks of a job, and by the number of runs that read from
the same ZooKeeper at the time (``sharing``). So the sum of all tasks of all runs stays below the limits.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Final

LATENCY_FACTOR: Final = 2.0
"""Default latency above which tasks read less, as a multiple of the latency of an idle ZooKeeper."""
FEEDBACK_NODES_PER_S_MIN: Final = 40_000.0
"""Lowest rate that feedback sets, of all tasks together: overload by other clients must not stop audits."""
NICE: Final = 5
"""Default nice value of Spark's processes: on a busy machine, a ZooKeeper and the threads of sessions get the processor
first."""
NICE_MAX: Final = 19


@dataclass(frozen=True, slots=True)
class TaskBudget:
    """The limits of one task; 0: no limit."""

    nodes_per_s: float = 0.0
    bytes_per_s: float = 0.0
    """Counts the contents of nodes, and the names in lists of children."""
    latency_factor: float = 0.0
    """The task reads less if the latency of small reads exceeds this multiple of the latency of an idle ZooKeeper."""
    least_nodes_per_s: float = 0.0
    """Lowest rate that feedback sets."""
    observers: str = ""
    """Servers to read from if one of them answers, as ``host:port`` joined with commas; empty: the servers of the
    URI."""
    instance_id: str = ""
    """Instance id of the cluster. The observers must have the same one. Empty: it is unknown, or the cluster has
    none."""
    run_id: str = ""
    """Id of the run, if it shares these limits with all other reading runs; empty: it does not share them."""
    readers: int = 1
    """Number of the runs that shared the limits at the last count."""

    @property
    def is_free(self) -> bool:
        """Whether there is no limit at all."""
        return not (self.has_rates or self.latency_factor)

    @property
    def has_rates(self) -> bool:
        """Whether there are limits independent of the latency."""
        return bool(self.nodes_per_s or self.bytes_per_s)

    def divided(self, parts: int) -> TaskBudget:
        """Return the limits divided by ``parts``; 0 counts as 1."""
        together = max(1, parts)
        return replace(
            self,
            nodes_per_s=self.nodes_per_s / together,
            bytes_per_s=self.bytes_per_s / together,
            least_nodes_per_s=self.least_nodes_per_s / together,
        )

    def to_text(self) -> str:
        """Return the budget as the value of a data source option."""
        return json.dumps(asdict(self))


FREE: Final = TaskBudget()
_NUMBERS: Final = ("nodes_per_s", "bytes_per_s", "latency_factor", "least_nodes_per_s", "readers")
_TEXTS: Final = ("observers", "instance_id", "run_id")


def task_budget(text: str) -> TaskBudget:
    """Return the budget in a text made by ``to_text``.

    Raises:
        ValueError: the text was not made by ``to_text``.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict) or set(fields) != {*_NUMBERS, *_TEXTS}:
        raise ValueError(f"need an object of {', '.join((*_NUMBERS, *_TEXTS))}")
    if not all(isinstance(fields[name], int | float) and 0 <= fields[name] < float("inf") for name in _NUMBERS):
        raise ValueError(f"{', '.join(_NUMBERS)} need to be numbers of at least 0")
    if not all(isinstance(fields[name], str) for name in _TEXTS):
        raise ValueError(f"{' and '.join(_TEXTS)} need to be texts")
    return TaskBudget(**fields)


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of all tasks of a run together; 0: no limit."""

    nodes_per_s: float = 0.0
    bytes_per_s: float = 0.0
    connections: int = 0
    """Number of tasks that may read at the same time, because each has one connection."""
    latency_factor: float = LATENCY_FACTOR
    observers: str = ""
    instance_id: str = ""
    """Instance id of the cluster; see ``TaskBudget``."""
    run_id: str = ""
    """Id of the run, if it shares these limits with all other reading runs; empty: it does not share them."""
    readers: int = 1
    """Number of the runs that shared the limits at the last count."""

    @property
    def whole(self) -> TaskBudget:
        """The limits of a task that is the only one of its run."""
        return TaskBudget(
            nodes_per_s=self.nodes_per_s,
            bytes_per_s=self.bytes_per_s,
            latency_factor=self.latency_factor,
            least_nodes_per_s=FEEDBACK_NODES_PER_S_MIN,
            observers=self.observers,
            instance_id=self.instance_id,
            run_id=self.run_id,
            readers=self.readers,
        )

    def tasks(self, wanted: int) -> int:
        """Return the number of tasks of a job: at most ``wanted``, and at most the run's part of the connections."""
        return max(1, min(wanted, self.connections // max(1, self.readers) if self.connections else wanted))

    def share(self, tasks: int, slots_max: int | None) -> TaskBudget:
        """Return the limits of one task.

        Args:
            tasks: number of tasks of the job.
            slots_max: largest number of concurrent tasks; None: unknown, so possibly all tasks of the job.
        """
        return self.whole.divided(tasks if slots_max is None else min(tasks, slots_max))
