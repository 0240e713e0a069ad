"""Small steps shared by several parts of the metadata: missing parents, lost answers, empty parents.

A lost answer is always resolved by a read after a ``sync``, so the server has seen the write if it happened. While this
read fails, the outcome stays unknown: it never turns into "nothing was changed".
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from bookie.metadata.port import (
    ANY_VERSION,
    MULTI_OPS_MAX,
    NODE_DATA_MAX,
    AccessDeniedError,
    BadVersionError,
    Create,
    Delete,
    MetadataStore,
    MultiFailedError,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.request_limits import extra_create_bytes, operation_size
from bookie.model.ids import LedgerId

_log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

READS_PER_BATCH: Final = 1500
"""Number of nodes that a listing reads at a time: several requests of a bulk reader, and little memory."""
STEP: Final = 200
"""Number of items that a listing decodes or judges before it yields to the event loop: a few milliseconds of work."""
_NAMES_AT_ONCE: Final = 10_000
"""Number of names parsed before a yield to the event loop: a few milliseconds of work."""
WRITE_ATTEMPTS_MAX: Final = 5
"""Attempts at one change after lost answers or vanished parents. Each attempt decides from fresh data, and five lost
answers in a row are an outage for the caller to handle."""


def parent_of(path: str) -> str:
    """Return the parent's path, ``/`` for a node at the top."""
    return path.rpartition("/")[0] or "/"


async def ensure_path(store: MetadataStore, path: str, root: str = "/") -> None:
    """Create the persistent, empty node ``path`` and its missing parents below ``root``. Idempotent.

    Raises:
        NoNodeError: ``root`` itself does not exist, or the parents are being deleted as fast as they are made.
        StoreUnavailableError, WriteOutcomeUnknownError: see ``MetadataStore.create``.
    """
    if path == root:
        if await store.stat(root) is None:
            raise NoNodeError(f"{root} does not exist")
        return
    error: Exception | None = None
    for _ in range(WRITE_ATTEMPTS_MAX):
        try:
            await store.create(path)
        except NodeExistsError:
            return
        except NoNodeError as missing:
            error = missing
            await ensure_path(store, parent_of(path), root)
        except WriteOutcomeUnknownError as unknown:
            error = unknown
        else:
            return
    assert error is not None
    raise error


async def create_with_parents(
    store: MetadataStore, path: str, data: bytes, root: str, *, is_ephemeral: bool = False
) -> None:
    """Create a node, and its parents below ``root`` if they are missing.

    Raises:
        NodeExistsError: it exists.
        NoNodeError: ``root`` does not exist.
        StoreUnavailableError, WriteOutcomeUnknownError: see ``MetadataStore.create``.
    """
    for _ in range(WRITE_ATTEMPTS_MAX):
        try:
            await store.create(path, data, is_ephemeral=is_ephemeral)
        except NoNodeError:
            await ensure_path(store, parent_of(path), root)
        else:
            return
    raise NoNodeError(f"create {path}: its parents are being deleted as fast as they are made")


async def find(store: MetadataStore, path: str) -> Node | None:
    """Return a node, or None if it does not exist.

    Raises:
        StoreUnavailableError: no answer.
    """
    try:
        return await store.get(path)
    except NoNodeError:
        return None


async def get_permitted(store: MetadataStore, paths: Sequence[str]) -> list[Node | AccessDeniedError | None]:
    """Read many nodes, as ``get_many``; a node that this session may not read does not prevent the other reads.

    Returns:
        For each path the node, None if it does not exist, or the refusal.

    Raises:
        AccessDeniedError: this session may read none of several nodes, so the cause is not a single node.
        StoreUnavailableError: no answer.
    """
    found = await read_each_permitted(store.get_many, paths)
    refusals = [each for each in found if isinstance(each, AccessDeniedError)]
    if refusals and 1 < len(paths) == len(refusals):
        raise refusals[0]
    return found


