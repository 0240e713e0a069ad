"""When a session uses an archive of Spark's classes, and when the archive cannot be created."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.class_archive import ClassArchiveError, make_class_archive
from bookie.runtime.class_data import mark_complete
from bookie.runtime.java import Java, JavaOrigin
from spark_jobs.class_archive import LAUNCHER_OPTIONS, SUBMIT_OPTIONS, VARIABLE, archive_options, archive_path
from spark_jobs.session import SessionSettings, spark_conf


def a_java(home: Path, release: str = 'JAVA_VERSION="17.0.1"\n') -> Java:
    (home / "bin").mkdir(parents=True, exist_ok=True)
    (home / "bin" / "java").touch()
    (home / "release").write_text(release)
    return Java(home, home / "bin" / "java", 17, JavaOrigin.JAVA_HOME)


@pytest.fixture
def java(tmp_path: Path) -> Java:
    return a_java(tmp_path / "java")


@pytest.fixture
def environment(tmp_path: Path, java: Java) -> dict[str, str]:
    """Return an environment with an archive at the usual path."""
    environment = {"HOME": str(tmp_path)}
    path = archive_path(java, environment)
    path.parent.mkdir(parents=True)
    an_archive(path)
    return environment


def an_archive(path: Path) -> None:
    path.write_bytes(b"classes")
    mark_complete(path)


def test_the_archive_in_the_cache_directory_is_used(java: Java, environment: dict[str, str]) -> None:
    options = archive_options(java, environment)
    assert f"-XX:SharedArchiveFile={archive_path(java, environment)}" in options
    conf = spark_conf(SessionSettings(), "log4j2.properties", options)
    assert set(options) < set(conf["spark.driver.extraJavaOptions"].split())


def test_without_an_archive_there_is_no_option(java: Java, tmp_path: Path) -> None:
    assert archive_options(java, {"HOME": str(tmp_path)}) == ()


def test_another_release_of_java_has_another_archive(java: Java, environment: dict[str, str]) -> None:
    before = archive_path(java, environment)
    newer = a_java(java.home, 'JAVA_VERSION="17.0.2"\n')
    assert archive_path(newer, environment) != before
    assert archive_options(newer, environment) == ()


def test_a_named_file_is_used_for_every_java(java: Java, environment: dict[str, str], tmp_path: Path) -> None:
    named = tmp_path / "named.jsa"
    environment[VARIABLE] = str(named)
    assert archive_options(java, environment) == ()
    an_archive(named)
    assert f"-XX:SharedArchiveFile={named}" in archive_options(java, environment)


@pytest.mark.parametrize("option", ["-XX:SharedArchiveFile=/opt/own.jsa", "-XX:ArchiveClassesAtExit=/x", "-Xshare:off"])
def test_archive_options_of_an_operator_take_precedence(java: Java, environment: dict[str, str], option: str) -> None:
    assert archive_options(java, {**environment, SUBMIT_OPTIONS: f"-Dx=1 {option}"}) == ()
    assert archive_options(java, {**environment, SUBMIT_OPTIONS: "-Dx=1", LAUNCHER_OPTIONS: option}) != ()


def test_a_truncated_archive_is_not_used(java: Java, environment: dict[str, str]) -> None:
    path = archive_path(java, environment)
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert archive_options(java, environment) == ()
    path.write_bytes(whole)
    assert archive_options(java, environment) != ()


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_another_user_can_write_is_not_used(java: Java, environment: dict[str, str], mode: int) -> None:
    archive_path(java, environment).chmod(mode)
    assert archive_options(java, environment) == ()


@pytest.mark.parametrize("name", ["two words.jsa", "a:b.jsa", 'a"b.jsa'])
def test_a_path_that_java_would_split_is_neither_used_nor_created(
    java: Java, environment: dict[str, str], tmp_path: Path, name: str
) -> None:
    an_archive(tmp_path / name)
    environment[VARIABLE] = str(tmp_path / name)
    assert archive_options(java, environment) == ()
    (java.home / "lib" / "server").mkdir(parents=True)
    (java.home / "lib" / "server" / "classes.jsa").touch()
    with pytest.raises(ClassArchiveError):
        make_class_archive(tmp_path / "folder" / name, java)
    assert not (tmp_path / "folder").exists()


def test_a_java_without_its_own_class_archive_creates_none(java: Java, tmp_path: Path) -> None:
    with pytest.raises(ClassArchiveError):
        make_class_archive(tmp_path / "folder" / "classes.jsa", java)
    assert not (tmp_path / "folder").exists()
