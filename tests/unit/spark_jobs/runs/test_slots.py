"""How many tasks a job is cut into, from Spark's settings and the registered executors."""

from __future__ import annotations

import pytest

from spark_jobs.runs.slots import Slots, slots_of

DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize(
    ("settings", "registered", "expected"),
    [
        ({}, 2, Slots(2, 2)),
        ({}, 0, Slots(1, 1)),
        ({"spark.task.cpus": "2"}, 8, Slots(4, 4)),
        ({"spark.executor.instances": "5", "spark.executor.cores": "2"}, 2, Slots(2, 10)),
        ({"spark.executor.instances": "1", "spark.executor.cores": "2"}, 8, Slots(8, 8)),
        ({"spark.cores.max": "6"}, 2, Slots(2, 6)),
        (DYNAMIC, 2, Slots(2, None)),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "2147483647"}, 2, Slots(2, None)),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "8", "spark.executor.cores": "2"}, 2, Slots(2, 16)),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "8", "spark.cores.max": "4"}, 2, Slots(2, 4)),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "infinity"}, 2, Slots(2, None)),
        ({"spark.dynamicAllocation.enabled": "false", "spark.dynamicAllocation.maxExecutors": "8"}, 2, Slots(2, 2)),
    ],
)
def test_executors_that_may_come_count(settings: dict[str, str], registered: int, expected: Slots) -> None:
    assert slots_of(settings.get, registered) == expected


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
def test_work_is_cut_for_the_executors_that_may_come(slots: Slots, units: int, spare: int, expected: int) -> None:
    assert slots.tasks(units, 500, spare=spare) == expected
