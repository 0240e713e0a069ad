"""Limits on the reads of all tasks of a run from ZooKeeper, its servers, and the share of one task.

A run divides its limits by the largest number of concurrent tasks of a job, and by the number of runs now reading from
the same ZooKeeper (``sharing``). So the sum of all tasks of all runs stays below the limits.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Final

LATENCY_FACTOR: Final = 2.0
"""Default of the latency above which tasks read less, as a multiple of the latency when ZooKeeper is idle."""
LEAST_NODES_PER_S: Final = 40_000.0
"""Lowest rate set by feedback, of all tasks together: overload by other clients must not stop audits."""
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
    """Lowest rate set by feedback."""
    observers: str = ""
    """Servers to read from, if one of them answers: ``host:port`` joined with commas; empty: the URI's servers."""
    instance_id: str = ""
    """Of the cluster to read, which the observers must have as well; empty: unknown, or the cluster has none."""
    run_id: str = ""
    """Of the run, which shares these limits with all reading runs; empty: it shares them with no other run."""
    readers: int = 1
    """Number of these runs at the last count."""

    @property
    def is_free(self) -> bool:
        """Whether there is no limit at all."""
        return not (self.has_rates or self.latency_factor)

    @property
    def has_rates(self) -> bool:
        """Whether there are limits independent of the latency."""
        return bool(self.nodes_per_s or self.bytes_per_s)

    def divided(self, parts: int) -> TaskBudget:
        """Return one of ``parts`` equal parts; 0 counts as 1."""
        together = max(1, parts)
        return replace(
            self,
            nodes_per_s=self.nodes_per_s / together,
            bytes_per_s=self.bytes_per_s / together,
            least_nodes_per_s=self.least_nodes_per_s / together,
        )

    def to_text(self) -> str:
        """Return it as the value of a data source option."""
        return json.dumps(asdict(self))


FREE: Final = TaskBudget()
_NUMBERS: Final = ("nodes_per_s", "bytes_per_s", "latency_factor", "least_nodes_per_s", "readers")
_TEXTS: Final = ("observers", "instance_id", "run_id")


def task_budget(text: str) -> TaskBudget:
    """Return the budget in a text from ``to_text``.

    Raises:
        ValueError: the text is not from ``to_text``.
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
    """Limits of all tasks of a run together; 0: there is none."""

    nodes_per_s: float = 0.0
    bytes_per_s: float = 0.0
    connections: int = 0
    """Tasks that may read at the same time: each has one connection."""
    latency_factor: float = LATENCY_FACTOR
    observers: str = ""
    instance_id: str = ""
    """Of the cluster to read; see ``TaskBudget``."""
    run_id: str = ""
    """Of a run, which shares these limits with all reading runs; empty: it shares them with no other run."""
    readers: int = 1
    """Number of these runs at the last count."""

    @property
    def whole(self) -> TaskBudget:
        """The limits of a task that is the only one of its run."""
        return TaskBudget(
            nodes_per_s=self.nodes_per_s,
            bytes_per_s=self.bytes_per_s,
            latency_factor=self.latency_factor,
            least_nodes_per_s=LEAST_NODES_PER_S,
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
            tasks: of the job.
            slots_max: largest number of concurrent tasks; None: unknown, so possibly all tasks of the job.
        """
        return self.whole.divided(tasks if slots_max is None else min(tasks, slots_max))
