"""What refers to ledgers in Pulsar, compared with the ledgers that exist. Changes nothing.

The invariant: a ledger is reported as unreferenced only if everything that could refer to it was read and decoded,
twice (A19). The references of all topics are read first, then the ledgers. A ledger without a reference is looked at
again, with the very node that its custom metadata names, so a ledger that got its reference since then is no finding.
What is not closed, young, not Pulsar's, or of a topic with an undecodable node has no verdict and is counted by reason.
In the same way, a reference to a ledger that does not exist is read again before it counts as lost.

Pulsar creates a ledger before it refers to it, and a compaction of hours before that, hence the grace period.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from auditor.safety.scan import ledger_chunks
from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import ledger_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode
from bookie.metadata.port import MetadataStore
from bookie.metadata.pulsar.decoding import (
    Copy,
    UndecodableNodeError,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from bookie.metadata.pulsar.tree import NodeKind, PulsarNode, PulsarTree, managed_ledger_path, schema_path
from bookie.model.ids import LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.ownership import (
    Component,
    Owner,
    encoded,
    owner_of,
    topic_of_managed_ledger,
    topic_of_schema,
)

UNDECODABLE_KEPT: Final = 1_000
LOST_KEPT: Final = 10_000
"""References to ledgers that do not exist which are named; the others are counted."""
_COMPACTION: Final = "__compaction"
_READ: Final = 1_000


@dataclass(frozen=True, slots=True)
class Referrer:
    """The node that refers to a ledger."""

    root: str
    kind: NodeKind
    name: str
    cursor: str | None = None

    @property
    def path(self) -> str:
        """Its path."""
        if self.kind is NodeKind.SCHEMA:
            return schema_path(self.root, self.name)
        path = managed_ledger_path(self.root, self.name)
        return path if self.cursor is None else f"{path}/{self.cursor}"


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """A ledger that nothing refers to."""

    ledger_id: LedgerId
    owner: Owner
    stored_bytes: int
    """Payload on all bookies together."""


@dataclass(slots=True)
class ReferenceResult:
    """What was found."""

    ledgers: int = 0
    referenced: int = 0
    in_both: int = 0
    """Referenced ledgers that are offloaded, and still in BookKeeper."""
    offloaded: int = 0
    """References to ledgers that are offloaded and not in BookKeeper any more."""
    unreferenced: array[int] = field(default_factory=lambda: array("q"))
    unreferenced_bytes: int = 0
    namespaces: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Unreferenced ledgers and their bytes by namespace."""
    lost: list[tuple[LedgerId, Referrer]] = field(default_factory=list)
    lost_count: int = 0
    not_judged: Counter[str] = field(default_factory=Counter)
    """Unreferenced ledgers without a verdict, by reason."""
    undecodable: list[tuple[str, str]] = field(default_factory=list)
    """Paths of nodes that cannot be decoded, with the reason."""
    undecodable_count: int = 0

    def add(self, found: Unreferenced) -> None:
        """Count an unreferenced ledger."""
        self.unreferenced.append(found.ledger_id)
        self.unreferenced_bytes += found.stored_bytes
        namespace = "" if found.owner.topic is None else found.owner.topic.namespace
        ledgers, size = self.namespaces.get(namespace, (0, 0))
        self.namespaces[namespace] = ledgers + 1, size + found.stored_bytes


@dataclass(slots=True)
class _Known:
    """The references of all nodes."""

    by_ledger: dict[int, tuple[Referrer, Copy, bool]] = field(default_factory=dict)
    """The node, where the entries are, and whether the ledger may be gone: it is empty."""
    unsure: set[str] = field(default_factory=set)
    """Topics with a node that cannot be decoded."""
    in_ledgers: set[str] = field(default_factory=set)
    """Topics whose compaction cursor is in a ledger, with what it refers to."""
    is_unsure: bool = False
    """Whether a node that cannot be decoded belongs to an unknown topic."""


