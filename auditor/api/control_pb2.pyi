import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_KIND_UNSPECIFIED: _ClassVar[RunKind]
    RUN_KIND_BOOKIES: _ClassVar[RunKind]
    RUN_KIND_PLACEMENT: _ClassVar[RunKind]
    RUN_KIND_REPLICAS: _ClassVar[RunKind]
    RUN_KIND_REFERENCES: _ClassVar[RunKind]
    RUN_KIND_EVERYTHING: _ClassVar[RunKind]

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_WAITING: _ClassVar[RunState]
    RUN_STATE_RUNNING: _ClassVar[RunState]
    RUN_STATE_PAUSED: _ClassVar[RunState]
    RUN_STATE_DONE: _ClassVar[RunState]
    RUN_STATE_FAILED: _ClassVar[RunState]
    RUN_STATE_CANCELLED: _ClassVar[RunState]
    RUN_STATE_ABANDONED: _ClassVar[RunState]
RUN_KIND_UNSPECIFIED: RunKind
RUN_KIND_BOOKIES: RunKind
RUN_KIND_PLACEMENT: RunKind
RUN_KIND_REPLICAS: RunKind
RUN_KIND_REFERENCES: RunKind
RUN_KIND_EVERYTHING: RunKind
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_WAITING: RunState
RUN_STATE_RUNNING: RunState
RUN_STATE_PAUSED: RunState
RUN_STATE_DONE: RunState
RUN_STATE_FAILED: RunState
RUN_STATE_CANCELLED: RunState
RUN_STATE_ABANDONED: RunState

