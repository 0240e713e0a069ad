"""A cluster's root: create it, open it, and refuse what is not one (formats sections 1.2 and 1.3)."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Final

from bookie.metadata.layout import INSTANCE_ID, LAYOUT, LayoutKind, available_path
from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, ensure_path, parent_of, reread
from bookie.metadata.port import (
    Create,
    MetadataStore,
    MultiFailedError,
    NodeExistsError,
    Operation,
    WriteOutcomeUnknownError,
)
from bookie.metadata.uri import MetadataUri, parse_uri
from bookie.model.errors import ConflictError, PermanentError

_LAYOUT_FORMAT: Final = 2
_MANAGER_VERSION: Final = "1"
_FIRST_FORMAT_NAMES: Final = {"hierarchical": LayoutKind.HIERARCHICAL, "flat": LayoutKind.FLAT}
"""Format 1 held a short name in place of the class."""


class NotAClusterError(PermanentError):
    """There is no cluster at this root, or one of a layout that is not supported."""


class ClusterExistsError(ConflictError):
    """There is something at the root already."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What every user of a cluster's metadata needs to know."""

    root: str
    """Ledgers root, without a trailing slash."""
    kind: LayoutKind
    instance_id: str


async def format_cluster(
    store: MetadataStore, root: str, kind: LayoutKind = LayoutKind.HIERARCHICAL, *, rng: random.Random
) -> None:
    """Create an empty cluster at ``root``, in one transaction, and the parents of ``root`` where they are missing.

    Raises:
        ClusterExistsError: the root exists, whatever it holds; nothing was changed.
        StoreUnavailableError, WriteOutcomeUnknownError: see ``MetadataStore.multi``.
    """
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
    raise WriteOutcomeUnknownError(f"creating a cluster at {root}: every answer was lost; look whether it exists")


async def open_cluster(store: MetadataStore, where: MetadataUri | str) -> Cluster:
    """Read what is at ``where``: a parsed URI, a URI, or a root path.

    Raises:
        NotAClusterError: nothing there, no LAYOUT or INSTANCEID, or another layout than the asked or supported ones.
        InvalidUriError: ``where`` is a URI that cannot be used.
        StoreUnavailableError: no answer.
    """
    if isinstance(where, str) and "://" in where:
        where = parse_uri(where)
    root, wanted = (where, None) if isinstance(where, str) else (where.ledgers_root, where.layout)
    layout, instance_id = await store.get_many_data([f"{root}/{LAYOUT}", f"{root}/{INSTANCE_ID}"])
    if layout is None:
        why = "nothing is there" if await store.stat(root) is None else "it has no LAYOUT node"
        raise NotAClusterError(f"no cluster at {root}: {why}. Check the path in the URI, or create a cluster there")
    kind = decode_layout(layout, root)
    if wanted is not None and wanted != kind.value:
        raise NotAClusterError(
            f"the cluster at {root} has the layout {kind.value}, the URI asks for {wanted}: "
            f"write zk+{kind.value}://, or zk:// for whatever is there"
        )
    if not instance_id:
        raise NotAClusterError(f"the cluster at {root} has no INSTANCEID node to tell its bookies from others")
    return Cluster(root, kind, instance_id.decode(errors="replace").strip())


def encode_layout(kind: LayoutKind) -> bytes:
    """Bytes of the LAYOUT node."""
    return f"{_LAYOUT_FORMAT}\n{kind.factory}:{_MANAGER_VERSION}".encode()


def decode_layout(data: bytes, root: str) -> LayoutKind:
    """Read a LAYOUT node.

    Raises:
        NotAClusterError: it is malformed, or names a layout that is not supported.
    """
    text = data.decode(errors="replace")
    version, _, rest = text.partition("\n")
    name, _, manager_version = rest.partition("\n")[0].strip().rpartition(":")
    if version.strip() not in ("1", "2") or manager_version != _MANAGER_VERSION:
        raise NotAClusterError(f"the LAYOUT of the cluster at {root} is not one this version reads: {text[:200]!r}")
    kinds = _FIRST_FORMAT_NAMES if version.strip() == "1" else {kind.factory: kind for kind in LayoutKind}
    if name not in kinds:
        supported = ", ".join(kind.value for kind in LayoutKind)
        raise NotAClusterError(f"the cluster at {root} is of the layout {name!r}; supported: {supported}")
    return kinds[name]