class ReferenceCheck:
    """One comparison."""

    def __init__(
        self, store: MetadataStore, cluster: Cluster, ledgers: LedgerStore, roots: Sequence[str], created_before_ms: int
    ) -> None:
        """Only stores.

        Args:
            store: a session.
            cluster: with the ledgers.
            ledgers: of the cluster.
            roots: of the brokers' metadata, of every Pulsar cluster that uses these bookies.
            created_before_ms: younger ledgers have no verdict.
        """
        self._store = store
        self._cluster = cluster
        self._ledgers = ledgers
        self._roots = roots
        self._created_before_ms = created_before_ms
        self._result = ReferenceResult()
        self._known = _Known()

    async def run(self, advance: Callable[[int], None]) -> ReferenceResult:
        """Compare; ``advance`` receives the number of further ledgers done.

        Raises:
            NotAClusterError, StoreUnavailableError: nothing is known.
        """
        for root in self._roots:
            await self._store.sync(f"{root}/managed-ledgers")
            async with aclosing(PulsarTree(self._store, root).nodes()) as parts:
                async for nodes in parts:
                    for node in nodes:
                        self._take(root, node)
        async with aclosing(ledger_chunks(self._ledgers)) as chunks:
            async for ids, found in chunks:
                suspects: list[tuple[LedgerId, LedgerMetadata, Owner]] = []
                for ledger_id, data in zip(ids, found, strict=True):
                    if data is not None:
                        suspects += self._look(ledger_id, data)
                for start in range(0, len(suspects), _READ):
                    await self._confirm(suspects[start : start + _READ])
                advance(len(ids))
                await asyncio.sleep(0)
        await self._confirm_lost()
        return self._result

    def _take(self, root: str, node: PulsarNode) -> None:
        referrer = Referrer(root, node.kind, node.name, node.cursor)
        try:
            for ledger_id, copy, is_empty in _references(node.kind, node.cursor, node.data):
                self._known.by_ledger[ledger_id] = referrer, copy, is_empty
            if node.cursor == _COMPACTION and cursor_references(node.data).is_partial:
                self._known.in_ledgers.add(topic_of_managed_ledger(node.name).name)
        except UndecodableNodeError as error:
            self._result.undecodable_count += 1
            if len(self._result.undecodable) < UNDECODABLE_KEPT:
                self._result.undecodable.append((referrer.path, str(error)))
            self._doubt(node)
        except ValueError:  # the name of a compaction cursor's topic
            self._known.is_unsure = True

    def _doubt(self, node: PulsarNode) -> None:
        try:
            is_schema = node.kind is NodeKind.SCHEMA
            self._known.unsure.add((topic_of_schema if is_schema else topic_of_managed_ledger)(node.name).name)
        except ValueError:
            self._known.is_unsure = True

    def _look(self, ledger_id: LedgerId, data: bytes) -> Iterable[tuple[LedgerId, LedgerMetadata, Owner]]:
        """The ledger, if nothing refers to it and it may have a verdict."""
        self._result.ledgers += 1
        reference = self._known.by_ledger.pop(ledger_id, None)
        if reference is not None:
            self._result.referenced += 1
            self._result.in_both += reference[1] is not Copy.BOOKKEEPER
            return
        try:
            metadata = decode(data)
        except UnreadableMetadataError:
            self._result.not_judged["its metadata cannot be read"] += 1
            return
        owner = owner_of(metadata.custom)
        reason = "not of Pulsar" if owner is None else self._why_not(metadata, owner)
        if reason or owner is None:
            self._result.not_judged[reason] += 1
        else:
            yield ledger_id, metadata, owner

    def _why_not(self, metadata: LedgerMetadata, owner: Owner) -> str:
        if not metadata.is_closed:
            return "not closed"
        if not _referrers("", owner):
            return "it names no topic, or no subscription"
        topic = "" if owner.topic is None else owner.topic.name
        if self._known.is_unsure or topic in self._known.unsure:
            return "a node of its topic cannot be decoded"
        if owner.component is Component.COMPACTED and topic in self._known.in_ledgers:
            return "the reference to the compacted ledger is in a ledger"
        return ""

    async def _confirm(self, suspects: Sequence[tuple[LedgerId, LedgerMetadata, Owner]]) -> None:
        """Look again: at the node of each ledger, and at what should refer to it."""
        named = [[each for root in self._roots for each in _referrers(root, owner)] for _, _, owner in suspects]
        paths = list(dict.fromkeys(referrer.path for each in named for referrer in each))
        read = dict(zip(paths, await self._store.get_many_data(paths) if paths else [], strict=True))
        nodes = await self._store.get_many(
            [ledger_path(self._cluster.kind, self._cluster.root, ledger_id) for ledger_id, _, _ in suspects]
        )
        for (ledger_id, metadata, owner), node, referrers in zip(suspects, nodes, named, strict=True):
            if node is None:
                continue
            if node.stat.ctime_ms > self._created_before_ms:
                self._result.not_judged["younger than the grace period"] += 1
                continue
            try:
                if any(_refers(referrer, read[referrer.path], ledger_id) for referrer in referrers):
                    continue
            except UndecodableNodeError:
                self._result.not_judged["a node of its topic cannot be decoded"] += 1
                continue
            self._result.add(Unreferenced(ledger_id, owner, (metadata.length or 0) * metadata.write_quorum))

    async def _confirm_lost(self) -> None:
        """What is left of the references names no ledger that was seen."""
        missing: list[tuple[LedgerId, Referrer]] = []
        for ledger_id, (referrer, copy, is_empty) in self._known.by_ledger.items():
            if copy is not Copy.BOOKKEEPER:
                self._result.offloaded += 1
            elif not is_empty:
                missing.append((LedgerId(ledger_id), referrer))
        for start in range(0, len(missing), _READ):
            part = missing[start : start + _READ]
            nodes = await self._store.get_many_data([referrer.path for _, referrer in part])
            ledgers = await self._store.get_many_data(
                [ledger_path(self._cluster.kind, self._cluster.root, ledger_id) for ledger_id, _ in part]
            )
            for (ledger_id, referrer), node, ledger in zip(part, nodes, ledgers, strict=True):
                if ledger is None and _still_refers(referrer, node, ledger_id):
                    self._result.lost_count += 1
                    if len(self._result.lost) < LOST_KEPT:
                        self._result.lost.append((ledger_id, referrer))


