"""The error of the metadata store that ended a Spark worker, recognized in the text that the driver receives."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from bookie.metadata.port import AccessDeniedError, StoreUnavailableError
from spark_jobs.runs.reading.ledger_scan import store_error
from spark_jobs.session import first_line

HEAD = """An error occurred while calling o42.collectToPython.
: org.apache.spark.SparkException: Job aborted: Task 0 in stage 1.0 failed 4 times
Traceback (most recent call last):
  File "scan.py", line 40, in read
    raise StoreUnavailableError("no answer")
"""
DENIED = "bookie.metadata.port.AccessDeniedError: children /ledgers/00: its ACL does not allow this\n"
SILENT = "bookie.metadata.port.StoreUnavailableError: children /ledgers/00: no answer\n"
BETWEEN = "\nDuring handling of the above exception, another exception occurred:\n\n"
JAVA = "\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)\n"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (HEAD + DENIED + JAVA, AccessDeniedError),
        (HEAD + SILENT + JAVA, StoreUnavailableError),
        (HEAD + SILENT + BETWEEN + HEAD + DENIED + JAVA, AccessDeniedError),
        (HEAD + DENIED + BETWEEN + HEAD + SILENT + JAVA, StoreUnavailableError),
        (HEAD + "AccessDeniedError: /ledgers/00: not allowed\n", AccessDeniedError),
    ],
)
def test_the_last_error_raised_is_used_and_no_source_line(text: str, kind: type[Exception]) -> None:
    found = store_error(PySparkException(text))
    assert type(found) is kind
    assert "/ledgers/00: " in str(found)


@pytest.mark.parametrize("text", [HEAD + "ValueError: nonsense\n", "", "x"])
def test_other_errors_are_not_store_errors(text: str) -> None:
    assert store_error(PySparkException(text)) is None


def test_the_first_line_that_is_not_empty_is_shown() -> None:
    assert first_line(PySparkException("\n  a\nb")) == "a"
    assert first_line(PySparkException("")) == "PySparkException"
