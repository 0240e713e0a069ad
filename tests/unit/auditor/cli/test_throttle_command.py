"""``bkheal throttle``: which limit each option sets, and how limits are printed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import throttle as command
from auditor.cli.main import app
from bookie.metadata.tasks.copy_limits import CopyLimits, CopyLimitsStore
from bookie.model.exit_codes import ExitCode
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    asyncio.run(made.fill())
    monkeypatch.setattr(command, "connected", made.connected)
    monkeypatch.setattr(command, "whoami", lambda: "me@host")
    return made


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["throttle", *words, "--metadata-uri", "zk://h:1/ledgers"])


def numbers(cluster: CommandCluster) -> tuple[int, ...] | None:
    """Return the limits, None if unlimited.

    They are bytes and requests of all, bytes to and from one bookie, and bytes of critical ledgers.
    """
    limits: CopyLimits | None = asyncio.run(CopyLimitsStore(cluster.keeper, ROOT).read()).limits
    if limits is None:
        return None
    return (
        limits.bytes_per_second,
        limits.requests_per_second,
        limits.bookie_in_bytes_per_second,
        limits.bookie_out_bytes_per_second,
        limits.critical_bytes_per_second,
    )


def aged(limits: CopyLimits | None, since_ms: int) -> CopyLimits:
    assert limits is not None
    return replace(limits, since_ms=since_ms)


OPTIONS = ("--bytes-per-second", "--requests-per-second", "--bookie-in", "--bookie-out", "--critical")


def test_each_option_sets_its_own_limit_and_zero_removes_it(cluster: CommandCluster) -> None:
    values = [1000, 2000, 3000, 4000, 5000]
    given = [word for pair in zip(OPTIONS, map(str, values), strict=True) for word in pair]
    assert call("set", *given).exit_code == ExitCode.OK
    assert numbers(cluster) == tuple(values)
    for number, option in enumerate(OPTIONS):
        assert call("set", option, "0").exit_code == ExitCode.OK
        values[number] = 0
        assert numbers(cluster) == tuple(values)
    assert call("clear", "--dry-run").exit_code == ExitCode.OK
    assert numbers(cluster) == (0, 0, 0, 0, 0)
    assert call("set").exit_code == ExitCode.USAGE
    assert call("clear").exit_code == ExitCode.OK
    assert numbers(cluster) is None


def test_limits_are_shown_with_their_direction_and_age(cluster: CommandCluster) -> None:
    call("set", "--bookie-in", "1MiB", "--bookie-out", "2MiB", "--critical", "3MiB", "--profile", "balanced")
    since_ms = cluster.clock.epoch_ms() - 7_200_000
    asyncio.run(CopyLimitsStore(cluster.keeper, ROOT).update(lambda found: aged(found, since_ms)))
    lines = call("show").stdout.splitlines()
    assert lines[:3] == ["all replicators: no limit", "to one bookie: 1.0 MiB/s", "from one bookie: 2.0 MiB/s"]
    assert lines[4].startswith("ledgers with one copy left: 3.0 MiB/s")
    assert lines[5:7] == ["profile: balanced", "set by me@host 2 h ago"]


def test_limits_that_cannot_be_decoded_are_refused_until_they_are_removed(cluster: CommandCluster) -> None:
    path = CopyLimitsStore(cluster.keeper, ROOT).path
    call("set", "--bookie-in", "1MiB")
    asyncio.run(cluster.keeper.set(path, b"?", -1))
    for words in (("set", "--bookie-in", "2MiB"), ("show",)):
        assert call(*words).exit_code == ExitCode.FAILED
    assert call("clear").exit_code == ExitCode.OK
    assert json.loads(call("show", "-o", "json").stdout)["limited"] is False
