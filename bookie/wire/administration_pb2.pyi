from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("bookie_id", "incarnation", "version", "ledgers", "queues", "disks", "read_only", "scrub", "collection", "uptime_ms")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    DISKS_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    SCRUB_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    incarnation: str
    version: str
    ledgers: int
    queues: Queues
    disks: _containers.RepeatedCompositeFieldContainer[DiskSpace]
    read_only: ReadOnlyState
    scrub: ScrubState
    collection: CollectionState
    uptime_ms: int
    def __init__(self, bookie_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., version: _Optional[str] = ..., ledgers: _Optional[int] = ..., queues: _Optional[_Union[Queues, _Mapping]] = ..., disks: _Optional[_Iterable[_Union[DiskSpace, _Mapping]]] = ..., read_only: _Optional[_Union[ReadOnlyState, _Mapping]] = ..., scrub: _Optional[_Union[ScrubState, _Mapping]] = ..., collection: _Optional[_Union[CollectionState, _Mapping]] = ..., uptime_ms: _Optional[int] = ...) -> None: ...

class Queues(_message.Message):
    __slots__ = ("add_bytes", "journal_bytes", "write_cache_bytes", "is_flushing", "reads_running", "reads_waiting", "requests", "unsent_bytes")
    ADD_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITE_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_FLUSHING_FIELD_NUMBER: _ClassVar[int]
    READS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    READS_WAITING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    UNSENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    add_bytes: int
    journal_bytes: int
    write_cache_bytes: int
    is_flushing: bool
    reads_running: int
    reads_waiting: int
    requests: int
    unsent_bytes: int
    def __init__(self, add_bytes: _Optional[int] = ..., journal_bytes: _Optional[int] = ..., write_cache_bytes: _Optional[int] = ..., is_flushing: _Optional[bool] = ..., reads_running: _Optional[int] = ..., reads_waiting: _Optional[int] = ..., requests: _Optional[int] = ..., unsent_bytes: _Optional[int] = ...) -> None: ...

