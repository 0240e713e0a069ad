"""Spark's classes, loaded once and kept: a Java machine that maps this archive starts in two thirds of the time.

Application class-data sharing (JEP 350): a Java machine writes the classes of a real audit when it ends, and later ones
map that file. The file belongs to one release of Java and one set of Spark's jars (``kept_files``).

``python -m tests.class_archive URI REPORTS`` is the audit; its environment has the path of the archive for Java.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.runtime.java import Java, find_java, java_environment
from tests.deadlines import PROGRAM_S
from tests.kept_files import cache_folder, fingerprint, made_once

_log = logging.getLogger(__name__)

_COMMON: Final = ("-XX:+UseSerialGC", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_LAUNCHER: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
"""Spark's launcher is a small Java program that prints the command of the large one."""
_LEDGERS: Final = 20


def spark_environment(zookeeper: EmbeddedZooKeeper, scratch: Path) -> Mapping[str, str]:
    """Variables for processes that start Spark; the archive is made first if this machine has none.

    Several test processes may ask at once: one makes it, the others wait. If this Java cannot make one, Spark starts
    without it.

    Args:
        zookeeper: where the audit that loads the classes finds a cluster.
        scratch: an empty folder for what that audit writes.
    """
    java = find_java()
    if not (java.home / "lib" / "server" / "classes.jsa").exists():
        return {}  # an archive extends the one that Java came with
    archive = cache_folder() / f"spark-classes-{fingerprint(java, _jars())}.jsa"
    try:
        made_once(archive, lambda made: _make(zookeeper, scratch, made, java))
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("no archive of Spark's classes, so Spark starts slowly", extra={"reason": str(error)})
        return {}
    return {"SPARK_SUBMIT_OPTS": _options(f"-XX:SharedArchiveFile={archive}"), "SPARK_LAUNCHER_OPTS": _LAUNCHER}


def _options(archive: str) -> str:
    return " ".join((archive, *_COMMON))


def _jars() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "jars"


def _make(zookeeper: EmbeddedZooKeeper, scratch: Path, archive: Path, java: Java) -> None:
    """Raises: OSError, subprocess.SubprocessError: the audit failed, or Java wrote nothing."""
    from tests.spark.audit_world import closed, opened

    with opened(zookeeper.connect_string, "/class-archive/ledgers", scratch) as place:
        place.register("a:1", "b:1", "c:1")
        place.add_cookies("a:1", "b:1", "c:1", "x:1")
        place.create({number: closed("a:1", "x:1" if number % 2 else "b:1") for number in range(_LEDGERS)})
        subprocess.run(
            [sys.executable, "-m", "tests.class_archive", place.uri, str(scratch / "reports")],
            cwd=Path(__file__).parents[1],
            env={
                **os.environ,
                **java_environment(java),
                "SPARK_SUBMIT_OPTS": _options(f"-XX:ArchiveClassesAtExit={archive}"),
            },
            capture_output=True,
            timeout=PROGRAM_S,
            check=True,
        )


def _audit(uri: str, report_dir: Path) -> None:
    """Audit a cluster, then end Spark's Java machine, which writes the archive."""
    from pyspark import SparkContext

    from spark_jobs.runs.run import run_audit
    from spark_jobs.session import SessionSettings, spark_session
    from spark_jobs.settings import AuditSettings

    settings = SessionSettings(master="local[2]", is_ui_enabled=True, extra=(("spark.ui.port", "0"),))
    with spark_session(settings) as spark:
        run_audit(spark, AuditSettings(uri, report_dir))
    gateway: Any = SparkContext._gateway
    java = gateway.proc
    java.stdin.close()
    java.wait(PROGRAM_S)


if __name__ == "__main__":
    _audit(sys.argv[1], Path(sys.argv[2]))
