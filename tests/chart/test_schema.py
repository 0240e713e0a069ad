"""The chart's schema is generated from the options of the commands, and values set options with the same rules."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import yaml

from tests.chart.rendering import CHART, ROOT, VALUES, Release, load_values, pods, release, render
from tests.chart.test_components import settings
from tests.chart.values_table import value_at

SCRIPT: Final = ROOT / ".ci" / "generate_chart_schema.py"
SCHEMA: Final[dict[str, Any]] = json.loads((CHART / "values.schema.json").read_text())
BASE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "helm" / "values.schema.base.yaml").read_text())
DEFAULTS: Final[dict[str, Any]] = yaml.safe_load((CHART / "values.yaml").read_text())
TABLES: Final = {"auditor": "auditor", "audit": "audit.run", "replicator": "replicator", "bookie": "bookie"}
"""The key of each free table in the values, and the command of its table in the file."""
TEXTS: Final = {
    "store": "s3://bkheal/reports",
    "image": "s3://bkheal/image",
    **dict.fromkeys(("bookies", "placement", "replicas", "references", "everything"), "15m"),
    "driverMemory": "2g",
    "proxyBase": "/spark",
    "publicUrl": "https://bkheal.example.org",
    "url": "http://pushgateway:9091",
    "username": "bkheal",
}
"""Texts that are not the default, by the last part of a value's name."""
LOGIN: Final = {"username": "name", "existingSecret": "login"}
"""A complete login, because the schema accepts no part of one."""


