"""The limits on the copying of all replicators together, with a record of each change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from auditor.operating.client import Actor, ClusterClient, Document, RefusedError
from bookie.metadata.tasks.copy_limits import CopyLimits, CopyLimitsStore
from bookie.model.records import UnreadableRecordError
from bookie.model.times import rfc3339_if_known


async def read_limits(client: ClusterClient) -> Document:
    """Return the limits, and the replicators that share them now.

    Raises:
        RefusedError: the limits cannot be decoded.
        StoreUnavailableError: no answer.
    """
    store = CopyLimitsStore(client.store, client.cluster.root)
    with _refuse_if_unreadable(store):
        limits = (await store.read()).limits
    workers = await store.workers()
    return {**limits_document(limits), "workers": [] if workers is None else sorted(workers.names)}


async def set_limits(
    client: ClusterClient, actor: Actor, chosen: Mapping[str, Any], *, is_dry_run: bool = False
) -> Document:
    """Set the given limits; the others remain unchanged.

    Raises:
        RefusedError: the present limits cannot be decoded.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer, or other clients set limits at each attempt; setting
            them again is safe.
    """
    store, since_ms = CopyLimitsStore(client.store, client.cluster.root), client.ports.clock.epoch_ms()

    def changed(present: CopyLimits | None) -> CopyLimits:
        return replace(present or CopyLimits(), **chosen, by=actor.name, since_ms=since_ms)

    with _refuse_if_unreadable(store):
        limits = changed((await store.read()).limits)
        if is_dry_run:
            return {"dry_run": True, **limits_document(limits)}
        texts = (f"{name}={getattr(value, 'value', value)}" for name, value in sorted(chosen.items()))
        await actor.record(client, "throttle set", " ".join(texts))
        limits = await store.update(changed)
    return {"dry_run": False, **limits_document(limits)}


async def clear_limits(client: ClusterClient, actor: Actor, *, is_dry_run: bool = False) -> Document:
    """Remove every limit. If there is none, nothing is changed. Idempotent.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; clearing again is safe.
    """
    store, is_limited = CopyLimitsStore(client.store, client.cluster.root), True
    await client.store.sync(client.cluster.root)  # so that a change made just before is found
    with contextlib.suppress(UnreadableRecordError):  # an unreadable record is removed as well
        is_limited = (await store.read()).limits is not None
    if is_limited and not is_dry_run:
        await actor.record(client, "throttle clear")
        await store.clear()
    return {"dry_run": is_dry_run, **limits_document(None)}


def limits_document(limits: CopyLimits | None) -> Document:
    """Return limits as a document; None: there are none."""
    fields = asdict(limits or CopyLimits())
    since_ms = fields.pop("since_ms")
    return {
        "limited": limits is not None,
        **fields,
        "profile": fields["profile"].value,
        "since": rfc3339_if_known(since_ms),
    }


@contextlib.contextmanager
def _refuse_if_unreadable(store: CopyLimitsStore) -> Iterator[None]:
    try:
        yield
    except UnreadableRecordError as error:
        raise RefusedError(
            f"the limits in {store.path} cannot be decoded ({error}); `bkheal throttle clear` removes them"
        ) from error
