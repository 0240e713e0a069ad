"""The places from which Spark's Python workers import."""

from __future__ import annotations

from pathlib import Path

from spark_jobs.python_daemon import compiled_paths


def test_the_package_replaces_the_archive_inside_it(tmp_path: Path) -> None:
    package = tmp_path / "pyspark"
    (package / "python/lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    archive = str(package / "python/lib/pyspark.zip")
    assert compiled_paths(["/code", archive, "/more"]) == ["/code", str(tmp_path), "/more"]


def test_the_archive_of_a_distribution_is_kept(tmp_path: Path) -> None:
    """Its version may differ from that of a package in another place."""
    (tmp_path / "spark/python/lib").mkdir(parents=True)
    paths = [str(tmp_path / "spark/python/lib/pyspark.zip"), "/code"]
    assert compiled_paths(paths) == paths
