"""Targets for stored data: nodes of bkheal's own state, ZooKeeper snapshots, images of metadata, reports, logs."""

from __future__ import annotations

import enum
import io
import json
import struct
import types
import typing
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bookie.metadata import migration, own_state
from bookie.metadata.bookies import collections as held_collections
from bookie.metadata.bookies import drains, first_seen_down, incarnations, maintenance, returned
from bookie.metadata.bookies import topology as topology_nodes
from bookie.metadata.cluster import Cluster, decode_layout, encode_layout
from bookie.metadata.layout import LayoutKind
from bookie.metadata.logs import log_list
from bookie.metadata.runs.check_times import CheckKind, decode_check_time
from bookie.metadata.runs.election import decode_vote
from bookie.metadata.runs.locks import LockHolder
from bookie.metadata.runs.notes import KindPause
from bookie.metadata.runs.pulsar_leader import decode_leader
from bookie.metadata.tasks import boosts, changes, debts, decisions, doubts, failures, moves, parked, reservations
from bookie.metadata.tasks.copy_limits import CopyLimits
from bookie.model import isolation
from bookie.model.ids import BookieId, LedgerId
from bookie.model.records import decode_record, encode_record
from bookie.server.upkeep.operator_read_only import ReadOnlyRequest
from bookie.server.upkeep.scrubber import ScrubProgress
from bookie.storage.disks.rocks_logs import BLOCK_BYTES, endless_record_at, masked_crc
from bookie.storage.journal import mark, place
from spark_jobs.image.carried import leaves_of
from spark_jobs.image.columns import INDEX_SCHEMA
from spark_jobs.image.folder import LocalImageFolder
from spark_jobs.image.leaves import LEAVES, LeafRecord, LeafSlice, LeafStat, leaf_table
from spark_jobs.image.manifest import Manifest, manifest_of, parse_part
from spark_jobs.image.part import INDEX, ImageFile, document_crc32, footer_crc32
from spark_jobs.image.suspects import suspects
from spark_jobs.report.decoding import decode_summary
from spark_jobs.report.files import FINDINGS, HISTORY
from spark_jobs.report.findings.one_run import read_findings
from spark_jobs.report.impact_rows import read_impact
from spark_jobs.report.tables.files import JOURNAL, SCHEMA_FILE, check_version, read_journal
from spark_jobs.snapshot.files import source_of
from spark_jobs.snapshot.index import index_source
from tests.fuzzing.target import HOSTILE, Target
from tests.worlds import report as reports
from tests.worlds.report_tables import SCHEMA, finding, unreadable
from tests.worlds.snapshots import DIGEST, LAST_ZXID, snappy, tree_of, written

Decode = Callable[[bytes], object]

_LEDGER: Final = LedgerId(7)
_BOOKIE: Final = BookieId("bk1:3181")
_CLUSTER: Final = Cluster("/ledgers", LayoutKind.HIERARCHICAL, "1b2c")
_RUN: Final = "20270115T080000Z-000000"
_MEMORY: Final = Path("/dev/shm")


