"""The precedence of flag, variable, file and default for an option's value, through real Typer commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.core import TyperOption
from typer.testing import CliRunner

from auditor.cli.configuration import command as config
from auditor.cli.main import app as bkheal
from auditor.cli.running import ConfigOption
from bookie.runtime.configuration.settings import ConfigurationError, parse_config

ROOT = Path(__file__).resolve().parents[4]

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


def test_the_source_with_the_highest_precedence_decides(file: Path) -> None:
    assert invoke("auditor") == "8080 False"
    assert invoke("auditor", "--config", str(file)) == "3 True"
    assert invoke("auditor", BKHEAL_CONFIG=str(file), BKHEAL_AUDITOR_HTTP_PORT="2") == "2 True"
    assert invoke("auditor", "--http-port", "1", "--config", str(file), BKHEAL_AUDITOR_HTTP_PORT="2") == "1 True"


def test_a_command_in_a_group_has_a_nested_table(file: Path) -> None:
    assert invoke("audit", "run", "--config", str(file)) == "placement"
    assert invoke("audit", "run", "--config", str(file), BKHEAL_AUDIT_RUN_KIND="replicas") == "replicas"


def test_the_default_file_is_read_if_it_exists(file: Path, tmp_path: Path) -> None:
    (tmp_path / ".config" / "bkheal").mkdir(parents=True)
    file.rename(tmp_path / ".config" / "bkheal" / "config.toml")
    assert invoke("auditor", HOME=str(tmp_path)) == "3 True"


@pytest.mark.parametrize(
    ("content", "words", "table"),
    [
        ("auditor = 3\n", ("auditor",), "auditor"),
        ("audit = 3\n", ("audit", "run"), "audit"),
        ("[audit]\nrun = 3\n", ("audit", "run"), "audit.run"),
    ],
)
def test_a_value_in_place_of_a_table_is_refused_by_the_command_and_by_validate(
    file: Path, content: str, words: tuple[str, ...], table: str
) -> None:
    file.write_text(content)
    says = re.escape(f"{file}: {table} is a single value, not the table of the command: write its options below a line")
    with pytest.raises(ConfigurationError, match=rf"{says} \[{table}\]"):
        invoke(*words, "--config", str(file))
    result = CliRunner().invoke(bkheal, ["config", "validate", "--config", str(file)])
    assert isinstance(result.exception, ConfigurationError)
    assert re.search(says, str(result.exception))


def test_a_value_of_the_wrong_type_is_refused_by_name(file: Path) -> None:
    file.write_text('[auditor]\nhttp_port = "many"\n')
    assert "Invalid value for '--http-port'" in invoke("auditor", "--config", str(file))


def test_an_unknown_key_is_refused_and_the_similar_or_all_known_ones_are_named(file: Path) -> None:
    file.write_text("[auditor]\nhttp_prot = 1\n")
    with pytest.raises(ConfigurationError, match=r"\[auditor\] http_prot is unknown; did you mean http_port\?$"):
        invoke("auditor", "--config", str(file))
    file.write_text("[auditor]\nlanguage = 1\n")
    with pytest.raises(ConfigurationError, match=r"\[auditor\] language is unknown; known are http_port, on$"):
        invoke("auditor", "--config", str(file))


def test_the_flag_of_an_option_names_its_key_and_its_variable(file: Path) -> None:
    file.write_text("[auditor]\non = true\n")
    assert invoke("auditor", "--config", str(file)) == "8080 True"
    assert invoke("auditor", "--config", str(file), BKHEAL_AUDITOR_ON="false") == "8080 False"
    assert invoke("auditor", BKHEAL_AUDITOR_ON="1") == "8080 True"
    assert invoke("auditor", BKHEAL_AUDITOR_IS_ON="1") == "8080 True", "the name of earlier releases"


def test_no_key_of_a_command_has_two_meanings() -> None:
    def options(command: Any) -> Iterator[list[TyperOption]]:
        yield [parameter for parameter in command.params if isinstance(parameter, TyperOption)]
        for below in getattr(command, "commands", {}).values():
            yield from options(below)

    for found in options(typer.main.get_command(bkheal)):
        keys = [{option.name, max(option.opts, key=len).lstrip("-").replace("-", "_")} for option in found]
        assert sum(map(len, keys)) == len(set().union(*keys))


@pytest.mark.parametrize(
    ("environment", "content", "origin"),
    [
        ({"BKHEAL_STATUS_INTERVAL": "x"}, "", "BKHEAL_STATUS_INTERVAL"),
        ({"BKHEAL_STATUS_INTERVAL_S": "x"}, "", "BKHEAL_STATUS_INTERVAL_S"),
        ({}, '[status]\ninterval = "x"\n', "[status] in the configuration file"),
        ({"BKHEAL_FRAME_BYTES_MAX": "x"}, "", "BKHEAL_FRAME_BYTES_MAX"),
    ],
)
def test_a_wrong_value_that_is_not_from_the_command_line_has_its_origin(
    tmp_path: Path, environment: dict[str, str], content: str, origin: str
) -> None:
    path = tmp_path / "bkheal.toml"
    path.write_text(content)
    result = CliRunner().invoke(bkheal, ["status", "--config", str(path)], env=environment | {"COLUMNS": "200"})
    assert result.exit_code == 2
    assert f"(from {origin})" in result.output
    result = CliRunner().invoke(bkheal, ["status", "--interval", "x"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "(from" not in result.output


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        invoke("auditor", "--config", str(tmp_path / "missing.toml"))


def test_validate_reports_every_problem_in_all_tables(tmp_path: Path) -> None:
    path = tmp_path / "bkheal.toml"
    path.write_text(
        'metadata_uri = "zk://a:1/ledgers"\nmetadata = 1\n[replicator]\nledgers_in_flight = "x"\nfoo = 2\n[nothing]\n'
    )
    result = CliRunner().invoke(bkheal, ["config", "validate", "--config", str(path)])
    assert isinstance(result.exception, ConfigurationError)
    assert len(result.exception.problems) == 4
    path.write_text('metadata_uri = "zk://a:1/ledgers"\n[replicator]\nledgers_in_flight = 3\n')
    assert CliRunner().invoke(bkheal, ["config", "validate", "--config", str(path)]).output.endswith("is fine\n")


def test_show_prints_the_origin_of_each_value_and_when_a_change_takes_effect(tmp_path: Path) -> None:
    path = tmp_path / "bkheal.toml"
    path.write_text('metadata_uri = "zk://a:1/ledgers"\n[replicator]\nledgers_in_flight = 3\nbytes_per_second = 9\n')
    result = CliRunner().invoke(
        bkheal,
        ["config", "show", "--origin", "--config", str(path)],
        env={"BKHEAL_REPLICATOR_MIN_RACKS": "4", "BKHEAL_METADATA_URI": ""},
    )
    rows = [line.split() for line in result.output.splitlines()[2:]]
    assert sorted(rows) == [
        ["metadata_uri", "zk://a:1/ledgers", "file", "restart"],
        ["replicator.bytes_per_second", "9", "file", "live"],
        ["replicator.ledgers_in_flight", "3", "file", "restart"],
        ["replicator.min_racks", "4", "BKHEAL_REPLICATOR_MIN_RACKS", "restart"],
    ]


def test_show_points_out_that_commands_refuse_a_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bkheal.toml"
    path.write_text("[auditor]\nhttp_port = 3\n")
    assert CliRunner().invoke(bkheal, ["config", "show", "--config", str(path)]).stderr == ""
    path.write_text("auditor = 3\n")
    result = CliRunner().invoke(bkheal, ["config", "show", "--config", str(path)])
    assert (result.exit_code, "`bkheal config validate" in result.stderr) == (0, True)


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize("more", [(), ("--origin",)])
def test_show_prints_no_password_in_a_url(tmp_path: Path, output: str, more: tuple[str, ...]) -> None:
    path = tmp_path / "bkheal.toml"
    path.write_text(
        '[audit.run]\npushgateway = "https://ann:sec%40ret@gateway:9091/push"\nsnapshot_url = "http://zk1:8080"\n'
    )
    command = ["config", "show", *more, "--config", str(path), "-o", output]
    result = CliRunner().invoke(bkheal, command)
    assert ("gateway:9091" in result.output, "http://zk1:8080" in result.output) == (True, True)
    assert "ret@" not in result.output
    result = CliRunner().invoke(bkheal, command, env={"BKHEAL_AUDIT_RUN_PUSHGATEWAY": "ann:secret@other:9091"})
    assert ("other:9091" in result.output, "secret" in result.output) == (True, False)


def test_every_configured_command_has_settings_with_a_help_text() -> None:
    root = typer.main.get_command(bkheal)
    found = list(config.configured(root))  # type: ignore[arg-type]
    assert {words for words, _ in found} == set(config.CONFIGURED)
    assert [setting.key for _, setting in found if not setting.help] == []


def test_the_document_is_up_to_date(tmp_path: Path) -> None:
    script = ROOT / ".ci" / "generate_configuration_doc.py"
    made = tmp_path / "configuration.md"
    subprocess.run([sys.executable, str(script), "--out", str(made)], check=True, timeout=60, cwd=ROOT)
    assert made.read_text() == (ROOT / "docs" / "configuration.md").read_text(), f"run: python {script.name}"


def test_validate_reports_what_an_auditor_would_refuse_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "bkheal.toml"
    path.write_text('[auditor]\nbookies_schedule = "daily"\nhttp_port = 99999\n')
    result = CliRunner().invoke(bkheal, ["config", "validate", "--config", str(path)])
    assert isinstance(result.exception, ConfigurationError)
    assert ["'daily' is not a schedule" in each or "http_port" in each for each in result.exception.problems] == [
        True
    ] * 2
    path.write_text('[auditor]\nbookies_schedule = "1h"\n')  # the URI may be set in the environment
    assert CliRunner().invoke(bkheal, ["config", "validate", "--config", str(path)]).exit_code == 0


def validated(path: Path, text: str, **environment: str) -> list[str]:
    """Return the problems, each without the name of the file."""
    path.write_text(text)
    result = CliRunner().invoke(bkheal, ["config", "validate", "--config", str(path)], env=environment)
    if result.exit_code == 0:
        return []
    assert isinstance(result.exception, ConfigurationError)
    return [problem.removeprefix(f"{path}: ") for problem in result.exception.problems]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            "[auditor]\nhttp_port = 99999\nhttp_prot = 1\n[nothing]\n",
            ["http_port", "http_prot is unknown", "nothing is"],
        ),
        ("[auditor\n", ["cannot read"]),
        (None, ["cannot read"]),
        ("[auditor]\nhttp_port = 8080\n", []),
    ],
)
def test_validate_lists_each_problem_separately_in_json(tmp_path: Path, text: str | None, problems: list[str]) -> None:
    path = tmp_path / "bkheal.toml"
    if text is not None:
        path.write_text(text)
    result = CliRunner().invoke(bkheal, ["config", "validate", "--output", "json", "--config", str(path)])
    document = json.loads(result.stdout)
    assert (document["kind"], document["file"]) == ("ConfigurationVerdict", str(path))
    assert (document["valid"], result.exit_code) == ((True, 0) if not problems else (False, 78))
    assert len(document["problems"]) == len(problems)
    assert all(any(part in reported for reported in document["problems"]) for part in problems), document["problems"]


def test_validate_reports_a_missing_file_in_json(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "BKHEAL_CONFIG": ""}
    result = CliRunner().invoke(bkheal, ["config", "validate", "-o", "json"], env=environment)
    document = json.loads(result.stdout)
    assert (result.exit_code, document["file"], document["valid"], len(document["problems"])) == (78, None, False, 1)


EXTREMES = [
    ("[auditor]\nhttp_port = " + "[" * 5_000, "nested"),
    ("auditor" + ".a" * 2_000 + " = 1\n", "nested"),
    ("metadata_uri" + ".a" * 2_000 + " = 1\n", "nested"),
    ("[auditor]\nhttp_port = " + "9" * 5_000 + "\n", "digits"),
    ("[auditor]\nhttp_port = 0x" + "f" * 5_000 + "\n", "64 bits"),
    ("[auditor]\nrequests_per_second = " + "9" * 400 + "\n", "64 bits"),
    ("[auditor]\nhttp_port = [[9223372036854775808]]\n", "64 bits"),
]


@pytest.mark.parametrize(("text", "why"), EXTREMES)
def test_a_file_beyond_the_limits_is_a_clear_error_in_every_command(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "bkheal.toml"
    path.write_text(text)
    for command in (["auditor", "--config"], ["config", "validate", "--config"], ["config", "show", "--config"]):
        result = CliRunner().invoke(bkheal, [*command, str(path)])
        assert isinstance(result.exception, ConfigurationError), (command, result.exception)
        assert str(result.exception).startswith(f"configuration: cannot read {path}: ")
        assert why in str(result.exception)
    with pytest.raises(ConfigurationError, match=why):
        parse_config(text, path)


def test_the_largest_integer_and_the_deepest_table_are_read(tmp_path: Path) -> None:
    text = f"a = {(1 << 63) - 1}\nb = {-1 << 63}\nc{'.c' * 14} = 1\n"
    assert parse_config(text, tmp_path)["a"] == (1 << 63) - 1


def test_validate_reports_all_contradictions_of_all_tables_together(tmp_path: Path) -> None:
    problems = validated(
        tmp_path / "bkheal.toml",
        """
        metadata_uri = "http://somewhere"
        [bookie]
        journal_dir = "/same"
        ledger_dir = "/same"
        host = "0.0.0.0"
        port = 4000
        apache_port = 4000
        [replicator]
        tls_cert = "/none.pem"
        http_port = 0
        http_tls_key = "/none.key"
        topology_file = "/none.json"
        [audit.run]
        ledger_min = 9
        ledger_max = 8
        sample = 0
        fail_on = "sometimes"
        pushgateway = "http://ann:secret@gateway:x"
        [auditor]
        allow_anonymous_write = true
        http_host = "0.0.0.0"
        bookies_schedule = "daily"
        """,
    )
    for table, words in {
        "metadata_uri": ("zk",),
        "[bookie]": ("two directories", "or set plaintext", "give advertised_host", "cannot both use port 4000"),
        "[replicator]": (
            "go together",
            "need tls_ca",
            "certificate for HTTP",
            "no file /none.json",
            "no file /none.key",
        ),
        "[audit.run]": ("select no ledger", "sample = 0", "'sometimes'", "port must be a number"),
        "[auditor]": ("every client that reaches 0.0.0.0", "'daily' is not a schedule"),
    }.items():
        for word in words:
            assert [each for each in problems if each.startswith(table) and word in each], (table, word, problems)
    assert "secret" not in " ".join(problems)


@pytest.mark.parametrize(
    "table",
    [
        "[bookie]\ntls_ca = '{file}'",
        "[bookie]\nplaintext = true\ntls_ca = '{file}'\ntls_cert = '{file}'\ntls_key = '{file}'",
        "[replicator]\ntls_ca = '{file}'\ntls_cert = '{file}'",
        "[audit.run]\ntls_key = '{file}'",
        "[audit]\nfail_on = 'sometimes'",
        "[replicator]\nhttp_port = 1\nhttp_tls_client_ca = '{file}'",
        "metadata_uri = ''",
        "[simpletest]\nwrite_quorum = 4",
        "[ledger.write]\ndigest = 'MD5'",
        "[log.create]\nack_quorum = 3",
    ],
)
def test_validate_refuses_contradictions(tmp_path: Path, table: str) -> None:
    file = tmp_path / "some.pem"
    file.touch()
    assert len(validated(tmp_path / "bkheal.toml", table.format(file=file))) >= 1


@pytest.mark.parametrize(
    ("table", "options"),
    [
        ("auditor", ("tokens_file", "tls_cert", "bookie_tls_ca")),
        ("bookie", ("tokens_file", "tls_ca")),
        ("exporter", ("topology_file",)),
    ],
)
def test_validate_names_every_file_that_cannot_be_checked(tmp_path: Path, table: str, options: tuple[str, ...]) -> None:
    long = "/" + "n" * 300
    lines = "\n".join(f'{option} = "{long}"' for option in options)
    problems = validated(tmp_path / "bkheal.toml", f"[{table}]\n{lines}")
    for option in options:
        assert any(f"{option}: cannot look for {long}: File name too long" in problem for problem in problems), problems


def test_validate_accepts_missing_options_that_only_flags_can_set(tmp_path: Path) -> None:
    assert validated(tmp_path / "bkheal.toml", "[bookie]\nport = 4000\n[replicator]\n[audit.run]\n") == []


def test_validate_reads_the_environment_as_the_command_does(tmp_path: Path) -> None:
    table = "[bookie]\nhost = '0.0.0.0'\nadvertised_host = 'b1'\n"
    assert len(validated(tmp_path / "bkheal.toml", table)) == 1
    assert validated(tmp_path / "bkheal.toml", table, BKHEAL_BOOKIE_PLAINTEXT="true") == []


@pytest.mark.parametrize(
    ("table", "command", "says"),
    [
        ("[bookie]\nhost = '0.0.0.0'\nadvertised_host = 'b1'\n", ("bookie",), "reachable from outside"),
        ("[bookie]\nhost = 'a..b'\nplaintext = true\n", ("bookie",), "host = 'a..b' is not a host"),
        ("[bookie]\nadvertised_host = 'a..b'\n", ("bookie",), "advertised_host = 'a..b' is not a host"),
        ("[replicator]\nhttp_port = 0\nhttp_host = 'a..b'\n", ("replicator",), "http_host = 'a..b' is not a host"),
        ("[bookie]\nledger_dir = 'j'\njournal_dir = 'j'\n", ("bookie",), "two directories"),
        ("[replicator]\ntls_key = '/none'\n", ("replicator",), "need tls_ca"),
        ("[auditor]\nhttp_port = 8081\n", ("auditor",), "both 8081"),
    ],
)
def test_a_command_refuses_at_its_start_what_validate_refuses(
    tmp_path: Path, table: str, command: tuple[str, ...], says: str
) -> None:
    path = tmp_path / "bkheal.toml"
    (problem,) = [each for each in validated(path, table) if says in each]
    folders = () if command != ("bookie",) or "ledger_dir" in table else ("--journal-dir", "j", "--ledger-dir", "l")
    started = CliRunner().invoke(bkheal, [*command, "--metadata-uri", "zk://a:1/l", "--config", str(path), *folders])
    assert isinstance(started.exception, ConfigurationError)
    assert problem.removeprefix(f"[{command[0]}] ") in started.exception.problems
