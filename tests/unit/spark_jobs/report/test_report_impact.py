"""The impact of a run: computed from its table of findings, in the summary, on the page, and in the text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bookie.model.impact import Effect, Standing
from bookie.model.severity import Severity
from spark_jobs.options.namespaces import NAMESPACES_MAX
from spark_jobs.report import impact_rows
from spark_jobs.report.console import table
from spark_jobs.report.decoding import DamagedReportError, decode_summary
from spark_jobs.report.files import FINDINGS
from spark_jobs.report.findings.one_run import read_findings
from spark_jobs.report.history import NoSuchReportError
from spark_jobs.report.impact import TOPICS_MAX, Impact, ImpactRow, impact_of
from spark_jobs.report.impact_rows import ImpactFilter, read_impact, read_impact_page
from spark_jobs.report.page.render import render_report
from tests.worlds.report import CLEAN, HOSTILE

RUN = CLEAN.run_id
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("run_id", "kind", "state", "severity", "detail")),
        *((name, pa.int64()) for name in ("ledger_id", "fragment_first_entry_id", "fragment_last_entry_id")),
        *((name, pa.int64()) for name in ("entries", "bytes_estimate")),
        *((name, pa.int32()) for name in ("fragment_index", "severity_rank", "copies_min")),
        *((name, pa.int32()) for name in ("write_quorum", "ack_quorum")),
        ("is_last_fragment", pa.bool_()),
        ("missing_positions", pa.list_(pa.int32())),
        ("missing", pa.list_(pa.string())),
        *((name, pa.string()) for name in ("tenant", "namespace", "topic", "component", "subscription")),
    ]
)


def finding(
    ledger_id: int, topic: str | None = "orders", severity: Severity | None = Severity.CRITICAL, **other: Any
) -> Any:
    row = {
        "kind": "MISSING_BOOKIE",
        "ledger_id": ledger_id,
        "fragment_index": 0,
        "state": "CLOSED",
        "is_last_fragment": True,
        "missing_positions": [0],
        "severity": None if severity is None else severity.label,
        "severity_rank": None if severity is None else severity.value,
        "copies_min": 1,
        "write_quorum": 2,
        "ack_quorum": 2,
        "bytes_estimate": 10,
    }
    if topic is not None:
        row |= {"tenant": "t", "namespace": "t/n", "topic": f"persistent://t/n/{topic}", "component": "managed-ledger"}
    return row | other


def written(report_dir: Path, *files: Sequence[Any]) -> Path:
    directory = report_dir / RUN / FINDINGS
    directory.mkdir(parents=True)
    for number, rows in enumerate(files):
        pq.write_table(pa.Table.from_pylist(list(rows), SCHEMA), directory / f"part-{number}.parquet")
    return report_dir


def shown(impact: Impact) -> list[tuple[str, str, str, int, int]]:
    return [
        (row.severity.label, row.effect.name, row.topic.rpartition("/")[2], row.ledgers, row.bytes_estimate)
        for row in impact.topics
    ]


def test_ledgers_count_once_per_row_and_bytes_add_up(tmp_path: Path) -> None:
    rows = [finding(1, is_last_fragment=False), finding(1, fragment_index=1), finding(2), finding(3, "other")]
    impact = read_impact(written(tmp_path, rows, [finding(4)]), RUN)
    assert shown(impact) == [("critical", "READS_STOP", "orders", 3, 40), ("critical", "READS_STOP", "other", 1, 10)]
    assert impact.topics[0].first_ledger == 1


def test_bytes_of_damaged_lengths_add_up_beyond_64_bits(tmp_path: Path) -> None:
    huge = (1 << 63) - 1
    rows = [finding(number, bytes_estimate=huge) for number in (1, 1, 2, 3)] + [finding(4, bytes_estimate=None)]
    assert shown(read_impact(written(tmp_path, rows), RUN)) == [("critical", "READS_STOP", "orders", 4, 4 * huge)]


def test_a_ledger_at_the_boundary_of_two_batches_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impact_rows, "_BATCH_ROWS", 2)
    rows = [finding(number // 5, fragment_index=number % 5) for number in range(15)]
    impact = read_impact(written(tmp_path, rows), RUN)
    assert shown(impact) == [("critical", "READS_STOP", "orders", 3, 150)]


def test_the_cost_of_a_topic_does_not_depend_on_the_number_of_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def counted(row: dict[str, Any]) -> tuple[Any, ...]:
        seen.append(row["topic"])
        return row_key(row)

    row_key = impact_rows._row_key
    monkeypatch.setattr(impact_rows, "_BATCH_ROWS", 2)
    monkeypatch.setattr(impact_rows, "_row_key", counted)
    rows = [finding(number, f"topic-{number % 3}") for number in range(30)]
    assert [row.ledgers for row in read_impact(written(tmp_path, rows), RUN).topics] == [10, 10, 10]
    assert len(seen) == 3


def test_topics_are_ordered_by_severity_with_system_topics_first(tmp_path: Path) -> None:
    rows = [
        finding(1, "a"),
        finding(2, "b", Severity.NO_LIVE_COPY),
        finding(3, "__transaction_log_1", Severity.CRITICAL),
        finding(4, "__change_events", Severity.CRITICAL),
        finding(5, "c", Severity.CRITICAL, state="OPEN"),
        finding(6, "d", Severity.CRITICAL, state="OPEN", write_quorum=3, missing_positions=[1, 2]),
        finding(7, "e", Severity.METADATA_ONLY, state="OPEN"),
        finding(8, "f", Severity.CRITICAL, state="OPEN", write_quorum=3, missing_positions=[2]),
    ]
    impact = read_impact(written(tmp_path, rows), RUN)
    assert [(row.topic.rpartition("/")[2], row.effect, row.standing) for row in impact.topics] == [
        ("b", Effect.READS_STOP, Standing.NOW),
        ("d", Effect.TOPIC_DOWN, Standing.NOW),
        ("__change_events", Effect.NAMESPACE_DOWN, Standing.AT_RISK),
        ("__transaction_log_1", Effect.SYSTEM_DOWN, Standing.AT_RISK),
        ("c", Effect.TOPIC_DOWN, Standing.AT_RISK),
        ("f", Effect.TOPIC_DOWN, Standing.AT_RISK),  # its bookie with two positions answers
        ("a", Effect.READS_STOP, Standing.AT_RISK),
        ("e", Effect.TOPIC_DOWN, Standing.NONE),
    ]


def test_ledgers_without_a_topic_are_counted_and_accepted_losses_left_out(tmp_path: Path) -> None:
    rows = [
        finding(1, None),
        finding(2, None, None, kind="UNREADABLE_METADATA", state=None),
        finding(3, None, component="unknown"),
        finding(4, "a", Severity.LOST, kind="LOSS_ACCEPTED"),
        finding(5, "a", None, kind="UNKNOWN_PLACE"),
    ]
    impact = read_impact(written(tmp_path, rows), RUN)
    assert impact == Impact(unnamed_ledgers=3)


def test_a_component_of_a_later_release_has_an_unknown_effect(tmp_path: Path) -> None:
    impact = read_impact(written(tmp_path, [finding(1, component="new")]), RUN)
    assert [(row.effect, row.component) for row in impact.topics] == [(Effect.UNKNOWN, "new")]


def test_a_list_of_too_many_topics_is_reported_as_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impact_rows, "_ROWS_MAX", 3)
    impact = read_impact(written(tmp_path, [finding(number, f"topic-{number}") for number in range(5)]), RUN)
    assert impact.is_cut
    assert impact.rows == 3


def test_tables_of_earlier_releases_are_read_without_owners(tmp_path: Path) -> None:
    directory = tmp_path / RUN / FINDINGS
    directory.mkdir(parents=True)
    old = pa.Table.from_pylist([finding(1)], SCHEMA).drop_columns(
        ["tenant", "namespace", "topic", "component", "subscription", "write_quorum", "ack_quorum"]
    )
    pq.write_table(old, directory / "part.parquet")
    assert read_impact(tmp_path, RUN) == Impact()
    (row,) = read_findings(tmp_path, RUN, 10).rows
    assert (row["ledger_id"], row["topic"]) == (1, None)


def test_without_a_report_there_is_no_impact(tmp_path: Path) -> None:
    with pytest.raises(NoSuchReportError):
        read_impact(tmp_path, RUN)
    (tmp_path / RUN).mkdir()
    assert read_impact(tmp_path, RUN) == Impact()


def test_a_filter_by_topic_selects_all_partitions(tmp_path: Path) -> None:
    rows = [finding(1, "a-partition-0"), finding(2, "a-partition-1"), finding(3, "b"), finding(4, "a-partition-x")]
    report_dir = written(tmp_path, rows)
    page = read_impact_page(report_dir, RUN, 1, ImpactFilter(topic="persistent://t/n/a"))
    assert (page.total, [row.topic for row in page.rows]) == (2, ["persistent://t/n/a-partition-0"])
    assert read_impact_page(report_dir, RUN, 9, ImpactFilter(topic="persistent://t/n/a-partition-1")).total == 1
    assert read_impact_page(report_dir, RUN, 9, ImpactFilter(Severity.CRITICAL, "t/n")).total == 4
    assert read_impact_page(report_dir, RUN, 9, ImpactFilter(namespace="t/m")).total == 0


def row(number: int, topic: str = "persistent://t/n/a") -> ImpactRow:
    return ImpactRow(
        Severity.CRITICAL,
        Standing.AT_RISK,
        Effect.REWINDS,
        "t",
        f"t/n{number}",
        topic,
        "cursor",
        "s",
        1,
        5,
        number,
    )


def test_a_summary_names_a_bounded_number_of_topics() -> None:
    impact = impact_of([row(number, f"persistent://t/n{number}/a") for number in range(500)], 0)
    assert (len(impact.topics), len(impact.namespaces), impact.rows) == (TOPICS_MAX, NAMESPACES_MAX, 500)
    assert [(each.namespaces, each.topics, each.ledgers) for each in impact.severities] == [(500, 500, 500)]


def test_a_summary_is_read_back_with_its_impact() -> None:
    summary = replace(CLEAN, impact=impact_of([row(1), row(2, HOSTILE)], 7))
    document = json.loads(json.dumps(summary.to_json()))
    assert decode_summary(document) == summary
    for part in ("severities", "namespaces", "topics"):
        for item in document["impact"][part]:
            assert item["severity"] == "critical"
            item["severity"] = "CRITICAL"
    assert decode_summary(document) == summary, "earlier releases wrote the severities of the impact in upper case"
    del document["impact"]
    assert decode_summary(document).impact == Impact()
    with pytest.raises(DamagedReportError):
        decode_summary(document | {"impact": {"severities": 3}})


def test_names_of_topics_are_escaped_on_the_page_and_in_the_text() -> None:
    summary = replace(CLEAN, impact=impact_of([replace(row(1, HOSTILE), namespace=HOSTILE, subscription=HOSTILE)], 0))
    page = render_report(summary, None, (), None).decode()
    assert "Topics of Pulsar" in page
    assert "<script>alert" not in page
    assert "\x1b" not in table(summary)
    assert "\u202e" not in table(summary)


def test_a_run_without_names_shows_no_topics() -> None:
    assert "Topics of Pulsar" not in render_report(CLEAN, None, (), None).decode()
    assert "topics of Pulsar" not in table(CLEAN)


def test_metrics_name_a_bounded_number_of_namespaces_and_count_the_others() -> None:
    def row(number: int, severity: Severity, ledgers: int) -> ImpactRow:
        namespace = f"t/n{number:03}"
        topic = f"persistent://{namespace}/a"
        standing = Standing.NOW if severity is Severity.LOST else Standing.AT_RISK
        return ImpactRow(
            severity, standing, Effect.READS_STOP, "t", namespace, topic, "managed-ledger", None, ledgers, 0, 1
        )

    many = [row(number, Severity.CRITICAL, 2) for number in range(2 * NAMESPACES_MAX)]
    impact = impact_of([row(1, Severity.LOST, 7), *many], 5)
    assert impact.by_namespace(0) == {}
    assert impact.by_namespace(2) == {"lost": {"t/n001": 7}, "critical": {"t/n000": 2, "other": 198}}
    most = impact.by_namespace(NAMESPACES_MAX)
    assert sum(map(len, most.values())) == NAMESPACES_MAX + 1
    assert sum(most["critical"].values()) == 200
    assert impact_of([], 5).by_namespace(3) == {}
