"""``bkheal audit`` with a running service: which auditor is contacted, and the exit code of the command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from auditor.cli.audit import command as audit
from auditor.cli.audit import remote
from auditor.cli.audit.remote import RemoteBusyError, RemoteRun, RemoteSettings, RemoteUnavailableError
from auditor.cli.exit_codes import exit_code_of
from auditor.cli.main import app as bkheal
from bookie.model.errors import BkhealError
from bookie.model.run import RunKind, RunState
from bookie.runtime.user import user_name
from spark_jobs.one_shot.command import run_command
from spark_jobs.one_shot.run import OneShot
from spark_jobs.settings import FailOn

REPLICAS_RUN: Final = ("run", "--metadata-uri", "zk://h:1/ledgers", "--kind", "replicas")


@dataclass
class Services:
    """Auditors by URL; those in ``down`` do not answer."""

    down: set[str] = field(default_factory=set)
    busy: bool = False
    ends: int = 0
    """Exit code of the run."""
    started: list[tuple[str, RunKind, bool]] = field(default_factory=list)
    states: list[tuple[str, RunState]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the run that was started last."""
    client_files: set[tuple[Path | None, Path | None]] = field(default_factory=set)


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Services:
    found = Services()

    class Fake:
        def __init__(self, settings: RemoteSettings) -> None:
            self.url = settings.url
            found.tokens.append(settings.token)
            found.client_files.add((settings.cert, settings.key))

        def start(self, kind: RunKind, *, is_dry_run: bool, options: Mapping[str, Any], key: str) -> RemoteRun:
            assert key
            found.options = options
            if self.url in found.down:
                raise RemoteUnavailableError(f"no answer from {self.url}")
            if found.busy:
                raise RemoteBusyError("a bookies run is already under way: r1", "r1")
            found.started.append((self.url, kind, is_dry_run))
            return a_run("running", None)

        def wait(self, run_id: str, on_change: Callable[[RemoteRun], None], *, deadline_s: float) -> RemoteRun:
            assert (run_id, deadline_s > 0) == ("r1", True)
            return a_run("done", found.ends)

        def change(self, run_id: str, state: RunState) -> RemoteRun:
            found.states.append((run_id, state))
            return a_run(state.value, None)

        def change_schedule(self, kind: RunKind, state: RunState, span_s: int | None = None) -> Mapping[str, Any]:
            found.states.append((kind.value, state))
            return {"paused_until": "2026-11-24T08:00:00.000Z" if state is RunState.PAUSED else None}

    monkeypatch.setattr(remote, "Remote", Fake)
    return found


def a_run(state: str, exit_code: int | None) -> RemoteRun:
    return RemoteRun({"run_id": "r1", "kind": "bookies", "state": state, "exit_code": exit_code})


def invoke(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(audit.app, arguments, env=environment)


def test_a_run_is_started_by_the_first_service_that_answers(services: Services) -> None:
    services.down = {"http://one:1"}
    result = invoke("run", "--at", "http://one:1", "--at", "http://two:2", "--kind", "replicas", "--dry-run")
    assert (result.exit_code, services.started) == (0, [("http://two:2", RunKind.REPLICAS, True)])
    assert "trying the next one" in result.stderr
    assert "running" in result.stdout


def test_options_of_a_run_are_sent_to_the_service(services: Services) -> None:
    """A sample must not become a check of all ledgers."""
    at = ("--at", "http://one:1")
    result = invoke("run", *at, "--kind", "replicas", "--sample", "0.01", "--ledger-max", "1000", "--sample-seed", "7")
    assert (result.exit_code, services.options) == (0, {"sample": 0.01, "ledger_max": 1000, "sample_seed": 7})
    assert invoke("run", *at, "--kind", "placement", "--mark-misplaced").exit_code == 0
    assert services.options == {"mark_misplaced": True}
    assert invoke("run", *at, "--kind", "replicas").exit_code == 0
    assert services.options == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--missing-share-max", "0.9"),
        ("--fail-on", "critical"),
        ("--min-racks", "3"),
        ("--report-dir", "/reports"),
        ("--metadata-uri", "zk://h:1/ledgers"),
        ("--kind", "bookies", "--sample", "0.01"),
        ("--kind", "replicas", "--mark-misplaced"),
    ],
)
def test_an_option_that_a_service_does_not_support_is_refused_and_nothing_starts(
    services: Services, arguments: tuple[str, ...]
) -> None:
    result = invoke("run", "--at", "http://one:1", *arguments)
    assert (result.exit_code, services.started) == (2, [])
    assert arguments[-2 if arguments[-1][0] != "-" else -1] in result.stderr


