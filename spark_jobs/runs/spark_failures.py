"""Find the cause of a failed Spark job in the text that the driver received. Pure.

Spark passes an error of an executor to the driver as text only: a traceback of Python, wrapped in errors of Java.
"""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JNetworkError

from bookie.model.errors import BkhealError, FatalError, PermanentError
from spark_jobs.executor_version import version_problem
from spark_jobs.session import DRIVER_ENDED, first_line

READ_AGAIN: Final = "bkheal: metadata was read again"
"""The error of an action on ``restricted_to_readings`` contains this text if a row is of another reading."""

_GUIDE: Final = "docs/spark-clusters.md describes how executors get the code"
_MISSING_MODULE_PATTERN: Final = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_MISSING_ATTRIBUTE_PATTERN: Final = re.compile(
    r"^AttributeError: Can't get attribute '(\w+)' on <module '(?:bookie|spark_jobs)\b", re.MULTILINE
)
_MISSING_PROGRAM_PATTERN: Final = re.compile(r'Cannot run program "([^"\n]+)"')
_PYTHON_MISMATCH_ERROR: Final = "PYTHON_VERSION_MISMATCH"
_OWN: Final = frozenset({"auditor", "bookie", "spark_jobs"})


class ScanFailedError(FatalError):
    """A Spark job of a run failed for a reason other than an unreachable store."""


class ExecutorEnvironmentError(PermanentError):
    """Executors lack the package or a dependency, or have other versions of them or of Python than the driver."""


class MetadataReadAgainError(ScanFailedError):
    """Spark lost metadata together with an executor, and read it again at a later time.

    The scan must not be used after that, because its rows were read at two different times (R2).
    """


def spark_failure(error: Exception, doing: str) -> BkhealError:
    """Return the error of this project for an error of Spark.

    Args:
        error: an error of pyspark, of py4j, or of a connection to the driver.
        doing: what Spark was doing, such as "reading ledger metadata".
    """
    if isinstance(error, ConnectionError | Py4JNetworkError):
        return ScanFailedError(f"Spark failed while {doing}: {DRIVER_ENDED}")
    text = str(error)
    if READ_AGAIN in text:
        return MetadataReadAgainError(
            "executors that held metadata were lost after each reading of it; run the audit again"
        )
    if problem := environment_problem(text):
        return ExecutorEnvironmentError(f"Spark failed while {doing}: {problem}; {_GUIDE}")
    return ScanFailedError(f"Spark failed while {doing}: {first_line(error)}")


def environment_problem(text: str) -> str | None:
    """Return why an executor cannot run this package's code, by the text of an error; None: another cause."""
    if problem := version_problem(text):
        return problem
    if own := _MISSING_ATTRIBUTE_PATTERN.findall(text):
        return f"an executor has another version of the package bkheal than the driver (it lacks {own[-1]})"
    if modules := _MISSING_MODULE_PATTERN.findall(text):
        module = modules[-1]
        name = "the package bkheal" if module.partition(".")[0] in _OWN else f"the package {module}"
        return f"an executor lacks {name} (No module named '{module}')"
    if _PYTHON_MISMATCH_ERROR in text:
        return "an executor has another version of Python than the driver"
    if programs := _MISSING_PROGRAM_PATTERN.findall(text):
        return f"an executor has no Python at {programs[-1]} (PYSPARK_PYTHON)"
    return None
