"""Ledger metadata on the store: create, read, change by compare-and-set, delete and list.

Every change names the version on which it is based (S4). A lost answer is resolved by a read. The creator token
identifies this process's own create, and "next version with exactly the written bytes" its own write (R32).

Source: docs/formats.md#ledger-paths, #metadata-operations.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind, ledger_path, parents_of
from bookie.metadata.ledgers.id_generation import IdGenerator
from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode, encode
from bookie.metadata.ledgers.tree import LedgerTree
from bookie.metadata.nodes import (
    WRITE_ATTEMPTS_MAX,
    batches,
    create_missing,
    create_with_parents,
    find,
    get_permitted,
    in_steps,
    parent_of,
    prune,
    reread,
)
from bookie.metadata.port import (
    AccessDeniedError,
    BadVersionError,
    Create,
    MetadataStore,
    MultiFailedError,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import LEDGER_ID_MAX, InvalidIdError, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.runtime.human import agreeing, counted
from bookie.runtime.waiting import all_or_first_error

_CTOKEN_END: Final = (1 << 63) - 1
_CTOKEN_FORMAT: Final = 3
_CREATE_BATCHES_IN_FLIGHT: Final = 4
_ORDINARY_BYTES: Final = 2000
"""The size of the metadata of about 20 fragments. Decoding takes as long for each further part of this size."""


class NoSuchLedgerError(ConflictError):
    """The ledger has no metadata (it was deleted, or never created)."""


class LedgerReplacedError(ConflictError):
    """The ledger was deleted, and another one has its id. What was read or copied belongs to the first one."""

    def __init__(self, ledger_id: LedgerId) -> None:
        super().__init__(f"ledger {ledger_id} was deleted, and another one has its id")


class LedgerExistsError(ConflictError):
    """Another ledger has this id."""


class MetadataConflictError(ConflictError):
    """The metadata no longer has the version on which the change is based."""


class ConflictInDoubtError(MetadataConflictError):
    """As above, and the change may have been stored before: its answer was lost, and other changes came after it."""


class PreconditionFailedError(ConflictError):
    """Another node that the change depends on has changed; ``path`` names it. The ledger was not changed."""

    def __init__(self, ledger_id: LedgerId, path: str) -> None:
        super().__init__(f"ledger {ledger_id} was not changed: {path} is not as it was when that was decided")
        self.path = path


class ReadOnlyLayoutError(PermanentError):
    """The cluster has the flat layout, in which no new ledgers are created."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """Metadata with the version of the node it was read from (or written to)."""

    ledger_id: LedgerId
    metadata: LedgerMetadata
    version: int
    czxid: int | None = field(default=None, compare=False)
    """The transaction that created the node; None if unknown. After a ledger was deleted, another one with its id may
    have the same version."""

    def is_other_ledger(self, node: Node | None) -> bool:
        """Whether the node at the path of this ledger is of another ledger, which was created after a deletion."""
        return node is not None and self.czxid is not None and node.stat.czxid != self.czxid


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A ledger with unreadable metadata. It is a finding and does not end a scan."""

    ledger_id: LedgerId
    reason: str


