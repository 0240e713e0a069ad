"""An archive of Apache's loaded classes, with which programs start in two thirds of the time.

Java calls it application class-data sharing. It is made once for a set of jars and a version of Java, by running a
bookie with auto-recovery and a shell that writes to it, and is kept in the cache folder. The class path of a program
must begin with the class path of the archive; otherwise the program starts without it, without a warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bookie.embedded.apache import ApacheCluster
from bookie.embedded.apache_jars import ApacheJvm
from bookie.embedded.apache_settings import ApacheOptions
from bookie.embedded.process import EmbeddedProcessError
from bookie.runtime.class_data import fingerprint
from bookie.runtime.java import Java
from bookie.runtime.kept_files import cache_folder
from tests.deadlines import PROGRAM_S
from tests.kept_files import made_once

_log = logging.getLogger(__name__)

SHORT_LIVED: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options for programs that run for minutes: the optimizing compiler would take longer than it saves."""
_SILENT: Final = "-Xlog:cds*=off"
_QUORUMS: Final = ("-ensemble", "1", "-writeQuorum", "1", "-ackQuorum", "1")
_MADE_BY: Final = "1"
"""The version of the archive. Change it when the creation of the archive changes."""


def quick_jvm(java: Java, lib: Path) -> ApacheJvm:
    """Return settings with which Apache's programs start quickly: with the archive, which is made if it is missing.

    If it cannot be made, programs start without it. To make it takes ten seconds or more; other processes wait.
    """
    archive = cache_folder() / f"{lib.name}-classes-{fingerprint(java, lib, _MADE_BY)}.jsa"
    try:
        made_once(archive, lambda made: _make(made, java, lib))
    except (OSError, EmbeddedProcessError) as error:  # a missed deadline is an OSError too
        _log.warning("no archive of Apache's classes, so its programs start slowly", extra={"reason": str(error)})
        return ApacheJvm(java, lib, options=SHORT_LIVED)
    return ApacheJvm(java, lib, options=(*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}", _SILENT))


def _make(archive: Path, java: Java, lib: Path) -> None:
    asyncio.run(_train(archive, archive.parent, java, lib))


async def _train(archive: Path, directory: Path, java: Java, lib: Path) -> None:
    """Run a bookie that loads the classes of the test programs, and writes the archive when it ends."""
    cluster = await ApacheCluster.start(
        directory / "cluster",
        bookies=0,
        options=ApacheOptions(extra={"autoRecoveryDaemonEnabled": "true", "zkTimeout": "60000"}),
        is_zookeeper_durable=False,
        jvm_options=SHORT_LIVED,
        java=java,
        lib=lib,
    )
    async with cluster:
        plain = cluster.jvm
        options: Sequence[str] = (*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={archive}", _SILENT)
        cluster.jvm = replace(plain, options=options)
        [bookie] = await cluster.add_bookies(1)
        cluster.jvm = plain
        await cluster.shell("simpletest", *_QUORUMS, "-numEntries", "50")
        await bookie.running.stop(PROGRAM_S)
