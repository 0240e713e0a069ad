"""Spark's classes, loaded once and kept: a Java machine that maps this archive starts in two thirds of the time.

Application class-data sharing (JEP 350): a Java machine writes the classes of a real audit when it ends, and later ones
map that file. It lies in the cache folder of ``bkheal``, outside the repository, and belongs to one Java and one set of
Spark's jars: with others the Java machine starts without it and says nothing.

``python -m tests.class_archive URI REPORTS`` is the audit: its Java machine is started with the option that says where.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.runtime.java import find_java, java_environment
from tests.deadlines import PROGRAM_S

_COMMON: Final = ("-XX:+UseSerialGC", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_LAUNCHER: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
"""Spark's launcher is a small Java program that prints the command of the large one."""
_LEDGERS: Final = 20


def spark_environment(zookeeper: EmbeddedZooKeeper, scratch: Path) -> Mapping[str, str]:
    """Variables for processes that start Spark; the archive is made first if this machine has none.

    Several test processes may ask at once: one makes it, the others wait.

    Args:
        zookeeper: where the audit that loads the classes finds a cluster.
        scratch: an empty folder for what that audit writes.
    """
    archive = _cache() / f"spark-classes-{_key()}.jsa"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(zookeeper, scratch, archive)
    return {"SPARK_SUBMIT_OPTS": _options(f"-XX:SharedArchiveFile={archive}"), "SPARK_LAUNCHER_OPTS": _LAUNCHER}


def _options(archive: str) -> str:
    return " ".join((archive, *_COMMON))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bkheal"


def _key() -> str:
    """What the archive depends on: the build of Java, and the path, age and size of each jar."""
    said = subprocess.run([find_java().executable, "-version"], capture_output=True, check=True, timeout=PROGRAM_S)
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = sorted((Path(spec.origin).parent / "jars").glob("*.jar"))
    facts = [(str(jar), jar.stat().st_mtime_ns, jar.stat().st_size) for jar in jars]
    return hashlib.sha256(said.stderr + repr(facts).encode()).hexdigest()[:16]


def _make(zookeeper: EmbeddedZooKeeper, scratch: Path, archive: Path) -> None:
    from tests.spark.audit_world import closed, opened

    with opened(zookeeper.connect_string, "/class-archive/ledgers", scratch) as place:
        place.register("a:1", "b:1", "c:1")
        place.add_cookies("a:1", "b:1", "c:1", "x:1")
        place.create({number: closed("a:1", "x:1" if number % 2 else "b:1") for number in range(_LEDGERS)})
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".spark-classes-") as folder:
            made = Path(folder) / archive.name
            command = [sys.executable, "-m", "tests.class_archive", place.uri, str(scratch / "reports")]
            environment = {
                **os.environ,
                **java_environment(find_java()),
                "SPARK_SUBMIT_OPTS": _options(f"-XX:ArchiveClassesAtExit={made}"),
            }
            done = subprocess.run(
                command,
                cwd=Path(__file__).parents[1],
                env=environment,
                capture_output=True,
                text=True,
                timeout=PROGRAM_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            made.replace(archive)


def _audit(uri: str, report_dir: Path) -> None:
    """Audit a cluster, then end Spark's Java machine, which writes the archive."""
    from pyspark import SparkContext

    from spark_jobs.audit import run_audit
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
