"""The folder for native libraries of Spark's codecs on a machine whose ``/tmp`` is mounted with ``noexec``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_jobs.native_libraries import forbids_execution, library_options


def within(*roots: Path) -> Callable[[Path], bool]:
    """These directories forbid to execute files."""
    return lambda directory: directory in roots


def test_another_folder_is_used_only_if_temporary_files_cannot_be_executed(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    folder = tmp_path / ".cache/bkheal/native"
    assert library_options(environment, within()) == ()
    assert not folder.exists()
    options = library_options(environment, within(Path("/tmp")))
    assert options == (f"-Dorg.xerial.snappy.tempdir={folder}", f"-DZstdTempFolder={folder}")
    assert library_options(environment, within(Path("/tmp"))) == options


def test_other_users_cannot_write_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "bkheal/native"
    folder.mkdir(parents=True, mode=0o777)
    folder.chmod(0o777)
    assert library_options({"XDG_CACHE_HOME": str(tmp_path)}, within(Path("/tmp")))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_used_leaves_the_decision_to_java(tmp_path: Path) -> None:
    tmp = Path("/tmp")
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    assert library_options(home, within(tmp, tmp_path / "bkheal/native")) == ()
    (tmp_path / "file").touch()
    assert library_options({"XDG_CACHE_HOME": str(tmp_path / "file")}, within(tmp)) == ()
    assert library_options({"XDG_CACHE_HOME": str(tmp_path / "with space")}, within(tmp)) == ()


def test_a_directory_that_cannot_be_examined_is_taken_as_usable(tmp_path: Path) -> None:
    assert not forbids_execution(tmp_path / "missing")
