"""The number of tasks in a job, from Spark's settings and the registered executors."""

from __future__ import annotations

import pytest

from spark_jobs.pacing.budget import Budget
from spark_jobs.runs.slots import Slots, slots_of

DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize(
    ("settings", "registered", "expected"),
    [
        ({}, 2, Slots(2, None)),
        ({}, 0, Slots(1, None)),
        ({"spark.executor.instances": "5", "spark.executor.cores": "2"}, 2, Slots(2, 10)),
        ({"spark.executor.instances": "5", "spark.executor.cores": "3", "spark.task.cpus": "2"}, 2, Slots(2, 5)),
        ({"spark.executor.instances": "1", "spark.executor.cores": "2"}, 8, Slots(8, 8)),
        ({"spark.cores.max": "6"}, 2, Slots(2, 6)),
        ({"spark.cores.max": "6", "spark.task.cpus": "2"}, 2, Slots(2, 3)),
        (DYNAMIC, 2, Slots(2, None)),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "2147483647"}, 2, Slots(2, None)),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "8"}, 2, Slots(2, 8)),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "8", "spark.executor.cores": "2"}, 2, Slots(2, 16)),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "8", "spark.cores.max": "4"}, 2, Slots(2, 4)),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "infinity"}, 2, Slots(2, None)),
        ({"spark.dynamicAllocation.enabled": "false", "spark.dynamicAllocation.maxExecutors": "8"}, 2, Slots(2, None)),
    ],
)
def test_executors_that_may_still_register_count(settings: dict[str, str], registered: int, expected: Slots) -> None:
    assert slots_of(settings.get, registered, "yarn") == expected


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, None),
        ({"spark.executor.instances": "1", "spark.executor.cores": "2"}, None),  # a standalone cluster ignores them
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "2"}, None),  # each executor has all cores of its worker
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "2", "spark.executor.cores": "4"}, 8),
        ({"spark.cores.max": "6"}, 6),
    ],
)
def test_a_standalone_cluster_is_limited_by_the_settings_it_uses(settings: dict[str, str], most: int | None) -> None:
    assert slots_of(settings.get, 2, "spark://host:7077") == Slots(2, most)


@pytest.mark.parametrize("master", ["local", "local[8]", "local[*,4]"])
def test_a_local_master_never_gets_more_slots(master: str) -> None:
    assert slots_of({"spark.cores.max": "99"}.get, 8, master) == Slots(8, 8)


def test_a_cluster_without_a_maximum_stays_below_the_limits_if_all_tasks_run() -> None:
    tasks = 16
    slots = slots_of(dict[str, str]().get, 0, "spark://host:7077")  # no executor is registered
    share = Budget(nodes_per_s=400).share(tasks, slots.most)
    assert tasks * share.nodes_per_s == 400


@pytest.mark.parametrize(
    ("slots", "units", "spare", "expected"),
    [
        (Slots(4, 4), 1_000_000, 0, 4),
        (Slots(4, 4), 0, 1, 3),
        (Slots(1, 1), 10, 1, 1),
        (Slots(2, 16), 10, 1, 15),
        (Slots(2, None), 10_000, 0, 20),
        (Slots(2, None), 1, 0, 2),
        (Slots(2, None), 1, 1, 1),
    ],
)
def test_work_is_divided_for_the_executors_that_may_still_register(
    slots: Slots, units: int, spare: int, expected: int
) -> None:
    assert slots.tasks(units, 500, spare=spare) == expected