def sample(kind: Any) -> Any:
    """Return a value of a type. All fields of a dataclass or a named tuple get values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{each.name: sample(hints[each.name]) for each in fields(kind) if each.init})  # type: ignore[operator]
    if origin in (typing.Union, types.UnionType):
        return sample(arguments[0])
    if origin is tuple:
        return tuple(sample(each) for each in arguments if each is not Ellipsis)
    if origin in (frozenset, list):
        return origin([sample(arguments[0])])
    if origin is not None and issubclass(origin, Mapping):
        return {sample(arguments[0]): sample(arguments[1])}
    kind = getattr(kind, "__supertype__", kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind(*(sample(each) for each in typing.get_type_hints(kind).values()))
    return {int: 5, str: "bk1:3181", bool: True, float: 1.5, bytes: b"b"}[kind]


def _record(kind: Any) -> tuple[Decode, bytes]:
    return lambda data: decode_record(data, kind), encode_record(sample(kind))


_RESERVATIONS: Final = reservations.Reservations(None, "/ledgers")  # type: ignore[arg-type]
_LOG: Final = log_list.LogList(ledgers=(_LEDGER,), writer="w", last_listed=_LEDGER, options={"write_quorum": 2})
RECORDS: Final[Sequence[tuple[Decode, bytes]]] = (
    (lambda data: held_collections._decode(_BOOKIE, data), encode_record(sample(held_collections.HeldCollection))),
    (lambda data: drains._decode(_BOOKIE, data), encode_record(sample(drains.Drain))),
    (lambda data: first_seen_down._decode("bk1", data), encode_record(sample(first_seen_down.Down))),
    (lambda data: incarnations._decode("/path", data), b"[" + encode_record(sample(incarnations.Incarnation)) + b"]"),
    (lambda data: maintenance._decode("bk1", data), encode_record(sample(maintenance.MaintenanceWindow))),
    (lambda data: returned._decode(_BOOKIE, data), encode_record(sample(returned._Record))),
    (lambda data: boosts._decode(_LEDGER, data), encode_record(sample(boosts.Boost))),
    (lambda data: changes._decode(1, data), encode_record(sample(changes.OperatorChange))),
    (lambda data: debts._decode(_LEDGER, data), encode_record(sample(debts.PlacementDebt))),
    (lambda data: decisions._decode(_LEDGER, data), encode_record(sample(decisions.Decision))),
    (lambda data: doubts._decode("/path", data), encode_record(sample(doubts._Record))),
    (lambda data: failures._decode(_LEDGER, data), encode_record(sample(failures.FailedTask))),
    (moves._decode, encode_record(sample(moves._Record))),
    (lambda data: parked._decode_list("list", data), encode_record(sample(parked._List))),
    (lambda data: parked._decode(_LEDGER, data), encode_record(sample(parked._Record))),
    (lambda data: _RESERVATIONS._decode(_LEDGER, data), encode_record(sample(reservations._Record))),
    (lambda data: log_list.decode("log", data), log_list.encode(_LOG)),
    (lambda data: own_state.decode_state_record("/ledgers", data), encode_record(sample(own_state.StateRecord))),
    (migration.refusal, b'{"phase": "COPYING", "targetUrl": "oxia:1"}'),
    _record(CopyLimits),
    _record(LockHolder),
    _record(KindPause),
    _record(ReadOnlyRequest),
    _record(ScrubProgress),
)
"""Decoders of bkheal's own records, and a record for each."""
OTHERS: Final[Sequence[tuple[Decode, bytes]]] = (
    (lambda data: decode_layout(data, "/ledgers"), encode_layout(LayoutKind.HIERARCHICAL)),
    (lambda data: [decode_check_time(kind, data) for kind in CheckKind], b"\x08\x05"),
    (decode_vote, b'bookieId: "bk1:3181"\n'),
    (decode_leader, b'"host:8080"'),
    (lambda data: topology_nodes._decode("/bookies", data, []), b'{"bk1:1": "/r1", "g": {"bk2:1": {"rack": "/r2"}}}'),
    (isolation._decode, json.dumps({
        "policyClass": "org.apache.pulsar.IsolatedBookieEnsemblePlacementPolicy",
        "properties": {"isolationBookieGroups": "a,b", "secondaryBookieGroups": ["c"]},
    }).encode()),
    (mark._decode, mark._encode(mark.JournalMark(5, 3))),
    (place._decode, place._encode(place.JournalPlace(1, 2))),
)  # fmt: skip
"""Decoders of small nodes and files of other programs and of the journal, and an input for each."""


def _selected(table: Sequence[tuple[Decode, bytes]]) -> Target:
    """Return a parser that uses the first byte of its input to select a parser of a table."""

    def parse(data: bytes) -> object:
        return table[(data[0] if data else 0) % len(table)][0](data[1:])

    numbers = [bytes([number]) for number in range(len(table))]
    intact = [number + data for number, (_, data) in zip(numbers, table, strict=True)]
    return Target(parse, intact, hostile=[number + data for number in numbers for data in HOSTILE])


def _index_log(data: bytes) -> object:
    return endless_record_at(data[start : start + BLOCK_BYTES] for start in range(0, len(data), BLOCK_BYTES))


def _chunk(kind: int, payload: bytes) -> bytes:
    content = bytes([kind]) + payload
    return struct.pack("<IH", masked_crc(content), len(payload)) + content


def _snapshot(data: bytes) -> object:
    source = source_of(io.BytesIO(data), "snapshot", is_seekable=False)
    return index_source(source, Path("snapshot"), "snapshot", _CLUSTER)


def _snapshots() -> list[bytes]:
    tree = tree_of(_CLUSTER, dict.fromkeys((1, 2, 10_001), b"metadata"), {"/other": b"x" * 50})
    plain = written(tree, trailers=(DIGEST, LAST_ZXID))
    return [plain, written(tree), snappy(plain), zlib.compress(plain, wbits=31)]


