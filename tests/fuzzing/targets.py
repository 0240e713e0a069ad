"""The table of parsers, each with intact inputs and the errors that its callers expect."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from crc32c import crc32c

from bookie.metadata.bookies.cookies import Cookie, decode_cookie, encode_cookie
from bookie.metadata.bookies.service_info import Endpoint, ServiceInfo, decode_service_info, encode_service_info
from bookie.metadata.bookies.topology import parse_topology
from bookie.metadata.ledgers.partial import PartialMetadata, decode_partial
from bookie.metadata.ledgers.serde import decode, encode
from bookie.metadata.proto.managed_ledgers_pb2 import ManagedLedgerInfo
from bookie.metadata.pulsar.decoding import cursor_references, managed_ledger_references, schema_references
from bookie.metadata.store import jute
from bookie.metadata.tasks.format import TaskData, decode_lock, decode_task, encode_lock, encode_task
from bookie.model.availability import EntryRuns
from bookie.model.digest import digest_for
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata
from bookie.model.packet import DamagedEntry, damage_of, header_of, pack, packet_ids, unpack, unpack_lac
from bookie.model.run import RunCause, RunKind, RunRecord, decode_run, encode_run
from bookie.server.apache.dialect_v3 import DialectV3
from bookie.storage.disks.index_format import CheckpointMark
from bookie.storage.entry_logs import entry_log
from bookie.storage.journal import format as journal
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache import v2
from bookie.wire.apache.framing import HEAD_BYTES
from bookie.wire.apache.sasl import parse_challenge
from bookie.wire.apache.too_long import decode_answer_ids
from spark_jobs.datasource.usual_metadata import HealthyMetadataRecognizer
from tests.fuzzing.message_targets import MESSAGE_TARGETS
from tests.fuzzing.stored_targets import STORED_TARGETS
from tests.fuzzing.target import Target
from tests.worlds.pulsar_nodes import cursor, schema

_ENTRY: Final = struct.pack(">qqqq", 7, 3, 2, 0) + b"payload"
_END: Final = struct.pack(">i?i", -1, True, -1)
_OPERATIONS: Final = (
    pb.READ_ENTRY, pb.ADD_ENTRY, pb.AUTH, pb.WRITE_LAC, pb.READ_LAC, pb.GET_BOOKIE_INFO, pb.START_TLS, pb.FORCE_LEDGER,
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER,
)  # fmt: skip
_MEMBERS: Final = (BookieId("bk1:3181"), BookieId("bk2:3181"))


def _journal_file() -> bytes:
    parts = [
        journal.encode_record(journal.RecordKind.MASTER_KEY, 7, b"key"),
        *journal.encode_entries(7, [(_ENTRY, crc32c(_ENTRY))]),
    ]
    size = sum(map(len, parts))
    header = journal.BatchHeader(5, 2, 1, journal.FILE_HEADER_SIZE, size, 2)
    return journal.encode_file_header(journal.FileHeader(5, 1, 0)) + b"".join(journal.encode_batch(header, parts))


def _parse_journal(data: bytes) -> object:
    header = journal.decode_file_header(data)
    batch = journal.find_batch_header(data, 0, header.epoch if header is not None else 5)
    return None if batch is None else journal.decode_records(data, batch)


def _parse_records_with_checksum(data: bytes) -> object:
    """Parse records in a batch with a correct checksum, so that the input reaches the parser of records."""
    header = journal.BatchHeader(5, 2, 1, 0, len(data), 2)
    return journal.decode_records(b"".join(journal.encode_batch(header, [data])), header)


def _ledger_metadata() -> list[bytes]:
    fragments = (Fragment(EntryId(0), _MEMBERS),)
    first = LedgerMetadata(2, 2, 2, fragments, digest_type=None, password=None, format_version=1)
    others = [LedgerMetadata(2, 2, 2, fragments, format_version=version) for version in (2, 3)]
    return [encode(metadata) for metadata in (first, *others)]


def _cookies() -> list[bytes]:
    cookie = Cookie(_MEMBERS[0], ("/journal",), ("/ledgers",), "instance")
    return [encode_cookie(cookie), b"3\nbk1:3181\n/journal\n1\t/ledgers\n"]


def _requests_v3() -> list[bytes]:
    requests = []
    for operation in _OPERATIONS:
        request = pb.Request()
        request.header.version, request.header.operation, request.header.txnId = pb.VERSION_THREE, operation, 1
        if operation == pb.ADD_ENTRY:
            add = request.addRequest
            add.ledgerId, add.entryId, add.masterKey, add.body = 7, 3, b"key", _ENTRY
        if operation == pb.READ_ENTRY:
            request.readRequest.ledgerId, request.readRequest.entryId = 7, 3
        requests.append(request.SerializeToString())
    return requests


def _long_answer() -> bytes:
    response = pb.Response()
    response.header.version, response.header.operation, response.header.txnId = pb.VERSION_THREE, pb.READ_ENTRY, 5
    response.status = pb.EOK
    return response.SerializeToString()[:HEAD_BYTES]


def _managed_ledger() -> bytes:
    info = ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=7)
    return bytes(info.SerializePartialToString())


def _usual_metadata(data: bytes) -> object:
    """Check that the reference decoder accepts all metadata that the fast parser accepts."""
    found = HealthyMetadataRecognizer(frozenset(_MEMBERS)).recognize(data)
    if found is not None:
        decode(data)
    return found


def _partial_metadata(data: bytes) -> object:
    """Check that both decoders return the same fields if both accept the metadata."""
    found = decode_partial(data)
    if found is not None:
        full = decode(data)
        assert found == PartialMetadata(full.is_closed, full.ensemble_size, full.write_quorum)
    return found


def _usual() -> bytes:
    custom = (("application", b"pulsar"), ("pulsar/managed-ledger", b"t/n/persistent/a"))
    fragments = (Fragment(EntryId(0), _MEMBERS),)
    return encode(LedgerMetadata(2, 2, 2, fragments, password=b"secret", custom=custom).closed(EntryId(9), 100))


_DIGESTS: Final = tuple(digest_for(kind, b"secret") for kind in DigestType)


def _packet(data: bytes) -> object:
    """Read an entry and a last add confirmed with the digest that the first byte selects."""
    digest, packet = _DIGESTS[(data[0] if data else 0) % len(_DIGESTS)], data[1:]
    for read in (
        lambda: damage_of(digest, packet, LedgerId(7), EntryId(3)),
        lambda: unpack_lac(digest, packet, LedgerId(7)),
        lambda: header_of(packet),
        lambda: packet_ids(packet),
    ):
        with suppress(DamagedEntry):
            read()
    return unpack(digest, packet, LedgerId(7), None)


def _packets() -> list[bytes]:
    entry = (LedgerId(7), EntryId(3), 2, 100, b"payload")
    return [bytes([number]) + pack(digest, *entry) for number, digest in enumerate(_DIGESTS)]


def _ignore(index: int, code: int) -> None:
    """Ignore an error, because the error of one node is not an error of the parser."""


def _multi_read(kind: int, *contents: bytes) -> bytes:
    return b"".join(struct.pack(">i?i", kind, False, 0) + content for content in contents) + _END


_DATA_REPLY: Final = _multi_read(jute.OP_GET_DATA, *[struct.pack(">i", 4) + b"data" + bytes(68)] * 2)
_CHILDREN_REPLY: Final = _multi_read(jute.OP_GET_CHILDREN, *[struct.pack(">ii", 1, 4) + b"name"] * 2)
_MULTI_REPLY: Final = _multi_read(jute.OP_CREATE, struct.pack(">i", 5) + b"/node")
_READ_ERRORS: Final = (struct.error, ValueError, IndexError)
"""The errors that ``MultiRead`` converts to one of ours."""
_LOG_RECORD: Final = struct.pack(">II", len(_ENTRY), crc32c(_ENTRY)) + _ENTRY

TARGETS: Final[Mapping[str, Target]] = {
    "journal": Target(_parse_journal, [_journal_file()]),
    "journal-records": Target(
        _parse_records_with_checksum, [b"".join(journal.encode_entries(7, [(_ENTRY, crc32c(_ENTRY))] * 2))]
    ),
    "entry-log-header": Target(entry_log.decode_header, [bytes(entry_log.HEADER_SIZE)]),
    "entry-log-records": Target(entry_log.decode_records, [_LOG_RECORD * 3]),
    "checkpoint-mark": Target(
        CheckpointMark.decode, [CheckpointMark((1,), 2, 3).encode(), CheckpointMark((1, 2), 3).encode()]
    ),
    "ledger-metadata": Target(decode, _ledger_metadata()),
    "partial-metadata": Target(_partial_metadata, [_usual(), *_ledger_metadata()]),
    "usual-metadata": Target(_usual_metadata, [_usual(), *_ledger_metadata()]),
    "packet": Target(_packet, _packets(), (DamagedEntry,)),
    "cookie": Target(decode_cookie, _cookies()),
    "task": Target(decode_task, [encode_task(TaskData(_MEMBERS, 5)), b'replica: "bk\\001"\n']),
    "lock": Target(decode_lock, [encode_lock("host")]),
    "registration": Target(
        lambda data: decode_service_info(data, _MEMBERS[0]),
        [encode_service_info(ServiceInfo((Endpoint("grpc", "bk1", 3181, "bkheal"),), (("a", "b"),)))],
    ),
    "topology": Target(
        lambda data: parse_topology(data.decode("latin-1")),
        [b'{"bk1:3181": "/r1", "g": {"bk2:3181": {"rack": "/r2"}}}'],
    ),
    "availability": Target(EntryRuns.decode, [EntryRuns.of([1, 2, 3, 7, 9, 11, 13]).encode()]),
    "run": Target(decode_run, [encode_run(RunRecord("r1", RunKind.BOOKIES, RunCause.COMMAND, "alice", "host:1"))]),
    "managed-ledger": Target(managed_ledger_references, [_managed_ledger(), b""]),
    "cursor": Target(cursor_references, [cursor(7), cursor(7, 8, 9)]),
    "schema": Target(schema_references, [schema(7, 8)]),
    "request-v2": Target(
        v2.decode_request,
        [
            v2.encode_request(v2.AddV2(b"k" * 20, _ENTRY)),
            v2.encode_request(v2.ReadV2(7, 3)),
            v2.encode_request(v2.AuthV2("plugin", b"token")),
        ],
    ),
    "response-v2": Target(
        v2.decode_response,
        [v2.encode_response(v2.AddedV2(0, 7, 3)), v2.encode_response(v2.EntryV2(0, 7, 3, _ENTRY))],
    ),
    "request-v3": Target(DialectV3().decode, _requests_v3()),
    "long-answer-v3": Target(decode_answer_ids, [_long_answer()]),
    "login": Target(parse_challenge, [b'realm="a",nonce="b",qop="auth",charset=utf-8,algorithm=md5-sess']),
    "zookeeper-data": Target(lambda data: jute.read_data(data, 2, _ignore), [_DATA_REPLY], _READ_ERRORS),
    "zookeeper-nodes": Target(lambda data: jute.read_nodes(data, 2, _ignore), [_DATA_REPLY], _READ_ERRORS),
    "zookeeper-children": Target(lambda data: jute.read_children(data, 2, _ignore), [_CHILDREN_REPLY], _READ_ERRORS),
    "zookeeper-multi": Target(
        lambda data: jute.multi_reply(data, 0), [_MULTI_REPLY], (jute.MalformedReplyError,)
    ),
    **MESSAGE_TARGETS,
    **STORED_TARGETS,
}  # fmt: skip


def crash_of(target: Target, data: bytes) -> Exception | None:
    """Return the error that no caller of the parser expects, or None."""
    try:
        target.parse(data)
    except target.errors:
        return None
    except Exception as error:  # noqa: BLE001 (this is what the search is for)
        return error
    return None


def describe(name: str, seed: str, data: bytes, error: Any) -> str:
    """Describe how to repeat a crash."""
    return f"{name}, seed {seed}: {type(error).__name__}: {error}; input {data[:2000].hex()}"
