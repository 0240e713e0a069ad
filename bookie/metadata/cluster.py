"""A cluster's root: create it, open it, and refuse anything else (docs/formats.md#cluster-root)."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Final

from bookie.metadata.layout import INSTANCE_ID, LAYOUT, LayoutKind, available_path
from bookie.metadata.migration import check_not_migrating, migration_path
from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, ensure_path, parent_of, reread
from bookie.metadata.own_state import check_roots_separate, check_state_root, record_path
from bookie.metadata.port import (
    AccessDeniedError,
    Create,
    MetadataStore,
    MultiFailedError,
    NodeExistsError,
    Operation,
    WriteOutcomeUnknownError,
)
from bookie.metadata.uri import DEFAULT_ROOT, PULSAR_DRIVER, MetadataUri, parse_uri
from bookie.model.errors import ConflictError, PermanentError

_LAYOUT_FORMAT: Final = 2
_MANAGER_VERSION: Final = "1"
_V1_LAYOUT_KINDS: Final = {"hierarchical": LayoutKind.HIERARCHICAL, "flat": LayoutKind.FLAT}
"""Format 1 held a short name in place of the class."""

_UNSUPPORTED_MANAGERS: Final = {
    "MSLedgerManagerFactory": ". A metastore keeps its ledgers outside of the ZooKeeper tree",
    "LegacyHierarchicalLedgerManagerFactory": ". Apache's own clients refuse this one in a URI as well",
}


_LONG_TREE_PROBE: Final = "000/0000/0000"
"""Parent of small ledger ids in the layout longhierarchical; the hierarchical one never has it."""


class NotAClusterError(PermanentError):
    """There is no cluster at this root, or one of an unsupported layout."""


class NoClusterError(NotAClusterError):
    """There is no cluster at this root."""


class ClusterClosedError(NotAClusterError):
    """The cluster's root may not be read by this process."""


class ClusterExistsError(ConflictError):
    """The root exists already."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The facts needed by every user of a cluster's metadata."""

    root: str
    """Ledgers root, without a trailing slash."""
    kind: LayoutKind
    instance_id: str


async def format_cluster(
    store: MetadataStore, root: str, kind: LayoutKind = LayoutKind.HIERARCHICAL, *, rng: random.Random
) -> None:
    """Create an empty cluster at ``root``, in one transaction, and the parents of ``root`` if they are missing.

    Raises:
        ClusterExistsError: the root exists, with any content; nothing was changed.
        StateRootError: the root and the state root of this process contain each other; nothing was changed.
        StoreUnavailableError, WriteOutcomeUnknownError: see ``MetadataStore.multi``.
    """
    check_roots_separate(root)
    instance_id = str(uuid.UUID(int=rng.getrandbits(128), version=4)).encode()
    operations: list[Operation] = [
        Create(root),
        Create(available_path(root, is_read_only=False)),
        Create(available_path(root, is_read_only=True)),
        Create(f"{root}/{INSTANCE_ID}", instance_id),
        Create(f"{root}/{LAYOUT}", encode_layout(kind)),
    ]
    if parent_of(root) != "/":
        await ensure_path(store, parent_of(root))
    for _ in range(WRITE_ATTEMPTS_MAX):
        try:
            await store.multi(operations)
            return
        except MultiFailedError as error:
            if not isinstance(error.cause, NodeExistsError):
                raise
            found = await reread(store, f"{root}/{INSTANCE_ID}")
        except WriteOutcomeUnknownError:
            found = await reread(store, f"{root}/{INSTANCE_ID}")
            if found is None:
                continue
        if found is not None and found.data == instance_id:  # ours, by an attempt whose answer was lost
            return
        raise ClusterExistsError(f"{root} exists already: open it, or choose another root")
    raise WriteOutcomeUnknownError(f"creating a cluster at {root}: every answer was lost; check whether it exists")


async def open_cluster(store: MetadataStore, where: MetadataUri | str) -> Cluster:
    """Read the cluster at ``where``: a parsed URI, a URI, or a root path.

    A root with INSTANCEID and without LAYOUT was made by Pulsar's metadata driver, which writes no LAYOUT and uses the
    hierarchical layout. It is opened if the URI names this layout or driver. Nothing is written.

    Raises:
        NotAClusterError: there is no root, no LAYOUT or INSTANCEID, or the layout is not the requested one or
            unsupported.
        ClusterClosedError: its ACL does not allow reading it.
        MigratedError: its metadata was migrated away from ZooKeeper, or is being migrated (R88).
        StateRootError: the cluster's other processes keep bkheal's state below another root (R90).
        InvalidUriError: ``where`` is an unusable URI.
        StoreUnavailableError: no answer.
    """
    cluster, state_root = await read_cluster(store, where)
    await check_state_root(store, cluster.root, state_root)
    return cluster


