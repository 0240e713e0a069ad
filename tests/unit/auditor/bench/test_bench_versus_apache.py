"""Pure functions of the comparison with Apache: ratios, tables, and whether two measurements are comparable."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.bench.versus_apache.audits import DifferentTasksError, Round, Tasks, check_same_tasks
from auditor.bench.versus_apache.comparison import ComparisonPart, InvalidShapeError, VersusSettings, parse_shape, run
from auditor.bench.versus_apache.figures import comparisons, less_is_better, more_is_better, row
from auditor.bench.versus_apache.processes import parsed
from auditor.bench.versus_apache.repairs import empty_ledgers, large_ledgers, rounded, small_ledgers
from auditor.bench.zookeeper_counters import Counters, NoCountersError, parse_counters
from auditor.cli.main import app
from bookie.embedded.apache_jars import ApacheJarsMissingError, apache_version

SRVR = """\
Zookeeper version: 3.9.5, built on 2026-02-11 20:18 UTC
Latency min/avg/max: 0/1.7/3844
Received: 4025182
Sent: 4025181
Connections: 3
Outstanding: 0
Zxid: 0x10000002a
Mode: standalone
Node count: 1599402
"""


def _round(seconds: float, requests: int, launch: float | None = None) -> dict[str, Any]:
    return {"seconds": seconds, "requests": requests, "from_launch_s": launch}


def _audit() -> dict[str, Any]:
    theirs = [_round(60, 4000, 62), _round(20, 2000), _round(30, 2200), _round(40, 2400)]
    ours = [_round(120, 40, 130), _round(4, 20), _round(2, 22), _round(3, 24)]
    return {"ledgers": 10_000, "rounds": {"apache": theirs, "ours": ours}}


def test_fewer_seconds_and_more_per_second_are_both_better() -> None:
    assert less_is_better("a", "s", "apache", 20.0, 4.0).ratio == 5
    assert more_is_better("a", "MB/s", "apache", 4.0, 20.0).ratio == 5


def test_apache_is_marked_where_it_is_faster() -> None:
    ahead = more_is_better("adds", "adds/s", "apache", 20.0, 10.0)
    assert ahead.is_apache_ahead
    assert ahead.figures()["apache_wins"]
    assert row(ahead)[-1] == "APACHE WINS"
    assert not row(more_is_better("adds", "adds/s", "apache", 10.0, 10.0))[-1]


def test_audits_are_compared_by_the_first_and_the_median_later_round() -> None:
    found = {each.measure: each for each in comparisons({"audit": [_audit()]})}
    assert (found["cold, s"].apache, found["cold, s"].ours, found["cold, s"].is_apache_ahead) == (60, 120, True)
    assert found["warm, s"].ratio == 10
    assert found["warm, ZooKeeper requests"].ratio == 100
    assert found["cold, ZooKeeper requests"].ratio == 100


def test_an_audit_without_later_rounds_has_no_figures_for_them() -> None:
    audit = _audit()
    audit["rounds"] = {name: rounds[:1] for name, rounds in audit["rounds"].items()}
    measures = {each.measure for each in comparisons({"audit": [audit]})}
    assert measures == {"cold, s", "cold from launch, s", "cold, ZooKeeper requests"}


def test_repair_is_compared_with_each_setting_of_apache() -> None:
    def result(rate: float, written: float) -> dict[str, float]:
        return {"mb_per_second": rate, "ledgers_per_second": rate, "written_per_lost": written}

    results = {"apache": result(2, 1.5), "apache tuned": result(20, 1.5), "ours": result(10, 1.0)}
    found = comparisons({"repair": [{"case": "3/2/2", "entry_bytes": 1024, "results": results}]})
    rates = {each.against: each.ratio for each in found if each.measure == "MB/s"}
    assert rates == {"apache": 5, "apache tuned": 0.5}
    assert {each.ratio for each in found if each.measure == "bytes written per byte lost"} == {1.5}


def test_repair_of_empty_ledgers_is_compared_by_ledgers_only() -> None:
    results = {
        who: {"mb_per_second": 0.0, "ledgers_per_second": 5.0, "written_per_lost": 1.0} for who in ("apache", "ours")
    }
    found = comparisons({"repair": [{"case": "empty", "entry_bytes": 0, "results": results}]})
    assert [each.measure for each in found] == ["ledgers/s"]


def test_a_case_of_bytes_loses_that_amount_on_one_bookie() -> None:
    case = large_ledgers((5, 2, 2), 1000, 8_000_000)
    assert case.entries * case.ledgers * 2 / 5 == 8000
    assert small_ledgers((5, 2, 2), 7).entries % 5 == empty_ledgers((5, 2, 2), 7).entries == 0


def test_adds_are_compared_over_each_protocol() -> None:
    rates = {"apache": 100, "ours over gRPC": 250, "ours over Apache's protocol": 90}
    results = {name: {"adds_per_second": rate} for name, rate in rates.items()}
    found = comparisons({"add": [{"payload_bytes": 1024, "results": results}]})
    assert [(each.ratio, each.is_apache_ahead) for each in found] == [(2.5, False), (0.9, True)]


def _audited(tasks: Tasks) -> Round:
    return Round(1.0, None, 1, 1, tasks)


def test_audits_are_compared_if_every_round_marked_the_same_ledgers() -> None:
    same, other = _audited(Tasks(3, "a")), _audited(Tasks(3, "b"))
    accepted = []
    for rounds in itertools.product((same, other), repeat=3):
        with suppress(DifferentTasksError):
            check_same_tasks({"apache": rounds[:1], "ours": rounds[1:]})
            accepted.append(rounds)
    assert accepted == [(same,) * 3, (other,) * 3]


@pytest.mark.parametrize("ours", [Tasks(2, "b"), Tasks(3, "b")])
def test_audits_that_marked_different_ledgers_are_not_compared(ours: Tasks) -> None:
    with pytest.raises(DifferentTasksError, match="ours"):
        check_same_tasks({"apache": [_audited(Tasks(3, "a"))], "ours": [_audited(ours)]})


def test_audits_that_marked_nothing_are_not_compared() -> None:
    with pytest.raises(DifferentTasksError):
        check_same_tasks({"apache": [_audited(Tasks(0, "a"))], "ours": [_audited(Tasks(0, "a"))]})


def test_counters_are_read_from_zookeepers_response() -> None:
    assert parse_counters(SRVR) == Counters(received=4_025_182, transactions=42)


def test_a_response_without_counters_is_an_error() -> None:
    with pytest.raises(NoCountersError, match="not executed"):
        parse_counters("srvr is not executed because it is not in the whitelist.")


def test_lines_that_are_not_events_are_skipped() -> None:
    assert parsed(b'{"event": "ready"}\n') == {"event": "ready"}
    assert parsed(b"WARN something\n") is None
    assert parsed(b"17\n") is None


def test_entries_are_rounded_up_to_a_multiple_of_the_ensemble_size() -> None:
    assert [rounded(entries, 5) for entries in (0, 1, 5, 6)] == [5, 5, 5, 10]


def test_version_is_read_from_the_jar(tmp_path: Path) -> None:
    (tmp_path / "bookkeeper-server-4.17.3.jar").touch()
    assert apache_version(tmp_path) == "4.17.3"


async def test_missing_jars_are_reported_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ApacheJarsMissingError, match=str(tmp_path)):
        await run(VersusSettings(ComparisonPart.ADD, apache_lib=tmp_path), lambda text: None)


def test_shape_is_parsed_as_ensemble_and_quorums() -> None:
    assert parse_shape("5/2/2") == (5, 2, 2)


@pytest.mark.parametrize("text", ["3", "3/2", "2/3/2", "3/1/1", "3/2/3", "a/b/c"])
def test_a_shape_that_cannot_be_repaired_is_refused(text: str) -> None:
    with pytest.raises(InvalidShapeError):
        parse_shape(text)


@pytest.mark.parametrize("options", [("--part", "everything"), ("--shape", "3/1/1")])
def test_invalid_options_are_usage_errors(options: tuple[str, str]) -> None:
    result = CliRunner().invoke(app, ["bench", "versus-apache", *options])
    assert result.exit_code == 2
