"""The live migration of a cluster's metadata from ZooKeeper to Oxia (Pulsar's PIP-454), as far as it restricts bkheal.

Pulsar's coordinator records the phase in one node below the parent of the ledgers root. During preparation and
copying, a write by bkheal would be lost, or only a part of it would be copied. After completion, the tree in ZooKeeper
is an old copy, and a repair would rewrite metadata that is no longer used. So in these phases no cluster is opened, no
auditor leads, and nothing is marked or repaired (R88). An unreadable or unsupported phase counts as copying: unknown is
never treated as absent.

Every process reads the node when it opens the cluster. Afterwards the election and the replicator watch it, and an
audit reads it again before each batch of marks that it makes or withdraws.

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


class MigrationPhase(enum.Enum):
    """Phase of the migration; the values are the coordinator's words."""

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
    """The state of the migration at one moment."""

    refusal: str
    """Why nothing may be changed in ZooKeeper now; empty if changes are allowed."""
    stat: Stat | None
    """Stat of the node, for a watch; None if the node does not exist."""


def migration_path(ledgers_root: str) -> str:
    """Path of the coordinator's node, in the root directory of Pulsar's driver."""
    return f"{parent_of(ledgers_root).rstrip('/')}/pulsar/migration-coordinator/migration"


def refusal(data: bytes | None) -> str:
    """Return why this content of the coordinator's node (None: no node) forbids changes; empty if it does not. Pure."""
    if data is None:
        return ""
    try:
        record = decode_record(data, _Record)
        phase = MigrationPhase(record.phase)
    except (UnreadableRecordError, ValueError):
        return f"a migration of the metadata is recorded in a form that cannot be read: {data[:_SHOWN_MAX]!r}"
    target = f" to {record.targetUrl[:_SHOWN_MAX]}" if record.targetUrl else ""
    match phase:
        case MigrationPhase.NOT_STARTED | MigrationPhase.FAILED:
            return ""
        case MigrationPhase.COMPLETED:
            return f"the metadata of this cluster was migrated{target}; what is in ZooKeeper is an old copy"
        case MigrationPhase.PREPARATION | MigrationPhase.COPYING:
            return f"the metadata of this cluster is being migrated{target} (phase {phase.value}); try again afterwards"


def check_not_migrating(data: bytes | None) -> None:
    """Refuse to work if this content of the coordinator's node forbids changes.

    Raises:
        MigratedError: the migration is under way, completed or unreadable.
    """
    if why := refusal(data):
        raise MigratedError(why)


async def read_migration(store: MetadataStore, ledgers_root: str) -> Migration:
    """Read the current state of the migration.

    Raises:
        StoreUnavailableError: no answer.
    """
    node = await find(store, migration_path(ledgers_root))
    return Migration("", None) if node is None else Migration(refusal(node.data), node.stat)


async def wait_migrating(store: MetadataStore, ledgers_root: str) -> str:
    """Wait until changes are forbidden, and return the reason.

    Raises:
        StoreUnavailableError: no answer, or the session was lost while waiting.
    """
    while not (now := await read_migration(store, ledgers_root)).refusal:
        await store.wait_node_changed(migration_path(ledgers_root), now.stat)
    return now.refusal
