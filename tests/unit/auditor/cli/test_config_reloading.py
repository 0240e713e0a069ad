"""Rereading the configuration file of a command: the same sources, and the same refusals as at its start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from auditor.cli.configuration.settings import LIVE
from auditor.cli.main import app
from auditor.cli.services import auditor as auditor_command
from auditor.cli.services import processes
from bookie.runtime.configuration.reload import ConfigSource, decide
from bookie.runtime.configuration.settings import ConfigurationError

URI = "zk://a:1/ledgers"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bkheal.toml"


@pytest.fixture
def started(path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ConfigSource]:
    """Call a command, and return the configuration that it follows instead of running it."""
    followed: list[ConfigSource] = []

    def follow(command: Any) -> Any:
        def source(*given: Any) -> ConfigSource:
            followed.append(command(*given))
            raise typer.Exit

        return source

    for module in (processes, auditor_command):
        monkeypatch.setattr(module, "config_source", follow(module.config_source))

    def start(text: str, *words: str, **environment: str) -> ConfigSource:
        path.write_text(text)
        clean = {"BKHEAL_CONFIG": str(path), "BKHEAL_METADATA_URI": URI}
        result = CliRunner().invoke(app, words, env=clean | environment)
        assert result.exit_code == 0, result.output
        return followed[-1]

    return start


def test_only_a_replicators_rate_is_reloaded(started: Callable[..., ConfigSource]) -> None:
    source = started("[replicator]\nbytes_per_second = 5\n", "replicator")
    new = source.parse("[replicator]\nbytes_per_second = 7\nledgers_in_flight = 3\n[auditor]\nhttp_port = 1\n")
    decision = decide(source, source.values, new)
    assert [(change.option, change.old, change.new) for change in decision.taken] == [("bytes_per_second", 5, 7)]
    assert [(change.option, change.old, change.new) for change in decision.waiting] == [("ledgers_in_flight", 64, 3)]


def test_an_auditors_request_rate_is_reloaded(started: Callable[..., ConfigSource]) -> None:
    source = started("", "auditor")
    decision = decide(source, source.values, source.parse("[auditor]\nrequests_per_second = 7\n"))
    assert [(change.option, change.old, change.new) for change in decision.taken] == [
        ("requests_per_second", 20.0, 7.0)
    ]


def test_a_removed_key_resets_to_the_default(started: Callable[..., ConfigSource]) -> None:
    source = started("[replicator]\nbytes_per_second = 5\n", "replicator")
    (change,) = decide(source, source.values, source.parse("")).taken
    assert (change.old, change.new) == (5, 0)


@pytest.mark.parametrize(
    ("words", "environment", "by"),
    [
        (("--bytes-per-second", "9"), {}, "--bytes-per-second"),
        ((), {"BKHEAL_REPLICATOR_BYTES_PER_SECOND": "9"}, "BKHEAL_REPLICATOR_BYTES_PER_SECOND"),
    ],
)
def test_flags_and_variables_take_precedence_over_the_file(
    started: Callable[..., ConfigSource], words: tuple[str, ...], environment: dict[str, str], by: str
) -> None:
    source = started("[replicator]\nbytes_per_second = 5\n", "replicator", *words, **environment)
    assert source.given["bytes_per_second"] == by
    decision = decide(source, source.values, source.parse("[replicator]\nbytes_per_second = 7\n"))
    assert (decision.taken, len(decision.overridden)) == ((), 1)


def test_another_cluster_needs_a_restart_unless_its_uri_comes_from_elsewhere(
    started: Callable[..., ConfigSource],
) -> None:
    for environment, waits in (({"BKHEAL_METADATA_URI": ""}, 1), ({}, 0)):
        source = started(f'metadata_uri = "{URI}"', "replicator", **environment)
        decision = decide(source, source.values, source.parse('metadata_uri = "zk://b:1/ledgers"'))
        assert (len(decision.waiting), len(decision.overridden)) == (waits, 1 - waits)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("[replicator\n", ["cannot read"]),
        ("metadata = 1\n[replicator]\nfoo = 1\nbytes_per_second = -1\n", ["metadata;", "foo", "bytes_per_second = -1"]),
        (
            "[replicator]\nledgers_in_flight = 'x'\nbytes_per_second = 'fast'\n",
            ["ledgers_in_flight", "bytes_per_second"],
        ),
        ("[replicator]\nbytes_per_second = 1\ntls_key = '/none'\n", ["go together", "need tls_ca"]),
        ("metadata_uri = 7\n", ["must be a text"]),
    ],
)
def test_a_file_that_a_start_would_refuse_is_refused_with_every_problem(
    started: Callable[..., ConfigSource], text: str, problems: list[str]
) -> None:
    source = started("", "replicator")
    with pytest.raises(ConfigurationError) as refused:
        source.parse(text)
    for problem in problems:
        assert problem in str(refused.value)


def test_a_change_that_contradicts_a_flag_is_refused(started: Callable[..., ConfigSource]) -> None:
    source = started("", "bookie", "--journal-dir", "same", "--ledger-dir", "other")
    assert source.parse("[bookie]\nledger_dir = 'same'\n")["ledger_dir"]  # the flag has precedence
    source = started("[bookie]\nledger_dir = 'other'\n", "bookie", "--journal-dir", "same")
    with pytest.raises(ConfigurationError, match="two directories"):
        source.parse("[bookie]\nledger_dir = 'same'\n")


def test_without_a_file_nothing_is_reloaded(started: Callable[..., ConfigSource], tmp_path: Path) -> None:
    assert started("", "replicator", BKHEAL_CONFIG="", HOME=str(tmp_path), XDG_CONFIG_HOME="") is None


def test_every_live_option_exists() -> None:
    root: Any = typer.main.get_command(app)
    for words, options in LIVE.items():
        (word,) = words
        assert options <= {parameter.name for parameter in root.commands[word].params}
