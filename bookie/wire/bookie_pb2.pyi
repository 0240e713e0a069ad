from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_OK: _ClassVar[Status]
    STATUS_NO_ENTRY: _ClassVar[Status]
    STATUS_NO_LEDGER: _ClassVar[Status]
    STATUS_CORRUPT: _ClassVar[Status]
    STATUS_LIMBO: _ClassVar[Status]
    STATUS_FENCED: _ClassVar[Status]
    STATUS_UNAUTHORIZED: _ClassVar[Status]
    STATUS_READ_ONLY: _ClassVar[Status]
    STATUS_TOO_MANY_REQUESTS: _ClassVar[Status]
    STATUS_WRONG_INCARNATION: _ClassVar[Status]
    STATUS_IO_ERROR: _ClassVar[Status]
    STATUS_BAD_REQUEST: _ClassVar[Status]
    STATUS_SHUTTING_DOWN: _ClassVar[Status]

class Digest(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIGEST_UNSPECIFIED: _ClassVar[Digest]
    DIGEST_CRC32: _ClassVar[Digest]
    DIGEST_HMAC: _ClassVar[Digest]
    DIGEST_CRC32C: _ClassVar[Digest]

class Silence(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SILENCE_NONE: _ClassVar[Silence]
    SILENCE_UNREACHABLE: _ClassVar[Silence]
    SILENCE_TIMEOUT: _ClassVar[Silence]
    SILENCE_UNRESOLVED: _ClassVar[Silence]
STATUS_OK: Status
STATUS_NO_ENTRY: Status
STATUS_NO_LEDGER: Status
STATUS_CORRUPT: Status
STATUS_LIMBO: Status
STATUS_FENCED: Status
STATUS_UNAUTHORIZED: Status
STATUS_READ_ONLY: Status
STATUS_TOO_MANY_REQUESTS: Status
STATUS_WRONG_INCARNATION: Status
STATUS_IO_ERROR: Status
STATUS_BAD_REQUEST: Status
STATUS_SHUTTING_DOWN: Status
DIGEST_UNSPECIFIED: Digest
DIGEST_CRC32: Digest
DIGEST_HMAC: Digest
DIGEST_CRC32C: Digest
SILENCE_NONE: Silence
SILENCE_UNREACHABLE: Silence
SILENCE_TIMEOUT: Silence
SILENCE_UNRESOLVED: Silence

class AddRequest(_message.Message):
    __slots__ = ("incarnation", "batches")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    batches: _containers.RepeatedCompositeFieldContainer[AddBatch]
    def __init__(self, incarnation: _Optional[str] = ..., batches: _Optional[_Iterable[_Union[AddBatch, _Mapping]]] = ...) -> None: ...

class AddBatch(_message.Message):
    __slots__ = ("request_id", "ledger_id", "master_key", "is_recovery", "entries")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    IS_RECOVERY_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    ledger_id: int
    master_key: bytes
    is_recovery: bool
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, request_id: _Optional[int] = ..., ledger_id: _Optional[int] = ..., master_key: _Optional[bytes] = ..., is_recovery: _Optional[bool] = ..., entries: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AddResponse(_message.Message):
    __slots__ = ("acks",)
    ACKS_FIELD_NUMBER: _ClassVar[int]
    acks: _containers.RepeatedCompositeFieldContainer[AddAck]
    def __init__(self, acks: _Optional[_Iterable[_Union[AddAck, _Mapping]]] = ...) -> None: ...

class AddAck(_message.Message):
    __slots__ = ("request_id", "ledger_id", "status", "detail")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    ledger_id: int
    status: Status
    detail: str
    def __init__(self, request_id: _Optional[int] = ..., ledger_id: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("incarnation", "ledger_id", "entry_ids", "fence_key")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_IDS_FIELD_NUMBER: _ClassVar[int]
    FENCE_KEY_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    ledger_id: int
    entry_ids: _containers.RepeatedScalarFieldContainer[int]
    fence_key: bytes
    def __init__(self, incarnation: _Optional[str] = ..., ledger_id: _Optional[int] = ..., entry_ids: _Optional[_Iterable[int]] = ..., fence_key: _Optional[bytes] = ...) -> None: ...

class ReadLedgersRequest(_message.Message):
    __slots__ = ("incarnation", "reads")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    reads: _containers.RepeatedCompositeFieldContainer[LedgerRead]
    def __init__(self, incarnation: _Optional[str] = ..., reads: _Optional[_Iterable[_Union[LedgerRead, _Mapping]]] = ...) -> None: ...

class LedgerRead(_message.Message):
    __slots__ = ("ledger_id", "entry_ids")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_IDS_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ledger_id: _Optional[int] = ..., entry_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReadLastRequest(_message.Message):
    __slots__ = ("incarnation", "ledger_id")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    ledger_id: int
    def __init__(self, incarnation: _Optional[str] = ..., ledger_id: _Optional[int] = ...) -> None: ...

class EntryBatch(_message.Message):
    __slots__ = ("entry_ids", "statuses", "packets", "is_last", "status", "detail")
    ENTRY_IDS_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    entry_ids: _containers.RepeatedScalarFieldContainer[int]
    statuses: _containers.RepeatedScalarFieldContainer[Status]
    packets: _containers.RepeatedScalarFieldContainer[bytes]
    is_last: bool
    status: Status
    detail: str
    def __init__(self, entry_ids: _Optional[_Iterable[int]] = ..., statuses: _Optional[_Iterable[_Union[Status, str]]] = ..., packets: _Optional[_Iterable[bytes]] = ..., is_last: _Optional[bool] = ..., status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class LedgerBatches(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[LedgerBatch]
    def __init__(self, batches: _Optional[_Iterable[_Union[LedgerBatch, _Mapping]]] = ...) -> None: ...

class LedgerBatch(_message.Message):
    __slots__ = ("ledger_id", "piece")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    piece: EntryBatch
    def __init__(self, ledger_id: _Optional[int] = ..., piece: _Optional[_Union[EntryBatch, _Mapping]] = ...) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("incarnation", "ledger_id", "master_key")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    ledger_id: int
    master_key: bytes
    def __init__(self, incarnation: _Optional[str] = ..., ledger_id: _Optional[int] = ..., master_key: _Optional[bytes] = ...) -> None: ...

class FenceResponse(_message.Message):
    __slots__ = ("status", "detail", "last_entry")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    status: Status
    detail: str
    last_entry: OneEntry
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ..., last_entry: _Optional[_Union[OneEntry, _Mapping]] = ...) -> None: ...

class OneEntry(_message.Message):
    __slots__ = ("entry_id", "status", "packet")
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PACKET_FIELD_NUMBER: _ClassVar[int]
    entry_id: int
    status: Status
    packet: bytes
    def __init__(self, entry_id: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., packet: _Optional[bytes] = ...) -> None: ...

class ReadLacRequest(_message.Message):
    __slots__ = ("incarnation", "ledger_id")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    ledger_id: int
    def __init__(self, incarnation: _Optional[str] = ..., ledger_id: _Optional[int] = ...) -> None: ...

class WaitLacRequest(_message.Message):
    __slots__ = ("incarnation", "ledger_id", "beyond", "wait_ms")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    ledger_id: int
    beyond: int
    wait_ms: int
    def __init__(self, incarnation: _Optional[str] = ..., ledger_id: _Optional[int] = ..., beyond: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class LacResponse(_message.Message):
    __slots__ = ("status", "detail", "explicit_lac", "last_entry", "entry")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_LAC_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    status: Status
    detail: str
    explicit_lac: bytes
    last_entry: OneEntry
    entry: OneEntry
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ..., explicit_lac: _Optional[bytes] = ..., last_entry: _Optional[_Union[OneEntry, _Mapping]] = ..., entry: _Optional[_Union[OneEntry, _Mapping]] = ...) -> None: ...

class WriteLacRequest(_message.Message):
    __slots__ = ("incarnation", "ledger_id", "master_key", "explicit_lac")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_LAC_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    ledger_id: int
    master_key: bytes
    explicit_lac: bytes
    def __init__(self, incarnation: _Optional[str] = ..., ledger_id: _Optional[int] = ..., master_key: _Optional[bytes] = ..., explicit_lac: _Optional[bytes] = ...) -> None: ...

class WriteLacResponse(_message.Message):
    __slots__ = ("status", "detail")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    status: Status
    detail: str
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class ListEntriesRequest(_message.Message):
    __slots__ = ("incarnation", "ledger_id")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    ledger_id: int
    def __init__(self, incarnation: _Optional[str] = ..., ledger_id: _Optional[int] = ...) -> None: ...

class EntryList(_message.Message):
    __slots__ = ("availability", "is_last", "status", "detail")
    AVAILABILITY_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    availability: bytes
    is_last: bool
    status: Status
    detail: str
    def __init__(self, availability: _Optional[bytes] = ..., is_last: _Optional[bool] = ..., status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class ListLedgersRequest(_message.Message):
    __slots__ = ("incarnation", "ledger_ids")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, incarnation: _Optional[str] = ..., ledger_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class LedgerLists(_message.Message):
    __slots__ = ("lists",)
    LISTS_FIELD_NUMBER: _ClassVar[int]
    lists: _containers.RepeatedCompositeFieldContainer[LedgerList]
    def __init__(self, lists: _Optional[_Iterable[_Union[LedgerList, _Mapping]]] = ...) -> None: ...

class LedgerList(_message.Message):
    __slots__ = ("ledger_id", "piece")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    piece: EntryList
    def __init__(self, ledger_id: _Optional[int] = ..., piece: _Optional[_Union[EntryList, _Mapping]] = ...) -> None: ...

class CopyRequest(_message.Message):
    __slots__ = ("incarnation", "ledger_id", "master_key", "entry_ids", "source", "digest", "digest_key")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DIGEST_KEY_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    ledger_id: int
    master_key: bytes
    entry_ids: _containers.RepeatedScalarFieldContainer[int]
    source: str
    digest: Digest
    digest_key: bytes
    def __init__(self, incarnation: _Optional[str] = ..., ledger_id: _Optional[int] = ..., master_key: _Optional[bytes] = ..., entry_ids: _Optional[_Iterable[int]] = ..., source: _Optional[str] = ..., digest: _Optional[_Union[Digest, str]] = ..., digest_key: _Optional[bytes] = ...) -> None: ...

class CopyResponse(_message.Message):
    __slots__ = ("status", "detail", "covered", "stored_bytes", "refusals", "source_status", "source_silence", "source_detail", "read_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    COVERED_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_STATUS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SILENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_DETAIL_FIELD_NUMBER: _ClassVar[int]
    READ_MS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    detail: str
    covered: int
    stored_bytes: int
    refusals: _containers.RepeatedCompositeFieldContainer[CopyRefusal]
    source_status: Status
    source_silence: Silence
    source_detail: str
    read_ms: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ..., covered: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[CopyRefusal, _Mapping]]] = ..., source_status: _Optional[_Union[Status, str]] = ..., source_silence: _Optional[_Union[Silence, str]] = ..., source_detail: _Optional[str] = ..., read_ms: _Optional[int] = ...) -> None: ...

class CopyRefusal(_message.Message):
    __slots__ = ("entry_id", "status", "detail")
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    entry_id: int
    status: Status
    detail: str
    def __init__(self, entry_id: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    def __init__(self, incarnation: _Optional[str] = ...) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("status", "detail", "incarnation", "version", "is_read_only", "disk_total_bytes", "disk_free_bytes", "ledger_count")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    DISK_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_COUNT_FIELD_NUMBER: _ClassVar[int]
    status: Status
    detail: str
    incarnation: str
    version: str
    is_read_only: bool
    disk_total_bytes: int
    disk_free_bytes: int
    ledger_count: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., detail: _Optional[str] = ..., incarnation: _Optional[str] = ..., version: _Optional[str] = ..., is_read_only: _Optional[bool] = ..., disk_total_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., ledger_count: _Optional[int] = ...) -> None: ...