async def read_each_permitted(
    read: Callable[[Sequence[K]], Awaitable[Sequence[T]]], keys: Sequence[K]
) -> list[T | AccessDeniedError]:
    """Return the result of a bulk read for each path or id, or the refusal if this session may not read it.

    Raises:
        StoreUnavailableError: no answer.
    """
    try:
        return [*await read(keys)]
    except AccessDeniedError as error:
        if len(keys) == 1:
            return [error]
    halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]  # a few more requests, not one for each node
    return [each for half in halves for each in await read_each_permitted(read, half)]


async def child_names(store: MetadataStore, parent: str) -> tuple[str, ...]:
    """Return the names of a node's children; a missing node has none.

    Raises:
        StoreUnavailableError: no answer.
    """
    try:
        return (await store.children(parent)).names
    except NoNodeError:
        return ()


async def put(store: MetadataStore, path: str, data: bytes, root: str = "/") -> None:
    """Set the content of a persistent node; create it and missing parents below ``root``. The last write wins.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; calling again is safe.
    """
    for _ in range(WRITE_ATTEMPTS_MAX):
        try:
            await store.set(path, data, ANY_VERSION)
            return
        except NoNodeError:
            pass
        try:
            await create_with_parents(store, path, data, root)
            return
        except NodeExistsError:
            continue
    raise WriteOutcomeUnknownError(f"{path} is deleted and created as fast as it is written; try again")


async def change(store: MetadataStore, path: str, decide: Callable[[bytes | None], bytes | None]) -> bytes | None:
    """As ``change_node``, for a decision that depends only on the content."""
    return await change_node(store, path, lambda node: decide(None if node is None else node.data))


async def change_node(store: MetadataStore, path: str, decide: Callable[[Node | None], bytes | None]) -> bytes | None:
    """Replace the content of a persistent node by compare-and-set, and return its content afterwards.

    Args:
        store: the metadata store.
        path: the node; it and its parents are created if necessary.
        decide: returns the new content for the present node (None: no node), or None to leave it. Called again after a
            conflict or a lost answer. The node may then already have the content that it returned before.

    Raises:
        StoreUnavailableError: no answer, or other clients kept changing the node; nothing was changed.
        WriteOutcomeUnknownError: every answer was lost; calling again is safe if ``decide`` is idempotent.
    """
    is_unknown = False
    for _ in range(WRITE_ATTEMPTS_MAX):
        if is_unknown:
            node = await reread(store, path)
        else:
            await store.sync(path)
            node = await find(store, path)
        present = None if node is None else node.data
        wanted = decide(node)
        if wanted is None or wanted == present:
            return present
        try:
            if node is None:
                await create_with_parents(store, path, wanted, "/")
            else:
                await store.set(path, wanted, node.stat.version)
            return wanted
        except (NodeExistsError, BadVersionError, NoNodeError):
            continue
        except WriteOutcomeUnknownError:
            is_unknown = True
    if is_unknown:
        raise WriteOutcomeUnknownError(f"changing {path}: the outcome of every attempt is unknown; try again")
    raise StoreUnavailableError(f"{path} changes faster than it can be written; try again")


async def remove(store: MetadataStore, path: str) -> None:
    """Delete a node, if it exists. Idempotent.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; removing it again is safe.
        NotEmptyError: it has children.
    """
    try:
        await store.delete(path)
    except NoNodeError:
        return


async def reread(store: MetadataStore, path: str) -> Node | None:
    """Return a node after a write with an unknown outcome, or None if it does not exist.

    Raises:
        WriteOutcomeUnknownError: the read failed as well.
    """
    try:
        await store.sync(path)
        return await store.get(path)
    except NoNodeError:
        return None
    except StoreUnavailableError as error:
        raise WriteOutcomeUnknownError(f"{path} was written with an unknown outcome and cannot be read") from error


def ledger_ids(names: Iterable[str]) -> list[LedgerId]:
    """Return the decimal ledger ids among the names of nodes, ascending."""
    return sorted(LedgerId(int(name)) for name in names if name.isascii() and name.isdigit())


