"""Bookie locations, declared by people: in a file, in a node of bkheal, or in Pulsar's ``bookies`` node.

All use the same JSON format. Pulsar writes (``pulsar-admin bookies set-bookie-rack``) groups of bookies: ``{"default":
{"bk1:3181": {"rack": "/region1/rack1", "hostname": "bk1"}}}``. In a shorter form, a location replaces the object, and
groups are left out: ``{"bk1:3181": "/region1/rack1", "bk2": "/region1/rack2"}``. A name is a bookie id, or a host for
every bookie on it. A ledger can require certain groups: see ``bookie.model.isolation``.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bookie.metadata.cluster import Cluster
from bookie.metadata.nodes import parent_of, put
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    MetadataStore,
    Stat,
)
from bookie.model.errors import PermanentError
from bookie.model.ids import InvalidIdError, bookie_id
from bookie.model.isolation import BookieGroups
from bookie.model.topology import InvalidLocationError, Location, Topology, location
from bookie.runtime.fault_points import fault_point
from bookie.runtime.waiting import first_to_end

_log: Final = logging.getLogger(__name__)

PULSAR_NODE: Final = "bookies"
"""Name of Pulsar's node, which has the same parent as the ledgers root: the top of Pulsar's ZooKeeper path."""
_SHOWN_MAX: Final = 200
_LOGGED_MAX: Final = 3
_CLUSTERS_MAX: Final = 100
_logged: Final[dict[str, object]] = {}
"""The problem of the topology of each cluster that this process logged last, by instance id; None: there is none. A
process has several stores of one topology, and logs each problem once. Emptied at ``_CLUSTERS_MAX`` clusters."""


class InvalidTopologyError(PermanentError):
    """The source of the locations is invalid; the message names the place in it."""


@dataclass(frozen=True, slots=True)
class StoredTopology:
    """A topology as read from the store."""

    topology: Topology
    path: str | None
    """Its node; None if no node exists, and no location is known."""
    stats: tuple[Stat | None, ...]
    """Stats of both nodes, although only one of them was used."""


class TopologyStore:
    """The topology of one cluster in the metadata store: bkheal's own node if there is one, else Pulsar's."""

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._cluster = cluster
        self.own_path = own_path("topology", cluster.root)
        self.pulsar_path = f"{parent_of(cluster.root).rstrip('/')}/{PULSAR_NODE}"

    async def read(self) -> StoredTopology:
        """Return the topology, no older than this call.

        A location that only Pulsar accepts counts as unknown, and is logged once for each process.

        Raises:
            InvalidTopologyError: the content of the used node is invalid.
            StoreUnavailableError: no answer.
            AccessDeniedError: not allowed.
        """
        await self._store.sync(self.own_path)
        stats, path, data = await self._read_nodes()
        return StoredTopology(self._decoded(path, data), path, stats)

    async def wait_changed(self, seen: StoredTopology) -> StoredTopology:
        """Wait until a node differs from ``seen``, and return the topology, which may be equal.

        After a change to invalid content, the topology in ``seen`` is returned, and a warning is logged.

        Raises:
            StoreUnavailableError: the session was lost while waiting, or no answer.
            AccessDeniedError: not allowed.
        """
        if not fault_point("topology.read_without_change"):
            await first_to_end(
                *(
                    self._store.wait_node_changed(path, stat)
                    for path, stat in zip((self.own_path, self.pulsar_path), seen.stats, strict=True)
                )
            )
        stats, path, data = await self._read_nodes()
        try:
            return StoredTopology(self._decoded(path, data), path, stats)
        except InvalidTopologyError as error:
            if self.is_news(str(error)):
                extra = {"path": path, "error": str(error)}
                _log.warning("topology cannot be read, the last one stays in use", extra=extra)
            return StoredTopology(seen.topology, seen.path, stats)

    def is_news(self, problem: object) -> bool:
        """Record a problem of the topology that is about to be logged; return False if it was the last one recorded.

        All stores of this process for the same cluster share the record. A topology without a problem clears it.
        """
        if len(_logged) >= _CLUSTERS_MAX:
            _logged.clear()
        key = self._cluster.instance_id
        is_news = _logged.get(key) != problem
        _logged[key] = problem
        return is_news

    async def write(self, text: str) -> None:
        """Store a topology in bkheal's own node, without any change to the text. The last write wins.

        Raises:
            InvalidTopologyError: it is invalid; nothing was written.
            NodeTooLargeError: it does not fit in a node.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; writing again is safe.
        """
        parse_topology(text)
        await put(self._store, self.own_path, text.encode())

    async def _read_nodes(self) -> tuple[tuple[Stat | None, ...], str | None, bytes]:
        paths = (self.own_path, self.pulsar_path)
        nodes = await self._store.get_many(paths)
        stats = tuple(None if node is None else node.stat for node in nodes)
        for path, node in zip(paths, nodes, strict=True):
            if node is not None and node.data:  # an empty node has not been filled yet
                return stats, path, node.data
        return stats, None, b""

    def _decoded(self, path: str | None, data: bytes) -> Topology:
        if path is None:
            return Topology()
        refused: list[str] = []
        found = _decode(path, data, refused if path == self.pulsar_path else None)
        count, first = len(refused), refused[:_LOGGED_MAX]
        if self.is_news((count, first) if refused else None) and refused:
            extra = {"path": path, "entries": count, "first": first}
            _log.warning("locations that cannot be used count as unknown", extra=extra)
        return found


def parse_topology(text: str) -> Topology:
    """Read the format of the module docstring. A bookie whose rack is empty or ``/`` counts as unknown, as in Pulsar.

    Raises:
        InvalidTopologyError: not JSON, or not of this format, or two different locations of one bookie.
    """
    return _parse(text, None)


def _parse(text: str, refused: list[str] | None) -> Topology:
    """As ``parse_topology``. With ``refused``, invalid locations are left out, and their reasons are added to it."""
    try:
        content = json.loads(text, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError) as error:
        raise InvalidTopologyError(f"a topology is a JSON object of bookies and locations: {error}") from error
    if not isinstance(content, dict):
        raise InvalidTopologyError(f"a topology is a JSON object of bookies and locations, not {_shown(content)}")
    locations: dict[str, Location] = {}
    groups: dict[str, frozenset[str]] = {}
    for name, value in content.items():
        if isinstance(value, dict) and not isinstance(value.get("rack"), str):
            groups[name] = frozenset(value)
            for bookie, entry in value.items():
                _add(locations, bookie, entry, f"group {name!r}, bookie {bookie!r}", refused)
        else:
            _add(locations, name, value, f"bookie {name!r}", refused)
    return Topology(MappingProxyType(locations), BookieGroups(MappingProxyType(groups)))


def _add(locations: dict[str, Location], name: str, entry: Any, where: str, refused: list[str] | None) -> None:
    rack = entry.get("rack") if isinstance(entry, dict) else entry
    if rack is None and isinstance(entry, dict):
        return
    if not isinstance(rack, str):
        raise InvalidTopologyError(f"{where}: a location is a text such as /rack1, not {_shown(rack)}")
    try:
        bookie_id(name)
        found = location(rack) if rack.strip().strip("/") else None
    except (InvalidIdError, InvalidLocationError) as error:
        if refused is None:
            raise InvalidTopologyError(f"{where}: {error}") from error
        refused.append(f"{where}: {error}")
        return
    if found is not None and locations.setdefault(name, found) != found:
        raise InvalidTopologyError(f"{where}: it is at {found} here, and at {locations[name]} elsewhere")


def _decode(path: str, data: bytes, refused: list[str] | None = None) -> Topology:
    try:
        return _parse(data.decode(), refused)
    except (UnicodeDecodeError, InvalidTopologyError) as error:
        raise InvalidTopologyError(f"node {path}: {error}") from error


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def _shown(value: Any) -> str:
    return repr(value)[:_SHOWN_MAX]


def topology_text(path: Path | None) -> str | None:
    """Content of a valid topology file; None for no file.

    Raises:
        InvalidTopologyError: it cannot be read, or is invalid.
    """
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
        parse_topology(text)
    except OSError as error:
        raise InvalidTopologyError(f"cannot read the topology file {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, InvalidTopologyError) as error:
        raise InvalidTopologyError(f"topology file {path}: {error}") from error
    return text
