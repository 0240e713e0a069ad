"""Repeat work on metadata if Spark lost the metadata together with an executor (R2)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from spark_jobs.runs.spark_failures import MetadataReadAgainError

_log = logging.getLogger(__name__)

T = TypeVar("T")

READINGS_MAX: Final = 3
"""Number of readings of the same metadata in one run. If executors end during each of three, a later run has better
chances."""


def retry_until_one_reading(work: Callable[[], T]) -> T:
    """Return the result of ``work``, which must read metadata and use nothing from an earlier reading.

    ``work`` is repeated from the beginning if Spark lost a part of the metadata. The marks that it has made stay: a
    mark is idempotent, and each one is justified by a single reading.

    Raises:
        MetadataReadAgainError: executors were lost during each of ``READINGS_MAX`` readings.
    """
    for attempt in range(1, READINGS_MAX):
        try:
            return work()
        except MetadataReadAgainError:
            _log.warning("metadata was lost with an executor, so it is read again", extra={"attempt": attempt})
    return work()
