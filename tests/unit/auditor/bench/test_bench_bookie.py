"""The benchmark of a bookie: its ratios and targets, what it leaves out, and the storage on its own, end to end."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.bench.bookies import comparison as bookie
from auditor.bench.bookies.comparison import BookieBenchmark, Measurement, run
from auditor.bench.bookies.disk import PlainFile, synced_writes
from auditor.bench.bookies.figures import Measured, measured, row
from auditor.bench.bookies.journal import measure_reserved
from auditor.bench.bookies.load import LoadSize
from auditor.cli.main import app
from bookie.runtime.java import JavaNotFoundError


def rate(value: float) -> dict[str, float]:
    return {"per_second": value, "mb_per_second": value, "bookie_cpu_us": value}


def adds(payload_bytes: int, **rates: float) -> dict[str, Any]:
    names = {"apache": "apache", "grpc": "ours over gRPC", "tcp": "ours over Apache's protocol"}
    results = {names[name]: rate(value) for name, value in rates.items()}
    return {"payload_bytes": payload_bytes, "writers": 1, "entries": 10, "results": results}


def aims(figures: dict[str, Any]) -> dict[tuple[str, str], bool | None]:
    return {(each.case, each.measure): each.is_met for each in measured(figures) if each.aim is not None}


def test_adds_have_a_goal_for_each_protocol_up_to_its_size() -> None:
    small, large = adds(16_384, apache=100, grpc=199, tcp=100), adds(1 << 20, apache=100, grpc=50, tcp=99)
    assert aims({"adds": [small, large]}) == {
        ("adds of 16,384 B, 1 writer, ours over gRPC", "adds/s"): False,
        ("adds of 16,384 B, 1 writer, ours over Apache's protocol", "adds/s"): True,
        ("adds of 1,048,576 B, 1 writer, ours over Apache's protocol", "adds/s"): False,
    }


def test_without_apaches_bookie_there_are_no_ratios() -> None:
    found = measured({"adds": [adds(100, grpc=7, tcp=5)]})
    assert found
    assert all(each.ratio is None and each.is_met is None for each in found)


@pytest.mark.parametrize(("took_ms", "is_met"), [(2.0, True), (2.01, False)])
def test_a_single_add_may_take_three_syncs_and_a_round_trip(took_ms: float, is_met: bool) -> None:
    times = {
        "fdatasync": {"p50_ms": 0.5, "p99_ms": 1.0},
        "ours over gRPC": {"p50_ms": took_ms, "p99_ms": 9.0},
        "ours over gRPC, round trip": {"p50_ms": 0.5, "p99_ms": 1.0},
    }
    assert aims({"lone": {"times": times}}) == {("lone add, ours over gRPC", "p50, ms"): is_met}


def test_a_baseline_too_small_to_measure_gives_no_ratio() -> None:
    case = adds(100, apache=5, grpc=5, tcp=5)
    case["results"]["apache"]["bookie_cpu_us"] = 0.0
    ratios = {each.measure: each.ratio for each in measured({"adds": [case]})}
    assert (ratios["adds/s"], ratios["CPU of the bookie, us/add"]) == (1, None)


def test_a_missed_goal_is_shown() -> None:
    each = Measured("case", "MB/s", 10, "plain file", 100, 0.1, 0.5)
    assert row(each) == ("case", "MB/s", "10.00", "plain file", "100", "0.10", ">= 0.5 MISSED")
    assert row(Measured("case", "MB/s", 1234))[2:] == ("1,234", "", "", "", "")


async def test_the_storage_alone_is_measured_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise JavaNotFoundError("no Java: install one")

    monkeypatch.setattr(bookie, "find_java", none)
    monkeypatch.setattr(bookie, "measure_reserved", partial(measure_reserved, turns=5))
    figures = await run(BookieBenchmark(Measurement.ALL, (1000,), (1,), 0.02, 1), lambda _: None)
    assert [text.startswith("adds and reads of clients") for text in figures["left_out"]] == [True]
    assert not {"adds", "reads", "lone"} & figures.keys()
    for each in figures["engine"]:
        assert each["bytes_written_per_byte_stored"] is None or each["bytes_written_per_byte_stored"] > 1
        assert each["recovery"]["journal_bytes"] > each["stored_bytes"]
    for times in (figures["reserved"]["adds"], figures["reserved"]["syncs"]):
        assert times.keys() == {"reserved", "not reserved"}
        assert all(0 < each["p50_ms"] <= each["p99_ms"] for each in times.values())
    cases = {each["measure"] for each in figures["comparisons"]}
    assert {"bytes written", "cold sequential, MB/s", "cold random, MB/s", "scrub, CPU s/GB"} <= cases
    json.dumps(figures)


def test_a_plain_file_is_read_completely_and_writes_are_synced(tmp_path: Path) -> None:
    plain = PlainFile(tmp_path / "file", 3_000_001)
    assert (tmp_path / "file").stat().st_size == 3_000_001
    assert plain.sequential_s()[0] > 0
    with synced_writes(tmp_path / "synced", b"abc") as writes:
        assert min(writes.once(), writes.once()) > 0
    assert (tmp_path / "synced").read_bytes() == b"abcabc"


def test_every_round_has_a_bounded_number_of_entries() -> None:
    load = LoadSize((1,), (1,), 1 << 30, 1)
    assert (load.entries(1), load.entries(1 << 20), LoadSize((1,), (1,), 100, 1).entries(1000)) == (200_000, 1024, 10)


def test_an_unknown_part_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "bookie", "--part", "everything"])
    assert result.exit_code == 2
    assert "storage" in result.output
