"""The time of the last completed check of each kind, in Apache's nodes (docs/formats.md#under-replication-nodes)."""

from __future__ import annotations

import enum

from google.protobuf.message import DecodeError

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import UNDERREPLICATION
from bookie.metadata.nodes import find, put
from bookie.metadata.port import MetadataStore
from bookie.metadata.proto.metadata_formats_pb2 import (
    CheckAllLedgersFormat,
    PlacementPolicyCheckFormat,
    ReplicasCheckFormat,
)
from bookie.metadata.tasks.format import NO_TIME


class CheckKind(enum.Enum):
    """A periodic check of Apache's auditor; the values are names of nodes."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


class CheckTimes:
    """Times of one cluster's checks, epoch milliseconds."""

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._root = cluster.root

    async def read(self, kind: CheckKind) -> int:
        """Return when the check last completed; -1 if never, or if the stored time is unreadable.

        Raises:
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self._path(kind))
        return NO_TIME if node is None else decode_check_time(kind, node.data)

    async def write(self, kind: CheckKind, time_ms: int) -> None:
        """Store ``time_ms`` as the check's completion. Unconditional, like Apache's write.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; writing again is safe.
        """
        path, data = self._path(kind), encode_check_time(kind, time_ms)
        await put(self._store, path, data, self._root)

    def _path(self, kind: CheckKind) -> str:
        return f"{self._root}/{UNDERREPLICATION}/{kind.value}"


def encode_check_time(kind: CheckKind, time_ms: int) -> bytes:
    """Bytes of a check time node."""
    match kind:
        case CheckKind.ALL_LEDGERS:
            return CheckAllLedgersFormat(checkAllLedgersCTime=time_ms).SerializeToString()
        case CheckKind.PLACEMENT:
            return PlacementPolicyCheckFormat(placementPolicyCheckCTime=time_ms).SerializeToString()
        case CheckKind.REPLICAS:
            return ReplicasCheckFormat(replicasCheckCTime=time_ms).SerializeToString()


def decode_check_time(kind: CheckKind, data: bytes) -> int:
    """Read a check time node; -1 if it has no time or is unreadable."""
    try:
        match kind:
            case CheckKind.ALL_LEDGERS:
                all_ledgers = CheckAllLedgersFormat.FromString(data)
                return all_ledgers.checkAllLedgersCTime if all_ledgers.HasField("checkAllLedgersCTime") else NO_TIME
            case CheckKind.PLACEMENT:
                placement = PlacementPolicyCheckFormat.FromString(data)
                has_time = placement.HasField("placementPolicyCheckCTime")
                return placement.placementPolicyCheckCTime if has_time else NO_TIME
            case CheckKind.REPLICAS:
                replicas = ReplicasCheckFormat.FromString(data)
                return replicas.replicasCheckCTime if replicas.HasField("replicasCheckCTime") else NO_TIME
    except DecodeError:
        return NO_TIME