def reported(result: Any) -> str:
    """Return the message of a refusal, which Typer prints in a frame."""
    return " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fail_on", "no-live-copy"),
        ("metrics_file", "/textfile/bkheal.prom"),
        ("pushgateway", "http://pushgateway:9091"),
        ("http_port", "8003"),
    ],
)
def test_an_unsupported_setting_is_refused_with_its_origin(
    services: Services, tmp_path: Path, name: str, value: str
) -> None:
    at, flag = ("--at", "http://one:1", "--wait"), f"--{name.replace('_', '-')}"
    result = invoke("run", *at, **{f"BKHEAL_RUN_{name.upper()}": value})
    assert (result.exit_code, services.started) == (2, [])
    assert f"{flag} (from $BKHEAL_RUN_{name.upper()}) cannot be sent with --at" in reported(result)
    file = tmp_path / "bkheal.toml"
    file.write_text(f'[run]\n{name} = "{value}"\n')
    result = invoke("run", *at, "--config", str(file))
    assert (result.exit_code, services.started) == (2, [])
    assert f"{flag} (from {name} in the config file) cannot be sent with --at" in reported(result)


def test_a_flag_with_the_default_overrides_an_unsupported_setting(services: Services) -> None:
    result = invoke("run", "--at", "http://one:1", "--fail-on", "never", BKHEAL_RUN_FAIL_ON="no-live-copy")
    assert (result.exit_code, len(services.started)) == (0, 1)


@pytest.mark.parametrize(
    ("flag", "wrong", "code"), [("--pushgateway", "http://gateway:x", 2), ("--metrics-file", "/absent/bkheal.prom", 78)]
)
def test_a_place_for_metrics_that_cannot_work_is_refused_before_the_run_unless_a_schedule_starts_it(
    monkeypatch: pytest.MonkeyPatch, flag: str, wrong: str, code: int
) -> None:
    started: list[OneShot] = []
    monkeypatch.setattr(audit, "_run_locally", lambda shot, *_: started.append(shot))
    words = ["audit", "run", "--metadata-uri", "zk://127.0.0.1:1/ledgers", flag, wrong]
    refused = CliRunner().invoke(bkheal, words)
    ended = refused.exception
    assert (exit_code_of(ended) if isinstance(ended, BkhealError) else refused.exit_code, started) == (code, [])
    assert "such as http" in reported(refused) or "cannot write metrics to /absent" in str(ended)
    assert CliRunner().invoke(bkheal, [*words, "--scheduled"]).exit_code == 0
    assert len(started) == 1, "a schedule must not stop marking for lack of a place for metrics"


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (
            "bookies",
            ("--sample", "0.1", "--mark-misplaced"),
            "--mark-misplaced (of placement and everything), --sample",
        ),
        ("everything", ("--ledger-min", "3"), "--ledger-min (of replicas)"),
        ("placement", ("--apache-lists",), "--apache-lists (of replicas)"),
        ("bookies", ("--export", "ids.txt"), "--export (of references)"),
    ],
)
def test_an_option_that_a_kind_does_not_have_is_refused_before_the_run_unless_a_schedule_starts_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    options: tuple[str, ...],
    says: str,
) -> None:
    started: list[OneShot] = []
    monkeypatch.setattr(audit, "_run_locally", lambda shot, *_: started.append(shot))
    words = ["--metadata-uri", "zk://127.0.0.1:1/ledgers", "--kind", kind, *options]
    refused = CliRunner().invoke(bkheal, ["audit", "run", *words])
    assert (refused.exit_code, started) == (2, [])
    assert f"a run of kind {kind} has no {says}" in reported(refused)
    scheduled = CliRunner().invoke(bkheal, ["audit", "run", *words, "--scheduled"])
    assert (scheduled.exit_code, len(started), "ignored" in scheduled.stderr) == (0, 1, True)
    with pytest.raises(SystemExit, match="2"):
        run_command(words)
    assert f"a run of kind {kind} has no {says}" in capsys.readouterr().err, "for spark-submit"


