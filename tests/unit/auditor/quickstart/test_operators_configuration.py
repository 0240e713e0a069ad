"""``bkheal demo`` and ``bkheal quickstart`` on a machine that is configured for a cluster in production."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import auditor.quickstart.demo
import auditor.quickstart.run
from auditor.cli.main import app
from bookie.metadata import access

_TOOLS = {"BKHEAL_SPARK_CLASSES": "/classes", "BKHEAL_APACHE_LIB": "/lib"}


@pytest.mark.parametrize(
    ("command", "module"), [("demo", auditor.quickstart.demo), ("quickstart", auditor.quickstart.run)]
)
@pytest.mark.parametrize("is_named", [True, False], ids=["named file", "default file"])
def test_quickstart_processes_do_not_inherit_settings_but_find_the_tools(
    command: str, module: Any, is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".config" / "bkheal" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('metadata_uri = "zk://production/ledgers"\n[auditor]\nreport_store = "file:///production"\n')
    set_by_operator = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": "",
        "BKHEAL_CONFIG": str(file) if is_named else "",
        "BKHEAL_METADATA_URI": "zk://production/ledgers",
        "BKHEAL_AUDITOR_MISSING_SHARE_MAX": "0.1",
        "BKHEAL_TOKEN": "secret",
        **_TOOLS,
    }
    for name, value in set_by_operator.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(access, "_process_access", [])
    origins: list[str] = []

    async def look(*_: Any) -> None:
        shown = CliRunner().invoke(app, ["config", "show", "--output", "json"])
        origins.extend({each["origin"] for each in json.loads(shown.stdout)["settings"]})

    monkeypatch.setattr(module, command, look)
    done = CliRunner().invoke(app, [command])
    assert done.exit_code == 0, done.output
    assert origins == ["default"]
    assert {name: value for name, value in os.environ.items() if name.startswith("BKHEAL_")} == {
        **_TOOLS,
        "BKHEAL_CONFIG": os.devnull,
    }
