"""An archive of Spark's loaded classes for tests. It is made once and kept in the cache folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final

from auditor.class_archive import ClassArchiveError, make_class_archive
from bookie.embedded.process import EmbeddedProcessError
from bookie.runtime.class_data import reading
from bookie.runtime.java import find_java
from spark_jobs.class_archive import LAUNCHER_DEFAULT, LAUNCHER_OPTIONS, SUBMIT_OPTIONS, archive_path
from tests.kept_files import made_once

_log = logging.getLogger(__name__)

_SHORT_LIVED: Final = "-XX:+UseSerialGC"
"""Options for sessions that last seconds, on two cores that other tests use too."""


def spark_environment() -> Mapping[str, str]:
    """Return environment variables for processes with Spark, even by ``spark-submit``; make the archive if necessary.

    Several test processes may call this at once: one makes the archive, the others wait. If this Java cannot make one,
    Spark starts without it.
    """
    java = find_java()
    archive = archive_path(java, os.environ)
    try:
        made_once(archive, lambda made: make_class_archive(made, java))
    except (OSError, ClassArchiveError, EmbeddedProcessError) as error:
        _log.warning("no archive of Spark's classes, so Spark starts slowly", extra={"reason": str(error)})
        return {SUBMIT_OPTIONS: _SHORT_LIVED}
    return {SUBMIT_OPTIONS: " ".join((*reading(archive), _SHORT_LIVED)), LAUNCHER_OPTIONS: LAUNCHER_DEFAULT}