async def in_steps(
    items: Sequence[T], size: int = STEP, weigh: Callable[[T], int] | None = None
) -> AsyncIterator[Sequence[T]]:
    """Yield ``items`` in parts, and yield to the event loop after each, so a long list does not block other work.

    A part has up to ``size`` items. If ``weigh`` is given, it returns how many ordinary items take as long as an item,
    at least 1, and a part ends with the item that completes this weight.
    """
    start = 0
    while start < len(items):
        end = start + size
        if weigh is not None:
            weights = itertools.accumulate(map(weigh, items[start:end]))
            end = start + 1 + sum(1 for _ in itertools.takewhile(lambda weight: weight < size, weights))
        yield items[start:end]
        start = end
        await asyncio.sleep(0)


async def sorted_ids(names: Sequence[str]) -> list[LedgerId]:
    """As ``ledger_ids``, but yield to the event loop between parts of a long list."""
    runs: list[list[LedgerId]] = []
    async for part in in_steps(names, _NAMES_AT_ONCE):
        runs.append(ledger_ids(part))
    ids: list[LedgerId] = []
    merged = heapq.merge(*runs)
    while some := list(itertools.islice(merged, _NAMES_AT_ONCE)):
        ids += some
        await asyncio.sleep(0)
    return ids


async def prune(store: MetadataStore, parents: Sequence[str]) -> None:
    """Delete the empty ``parents`` (nearest first) up to the first non-empty one. Best effort.

    Each is deleted at the version just read, so a new parent made by another client remains. A client recreates the
    vanished parents of a new node.
    """
    try:
        while parents and (empty := await _empty_prefix(store, parents)):
            if deletes := [delete for delete in empty if delete is not None]:
                await store.multi(deletes)
            # Read the next one again: of two concurrent calls, each has counted the node that the other one deletes.
            parents = parents[len(empty) :]
    except (MultiFailedError, AccessDeniedError, StoreUnavailableError, WriteOutcomeUnknownError) as error:
        _log.info("empty parent nodes could not be deleted", extra={"path": parents[0], "error": str(error)})


async def _empty_prefix(store: MetadataStore, parents: Sequence[str]) -> list[Delete | None]:
    """Return deletes of the parents that become empty; None for an already deleted parent."""
    empty: list[Delete | None] = []
    for parent, node in zip(parents, await store.get_many(parents), strict=True):
        going = 1 if empty and empty[-1] is not None else 0
        if node is not None and node.stat.children_count > going:
            break
        empty.append(None if node is None else Delete(parent, node.stat.version))
    return empty


async def create_missing(store: MetadataStore, paths: Sequence[str], root: str) -> None:
    """Create many persistent, empty nodes and their parents below ``root``, in few requests. Idempotent."""
    wanted = dict.fromkeys(paths)
    for path in paths:
        while (path := parent_of(path)) not in wanted and len(path) > len(root):
            wanted[path] = None
    by_depth: dict[int, list[str]] = {}
    for path in wanted:
        by_depth.setdefault(path.count("/"), []).append(path)
    for depth in sorted(by_depth):
        found = await store.get_many_data(by_depth[depth])
        missing = [path for path, data in zip(by_depth[depth], found, strict=True) if data is None]
        for batch in batches([Create(path) for path in missing]):
            try:
                await store.multi(batch)
            except (MultiFailedError, WriteOutcomeUnknownError):  # another client creates or deletes here
                for operation in batch:
                    await ensure_path(store, operation.path, root)


def batches(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """Yield ``operations`` in order, in parts of at most one ``multi``."""
    return group_batches((operation,) for operation in operations)


def group_batches(groups: Iterable[Sequence[Operation]]) -> Iterator[list[Operation]]:
    """As ``batches``, with each group in one part. No group may be too large for one ``multi``.

    A part is yielded as soon as the next group does not fit into it.
    """
    part: list[Operation] = []
    size, extra_create = 0, extra_create_bytes()
    for group in groups:
        group_size = sum([operation_size(operation, extra_create) for operation in group])
        size += group_size
        if part and (len(part) + len(group) > MULTI_OPS_MAX or size > NODE_DATA_MAX):
            yield part
            part, size = [], group_size
        part.extend(group)
    if part:
        yield part
