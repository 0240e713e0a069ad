"""Flag, variable, file, default: which one an option's value comes from, through real Typer commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from auditor.cli import config
from auditor.cli.main import app as bkheal
from auditor.cli.running import ConfigOption
from bookie.runtime.settings import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]

app = typer.Typer()
group = typer.Typer()
app.add_typer(group, name="audit")


@app.command("auditor")
def serve(
    config: ConfigOption = None,
    http_port: Annotated[int, typer.Option(help="Port.")] = 8080,
    is_on: Annotated[bool, typer.Option("--on")] = False,
) -> None:
    typer.echo(f"{http_port} {is_on}")


@group.command("run")
def run(config: ConfigOption = None, kind: Annotated[str, typer.Option()] = "bookies") -> None:
    typer.echo(kind)


@group.command("list")
def listing() -> None:
    typer.echo("list")


def invoke(*words: str, **environment: str) -> str:
    clean = {"BKHEAL_CONFIG": "", "HOME": "/nowhere", "XDG_CONFIG_HOME": ""}
    result = CliRunner().invoke(app, words, env=clean | environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output.strip()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bkheal.toml"
    path.write_text('[auditor]\nhttp_port = 3\nis_on = true\n[audit.run]\nkind = "placement"\n')
    return path


def test_the_first_source_that_names_a_value_counts(file: Path) -> None:
    assert invoke("auditor") == "8080 False"
    assert invoke("auditor", "--config", str(file)) == "3 True"
    assert invoke("auditor", BKHEAL_CONFIG=str(file), BKHEAL_AUDITOR_HTTP_PORT="2") == "2 True"
    assert invoke("auditor", "--http-port", "1", "--config", str(file), BKHEAL_AUDITOR_HTTP_PORT="2") == "1 True"


def test_a_command_inside_a_group_has_a_table_inside_the_groups(file: Path) -> None:
    assert invoke("audit", "run", "--config", str(file)) == "placement"
    assert invoke("audit", "run", "--config", str(file), BKHEAL_AUDIT_RUN_KIND="replicas") == "replicas"


def test_the_default_file_is_read_where_it_exists(file: Path, tmp_path: Path) -> None:
    (tmp_path / ".config" / "bkheal").mkdir(parents=True)
    file.rename(tmp_path / ".config" / "bkheal" / "config.toml")
    assert invoke("auditor", HOME=str(tmp_path)) == "3 True"


def test_a_value_of_a_wrong_type_is_refused_by_name(file: Path) -> None:
    file.write_text('[auditor]\nhttp_port = "many"\n')
    assert "Invalid value for '--http-port'" in invoke("auditor", "--config", str(file))


def test_a_key_that_is_no_option_is_refused_and_the_known_ones_are_named(file: Path) -> None:
    file.write_text("[auditor]\nhttp_prot = 1\n")
    with pytest.raises(ConfigurationError, match=r"\[auditor\] http_prot is unknown; known are http_port, is_on"):
        invoke("auditor", "--config", str(file))


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        invoke("auditor", "--config", str(tmp_path / "missing.toml"))


def test_validate_finds_every_problem_of_all_tables(tmp_path: Path) -> None:
    path = tmp_path / "bkheal.toml"
    path.write_text(
        'metadata_uri = "zk://a:1/ledgers"\nmetadata = 1\n[replicator]\nledgers_in_flight = "x"\nfoo = 2\n[nothing]\n'
    )
    result = CliRunner().invoke(bkheal, ["config", "validate", "--config", str(path)])
    assert isinstance(result.exception, ConfigurationError)
    assert len(result.exception.problems) == 4
    path.write_text('metadata_uri = "zk://a:1/ledgers"\n[replicator]\nledgers_in_flight = 3\n')
    assert CliRunner().invoke(bkheal, ["config", "validate", "--config", str(path)]).output.endswith("is fine\n")


def test_show_names_the_origin_of_each_value(tmp_path: Path) -> None:
    path = tmp_path / "bkheal.toml"
    path.write_text('metadata_uri = "zk://a:1/ledgers"\n[replicator]\nledgers_in_flight = 3\n')
    result = CliRunner().invoke(
        bkheal,
        ["config", "show", "--origin", "--config", str(path)],
        env={"BKHEAL_REPLICATOR_MIN_RACKS": "4", "BKHEAL_METADATA_URI": ""},
    )
    rows = [line.split() for line in result.output.splitlines()[2:]]
    assert rows == [
        ["metadata_uri", "zk://a:1/ledgers", "file"],
        ["replicator.ledgers_in_flight", "3", "file"],
        ["replicator.min_racks", "4", "BKHEAL_REPLICATOR_MIN_RACKS"],
    ]


def test_every_configured_command_has_settings_with_a_help_text() -> None:
    root = typer.main.get_command(bkheal)
    found = list(config.configured(root))  # type: ignore[arg-type]
    assert {words for words, _ in found} == set(config.CONFIGURED)
    assert [setting.key for _, setting in found if not setting.help] == []


def test_the_document_is_fresh(tmp_path: Path) -> None:
    script = ROOT / ".ci" / "generate_configuration_doc.py"
    made = tmp_path / "configuration.md"
    subprocess.run([sys.executable, str(script), "--out", str(made)], check=True, timeout=60, cwd=ROOT)
    assert made.read_text() == (ROOT / "docs" / "configuration.md").read_text(), f"run: python {script.name}"


def test_validate_finds_what_the_auditor_would_refuse_to_start_with(tmp_path: Path) -> None:
    path = tmp_path / "bkheal.toml"
    path.write_text('[auditor]\nbookies_schedule = "daily"\nhttp_port = 99999\n')
    result = CliRunner().invoke(bkheal, ["config", "validate", "--config", str(path)])
    assert isinstance(result.exception, ConfigurationError)
    assert ["'daily' is no schedule" in each or "http_port" in each for each in result.exception.problems] == [True] * 2
    path.write_text('[auditor]\nbookies_schedule = "1h"\n')  # the URI may come from the environment
    assert CliRunner().invoke(bkheal, ["config", "validate", "--config", str(path)]).exit_code == 0
