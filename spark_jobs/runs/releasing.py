"""Free the rows that Spark keeps for a run."""

from __future__ import annotations

from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame


def unpersist(*frames: DataFrame) -> None:
    """Free the rows that Spark keeps.

    If Spark's driver does not answer, it has ended, and so have its rows. This is not raised, because it would replace
    the error of the run.
    """
    for frame in frames:
        with suppress(Py4JError, OSError):
            frame.unpersist()
