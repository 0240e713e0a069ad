"""Containers start with arguments and files accepted by the processes."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bookie.runtime.configuration.options import build, options_of
from bookie.runtime.configuration.settings import ConfigurationError
from tests.chart.rendering import VALUES, load_values, pods, release


def files(name: str) -> dict[str, str]:
    """Return the configuration file of each kind of process."""
    [config] = [item for item in release(name).of("ConfigMap") if item["metadata"]["name"].endswith("-config")]
    return {key: text for key, text in config["data"].items() if key.endswith(".toml")}


def environment(name: str) -> dict[str, str]:
    """Return the variables of all containers, as Kubernetes expands them."""
    return {
        each["name"]: each["value"].replace("$(POD_NAME)", "demo-0").replace("$(POD_IP)", "10.0.0.7")
        for pod in pods(release(name))
        for container in pod.containers
        for each in container.get("env", [])
        if each["name"].startswith("BKHEAL_") and each["name"] != "BKHEAL_CONFIG" and "value" in each
    }


@pytest.mark.parametrize("name", VALUES)
def test_files_are_valid(name: str, tmp_path: Path) -> None:
    """With the variables of the containers ``bkheal config validate`` gives the same result as in a pod."""
    for key, text in files(name).items():
        path = tmp_path / key
        path.write_text(text)
        done = CliRunner().invoke(bkheal(), ["config", "validate", "--config", str(path)], env=environment(name))
        assert problems_here(done) == [], done.output


def problems_here(done: Result) -> list[str]:
    """Return the problems of a file, except for the secrets and maps mounted by a pod, which this machine lacks."""
    if done.exception is None or isinstance(done.exception, SystemExit):
        return [] if done.exit_code == 0 else [done.output]
    assert isinstance(done.exception, ConfigurationError)
    return [problem for problem in done.exception.problems if "there is no file /etc/bkheal" not in problem]


@pytest.mark.parametrize("name", VALUES)
def test_arguments_exist_in_the_commands(name: str) -> None:
    for pod in pods(release(name)):
        for container in pod.containers:
            words = [*container.get("command", ["bkheal"]), *container.get("args", [])]
            if "bkheal" in words and container["image"].rpartition("/")[2].startswith("bkheal"):
                check_arguments(words[words.index("bkheal") + 1 :])


@functools.cache
def bkheal() -> Any:
    """Return the tree of commands. It is cached, because building it takes 0.2 s."""
    from typer.main import get_command

    from auditor.cli.main import app

    return get_command(app)


def check_arguments(words: list[str]) -> None:
    command: Any = bkheal()
    rest = words[2:] if words[0] == "--log-level" else words
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    known = {name for option in command.params for name in option.opts}
    assert not getattr(command, "commands", {}) or command.invoke_without_command, f"no such command: {words}"
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known, words


@pytest.mark.parametrize("name", [name for name in VALUES if load_values(name).get("mode", "service") == "service"])
def test_the_auditor_accepts_its_configuration_file(name: str, tmp_path: Path) -> None:
    """The settings accept every value of the file if the files of secrets exist."""
    from auditor.service.settings import ServiceSettings

    settings = tomllib.loads(files(name)["auditor.toml"])["auditor"]
    for key, value in list(settings.items()):
        if isinstance(value, str) and value.startswith("/etc/"):
            (tmp_path / key).touch()
            settings[key] = str(tmp_path / key)
        assert key in {option.name for option in options_of(ServiceSettings)}, (key, value)
    build(ServiceSettings, settings, metadata_uri="zk://zookeeper:2181/ledgers")


def test_the_chart_has_the_defaults_of_the_auditor() -> None:
    from auditor.service.settings import ServiceSettings

    of_pods = {"report_dir", "http_host", "grpc_host", "ui_host", "public_url", "spark_master"}
    of_pods |= {"leader_http_port", "leader_grpc_port", "leader_ui_port"}
    settings = tomllib.loads(files("service-minimal")["auditor.toml"])["auditor"]
    defaults = {option.name: option.default for option in options_of(ServiceSettings)}
    assert {key: value for key, value in settings.items() if key not in of_pods and defaults[key] != value} == {}