def test_an_option_of_another_kind_is_ignored_in_the_environment_and_with_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[OneShot] = []
    monkeypatch.setattr(audit, "_run_locally", lambda shot, *_: started.append(shot))
    words = ["audit", "run", "--metadata-uri", "zk://127.0.0.1:1/ledgers", "--no-mark-misplaced"]
    assert CliRunner().invoke(bkheal, words, env={"BKHEAL_AUDIT_RUN_SAMPLE": "0.1"}).exit_code == 0
    assert len(started) == 1


@pytest.mark.parametrize("level", ["no-live-copy", "no_live_copy"])
def test_a_level_of_findings_is_accepted_as_reports_write_severities(
    monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    started: list[FailOn] = []
    monkeypatch.setattr(audit, "_run_locally", lambda _, fail_on, *__: started.append(fail_on))
    words = ["audit", "run", "--metadata-uri", "zk://127.0.0.1:1/ledgers"]
    assert CliRunner().invoke(bkheal, [*words, "--fail-on", level]).exit_code == 0
    assert CliRunner().invoke(bkheal, words, env={"BKHEAL_AUDIT_RUN_FAIL_ON": level}).exit_code == 0
    assert FailOn(level) is FailOn.NO_LIVE_COPY, "for spark-submit"
    assert started == [FailOn.NO_LIVE_COPY] * 2


def test_a_client_certificate_is_presented_to_the_service(services: Services) -> None:
    files = ("--client-cert", "c.pem", "--client-key", "k.pem")
    assert invoke("run", "--at", "https://one:1", *files).exit_code == 0
    assert invoke("cancel", "r1", "--at", "https://one:1", *files).exit_code == 0
    assert services.client_files == {(Path("c.pem"), Path("k.pem"))}


def test_a_user_without_a_name_is_recorded_by_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert user_name() == f"uid {os.getuid()}"


def test_a_command_that_waits_for_a_run_exits_with_its_code(services: Services) -> None:
    services.ends = 5
    result = invoke("run", "--at", "http://one:1", "--wait", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["run"]["state"]) == (5, "done")


def test_a_busy_service_exits_with_75(services: Services) -> None:
    services.busy = True
    result = invoke("run", "--at", "http://one:1")
    assert (result.exit_code, "under way" in result.stderr) == (75, True)


def test_runs_are_paused_resumed_and_cancelled(services: Services) -> None:
    for verb in ("pause", "resume", "cancel"):
        assert invoke(verb, "r1", "--at", "http://one:1", BKHEAL_TOKEN="t0ken").exit_code == 0
    assert services.states == [("r1", RunState.PAUSED), ("r1", RunState.RUNNING), ("r1", RunState.CANCELLED)]
    assert services.tokens == ["t0ken"] * 3


def test_a_schedule_is_paused_and_resumed(services: Services) -> None:
    paused = invoke("pause", "--kind", "replicas", "--at", "http://one:1")
    assert paused.stdout == "the schedule of replicas runs is paused until 2026-11-24T08:00:00.000Z\n"
    assert invoke("resume", "--kind", "replicas", "--at", "http://one:1").exit_code == 0
    assert services.states == [("replicas", RunState.PAUSED), ("replicas", RunState.RUNNING)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("pause", "r1"), "--at URL is needed"),
        (("pause", "--at", "http://one:1"), "either the id of a run or --kind"),
        (("pause", "r1", "--kind", "bookies", "--at", "http://one:1"), "either the id of a run or --kind"),
        (("--dry-run", "list"), "write --dry-run after"),
        (("run", "--kind", "nonsense"), "nonsense"),
        (("run", "--fail-on", "no_copy"), "'no_copy' is not one of never, no-live-copy, critical"),
        ((*REPLICAS_RUN, "--sample", "0"), "sample = 0"),
        ((*REPLICAS_RUN, "--ledger-min", "9", "--ledger-max", "8"), "select no ledger"),
        (("run", "--metadata-uri", "zk://h:1/ledgers", "--tls-key", "k"), "need tls_ca"),
    ],
)
def test_invalid_usage_exits_with_2(services: Services, arguments: tuple[str, ...], says: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.replace("│", " ").split())


def test_help_names_the_exit_codes() -> None:
    for arguments in (("--help",), ("run", "--help")):
        text = " ".join(invoke(*arguments).stdout.split())
        assert "75 another run of this kind is under way" in text
        assert "env var" not in text