def _with_checksum(data: bytes) -> str:
    """Return a document with a correct checksum, so that its content is parsed."""
    text = data.decode("latin-1")
    try:
        document = json.loads(text)
        return json.dumps(document | {"crc32": document_crc32({k: v for k, v in document.items() if k != "crc32"})})
    except (ValueError, TypeError, RecursionError, AttributeError):
        return text


_FILES: Final = (ImageFile(f"{LEAVES}-0.parquet", 2, 100, 5), ImageFile(f"{INDEX}-0.parquet", 2, 100, 5))
_MANIFEST: Final = Manifest(_RUN, "1b2c", "/ledgers", "hierarchical", 5, 3, ("a:1", "b:1"), _FILES)


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, write_page_checksum=True)
    return sink.getvalue()


@contextmanager
def _directory() -> Iterator[Path]:
    with TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        yield Path(name)


def _image_file(name: str, data: bytes, intact: bytes) -> object:
    """Read one file of an image whose manifest has its current size, and the checksum of the intact file."""
    with _directory() as directory:
        file = ImageFile(name, 2, len(data), footer_crc32(pa.BufferReader(intact), name))
        (directory / name).write_bytes(data)
        manifest = replace(_MANIFEST, files=(file,))
        if file.is_leaves:
            return leaves_of(LocalImageFolder(directory), manifest)
        every = frozenset({"a:1", "b:1"})
        return suspects(LocalImageFolder(directory), manifest, every, every, every)


_LEAVES: Final = _parquet(
    leaf_table(
        [
            LeafRecord(3, LeafStat(1, 2, 3, 4), 4, 5, (LeafSlice("ledgers-0.parquet", 0, 2),)),
            LeafRecord(4, LeafStat(1, 2, 3, 4), 0, 5, ()),
        ]
    )
)
_INDEX: Final = _parquet(pa.table([["a:1", "b:1"], [7, 8], [2, 2]], schema=INDEX_SCHEMA))


def _findings(data: bytes) -> object:
    with _directory() as directory:
        (directory / _RUN / FINDINGS).mkdir(parents=True)
        (directory / _RUN / FINDINGS / "part-0.parquet").write_bytes(data)
        found = read_findings(directory, _RUN, 10)
        return found, read_impact(directory, _RUN)


def _findings_table() -> bytes:
    rows = [finding(7, "a:1", topic="persistent://public/default/t"), finding(8, "b:1"), unreadable(9)]
    return _parquet(pa.Table.from_pylist([{"run_id": _RUN, **row} for row in rows], SCHEMA))


def _summary(data: bytes) -> object:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # as the readers of this file do
        return None
    return decode_summary(document)


def _report_notes(data: bytes) -> object:
    """Parse one of the two small documents that accompany the tables of reports; the first byte selects it."""
    with _directory() as directory:
        (directory / HISTORY).mkdir()
        if data[:1] == b"\0":
            (directory / JOURNAL).write_bytes(data[1:])
            return read_journal(directory)
        (directory / HISTORY / SCHEMA_FILE).write_bytes(data[1:])
        check_version(directory)
        return None


STORED_TARGETS: Final[Mapping[str, Target]] = {
    "records": _selected(RECORDS),
    "small-nodes": _selected(OTHERS),
    "index-log": Target(_index_log, [_chunk(1, b"batch") * 3 + _chunk(2, bytes(200)) + bytes(10) + _chunk(5, b"")]),
    "snapshot": Target(_snapshot, _snapshots()),
    "image-manifest": Target(lambda data: manifest_of(_with_checksum(data)), [_MANIFEST.to_text().encode()]),
    "image-part": Target(
        lambda data: parse_part(_with_checksum(data)),
        [
            _with_checksum(
                b'{"files": [{"name": "a", "rows": 1, "bytes": 2, "footer_crc32": 3}], "read_from_ms": 4}'
            ).encode()
        ],
    ),
    "image-leaves": Target(lambda data: _image_file(_FILES[0].name, data, _LEAVES), [_LEAVES], gate_inputs=100),
    "image-index": Target(lambda data: _image_file(_FILES[1].name, data, _INDEX), [_INDEX], gate_inputs=100),
    "findings": Target(_findings, [_findings_table()], gate_inputs=50),
    "summary": Target(_summary, [json.dumps(reports.CLEAN.to_json()).encode()]),
    "report-notes": Target(
        _report_notes,
        [b'\0{"file": "a.parquet", "replaces": ["b.parquet"]}', b'\1{"kind": "ReportTables", "version": 1}'],
    ),
}
