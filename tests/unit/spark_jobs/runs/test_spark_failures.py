"""The meaning of an error of Spark for a run, derived from the text that the driver receives."""

from __future__ import annotations

import socket

import pytest
from pyspark.errors import PySparkException

from bookie.model.exit_codes import ExitCode, audit_exit_code
from bookie.runtime.version import UNKNOWN_VERSION
from spark_jobs import executor_version
from spark_jobs.runs.reading.one_reading import READINGS_MAX, retry_until_one_reading
from spark_jobs.runs.spark_failures import (
    READ_AGAIN,
    ExecutorEnvironmentError,
    MetadataReadAgainError,
    ScanFailedError,
    spark_failure,
)

UNPICKLED = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/pyspark/serializers.py", line 173, in _read_with_length
    return self.loads(obj)
ModuleNotFoundError: No module named '{}'

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
"""
OTHER_CODE = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
    return self.loads(obj)
AttributeError: Can't get attribute 'LedgerReader' on <module 'spark_jobs.datasource.ledgers' from '/x/ledgers.py'>
"""
NO_PYTHON = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure:
java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file or directory
"""
OTHER_PYTHON = "pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (UNPICKLED.format("spark_jobs"), "lacks the package bkheal (No module named 'spark_jobs')"),
        (UNPICKLED.format("bookie.model"), "lacks the package bkheal (No module named 'bookie.model')"),
        (UNPICKLED.format("kazoo"), "lacks the package kazoo (No module named 'kazoo')"),
        (OTHER_CODE, "has another version of the package bkheal than the driver (it lacks LedgerReader)"),
        (NO_PYTHON, "has no Python at ./environment/bin/python"),
        (OTHER_PYTHON, "has another version of Python than the driver"),
    ],
)
def test_an_executor_that_cannot_run_the_code_is_a_configuration_error(text: str, problem: str) -> None:
    error = spark_failure(PySparkException(text), "checking")
    assert isinstance(error, ExecutorEnvironmentError)
    assert str(error).startswith("Spark failed while checking: an executor ")
    assert problem in str(error)
    assert "\n" not in str(error)
    assert audit_exit_code(error) is ExitCode.CONFIGURATION


def test_the_error_for_an_executor_of_another_version_names_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_version, "installed_version", lambda: "1.2.3")
    executor_version.check_version("1.2.3")
    executor_version.check_version(UNKNOWN_VERSION)
    with pytest.raises(executor_version.OtherVersionError) as raised:
        executor_version.check_version("1.2.4.dev1+x")
    text = f"Traceback\nspark_jobs.executor_version.OtherVersionError: {raised.value}\n\n\tat org.apache.spark"
    error = spark_failure(PySparkException(text), "checking")
    assert isinstance(error, ExecutorEnvironmentError)
    assert (
        f"checking: the executor on {socket.gethostname()} has bkheal 1.2.3, and the driver has 1.2.4.dev1+x;"
        in str(error)
    )
    assert audit_exit_code(error) is ExitCode.CONFIGURATION


@pytest.mark.parametrize("text", ["no space left", "", 'raise ModuleNotFoundError("No module named x")'])
def test_any_other_error_is_a_failure_of_spark(text: str) -> None:
    error = spark_failure(PySparkException(text), "checking")
    assert type(error) is ScanFailedError
    assert audit_exit_code(error) is ExitCode.INTERNAL


def read_again() -> Exception:
    return spark_failure(PySparkException(f"[USER_RAISED_EXCEPTION] {READ_AGAIN} SQLSTATE: P0001"), "checking")


@pytest.mark.parametrize("losses", range(READINGS_MAX))
def test_work_on_lost_metadata_is_started_again(losses: int) -> None:
    failures = [read_again() for _ in range(losses)]

    def work() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert retry_until_one_reading(work) == "done"


def test_the_number_of_restarts_is_limited() -> None:
    attempts = []

    def work() -> None:
        attempts.append(1)
        raise read_again()

    with pytest.raises(MetadataReadAgainError, match="run the audit again"):
        retry_until_one_reading(work)
    assert len(attempts) == READINGS_MAX
