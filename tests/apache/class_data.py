"""An archive of Apache's classes as a Java machine keeps them in memory: programs start in two thirds of the time.

Java calls it application class-data sharing. It is made once for a set of jars and a version of Java, by a bookie with
auto-recovery and a shell writing to it, and kept in the cache folder. A Java machine whose class path does not fit
starts without it, without a warning. The class path of a program must begin with the class path of the archive.
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
"""For programs with a life of minutes: the optimizing compiler would not pay for itself."""
_SILENT: Final = "-Xlog:cds*=off"
_QUORUMS: Final = ("-ensemble", "1", "-writeQuorum", "1", "-ackQuorum", "1")
_MADE_BY: Final = "1"
"""To be changed together with the creation of the archive."""


def quick_jvm(java: Java, lib: Path) -> ApacheJvm:
    """Return the settings for a quick start of Apache's programs: with the archive, which is made if it is missing.

    If it cannot be made, programs start without it. The first process takes ten seconds or more; others wait for it.
    """
    archive = cache_folder() / f"{lib.name}-classes-{fingerprint(java, lib, _MADE_BY)}.jsa"
    try:
        made_once(archive, lambda made: _make(made, java, lib))
    except (OSError, EmbeddedProcessError) as error:  # an expired deadline is an OSError
        _log.warning("no archive of Apache's classes, so its programs start slowly", extra={"reason": str(error)})
        return ApacheJvm(java, lib, options=SHORT_LIVED)
    return ApacheJvm(java, lib, options=(*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}", _SILENT))


def _make(archive: Path, java: Java, lib: Path) -> None:
    asyncio.run(_train(archive, archive.parent, java, lib))


async def _train(archive: Path, directory: Path, java: Java, lib: Path) -> None:
    """Run a bookie to load the classes of the test programs; it writes the archive when it ends."""
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
