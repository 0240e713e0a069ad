"""References to Pulsar's ledgers: from a node to its ledgers, and from a ledger to the nodes. Pure.

The invariant: ``referrers_of`` returns every node that may refer to a ledger of an owner, or none at all. Without any,
there is no verdict on the ledger. A node is decoded in full, or is refused (``decoding``).

Source: docs/formats.md#references-of-pulsar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.pulsar.decoding import (
    EntriesLocation,
    LedgerReference,
    UndecodableNodeError,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from bookie.metadata.pulsar.tree import DENIED, Denied, NodeKind, managed_ledger_path, schema_path
from bookie.model.ownership import (
    Component,
    Owner,
    Topic,
    encoded,
    topic_of_managed_ledger,
    topic_of_schema,
)

COMPACTION: Final = "__compaction"
"""The cursor that refers to the compacted ledger of its topic."""


@dataclass(frozen=True, slots=True)
class Referrer:
    """A node that may refer to ledgers."""

    root: str
    """Root of the brokers' metadata, without a slash at its end."""
    kind: NodeKind
    name: str
    """Name of the managed ledger (also for a cursor), or id of the schema."""
    cursor: str | None = None

    @property
    def path(self) -> str:
        """Its path."""
        if self.kind is NodeKind.SCHEMA:
            return schema_path(self.root, self.name)
        path = managed_ledger_path(self.root, self.name)
        return path if self.cursor is None else f"{path}/{self.cursor}"

    @property
    def topic(self) -> Topic | None:
        """The node's topic; None if its name is not that of a topic."""
        try:
            return (topic_of_schema if self.kind is NodeKind.SCHEMA else topic_of_managed_ledger)(self.name)
        except ValueError:
            return None


def references_of(kind: NodeKind, data: bytes) -> Sequence[LedgerReference]:
    """Return the ledgers to which a node refers, with the location of their entries.

    The references of a shadow topic are left out: its source owns the ledgers, and may have deleted them.

    Raises:
        UndecodableNodeError: the node cannot be decoded in full.
    """
    found = _references_in(kind, data)
    return () if found and found[0].copy is EntriesLocation.OF_SOURCE else found


def _references_in(kind: NodeKind, data: bytes) -> Sequence[LedgerReference]:
    match kind:
        case NodeKind.MANAGED_LEDGER:
            return managed_ledger_references(data)
        case NodeKind.CURSOR:
            found = cursor_references(data).ledgers
        case NodeKind.SCHEMA:
            found = schema_references(data)
    return [LedgerReference(each, EntriesLocation.BOOKKEEPER, is_empty=False) for each in found]


def ledger_with_reference(cursor: str | None, data: bytes) -> int | None:
    """Return the ledger that contains the reference to a compacted ledger; None if only this node may contain it.

    Raises:
        UndecodableNodeError: the node cannot be decoded in full.
    """
    return cursor_references(data).position_in if cursor == COMPACTION else None


def refers(referrer: Referrer, data: bytes | Denied | None, ledger_id: int) -> bool:
    """Return whether a node with this content (None: no node) names the ledger.

    A shadow topic counts as well: Pulsar accepts the property on a topic with ledgers of its own.

    Raises:
        UndecodableNodeError: the node cannot be decoded in full, or may not be read.
    """
    if data is DENIED:
        raise UndecodableNodeError(DENIED.value)
    return data is not None and any(each.ledger_id == ledger_id for each in _references_in(referrer.kind, data))


def requires(referrer: Referrer, data: bytes | Denied | None, ledger_id: int) -> bool:
    """Return whether the ledger must exist because of a node with this content (None: no node).

    A ledger without entries need not exist, nor one with entries in another storage.

    Raises:
        UndecodableNodeError: as ``refers``.
    """
    if data is DENIED:
        raise UndecodableNodeError(DENIED.value)
    return data is not None and any(
        each.ledger_id == ledger_id and each.copy is EntriesLocation.BOOKKEEPER and not each.is_empty
        for each in references_of(referrer.kind, data)
    )


def referrers_of(root: str, owner: Owner) -> Sequence[Referrer]:
    """Return the only nodes below one root that may refer to a ledger of this owner; empty if not known."""
    topic = owner.topic
    if topic is None:
        return ()
    match owner.component:
        case Component.SCHEMA:
            local = topic.name.partition("://")[2].removeprefix(f"{topic.namespace}/")
            return (Referrer(root, NodeKind.SCHEMA, f"{topic.namespace}/{encoded(local)}"),)
        case Component.MANAGED_LEDGER:
            return (Referrer(root, NodeKind.MANAGED_LEDGER, topic.managed_ledger),)
        case Component.COMPACTED:
            return (Referrer(root, NodeKind.CURSOR, topic.managed_ledger, COMPACTION),)
        case Component.CURSOR | Component.DELAYED_INDEX if owner.subscription is not None:
            return (Referrer(root, NodeKind.CURSOR, topic.managed_ledger, encoded(owner.subscription)),)
        case _:
            return ()
