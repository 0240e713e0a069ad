"""The election node of auditors with Pulsar's driver. bkheal's auditor holds it while it leads.

Auditors with Pulsar's driver ignore Apache's votes. Each creates the ephemeral node ``underreplication/leader``, or
waits for its deletion. So bkheal's auditor leads only while its session owns this node as well, and waits while another
session does. The node of another session is never deleted, because a delete names the version. bkheal's node has
version 1 or more (it is written once after its creation), and Pulsar's always has version 0.

The content is a JSON string. Pulsar's elector ends permanently if it cannot parse the content, and deletes the node of
another session if it contains the elector's own bookie id. So the content is a valid bookie id that no bookie has.

Source: docs/formats.md#election.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import Final

from bookie.metadata.layout import UNDERREPLICATION
from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, find
from bookie.metadata.port import (
    BadVersionError,
    Delete,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    Session,
    Stat,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)

_PREFIX: Final = "bkheal-"
_INVALID_ID_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9:._-]")
_SHOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class LeaderNodeHolder:
    """Holder of the node."""

    stat: Stat
    name: str
    is_own: bool
    """Whether this session owns the node; its version is then 1 or more."""


class LeaderNode:
    """The node of one cluster, for one candidate."""

    def __init__(self, store: MetadataStore, ledgers_root: str, name: str) -> None:
        self.path = leader_path(ledgers_root)
        self._store = store
        self._data = encode_leader(name)

    async def holder(self, session: Session) -> LeaderNodeHolder | None:
        """Return the holder of the node; None if it does not exist.

        Raises:
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self.path)
        return None if node is None else self._holder(node, session)

    async def take(self, session: Session) -> LeaderNodeHolder:
        """Create the node, unless another session holds it, and return its holder. Idempotent.

        Raises:
            StoreUnavailableError: no answer, or the node kept changing; this session may hold it.
            AccessDeniedError: its parent does not allow it.
        """
        for _ in range(WRITE_ATTEMPTS_MAX):
            await self._store.sync(self.path)
            found = await self.holder(session)
            try:
                if found is None:
                    await self._store.create(self.path, self._data, is_ephemeral=True)
                elif found.is_own and not found.stat.version:
                    if not self._is_current(session):
                        continue  # by now, the node may be another session's, with the same version
                    await self._store.set(self.path, self._data, found.stat.version)
                else:
                    return found
            except (NodeExistsError, BadVersionError, NoNodeError, WriteOutcomeUnknownError):
                continue
        found = await self.holder(session)
        if found is not None and (found.stat.version or not found.is_own):
            return found
        raise StoreUnavailableError(f"{self.path} changes faster than it can be taken; try again")

    async def leave(self, session: Session) -> None:
        """Delete the node if it is this session's. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; the node ends with the session.
        """
        found = await self.holder(session)
        if found is None or not found.is_own:
            return
        if not found.stat.version:
            found = await self.take(session)
            if not found.is_own:
                return
        if not self._is_current(session):
            return
        with contextlib.suppress(NoNodeError, BadVersionError):
            await self._store.delete(self.path, found.stat.version)

    def deletion(self, stat: Stat) -> Delete:
        """Return the operation that deletes the node in a transaction, if it still has the version in ``stat``."""
        return Delete(self.path, stat.version)

    def _is_current(self, session: Session) -> bool:
        return self._store.session.is_alive(session.session_id)

    def _holder(self, node: Node, session: Session) -> LeaderNodeHolder:
        return LeaderNodeHolder(node.stat, leader_name(node), node.stat.ephemeral_owner == session.session_id)


def leader_path(ledgers_root: str) -> str:
    """Path of the node held by the leader of Pulsar's auditors."""
    return f"{ledgers_root}/{UNDERREPLICATION}/leader"


def encode_leader(name: str) -> bytes:
    """Bytes of the node while candidate ``name`` leads."""
    return json.dumps(_PREFIX + _INVALID_ID_CHARACTERS.sub("-", name)).encode()


def leader_name(node: Node) -> str:
    """Name of the holder: the bookie id of Pulsar's auditor, or the name in the vote of bkheal's."""
    name = decode_leader(node.data)
    return name.removeprefix(_PREFIX) if node.stat.version else name


def decode_leader(data: bytes) -> str:
    """Return the text in the node, for display; its bytes as text if they are not a JSON string."""
    try:
        name = json.loads(data)
    except (ValueError, RecursionError):
        name = None
    return (name if isinstance(name, str) else repr(data))[:_SHOWN_MAX]
