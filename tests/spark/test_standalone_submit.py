"""Audits by spark-submit on a standalone cluster, from a wheel, outside of a checkout; docs/spark-clusters.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.runs.records import Runs
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunState
from bookie.runtime.version import installed_version
from tests.archives import unpack
from tests.deadlines import PROGRAM_S
from tests.spark.audit_world import Place, closed, opened
from tests.spark.standalone import (
    StandaloneCluster,
    build_wheel,
    driver_environment,
    make_environment,
    started_cluster,
    submitted,
)

pytestmark = [pytest.mark.spark, pytest.mark.integration]

LEDGERS = 20


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with bkheal."""
    return make_environment(tmp_path_factory.mktemp("installed") / "environment", wheel)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with everything except bkheal."""
    return make_environment(tmp_path_factory.mktemp("bare") / "environment", None)


@pytest.fixture(scope="module")
def cluster(quick_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with started_cluster(tmp_path_factory.mktemp("spark-cluster")) as cluster:
        yield cluster


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    """Ledgers with the same lost bookie."""
    with opened(zookeeper.connect_string, fresh_root, tmp_path) as place:
        place.register("a:1", "b:1")
        place.create({number: closed("a:1", "x:1") for number in range(LEDGERS)})
        yield place


class Submitting:
    """Runs audits of a place by spark-submit, in a folder without a checkout."""

    def __init__(self, cluster: StandaloneCluster, place: Place, python: Path, folder: Path) -> None:
        self._cluster = cluster
        self._place = place
        self._python = python
        self.folder = folder / "elsewhere"
        self.folder.mkdir()

    def audit(
        self, *, executor_python: Path | str | None = None, options: Sequence[str] = (), script: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        words = ["--metadata-uri", self._place.uri, "--report-dir", str(self._place.report_dir), "--output", "json"]
        return subprocess.run(
            submitted(self._cluster, script or self._python.parent / "bkheal_audit.py", *words, options=options),
            env={**os.environ, **driver_environment(self._python, executor_python)},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # spark-submit merges the output of a Python driver like this
            text=True,
            timeout=PROGRAM_S,
        )


@pytest.fixture
def submitting(cluster: StandaloneCluster, place: Place, python: Path, tmp_path: Path) -> Submitting:
    return Submitting(cluster, place, python, tmp_path)


def assert_marked_and_reported(place: Place, ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == ExitCode.OK, ended.stdout
    lines = ended.stdout.splitlines()
    summary = json.loads("\n".join(lines[lines.index("{") : lines.index("}") + 1]))
    assert (summary["verdict"], summary["published"]["ledgers"]) == ("under-replicated", LEDGERS)
    assert place.marked() == {number: ["x:1"] for number in range(LEDGERS)}
    directory = place.report_dir / summary["run_id"]
    assert (directory / "summary.json").is_file()
    assert (directory / "report.html").is_file()
    assert list((directory / "findings.parquet").glob("*.parquet")), "the executors did not write the findings"


def test_an_audit_from_a_wheel_marks_and_reports_on_a_cluster(place: Place, submitting: Submitting) -> None:
    assert_marked_and_reported(place, submitting.audit())
    (record,) = place.do(Runs(place.store, place.cluster.root).list(9, now_ms=0))
    assert (record.state, record.tasks_changed) == (RunState.DONE, LEDGERS)


@pytest.mark.long
def test_an_executor_without_the_package_ends_the_audit_with_a_clear_message(
    place: Place, submitting: Submitting, bare: Path
) -> None:
    ended = submitting.audit(executor_python=bare)
    assert ended.returncode == ExitCode.CONFIGURATION
    [sentence] = [line for line in ended.stdout.splitlines() if line.startswith("error: ")]
    assert "an executor lacks the package bkheal (No module named 'spark_jobs')" in sentence
    # Spark's own log, which spark-submit prints, names the errors of its tasks.
    assert not any(line.startswith("Traceback") for line in ended.stdout.splitlines())
    assert place.marked() == {}
    (record,) = place.do(Runs(place.store, place.cluster.root).list(9, now_ms=0))
    assert (record.state, record.exit_code) == (RunState.FAILED, ExitCode.CONFIGURATION)


@pytest.mark.long
def test_an_executor_with_another_version_ends_the_audit_with_a_clear_message(
    place: Place, submitting: Submitting, python: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "bkheal-99.0.dist-info" / "METADATA"
    other.parent.mkdir(parents=True)
    other.write_text("Metadata-Version: 2.1\nName: bkheal\nVersion: 99.0\n")
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{other.parents[1]}:$PYTHONPATH" exec "{python}" "$@"\n')
    program.chmod(0o755)
    ended = submitting.audit(executor_python=program)
    assert ended.returncode == ExitCode.CONFIGURATION, ended.stdout
    [sentence] = [line for line in ended.stdout.splitlines() if line.startswith("error: ")]
    assert f"has bkheal 99.0, and the driver has {installed_version()}" in sentence
    assert place.marked() == {}


@pytest.mark.long
def test_the_wheel_as_a_zip_file_provides_the_code_to_executors_without_it(
    place: Place, submitting: Submitting, wheel: Path, bare: Path
) -> None:
    archive = submitting.folder / "bkheal.zip"
    shutil.copy(wheel, archive)
    assert_marked_and_reported(place, submitting.audit(executor_python=bare, options=["--py-files", str(archive)]))


@pytest.mark.long
def test_an_archive_of_an_environment_provides_code_and_dependencies_to_executors(
    place: Place, submitting: Submitting, python: Path
) -> None:
    archive = submitting.folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(python.parent.parent, ".")
    unpack(archive, submitting.folder / "environment", is_trusted=True)
    ended = submitting.audit(
        executor_python="./environment/bin/python", options=["--archives", f"{archive}#environment"]
    )
    assert_marked_and_reported(place, ended)


@pytest.mark.long
def test_an_archive_that_is_missing_on_executors_is_named(place: Place, submitting: Submitting, python: Path) -> None:
    (submitting.folder / "environment").symlink_to(python.parent.parent)
    ended = submitting.audit(executor_python="./environment/bin/python")
    assert ended.returncode == ExitCode.CONFIGURATION, ended.stdout
    assert "an executor has no Python at ./environment/bin/python" in ended.stdout
    assert place.marked() == {}
