"""Repeat work on metadata after Spark lost it together with an executor (R2)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from spark_jobs.runs.spark_failures import MetadataReadAgainError

_log = logging.getLogger(__name__)

T = TypeVar("T")

READINGS_MAX: Final = 3
"""Readings of the same metadata in one run. If executors end during each of three, a later run has better chances."""


def with_one_reading(work: Callable[[], T]) -> T:
    """Return the result of ``work``, which reads metadata and uses nothing of an earlier reading.

    ``work`` is repeated from its beginning if Spark lost a part of the metadata. Its marks up to this point stay: a
    mark is idempotent, and each was justified by one reading.

    Raises:
        MetadataReadAgainError: executors were lost during each of ``READINGS_MAX`` readings.
    """
    for attempt in range(1, READINGS_MAX):
        try:
            return work()
        except MetadataReadAgainError:
            _log.warning("metadata was lost with an executor, so it is read again", extra={"attempt": attempt})
    return work()
