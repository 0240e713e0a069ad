"""The node by which the auditors of Pulsar's driver elect their leader, which ours holds while it leads.

Those auditors do not look at Apache's votes. Each creates the ephemeral node ``underreplication/leader``, or waits
until it is deleted. So our auditor leads only while its session owns this node as well, and waits while another
session does. The node of another session is never deleted: ours has version 1 or more, because it is written once after
its creation, theirs always has version 0, and a delete names the version.

The content is a JSON string. Pulsar's elector ends and does not return if it cannot parse it. It deletes a node of
another session with its own bookie id in it. So the content is a valid bookie id that no bookie has.

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
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9:._-]")
_SHOWN_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the node."""

    stat: Stat
    name: str
    is_own: bool
    """Whether it is this session's; then the node has a version of 1 or more."""


class LeaderNode:
    """The node of one cluster, for one candidate."""

    def __init__(self, store: MetadataStore, ledgers_root: str, name: str) -> None:
        self.path = leader_path(ledgers_root)
        self._store = store
        self._data = encode_leader(name)

    async def holder(self, session: Session) -> Holder | None:
        """Who holds the node; None if it does not exist.

        Raises:
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self.path)
        return None if node is None else self._holder(node, session)

    async def take(self, session: Session) -> Holder:
        """Create the node, unless another session holds it. Returns who holds it then; idempotent.

        Raises:
            StoreUnavailableError: no answer, or it changes all the time; it may be held.
            AccessDeniedError: its parent does not allow it.
        """
        for _ in range(WRITE_ATTEMPTS_MAX):
            await self._store.sync(self.path)
            found = await self.holder(session)
            try:
                if found is None:
                    await self._store.create(self.path, self._data, is_ephemeral=True)
                elif found.is_own and not found.stat.version:
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
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; the end of the session does it.
        """
        found = await self.holder(session)
        if found is None or not found.is_own:
            return
        if not found.stat.version:
            found = await self.take(session)
            if not found.is_own:
                return
        with contextlib.suppress(NoNodeError, BadVersionError):
            await self._store.delete(self.path, found.stat.version)

    def deletion(self, stat: Stat) -> Delete:
        """Part of a transaction that gives up the node, and deletes no other."""
        return Delete(self.path, stat.version)

    def _holder(self, node: Node, session: Session) -> Holder:
        return Holder(node.stat, leader_name(node), node.stat.ephemeral_owner == session.session_id)


def leader_path(ledgers_root: str) -> str:
    """The node that the leader among Pulsar's auditors holds."""
    return f"{ledgers_root}/{UNDERREPLICATION}/leader"


def encode_leader(name: str) -> bytes:
    """Bytes of the node while the candidate of that name leads."""
    return json.dumps(_PREFIX + _NOT_IN_AN_ID.sub("-", name)).encode()


def leader_name(node: Node) -> str:
    """The name of the auditor that holds the node: one of Pulsar's by its bookie id, ours as in its vote."""
    name = decode_leader(node.data)
    return name.removeprefix(_PREFIX) if node.stat.version else name


def decode_leader(data: bytes) -> str:
    """The text in the node, for people; its bytes if they are no JSON string."""
    try:
        name = json.loads(data)
    except (ValueError, RecursionError):
        name = None
    return (name if isinstance(name, str) else repr(data))[:_SHOWN_MAX]