def _references(kind: NodeKind, cursor: str | None, data: bytes) -> Iterable[tuple[int, Copy, bool]]:
    """Ledgers, where their entries are, and whether they may be gone because they are empty."""
    match kind:
        case NodeKind.MANAGED_LEDGER:
            return [(each.ledger_id, each.copy, each.is_empty) for each in managed_ledger_references(data)]
        case NodeKind.CURSOR:
            return [(each, Copy.BOOKKEEPER, False) for each in cursor_references(data).ledgers]
        case NodeKind.SCHEMA:
            return [(each, Copy.BOOKKEEPER, False) for each in schema_references(data)]


def _referrers(root: str, owner: Owner) -> list[Referrer]:
    """The nodes that refer to a ledger of this owner, if anything does."""
    topic = owner.topic
    if topic is None:
        return []
    if owner.component is Component.SCHEMA:
        local = topic.name.partition("://")[2].removeprefix(f"{topic.namespace}/")
        return [Referrer(root, NodeKind.SCHEMA, f"{topic.namespace}/{encoded(local)}")]
    if owner.component is Component.MANAGED_LEDGER:
        return [Referrer(root, NodeKind.MANAGED_LEDGER, topic.managed_ledger)]
    cursor = _COMPACTION if owner.component is Component.COMPACTED else owner.subscription
    return [] if cursor is None else [Referrer(root, NodeKind.CURSOR, topic.managed_ledger, encoded(cursor))]


def _refers(referrer: Referrer, data: bytes | None, ledger_id: int) -> bool:
    """Raises UndecodableNodeError."""
    return data is not None and any(
        each == ledger_id for each, _, _ in _references(referrer.kind, referrer.cursor, data)
    )


def _still_refers(referrer: Referrer, data: bytes | None, ledger_id: int) -> bool:
    try:
        return _refers(referrer, data, ledger_id)
    except UndecodableNodeError:
        return False