class Run(_message.Message):
    __slots__ = ("run_id", "kind", "cause", "owner", "process", "state", "is_dry_run", "phase", "done", "total", "started", "updated", "finished", "eta", "verdict", "exit_code", "ledgers", "findings", "tasks_changed", "report", "detail", "paused_until")
    class FindingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IS_DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ETA_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    TASKS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PAUSED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    kind: RunKind
    cause: str
    owner: str
    process: str
    state: RunState
    is_dry_run: bool
    phase: str
    done: int
    total: int
    started: _timestamp_pb2.Timestamp
    updated: _timestamp_pb2.Timestamp
    finished: _timestamp_pb2.Timestamp
    eta: _timestamp_pb2.Timestamp
    verdict: str
    exit_code: int
    ledgers: int
    findings: _containers.ScalarMap[str, int]
    tasks_changed: int
    report: str
    detail: str
    paused_until: _timestamp_pb2.Timestamp
    def __init__(self, run_id: _Optional[str] = ..., kind: _Optional[_Union[RunKind, str]] = ..., cause: _Optional[str] = ..., owner: _Optional[str] = ..., process: _Optional[str] = ..., state: _Optional[_Union[RunState, str]] = ..., is_dry_run: _Optional[bool] = ..., phase: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., started: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., eta: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., verdict: _Optional[str] = ..., exit_code: _Optional[int] = ..., ledgers: _Optional[int] = ..., findings: _Optional[_Mapping[str, int]] = ..., tasks_changed: _Optional[int] = ..., report: _Optional[str] = ..., detail: _Optional[str] = ..., paused_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("version", "process", "is_leader", "leader", "is_store_connected", "metadata_uri", "instance_id", "is_recovery_enabled", "lost_bookie_delay_seconds", "writable", "read_only", "lost", "held_because", "underreplicated_ledgers", "underreplicated_by_severity", "counted", "running", "last", "paused_kinds", "pauses", "maintenance")
    class UnderreplicatedBySeverityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    IS_LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    IS_STORE_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    METADATA_URI_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    IS_RECOVERY_ENABLED_FIELD_NUMBER: _ClassVar[int]
    LOST_BOOKIE_DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    HELD_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    UNDERREPLICATED_LEDGERS_FIELD_NUMBER: _ClassVar[int]
    UNDERREPLICATED_BY_SEVERITY_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PAUSED_KINDS_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    MAINTENANCE_FIELD_NUMBER: _ClassVar[int]
    version: str
    process: str
    is_leader: bool
    leader: str
    is_store_connected: bool
    metadata_uri: str
    instance_id: str
    is_recovery_enabled: bool
    lost_bookie_delay_seconds: int
    writable: _containers.RepeatedScalarFieldContainer[str]
    read_only: _containers.RepeatedScalarFieldContainer[str]
    lost: _containers.RepeatedScalarFieldContainer[str]
    held_because: str
    underreplicated_ledgers: int
    underreplicated_by_severity: _containers.ScalarMap[str, int]
    counted: _timestamp_pb2.Timestamp
    running: _containers.RepeatedCompositeFieldContainer[Run]
    last: _containers.RepeatedCompositeFieldContainer[Run]
    paused_kinds: _containers.RepeatedScalarFieldContainer[RunKind]
    pauses: _containers.RepeatedCompositeFieldContainer[Pause]
    maintenance: _containers.RepeatedCompositeFieldContainer[MaintenanceWindow]
    def __init__(self, version: _Optional[str] = ..., process: _Optional[str] = ..., is_leader: _Optional[bool] = ..., leader: _Optional[str] = ..., is_store_connected: _Optional[bool] = ..., metadata_uri: _Optional[str] = ..., instance_id: _Optional[str] = ..., is_recovery_enabled: _Optional[bool] = ..., lost_bookie_delay_seconds: _Optional[int] = ..., writable: _Optional[_Iterable[str]] = ..., read_only: _Optional[_Iterable[str]] = ..., lost: _Optional[_Iterable[str]] = ..., held_because: _Optional[str] = ..., underreplicated_ledgers: _Optional[int] = ..., underreplicated_by_severity: _Optional[_Mapping[str, int]] = ..., counted: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., running: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., last: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., paused_kinds: _Optional[_Iterable[_Union[RunKind, str]]] = ..., pauses: _Optional[_Iterable[_Union[Pause, _Mapping]]] = ..., maintenance: _Optional[_Iterable[_Union[MaintenanceWindow, _Mapping]]] = ...) -> None: ...

class MaintenanceWindow(_message.Message):
    __slots__ = ("target", "bookies", "by", "since", "until", "hold_critical", "note")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BOOKIES_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    HOLD_CRITICAL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    target: str
    bookies: _containers.RepeatedScalarFieldContainer[str]
    by: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    hold_critical: bool
    note: str
    def __init__(self, target: _Optional[str] = ..., bookies: _Optional[_Iterable[str]] = ..., by: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., hold_critical: _Optional[bool] = ..., note: _Optional[str] = ...) -> None: ...

class Pause(_message.Message):
    __slots__ = ("kind", "owner", "until")
    KIND_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    kind: RunKind
    owner: str
    until: _timestamp_pb2.Timestamp
    def __init__(self, kind: _Optional[_Union[RunKind, str]] = ..., owner: _Optional[str] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class StartRunRequest(_message.Message):
    __slots__ = ("kind", "is_dry_run", "idempotency_key", "options")
    KIND_FIELD_NUMBER: _ClassVar[int]
    IS_DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    kind: RunKind
    is_dry_run: bool
    idempotency_key: str
    options: RunOptions
    def __init__(self, kind: _Optional[_Union[RunKind, str]] = ..., is_dry_run: _Optional[bool] = ..., idempotency_key: _Optional[str] = ..., options: _Optional[_Union[RunOptions, _Mapping]] = ...) -> None: ...

class RunOptions(_message.Message):
    __slots__ = ("mark_misplaced", "ledger_min", "ledger_max", "sample", "sample_seed")
    MARK_MISPLACED_FIELD_NUMBER: _ClassVar[int]
    LEDGER_MIN_FIELD_NUMBER: _ClassVar[int]
    LEDGER_MAX_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_SEED_FIELD_NUMBER: _ClassVar[int]
    mark_misplaced: bool
    ledger_min: int
    ledger_max: int
    sample: float
    sample_seed: int
    def __init__(self, mark_misplaced: _Optional[bool] = ..., ledger_min: _Optional[int] = ..., ledger_max: _Optional[int] = ..., sample: _Optional[float] = ..., sample_seed: _Optional[int] = ...) -> None: ...

class ChangeRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...
