"""The live migration of a cluster's metadata from ZooKeeper to Oxia (Pulsar's PIP-454), as far as we must obey it.

Pulsar's coordinator records the phase in one node beside the ledgers root. While it prepares and copies, a write of
ours would be lost or torn; after it has completed, the tree in ZooKeeper is an old copy, and a repair from it would
rewrite dead metadata. So nothing is opened, led, marked or repaired then (R88). A phase that cannot be read or that we
do not support counts as copying: unknown is never treated as absent.

Every process reads the node when it opens the cluster. Afterwards the election and the replicator watch it, and an
audit reads it again before each batch of marks.

Source: docs/formats.md#migration-node.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from bookie.metadata.nodes import find, parent_of
from bookie.metadata.port import MetadataStore, Stat
from bookie.model.errors import PermanentError
from bookie.model.records import UnreadableRecordError, decode_record

_SHOWN_MAX: Final = 200


class MigratedError(PermanentError):
    """The cluster's metadata is no longer in ZooKeeper, or is being copied away: nothing may be changed here."""


class Phase(enum.Enum):
    """What the coordinator does; the values are its words."""

    NOT_STARTED = "NOT_STARTED"
    PREPARATION = "PREPARATION"
    COPYING = "COPYING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class _Record:
    phase: str
    targetUrl: str = ""  # noqa: N815  # Pulsar's name


@dataclass(frozen=True, slots=True)
class Migration:
    """The migration at one moment."""

    refusal: str
    """Why nothing may be changed in ZooKeeper now; empty: there is no migration under way."""
    stat: Stat | None
    """Of the node, for a watch; None: there is none."""


def migration_path(ledgers_root: str) -> str:
    """The coordinator's node, in the directory that Pulsar's driver uses as its root."""
    return f"{parent_of(ledgers_root).rstrip('/')}/pulsar/migration-coordinator/migration"


def refusal(data: bytes | None) -> str:
    """Why nothing may be changed while the coordinator's node has this content (None: no node); empty: it may. Pure."""
    if data is None:
        return ""
    try:
        record = decode_record(data, _Record)
        phase = Phase(record.phase)
    except (UnreadableRecordError, ValueError):
        return f"a migration of the metadata is recorded in a form that cannot be read: {data[:_SHOWN_MAX]!r}"
    target = f" to {record.targetUrl[:_SHOWN_MAX]}" if record.targetUrl else ""
    match phase:
        case Phase.NOT_STARTED | Phase.FAILED:
            return ""
        case Phase.COMPLETED:
            return f"the metadata of this cluster was migrated{target}; what is in ZooKeeper is an old copy"
        case Phase.PREPARATION | Phase.COPYING:
            return f"the metadata of this cluster is being migrated{target} (phase {phase.value}); try again afterwards"


def check_not_migrating(data: bytes | None) -> None:
    """Refuse to work while the coordinator's node has this content.

    Raises:
        MigratedError: it shows a migration that is under way, completed or unreadable.
    """
    if why := refusal(data):
        raise MigratedError(why)


async def read_migration(store: MetadataStore, ledgers_root: str) -> Migration:
    """The migration now.

    Raises:
        StoreUnavailableError: no answer.
    """
    node = await find(store, migration_path(ledgers_root))
    return Migration("", None) if node is None else Migration(refusal(node.data), node.stat)


async def wait_migrating(store: MetadataStore, ledgers_root: str) -> str:
    """Return the reason once nothing may be changed any more.

    Raises:
        StoreUnavailableError: no answer, or the session was lost while waiting.
    """
    while not (now := await read_migration(store, ledgers_root)).refusal:
        await store.wait_node_changed(migration_path(ledgers_root), now.stat)
    return now.refusal