def of_options(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield each value that sets an option: its name, its path, and the option's table and key."""
    for name, part in node.get("closed", {}).items():
        named = part.get("option", ())
        for option in [named] if isinstance(named, str) else named:
            yield ".".join((*path, name)), (*path, name), option
        yield from of_options(part, (*path, name))


SET: Final = list(of_options(BASE))
NULL_REFUSED: Final = {"bookies.ports.bookie", "bookies.ports.http"}
NULL_COMPUTED: Final = {
    "auditor.publicUrl": "http://demo-bkheal-leader.bk.svc.cluster.local:8080",
    "replicator.throttle.bytesPerSecond": 0,
}
"""The settings that a template computes if the value is null."""


def taken_by(path: tuple[str, ...]) -> dict[str, Any]:
    schema = SCHEMA
    for name in path:
        schema = schema["properties"][name]
    return schema


def another(path: tuple[str, ...]) -> Any:
    """Return a value that the schema accepts and that is not the default."""
    default, schema = value_at(DEFAULTS, list(path)), taken_by(path)
    if "enum" in schema:
        return next(each for each in schema["enum"] if each != default)
    match schema["type"]:
        case "boolean":
            return not default
        case "integer" | "number":
            higher = default + 100  # no other port of a pod
            return min(higher, schema.get("maximum", higher))
        case _:
            return TEXTS[path[-1]]


def rendered_with(path: tuple[str, ...], value: Any, table: str) -> Release:
    values: Any = value
    for name in reversed(path):
        values = {name: values}
    bookkeeper = values.setdefault("bookkeeper", {})
    bookkeeper["metadataServiceUri"] = "zk://zookeeper:2181/ledgers"
    if "clientSasl" in bookkeeper:
        bookkeeper["clientSasl"] = LOGIN | bookkeeper["clientSasl"]
        bookkeeper["clientTls"] = {"existingSecret": "tls"} | bookkeeper.get("clientTls", {})  # PLAIN requires TLS
    if table == "audit.run":
        values["mode"] = "cron"
    if table == "exporter":
        values.setdefault("exporter", {})["when"] = "always"
        values.setdefault("mode", "cron" if path[0] == "cron" else "service")
    if table == "bookie":
        values.setdefault("bookies", {})["enabled"] = True
    return render(values)


def test_the_schema_is_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "values.schema.json"
    subprocess.run([sys.executable, str(SCRIPT), "--out", str(made)], check=True, timeout=60, cwd=ROOT)
    assert made.read_text() == (CHART / "values.schema.json").read_text(), f"run: python .ci/{SCRIPT.name}"


def test_the_base_schema_is_not_part_of_the_chart() -> None:
    assert list(CHART.rglob("*schema*")) == [CHART / "values.schema.json"]


@pytest.mark.parametrize(("path", "option"), [pytest.param(path, option, id=name) for name, path, option in SET])
def test_a_value_with_the_rules_of_an_option_sets_that_option(path: tuple[str, ...], option: str) -> None:
    table, _, key = option.rpartition(".")
    value = another(path)
    assert settings(rendered_with(path, value, table), table)[key] == value != value_at(DEFAULTS, list(path))


@pytest.mark.parametrize(
    ("path", "option"),
    [pytest.param(path, option, id=name) for name, path, option in SET if name not in NULL_REFUSED],
)
def test_a_null_value_omits_its_option(path: tuple[str, ...], option: str) -> None:
    """Helm removes such a value before it validates, and TOML has no null."""
    table, _, key = option.rpartition(".")
    assert settings(rendered_with(path, None, table), table).get(key) == NULL_COMPUTED.get(".".join(path))


@pytest.mark.parametrize("name", ["cores", "instances", "memory", "memoryOverhead", "requestCores"])
def test_a_null_value_omits_its_spark_setting(name: str) -> None:
    values = load_values("service-k8s-client")
    values["spark"].setdefault("executor", {})[name] = None
    made = render(values)
    [files] = [item["data"] for item in made.of("ConfigMap") if "spark-defaults.conf" in item["data"]]
    lines = filter(None, files["spark-defaults.conf"].splitlines())
    assert all(len(line.split()) > 1 for line in lines)


@pytest.mark.parametrize(("table", "name"), [(table, name) for table, name in TABLES.items()])
def test_a_table_has_every_option_except_those_that_the_chart_also_sets_elsewhere(table: str, name: str) -> None:
    import typer

    from auditor.cli.configuration.command import configured
    from auditor.cli.main import app

    root: Any = typer.main.get_command(app)
    options = {setting.key: setting for words, setting in configured(root) if ".".join(words) == name}
    taken = SCHEMA["properties"]["config"]["properties"][table]["properties"]
    refused = BASE["closed"]["config"]["closed"][table]["refused"]
    assert taken.keys() | refused.keys() == options.keys()
    assert {key: schema["description"] for key, schema in taken.items()} == {key: options[key].help for key in taken}


@pytest.mark.parametrize("name", VALUES)
def test_options_for_mounted_paths_are_refused_in_tables(name: str) -> None:
    made = release(name)
    [config] = [item for item in made.of("ConfigMap") if item["metadata"]["name"].endswith("-config")]
    for file in config["data"]:
        table = file.removesuffix(".toml")
        if table in TABLES:
            taken = SCHEMA["properties"]["config"]["properties"][table]["properties"]
            mounted = {
                key
                for key, value in settings(made, TABLES[table]).items()
                if str(value).startswith(("/etc/bkheal", "/var/lib/bkheal"))
            }
            assert mounted & taken.keys() == set()


@pytest.mark.parametrize("name", VALUES)
def test_options_that_a_flag_or_variable_overrides_are_refused_in_tables(name: str) -> None:
    tables = SCHEMA["properties"]["config"]["properties"]
    for pod in pods(release(name)):
        for container in pod.spec["containers"]:
            reported = {each["name"] for each in container.get("env", [])}
            reported |= {argument.partition("=")[0] for argument in container.get("args", [])}
            for table, command in TABLES.items():
                if set(command.split(".")) <= set(container.get("args", [])):
                    flags = {f"--{key.replace('_', '-')}" for key in tables[table]["properties"]}
                    prefix = f"BKHEAL_{command.replace('.', '_').upper()}_"
                    variables = {f"{prefix}{key.upper()}" for key in tables[table]["properties"]}
                    is_dry_run = pod.owner["metadata"]["name"].endswith("-once-dry-run")  # set by the template
                    assert reported & (flags | variables) == ({"--dry-run"} if is_dry_run else set())


OPTIONS: Final = {
    "a.size": {"type": "integer", "minimum": 1, "maximum": 9, "description": "Size."},
    "b.size": {"type": "integer", "minimum": 2, "description": "Other size."},
    "b.name": {"type": "string", "description": "Name."},
    "b.api_token": {"type": "string", "description": "Token."},
}


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_chart_schema", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_value_for_several_options_accepts_what_all_of_them_accept() -> None:
    made = generator().made_of({"option": ["a.size", "b.size"], "maximum": 5}, OPTIONS)
    assert made == {"type": "integer", "minimum": 2, "maximum": 5, "description": "Size."}


def test_tables_contain_no_secrets() -> None:
    made = generator().made_of({"table": "b", "refused": {"size": "elsewhere"}}, OPTIONS)
    assert made == {"type": "object", "additionalProperties": False, "properties": {"name": OPTIONS["b.name"]}}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"option": "a.length"}, "there is no such option"),
        ({"option": ["a.size", "b.name"]}, "of different types"),
        ({"option": "a.size", "maximum": 10}, "maximum 10 must not be in the base"),
        ({"option": "a.size", "minimum": 0}, "minimum 0 must not be in the base"),
        ({"option": "a.size", "type": "string"}, "type string must not be in the base"),
        ({"table": "b", "refused": {"length": "gone"}}, "length: refused, but there is no such option"),
    ],
)
def test_a_base_that_contradicts_the_options_is_refused(node: Any, why: str) -> None:
    module = generator()
    with pytest.raises(module.BaseError, match=why):
        module.made_of(node, OPTIONS)
