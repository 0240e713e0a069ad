"""Move what executors wrote to a Hadoop file system to this machine, by the Hadoop client of the driver's Spark.

It has the same settings and credentials as the executors, so whatever file system they can write, the driver can read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

_HIDDEN: Final = ("_", ".")
"""How the names of files begin that contain no rows."""


def move_here(spark: SparkSession, folder: str, target: Path) -> None:
    """Move the files of a folder into ``target``, each whole or not at all, and delete the folder.

    How long that may take is up to the settings of the file system, as for every other request of Spark to it.

    Args:
        spark: the session whose executors wrote them.
        folder: URI of the folder.
        target: a directory of this machine; made if it does not exist.

    Raises:
        Py4JError: the file system cannot be read; files that were copied before stay in both places.
        OSError: this machine cannot store them.
    """
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path
    source = path(folder)
    system = source.getFileSystem(context._jsc.hadoopConfiguration())
    target.mkdir(parents=True, exist_ok=True)
    for status in system.listStatus(source):
        name = status.getPath().getName()
        if not name.startswith(_HIDDEN):
            part = target / f".{name}.tmp"
            system.copyToLocalFile(False, status.getPath(), path(f"file:{part.resolve()}"), True)
            part.rename(target / name)
    system.delete(source, True)
