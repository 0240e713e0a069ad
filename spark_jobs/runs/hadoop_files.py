"""Move files of executors from a Hadoop file system to this machine, or remove them, with the Hadoop client of Spark.

The client has the same settings and credentials as the executors, so the driver can read every file system they can
write.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_HIDDEN: Final = ("_", ".")
"""A file whose name begins with one of these has no rows."""


def move_to_local_folder(spark: SparkSession, folder: str, target: Path) -> None:
    """Move the files of a folder into ``target``, each whole or not at all, and delete the folder.

    The settings of the file system limit the duration, as they do for every other request from Spark.

    Args:
        spark: the session whose executors wrote the files.
        folder: URI of the folder.
        target: a directory of this machine; made if it does not exist.

    Raises:
        Py4JError: the file system cannot be read; files copied earlier stay in both places.
        OSError: this machine cannot store the files.
    """
    path, system = _opened(spark, folder)
    source = path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for status in system.listStatus(source):
        name = status.getPath().getName()
        if not name.startswith(_HIDDEN):
            part = target / f".{name}.tmp"
            system.copyToLocalFile(False, status.getPath(), path(f"file:{part.resolve()}"), True)
            part.rename(target / name)
    system.delete(source, True)


def remove_folder(spark: SparkSession, folder: str) -> None:
    """Delete a folder with its files, if it exists. A failure is logged."""
    try:
        path, system = _opened(spark, folder)
        system.delete(path(folder), True)
    except (Py4JError, OSError) as error:  # OSError: Spark's driver has ended
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        _log.warning("a folder of findings is left", extra={"folder": folder, "reason": reason})


def _opened(spark: SparkSession, folder: str) -> tuple[Any, Any]:
    """Return Hadoop's class of paths, and the file system of a folder."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path
    return path, path(folder).getFileSystem(context._jsc.hadoopConfiguration())
