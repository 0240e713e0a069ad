"""The archive of Spark's Java classes, with which a session starts in two thirds of the time.

``bkheal audit prepare`` creates it, as does the recipe of the image. A session that starts a JVM on this machine uses
the archive if it exists and is complete; ``spark-submit`` has its own options. Java ignores an archive that does not
match its classes.

Decision: docs/decisions/0122-spark-starts-from-an-archive-of-its-classes.md.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bookie.runtime.class_data import fingerprint, is_usable_path, is_whole, reading
from bookie.runtime.java import Java
from bookie.runtime.kept_files import cache_folder

VARIABLE: Final = "BKHEAL_SPARK_CLASSES"
"""Environment variable with the path of the archive. Default: a path in the cache folder, one for each Java and
Spark."""
SUBMIT_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Spark's own environment variable with options for the JVM of the driver."""
LAUNCHER_OPTIONS: Final = "SPARK_LAUNCHER_OPTS"
LAUNCHER_DEFAULT: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
"""Options for Spark's launcher, a small Java program that prints the command line of the driver's JVM."""
_OPERATOR_ARCHIVE_OPTIONS: Final = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare:off")
_WRITABLE_BY_OTHERS: Final = 0o022


def spark_jars() -> Path:
    """Return the folder with the jars of the installed pyspark, without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pyspark is not installed")
    return Path(spec.origin).parent / "jars"


def archive_path(java: Java, environment: Mapping[str, str]) -> Path:
    """Return the path of the archive, whether or not the file exists."""
    if given := environment.get(VARIABLE):
        return Path(given)
    return cache_folder(environment) / f"spark-{fingerprint(java, spark_jars())}.jsa"


def archive_options(java: Java, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return Java's options for the archive; none if it is not usable, or if the operator's options concern archives.

    The file contains code, so it is not used if a user other than this one and root could have written it.
    """
    if any(option in environment.get(SUBMIT_OPTIONS, "") for option in _OPERATOR_ARCHIVE_OPTIONS):
        return ()
    path = archive_path(java, environment)
    try:
        status = path.stat()
    except OSError:
        return ()
    is_safe = status.st_uid in (os.getuid(), 0) and not status.st_mode & _WRITABLE_BY_OTHERS
    return reading(path) if is_safe and is_usable_path(path) and is_whole(path) else ()