class DiskSpace(_message.Message):
    __slots__ = ("role", "total_bytes", "free_bytes", "path", "problem")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    role: str
    total_bytes: int
    free_bytes: int
    path: str
    problem: str
    def __init__(self, role: _Optional[str] = ..., total_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., path: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class InventoryRequest(_message.Message):
    __slots__ = ("after", "limit", "only_limbo", "ledger_id", "only_ends")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ONLY_LIMBO_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ONLY_ENDS_FIELD_NUMBER: _ClassVar[int]
    after: int
    limit: int
    only_limbo: bool
    ledger_id: int
    only_ends: bool
    def __init__(self, after: _Optional[int] = ..., limit: _Optional[int] = ..., only_limbo: _Optional[bool] = ..., ledger_id: _Optional[int] = ..., only_ends: _Optional[bool] = ...) -> None: ...

class InventoryBatch(_message.Message):
    __slots__ = ("ledgers", "next_after", "is_last")
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_AFTER_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    ledgers: _containers.RepeatedCompositeFieldContainer[InventoryLedger]
    next_after: int
    is_last: bool
    def __init__(self, ledgers: _Optional[_Iterable[_Union[InventoryLedger, _Mapping]]] = ..., next_after: _Optional[int] = ..., is_last: _Optional[bool] = ...) -> None: ...

class InventoryLedger(_message.Message):
    __slots__ = ("ledger_id", "availability", "is_complete", "is_known", "is_fenced", "is_limbo", "is_collected", "first_entry_id", "last_entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    AVAILABILITY_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    IS_FENCED_FIELD_NUMBER: _ClassVar[int]
    IS_LIMBO_FIELD_NUMBER: _ClassVar[int]
    IS_COLLECTED_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    availability: bytes
    is_complete: bool
    is_known: bool
    is_fenced: bool
    is_limbo: bool
    is_collected: bool
    first_entry_id: int
    last_entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., availability: _Optional[bytes] = ..., is_complete: _Optional[bool] = ..., is_known: _Optional[bool] = ..., is_fenced: _Optional[bool] = ..., is_limbo: _Optional[bool] = ..., is_collected: _Optional[bool] = ..., first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ...) -> None: ...

class ForceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForceResponse(_message.Message):
    __slots__ = ("took_ms",)
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    took_ms: int
    def __init__(self, took_ms: _Optional[int] = ...) -> None: ...

class ScrubRequest(_message.Message):
    __slots__ = ("action", "from_beginning")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SHOW: _ClassVar[ScrubRequest.Action]
        START: _ClassVar[ScrubRequest.Action]
        STOP: _ClassVar[ScrubRequest.Action]
    SHOW: ScrubRequest.Action
    START: ScrubRequest.Action
    STOP: ScrubRequest.Action
    ACTION_FIELD_NUMBER: _ClassVar[int]
    FROM_BEGINNING_FIELD_NUMBER: _ClassVar[int]
    action: ScrubRequest.Action
    from_beginning: bool
    def __init__(self, action: _Optional[_Union[ScrubRequest.Action, str]] = ..., from_beginning: _Optional[bool] = ...) -> None: ...

class ScrubState(_message.Message):
    __slots__ = ("phase", "begun_ms", "finished_ms", "ledger_id", "entry_id", "entries", "bytes", "damaged", "replaced", "unrepaired", "unrepaired_count")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WAITING: _ClassVar[ScrubState.Phase]
        RUNNING: _ClassVar[ScrubState.Phase]
        STOPPED: _ClassVar[ScrubState.Phase]
        DISABLED: _ClassVar[ScrubState.Phase]
    WAITING: ScrubState.Phase
    RUNNING: ScrubState.Phase
    STOPPED: ScrubState.Phase
    DISABLED: ScrubState.Phase
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_MS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    UNREPAIRED_FIELD_NUMBER: _ClassVar[int]
    UNREPAIRED_COUNT_FIELD_NUMBER: _ClassVar[int]
    phase: ScrubState.Phase
    begun_ms: int
    finished_ms: int
    ledger_id: int
    entry_id: int
    entries: int
    bytes: int
    damaged: int
    replaced: int
    unrepaired: _containers.RepeatedCompositeFieldContainer[DamagedLedger]
    unrepaired_count: int
    def __init__(self, phase: _Optional[_Union[ScrubState.Phase, str]] = ..., begun_ms: _Optional[int] = ..., finished_ms: _Optional[int] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., entries: _Optional[int] = ..., bytes: _Optional[int] = ..., damaged: _Optional[int] = ..., replaced: _Optional[int] = ..., unrepaired: _Optional[_Iterable[_Union[DamagedLedger, _Mapping]]] = ..., unrepaired_count: _Optional[int] = ...) -> None: ...

class DamagedLedger(_message.Message):
    __slots__ = ("ledger_id", "entry_ids")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_IDS_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ledger_id: _Optional[int] = ..., entry_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class CollectRequest(_message.Message):
    __slots__ = ("action",)
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SHOW: _ClassVar[CollectRequest.Action]
        MINOR: _ClassVar[CollectRequest.Action]
        MAJOR: _ClassVar[CollectRequest.Action]
    SHOW: CollectRequest.Action
    MINOR: CollectRequest.Action
    MAJOR: CollectRequest.Action
    ACTION_FIELD_NUMBER: _ClassVar[int]
    action: CollectRequest.Action
    def __init__(self, action: _Optional[_Union[CollectRequest.Action, str]] = ...) -> None: ...

class CollectionState(_message.Message):
    __slots__ = ("is_running", "begun_ms", "finished_ms", "is_major", "known", "suspects", "collected", "kept", "locked", "unknown", "held", "stopped", "removed_logs", "freed_bytes", "copied_bytes", "is_scheduled", "process_begun_ms")
    IS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_MS_FIELD_NUMBER: _ClassVar[int]
    IS_MAJOR_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    COLLECTED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_LOGS_FIELD_NUMBER: _ClassVar[int]
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    PROCESS_BEGUN_MS_FIELD_NUMBER: _ClassVar[int]
    is_running: bool
    begun_ms: int
    finished_ms: int
    is_major: bool
    known: int
    suspects: int
    collected: int
    kept: int
    locked: int
    unknown: int
    held: int
    stopped: str
    removed_logs: int
    freed_bytes: int
    copied_bytes: int
    is_scheduled: bool
    process_begun_ms: int
    def __init__(self, is_running: _Optional[bool] = ..., begun_ms: _Optional[int] = ..., finished_ms: _Optional[int] = ..., is_major: _Optional[bool] = ..., known: _Optional[int] = ..., suspects: _Optional[int] = ..., collected: _Optional[int] = ..., kept: _Optional[int] = ..., locked: _Optional[int] = ..., unknown: _Optional[int] = ..., held: _Optional[int] = ..., stopped: _Optional[str] = ..., removed_logs: _Optional[int] = ..., freed_bytes: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., is_scheduled: _Optional[bool] = ..., process_begun_ms: _Optional[int] = ...) -> None: ...

class SetReadOnlyRequest(_message.Message):
    __slots__ = ("action",)
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SHOW: _ClassVar[SetReadOnlyRequest.Action]
        SET: _ClassVar[SetReadOnlyRequest.Action]
        CLEAR: _ClassVar[SetReadOnlyRequest.Action]
    SHOW: SetReadOnlyRequest.Action
    SET: SetReadOnlyRequest.Action
    CLEAR: SetReadOnlyRequest.Action
    ACTION_FIELD_NUMBER: _ClassVar[int]
    action: SetReadOnlyRequest.Action
    def __init__(self, action: _Optional[_Union[SetReadOnlyRequest.Action, str]] = ...) -> None: ...

class ReadOnlyState(_message.Message):
    __slots__ = ("is_read_only", "reasons", "asked_by", "asked_ms")
    IS_READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    ASKED_MS_FIELD_NUMBER: _ClassVar[int]
    is_read_only: bool
    reasons: _containers.RepeatedScalarFieldContainer[str]
    asked_by: str
    asked_ms: int
    def __init__(self, is_read_only: _Optional[bool] = ..., reasons: _Optional[_Iterable[str]] = ..., asked_by: _Optional[str] = ..., asked_ms: _Optional[int] = ...) -> None: ...
