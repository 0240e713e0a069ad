"""``bkheal replicator``: the effect of its output options on the process that it becomes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import replicator.main
from auditor.cli.main import app as bkheal
from replicator.settings import ReplicatorSettings

NO_FILES = {"BKHEAL_CONFIG": "", "HOME": "/nowhere", "XDG_CONFIG_HOME": "", "BKHEAL_METADATA_URI": "zk://h/ledgers"}


@pytest.mark.parametrize(
    ("options", "is_json"),
    [([], False), (["--output", "json"], True), (["-o", "json"], True), (["--output", "table"], False)],
)
def test_events_are_written_as_json_if_requested(
    options: list[str], is_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ReplicatorSettings] = []

    async def run_replicator(settings: ReplicatorSettings, _: object) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(replicator.main, "run_replicator", run_replicator)
    result = CliRunner().invoke(bkheal, ["replicator", "--once", *options], env=NO_FILES)
    assert result.exit_code == 0, result.output
    assert [settings.is_output_json for settings in seen] == [is_json]


def test_an_unknown_output_format_is_refused() -> None:
    result = CliRunner().invoke(bkheal, ["replicator", "--output", "xml"], env=NO_FILES)
    assert result.exit_code == 2
    assert "'table', 'json'" in result.output
