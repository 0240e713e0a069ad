"""The settings of Spark's log: a cancelled run logs no errors of its tasks, and a failed task still does."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest


@pytest.fixture(scope="module")
def left_out() -> re.Pattern[str]:
    text = (files("spark_jobs") / "log4j2.properties").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("filter.cancelled.regex")]
    return re.compile(line.partition(" = ")[2].replace("\\\\", "\\"))


@pytest.mark.parametrize(
    "message",
    [
        "Aborting task",
        "Failed to cancel job group 20261201T112951Z-5f2482. Cannot find active jobs for it.",
        (
            "Lost task 1.0 in stage 1.0 (TID 5) (localhost executor driver): TaskKilled (Stage cancelled: "
            "[SPARK_JOB_CANCELLED] Job 1 cancelled part of cancelled job group g1 SQLSTATE: XXKDA)"
        ),
        (
            "Putting block rdd_3461_0 failed due to exception org.apache.spark.TaskKilledException: Stage cancelled: "
            "[SPARK_JOB_CANCELLED] Job 484 cancelled"
        ),
        "Block rdd_3461_0 could not be removed as it was not found on disk or in memory",
        "Asked to remove block rdd_3461_0, which does not exist",
        "Incomplete task interrupted: Attempting to kill Python Worker - task 2.0 in stage 2.0",
        "Could not delete file:/reports/R/findings.parquet/_temporary/0/_temporary/attempt_1_0001_m_000001_5",
    ],
)
def test_what_a_cancelled_run_ends_is_not_logged(left_out: re.Pattern[str], message: str) -> None:
    assert left_out.fullmatch(message)


@pytest.mark.parametrize(
    "message",
    [
        "Exception in task 1.0 in stage 4.0 (TID 13)",
        "Task 1 in stage 4.0 failed 4 times; aborting job",
        "Lost task 1.0 in stage 4.0 (TID 13) (10.0.0.7 executor 1): ExecutorLostFailure (executor 1 exited)",
        "Service 'SparkUI' could not bind on port 4040. Attempting port 4041.",
        "Could not delete file:/reports/R/findings.parquet",
    ],
)
def test_what_failed_is_logged(left_out: re.Pattern[str], message: str) -> None:
    assert not left_out.fullmatch(message)
