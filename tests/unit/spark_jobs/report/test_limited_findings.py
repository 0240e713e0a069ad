"""The note in findings whose ledgers a limit left unmarked."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.report.findings.limited import LIMITED, note_limit

SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("ledger_id", pa.int64()),
        ("severity_rank", pa.int32()),
        ("detail", pa.string()),
        ("missing", pa.list_(pa.string())),
    ]
)


def finding(
    ledger_id: int, rank: int | None, detail: str | None = None, kind: str = "MISSING_ENTRIES"
) -> dict[str, object]:
    return {"kind": kind, "ledger_id": ledger_id, "severity_rank": rank, "detail": detail, "missing": ["a"]}


def test_findings_from_the_first_unmarked_ledger_on_get_the_reason_and_nothing_else_changes(tmp_path: Path) -> None:
    rows = [
        finding(1, 4),
        finding(1, 2, "entry 7"),  # the worst finding decides about the ledger
        finding(2, 3),
        finding(3, 3, "entry 9"),
        finding(4, 5),
        finding(9, 0, kind="LOSS_ACCEPTED"),
        finding(9, None, "cut off", kind="UNREADABLE_METADATA"),
    ]
    pq.write_table(pa.Table.from_pylist(rows[:5], SCHEMA), tmp_path / "part-0.parquet")
    pq.write_table(pa.Table.from_pylist(rows[5:], SCHEMA), tmp_path / "part-1.parquet")
    checksum = tmp_path / ".part-0.parquet.crc"
    checksum.write_bytes(b"of the file before")
    untouched = (tmp_path / "part-1.parquet").read_bytes()
    (tmp_path / "_SUCCESS").touch()

    note_limit(tmp_path, 3, 3)

    found = pq.read_table(tmp_path / "part-0.parquet")
    assert found.schema == SCHEMA
    expected = [None, "entry 7", None, f"entry 9; {LIMITED}", LIMITED]
    assert found.to_pylist() == [row | {"detail": text} for row, text in zip(rows[:5], expected, strict=True)]
    assert not checksum.exists()
    assert (tmp_path / "part-1.parquet").read_bytes() == untouched
    assert not list(tmp_path.glob("*.tmp"))
