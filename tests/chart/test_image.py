"""The parts of the image's recipe that can be checked without building it, and its entry point, which runs here."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
ENTRYPOINT: Final = ROOT / "helm" / "image" / "entrypoint.sh"
EXECUTOR: Final = {
    "SPARK_EXECUTOR_MEMORY": "2g",
    "SPARK_DRIVER_URL": "spark://driver@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "pod-1",
    "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
    "SPARK_JAVA_OPT_1": "-Dwith=two words",
}


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def stages() -> list[list[tuple[str, str]]]:
    made: list[list[tuple[str, str]]] = []
    for name, rest in instructions():
        if name == "FROM":
            made.append([])
        made[-1].append((name, rest))
    return made


def of(stage: list[tuple[str, str]], name: str) -> list[str]:
    return [rest for each, rest in stage if each == name]


def test_every_copied_path_exists_and_is_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for rest in (rest for name, rest in instructions() if name == "COPY" and "--from=" not in rest):
        *sources, _ = [word for word in rest.split() if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists()
            assert source in allowed


def test_all_packages_of_the_wheel_are_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    copied = {word for rest in of(stages()[0], "COPY") for word in rest.split()}
    assert packages | {"pyproject.toml", "constraints.txt", project["project"]["readme"]} <= copied


def test_it_runs_as_an_unprivileged_user() -> None:
    assert of(stages()[-1], "USER") == ["185:185"]
    after = [name for name, _ in stages()[-1]]
    assert "RUN" not in after[after.index("USER") :]


def test_bases_are_the_same_and_pinned_to_a_release() -> None:
    bases = {rest.split()[0] for rest in (of(stage, "FROM")[0] for stage in stages())}
    assert bases == {"python:3.11-slim-bookworm"}


def test_the_last_stage_downloads_only_debian_packages() -> None:
    commands = " ".join(of(stages()[-1], "RUN"))
    assert not re.search(r"\b(curl|wget|git|pip|ADD)\b", commands)
    assert "openjdk-17-jre-headless" in commands
    assert "rm -rf /var/lib/apt/lists" in commands
    assert of(stages()[-1], "ADD") == []


def test_a_login_by_kerberos_is_possible() -> None:
    first, last = (" ".join(of(stage, "RUN")) for stage in stages())
    assert first.count("[service,kerberos]") == 2
    assert "libkrb5-dev" in first
    assert "libgssapi-krb5-2" in last


def test_any_user_id_has_a_name() -> None:
    """Spark does not start with an id without a name; OpenShift, for one, chooses the id. The package would use 185."""
    [command, *_] = of(stages()[-1], "RUN")
    assert command.index("useradd ") < command.index(" libnss-unknown ")
    assert "grep --quiet '^passwd:.* unknown' /etc/nsswitch.conf" in command


def test_nothing_is_downloaded_at_run_time() -> None:
    assert not re.search(r"\b(curl|wget|pip|apt-get|https?:)\b", ENTRYPOINT.read_text())
    install = of(stages()[0], "RUN")[-1]
    assert "--no-index" in install
    assert "--constraint constraints.txt" in install


def test_signals_reach_the_process() -> None:
    entrypoint = json.loads(of(stages()[-1], "ENTRYPOINT")[0])
    assert entrypoint == ["tini", "--", "bkheal-entrypoint"]
    assert ENTRYPOINT.stat().st_mode & stat.S_IXUSR
    commands = [
        line for line in ENTRYPOINT.read_text().splitlines() if re.match(r"\s*(exec )?(bkheal|\"?\$\{JAVA_HOME)", line)
    ]
    assert len(commands) == 2
    assert all(line.strip().startswith("exec ") for line in commands)


def test_the_image_defines_no_health_check() -> None:
    assert of(stages()[-1], "HEALTHCHECK") == ["NONE"]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with a java and a bkheal that print their arguments, one per line."""
    for name in ("java", "bkheal"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        program.chmod(0o755)
    return tmp_path


def entry(programs: Path, *arguments: str, **variables: str) -> list[str]:
    import sys

    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", str(ENTRYPOINT), *arguments],
        env={"PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_arguments_are_passed_to_bkheal(programs: Path) -> None:
    assert entry(programs, "status", "-o", "json") == ["bkheal", "status", "-o", "json"]


def test_spark_starts_executors_with_it(programs: Path) -> None:
    java = entry(programs, "executor", **EXECUTOR)
    assert java[:5] == ["java", "-Dspark.driver.port=7078", "-Dwith=two words", "-Xms2g", "-Xmx2g"]
    classpath = java[java.index("-cp") + 1]
    jars = Path(classpath.split(":")[1].removesuffix("/*"))
    assert list(jars.glob("spark-kubernetes_*.jar"))
    assert java[java.index("-cp") + 2].endswith(".KubernetesExecutorBackend")
    options = java[java.index("-cp") + 3 :]
    assert dict(zip(options[::2], options[1::2], strict=True)) == {
        "--driver-url": "spark://driver@10.0.0.1:7078",
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "app",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "pod-1",
    }


def test_the_extra_class_path_of_executors_is_before_the_jars(programs: Path) -> None:
    java = entry(programs, "executor", **EXECUTOR, SPARK_CLASSPATH="/opt/hadoop-aws/*:/opt/more.jar")
    settings, *extra, jars = java[java.index("-cp") + 1].split(":")
    assert settings == "/opt/spark/conf"
    assert extra == ["/opt/hadoop-aws/*", "/opt/more.jar"]
    assert list(Path(jars.removesuffix("/*")).glob("spark-kubernetes_*.jar"))