async def read_cluster(store: MetadataStore, where: MetadataUri | str) -> tuple[Cluster, bytes | None]:
    """As ``open_cluster``, without the check of the state root; return the cluster and its state root record."""
    if isinstance(where, str) and not where.startswith("/"):
        where = parse_uri(where)
    root, wanted = (where, None) if isinstance(where, str) else (where.ledgers_root, where.layout)
    try:
        paths = [f"{root}/{LAYOUT}", f"{root}/{INSTANCE_ID}", migration_path(root), record_path(root)]
        layout, instance_id, migration, state_root = await store.get_many_data(paths)
        is_there = layout is not None or await store.stat(root) is not None
    except AccessDeniedError as error:
        raise ClusterClosedError(f"the cluster at {root} cannot be opened: {error}") from error
    check_not_migrating(migration)
    if layout is None and not instance_id:
        why = "it has no LAYOUT node and no INSTANCEID" if is_there else "it does not exist"
        if root.endswith(DEFAULT_ROOT * 2):  # Pulsar's driver appends it to a path meant as the ledgers root
            advice = f"In a {PULSAR_DRIVER}: URI, the path is a chroot without {DEFAULT_ROOT}"
            raise NotAClusterError(f"no cluster at {root}: {why}. {advice}")
        advice = "Check the path in the URI, or create a cluster there: `bkheal cluster init`"
        raise NoClusterError(f"no cluster at {root}: {why}. {advice}")
    kind = await _kind_without_layout(store, root, wanted) if layout is None else decode_layout(layout, root)
    if wanted is not None and wanted != kind.value:
        raise NotAClusterError(
            f"the cluster at {root} has the layout {kind.value}, the URI asks for {wanted}: "
            f"write zk+{kind.value}://, or zk:// for any layout"
        )
    if not instance_id:
        raise NotAClusterError(f"the cluster at {root} has no INSTANCEID node, which identifies its bookies")
    return Cluster(root, kind, instance_id.decode(errors="replace").strip()), state_root


async def _kind_without_layout(store: MetadataStore, root: str, wanted: str | None) -> LayoutKind:
    """Return the layout of Pulsar's driver if the URI requests it and the nodes do not contradict it."""
    about = (
        f"the cluster at {root} has an INSTANCEID and no LAYOUT node: that is how Pulsar's metadata driver "
        "(metadata-store:...) makes one, which keeps its ledgers in the layout hierarchical"
    )
    hint = (
        f"If it is one of those, use the {PULSAR_DRIVER}: URI of its bookies, "
        f"or write zk+{LayoutKind.HIERARCHICAL.value}:// in the URI"
    )
    if wanted is None:
        raise NotAClusterError(f"{about}. {hint}; otherwise its LAYOUT was lost, and must be put back")
    if wanted != LayoutKind.HIERARCHICAL.value:
        raise NotAClusterError(f"{about}, and the URI asks for {wanted}. {hint}")
    if await store.stat(f"{root}/{_LONG_TREE_PROBE}") is not None:
        raise NotAClusterError(
            f"the cluster at {root} has no LAYOUT node, and keeps small ledger ids in a long tree "
            f"({_LONG_TREE_PROBE}): it does not have the layout hierarchical, which the URI names. Its LAYOUT node was "
            "lost, and must be restored"
        )
    return LayoutKind.HIERARCHICAL


def encode_layout(kind: LayoutKind) -> bytes:
    """Bytes of the LAYOUT node."""
    return f"{_LAYOUT_FORMAT}\n{kind.factory}:{_MANAGER_VERSION}".encode()


def decode_layout(data: bytes, root: str) -> LayoutKind:
    """Read a LAYOUT node.

    Raises:
        NotAClusterError: it is malformed, or names an unsupported layout.
    """
    text = data.decode(errors="replace")
    version, _, rest = text.partition("\n")
    name, _, manager_version = rest.partition("\n")[0].strip().rpartition(":")
    if version.strip() not in ("1", "2") or not name:
        raise NotAClusterError(f"the LAYOUT of the cluster at {root} is not one this version reads: {text[:200]!r}")
    if manager_version != _MANAGER_VERSION:
        raise NotAClusterError(
            f"the cluster at {root} has version {manager_version[:20]!r} of the layout {name[:200]!r}; "
            f"supported: version {_MANAGER_VERSION}"
        )
    kinds = _V1_LAYOUT_KINDS if version.strip() == "1" else {kind.factory: kind for kind in LayoutKind}
    if name not in kinds:
        supported = ", ".join(kind.value for kind in LayoutKind)
        why = _UNSUPPORTED_MANAGERS.get(name.rpartition(".")[2], "")
        raise NotAClusterError(f"the cluster at {root} is of the layout {name[:200]!r}; supported: {supported}{why}")
    return kinds[name]