class LedgerStore:
    """The ledgers of one cluster."""

    def __init__(self, store: MetadataStore, cluster: Cluster, rng: random.Random) -> None:
        self._store = store
        self._cluster = cluster
        self._rng = rng
        self._generator = IdGenerator(store, cluster)
        self._tree = LedgerTree(store, cluster)

    def path(self, ledger_id: LedgerId) -> str:
        """Path of a ledger's node."""
        return ledger_path(self._cluster.kind, self._cluster.root, ledger_id)

    async def new_id(self) -> LedgerId:
        """Return an id that was never assigned before.

        Raises:
            ReadOnlyLayoutError: the cluster has the flat layout.
            IdsExhaustedError: there is none left.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; at worst a number is lost.
        """
        self._check_creatable()
        return await self._generator.next_id()

    async def create(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> Versioned:
        """Create a ledger's metadata, with a creator token if its format has one.

        Raises:
            InvalidIdError: the greatest possible id, which harms Apache's bookies (``LEDGER_ID_MAX``).
            LedgerExistsError: another ledger has this id.
            ReadOnlyLayoutError: the cluster has the flat layout.
            UnwritableMetadataError: its format cannot hold it.
            WriteOutcomeUnknownError: the answer was lost, and the node cannot be identified as this call's.
            StoreUnavailableError: no answer; nothing was changed.
        """
        self._check_creatable(ledger_id)
        metadata = self._with_token(metadata)
        path, data = self.path(ledger_id), encode(metadata)
        is_unknown = False
        for _ in range(WRITE_ATTEMPTS_MAX):
            try:
                await create_with_parents(self._store, path, data, self._cluster.root)
                return Versioned(ledger_id, metadata, 0)
            except NodeExistsError as error:
                if not is_unknown:
                    raise LedgerExistsError(f"ledger {ledger_id} exists already") from error
            except WriteOutcomeUnknownError:
                is_unknown = True
            node = await reread(self._store, path)
            if node is None:
                continue
            if node.data != data:
                raise LedgerExistsError(f"ledger {ledger_id} exists already")
            if metadata.format_version == _CTOKEN_FORMAT:
                return Versioned(ledger_id, metadata, node.stat.version)
            break  # equal bytes without a token may be another client's
        raise WriteOutcomeUnknownError(f"creating ledger {ledger_id}: the answer was lost; read it")

    async def create_many(self, ledgers: Sequence[tuple[LedgerId, LedgerMetadata]]) -> None:
        """Create many ledgers with few requests, for benchmarks and tests. Not one transaction.

        Raises:
            LedgerExistsError: one of the ids is taken; those before it may have been created.
            InvalidIdError, ReadOnlyLayoutError, UnwritableMetadataError, WriteOutcomeUnknownError,
            StoreUnavailableError: see ``create``.
        """
        self._check_creatable(*(ledger_id for ledger_id, _ in ledgers))
        creates: list[Operation] = [Create(self.path(key), encode(self._with_token(value))) for key, value in ledgers]
        parents = dict.fromkeys(parent_of(create.path) for create in creates)
        await create_missing(self._store, list(parents), self._cluster.root)
        slots = asyncio.Semaphore(_CREATE_BATCHES_IN_FLIGHT)

        async def create(batch: list[Operation]) -> None:
            async with slots:
                await self._create_batch(batch)

        await all_or_first_error(create(batch) for batch in batches(creates))

    async def read(self, ledger_id: LedgerId) -> Versioned:
        """Read one ledger.

        Raises:
            NoSuchLedgerError: it does not exist.
            UnreadableMetadataError: its bytes cannot be read.
            StoreUnavailableError: no answer.
        """
        return self.versioned(ledger_id, await find(self._store, self.path(ledger_id)))

    def versioned(self, ledger_id: LedgerId, node: Node | None) -> Versioned:
        """Return the ledger in a node that the caller read at ``path`` (None: no node).

        Raises:
            NoSuchLedgerError: it does not exist.
            UnreadableMetadataError: its bytes cannot be read.
        """
        if node is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return Versioned(ledger_id, decode(node.data), node.stat.version, node.stat.czxid)

    async def current(self, ledger_id: LedgerId) -> Versioned | None:
        """Read one ledger, including every write completed before this call; None if there is no such ledger.

        Raises:
            UnreadableMetadataError: its bytes cannot be read.
            StoreUnavailableError: no answer.
        """
        await self._store.sync(self.path(ledger_id))
        try:
            return await self.read(ledger_id)
        except NoSuchLedgerError:
            return None

    async def read_many(self, ids: Sequence[LedgerId]) -> list[Versioned | Unreadable | None]:
        """Read many ledgers; None for a missing ledger. Not one point in time. Yields to the event loop while decoding.

        Raises:
            StoreUnavailableError: no answer.
        """
        nodes = await self._store.get_many([self.path(ledger_id) for ledger_id in ids])
        found: list[Versioned | Unreadable | None] = []
        async for pairs in in_steps(list(zip(ids, nodes, strict=True)), weigh=_weight):
            found += [_versioned(ledger_id, node) for ledger_id, node in pairs]
        return found

    async def read_many_permitted(self, ids: Sequence[LedgerId]) -> list[Versioned | Unreadable | None]:
        """As ``read_many``, but a ledger that this session may not read is unreadable as well.

        Raises:
            AccessDeniedError: this session may read none of several ledgers.
            StoreUnavailableError: no answer.
        """
        nodes = await get_permitted(self._store, [self.path(ledger_id) for ledger_id in ids])
        found: list[Versioned | Unreadable | None] = []
        async for pairs in in_steps(list(zip(ids, nodes, strict=True)), weigh=_weight):
            found += [
                Unreadable(ledger_id, str(node)) if isinstance(node, AccessDeniedError) else _versioned(ledger_id, node)
                for ledger_id, node in pairs
            ]
        return found

    async def read_many_metadata(self, ids: Sequence[LedgerId]) -> list[LedgerMetadata | Unreadable | None]:
        """As ``read_many`` without versions, at less cost: for scans.

        A ledger that this session may not read is unreadable as well.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            found = await self._store.get_many_data([self.path(ledger_id) for ledger_id in ids])
        except AccessDeniedError as error:
            if len(ids) == 1:
                return [Unreadable(ids[0], str(error))]
            halves = ids[: len(ids) // 2], ids[len(ids) // 2 :]  # a few more requests, not one for each ledger
            return [item for half in halves for item in await self.read_many_metadata(half)]
        return [_decoded(ledger_id, data) for ledger_id, data in zip(ids, found, strict=True)]

    async def read_many_data(self, ids: Sequence[LedgerId]) -> list[bytes | None]:
        """As ``read_many``, but return the undecoded bytes: for scans that decode only a few ledgers.

        Raises:
            StoreUnavailableError: no answer.
        """
        return await self._store.get_many_data([self.path(ledger_id) for ledger_id in ids])

    async def write(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, version: int, *, checks: Sequence[Operation] = ()
    ) -> Versioned:
        """Replace a ledger's metadata if its version is still ``version``. Any rewrite clears the creator token.

        The change and all ``checks`` are one transaction. The checks may change other nodes as well.

        Raises:
            MetadataConflictError: it has another version; read it and decide again. Nothing was changed, unless it is a
                ``ConflictInDoubtError``.
            PreconditionFailedError: one of ``checks`` does not hold.
            NoSuchLedgerError: it does not exist, or was deleted; a write never creates it again (R18).
            UnwritableMetadataError: its format cannot hold it.
            WriteOutcomeUnknownError: the answer was lost and the ledger cannot be read.
            StoreUnavailableError: no answer; nothing was changed.
        """
        ctoken = 0 if metadata.format_version == _CTOKEN_FORMAT else None
        metadata = metadata if metadata.ctoken == ctoken else replace(metadata, ctoken=ctoken)
        path, data = self.path(ledger_id), encode(metadata)
        is_unknown = False
        for _ in range(WRITE_ATTEMPTS_MAX):
            try:
                written = await self._set(ledger_id, SetData(path, data, version), checks)
                return Versioned(ledger_id, metadata, written)
            except NoNodeError as error:
                raise NoSuchLedgerError(f"ledger {ledger_id} does not exist") from error
            except BadVersionError as error:
                if not is_unknown:
                    raise MetadataConflictError(f"ledger {ledger_id} has changed since version {version}") from error
            except WriteOutcomeUnknownError:
                is_unknown = True
            node = await reread(self._store, path)
            if node is None:
                raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
            if node.stat.version == version + 1 and node.data == data:
                return Versioned(ledger_id, metadata, version + 1)
            if node.stat.version != version:
                raise ConflictInDoubtError(f"ledger {ledger_id} has changed since version {version}")
        raise WriteOutcomeUnknownError(f"changing ledger {ledger_id} at version {version}: every answer was lost")

    async def delete(self, ledger_id: LedgerId) -> None:
        """Delete a ledger's metadata, of any version, and empty parents. Idempotent.

        Raises:
            WriteOutcomeUnknownError: the answer was lost and the ledger cannot be read.
            StoreUnavailableError: no answer; nothing was changed.
        """
        path = self.path(ledger_id)
        for _ in range(WRITE_ATTEMPTS_MAX):
            try:
                await self._store.delete(path)
                break
            except NoNodeError:
                break
            except WriteOutcomeUnknownError:
                if await reread(self._store, path) is None:
                    break
        else:
            raise WriteOutcomeUnknownError(f"deleting ledger {ledger_id}: every answer was lost; read it")
        await prune(self._store, parents_of(path, self._cluster.root))

    async def leaf_parents(self) -> list[tuple[str, int]]:
        """Paths of the direct parents of ledgers, with the number of their children; see ``LedgerTree``."""
        return await self._tree.leaf_parents()

    async def ids_under_many(self, parents: Sequence[str]) -> list[list[LedgerId]]:
        """Return ids directly under each of the leaf parents, in few requests."""
        return await self._tree.ids_under_many(parents)

    def ids(self) -> AsyncIterator[LedgerId]:
        """Yield every ledger id: those of the short tree, then those of the long one, each ascending."""
        return self._tree.ids()

    async def _set(self, ledger_id: LedgerId, change: SetData, checks: Sequence[Operation]) -> int:
        """One attempt of ``write``; returns the new version."""
        if not checks:
            return (await self._store.set(change.path, change.data, change.version)).version
        try:
            await self._store.multi([change, *checks])
        except MultiFailedError as error:
            if error.index == 0:
                raise error.cause from error
            raise PreconditionFailedError(ledger_id, checks[error.index - 1].path) from error
        return change.version + 1

    async def _create_batch(self, batch: list[Operation]) -> None:
        expected = {create.path: create.data for create in batch if isinstance(create, Create)}
        is_unknown = False
        for _ in range(WRITE_ATTEMPTS_MAX):
            try:
                await self._store.multi(batch)
                return
            except MultiFailedError as error:
                if not isinstance(error.cause, NodeExistsError):
                    raise
                if not is_unknown:
                    raise LedgerExistsError(f"{batch[error.index].path} exists already") from error
            except WriteOutcomeUnknownError:
                is_unknown = True
            if await self._has_expected_data(expected):
                return
        raise WriteOutcomeUnknownError(f"creating {counted(len(batch), 'ledger')}: every answer was lost; read them")

    async def _has_expected_data(self, expected: dict[str, bytes]) -> bool:
        try:
            await self._store.sync(self._cluster.root)
            return await self._store.get_many_data(list(expected)) == list(expected.values())
        except StoreUnavailableError as error:
            ledgers = f"{counted(len(expected), 'ledger')} {agreeing(len(expected), 'was', 'were')}"
            raise WriteOutcomeUnknownError(f"{ledgers} created with an unknown outcome and cannot be read") from error

    def _with_token(self, metadata: LedgerMetadata) -> LedgerMetadata:
        if metadata.format_version != _CTOKEN_FORMAT:
            return metadata
        return replace(metadata, ctoken=self._rng.randrange(_CTOKEN_END))

    def _check_creatable(self, *ledger_ids: LedgerId) -> None:
        if LEDGER_ID_MAX in ledger_ids:
            raise InvalidIdError(
                f"ledger {LEDGER_ID_MAX} is not created: with that id in the metadata, collectors of Apache's bookies "
                "delete all other ledgers; choose a smaller one"
            )
        if self._cluster.kind is LayoutKind.FLAT:
            raise ReadOnlyLayoutError(f"the cluster at {self._cluster.root} has the flat layout: no new ledgers there")


def _weight(pair: tuple[LedgerId, Node | AccessDeniedError | None]) -> int:
    """Return the number of ordinary ledgers that take as long to decode."""
    _, node = pair
    return 1 + (len(node.data) if isinstance(node, Node) else 0) // _ORDINARY_BYTES


def _versioned(ledger_id: LedgerId, node: Node | None) -> Versioned | Unreadable | None:
    decoded = _decoded(ledger_id, None if node is None else node.data)
    if node is None or decoded is None or isinstance(decoded, Unreadable):
        return decoded if isinstance(decoded, Unreadable) else None
    return Versioned(ledger_id, decoded, node.stat.version, node.stat.czxid)


def _decoded(ledger_id: LedgerId, data: bytes | None) -> LedgerMetadata | Unreadable | None:
    if data is None:
        return None
    try:
        return decode(data)
    except UnreadableMetadataError as error:
        return Unreadable(ledger_id, str(error))
