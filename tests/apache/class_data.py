"""An archive of Apache's classes as a Java machine keeps them in memory: programs start in two thirds of the time.

Java calls it application class-data sharing. It is made once for a set of jars and a version of Java, by a bookie with
auto-recovery that a shell writes to, and kept in the cache folder. A Java machine that finds it unfit for its class
path goes on without it and says nothing. The class path of a program must begin with that of the archive.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bookie.embedded.apache import ApacheCluster
from bookie.embedded.apache_jars import LIB_VARIABLE, ApacheJvm, default_apache_lib
from bookie.embedded.apache_settings import ApacheOptions
from bookie.embedded.process import EmbeddedProcessError
from bookie.runtime.java import Java
from tests.deadlines import PROGRAM_S

_log = logging.getLogger(__name__)

SHORT_LIVED: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For programs that live for minutes: the optimizing compiler would not pay for itself."""
_SILENT: Final = "-Xlog:cds*=off"
_QUORUMS: Final = ("-ensemble", "1", "-writeQuorum", "1", "-ackQuorum", "1")
_MADE_BY: Final = "1"
"""Another one for another way of making the archive."""


def quick_jvm(java: Java, lib: Path) -> ApacheJvm:
    """How to start programs of Apache's quickly: with the archive, which is made if it is missing.

    Without one where it cannot be made. The first process takes ten seconds or more; others wait for it.
    """
    archive = cache_folder() / f"{lib.name}-classes-{fingerprint(java, lib)}.jsa"
    try:
        made_once(archive, lambda made: _make(made, java, lib))
    except (OSError, EmbeddedProcessError) as error:  # a deadline that passed is an OSError
        _log.warning("no archive of Apache's classes, so its programs start slowly", extra={"reason": str(error)})
        return ApacheJvm(java, lib, options=SHORT_LIVED)
    return ApacheJvm(java, lib, options=(*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}", _SILENT))


def made_once(path: Path, make: Callable[[Path], None]) -> None:
    """Have ``make`` make this file or folder, if it is missing, at a place of its own; it comes here once it is whole.

    Other processes that ask at the same time wait for it.

    Raises:
        OSError: nothing can be written there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(prefix=f"{path.name}-", dir=path.parent) as directory:
                made = Path(directory) / path.name
                make(made)
                made.rename(path)


def cache_folder() -> Path:
    """Where this project keeps what it can make again."""
    return default_apache_lib({name: value for name, value in os.environ.items() if name != LIB_VARIABLE}).parent


def fingerprint(java: Java, lib: Path, *more: str) -> str:
    """Of the version of Java, of the jars, and of ``more``."""
    release = java.home / "release"
    seen = [_MADE_BY, str(java.executable.resolve()), release.read_text() if release.is_file() else "", *more]
    for jar in sorted(lib.glob("*.jar")):
        status = jar.stat()
        seen.append(f"{jar} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]


def _make(archive: Path, java: Java, lib: Path) -> None:
    asyncio.run(_train(archive, archive.parent, java, lib))


async def _train(archive: Path, directory: Path, java: Java, lib: Path) -> None:
    """Run a bookie that loads what the programs of the tests need; it writes the archive when it ends."""
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
