"""What refers to ledgers in Pulsar: the comparison as a document, and as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from auditor.operating.client import ClusterClient, Document, NotThereError
from auditor.safety.references import ReferenceCheck, ReferenceResult, Referrer
from auditor.safety.scan import Advance, count
from bookie.metadata.pulsar.tree import NodeKind, PulsarTree
from bookie.model.ownership import topic_of_managed_ledger, topic_of_schema
from bookie.model.times import rfc3339
from bookie.runtime.human import printable, size

GRACE_S: Final = 72 * 3600
"""Ledgers that were created since have no verdict: a compaction of many hours refers to its ledger at its end."""
_NAMESPACES_SHOWN: Final = 100
_LOST_SHOWN: Final = 20


async def compare_references(
    client: ClusterClient,
    roots: Sequence[str],
    grace_s: int,
    counting: Callable[[int], AbstractContextManager[Advance]],
) -> tuple[Document, Sequence[int]]:
    """Return the comparison, and the ids of all ledgers that nothing refers to.

    Args:
        client: of the cluster.
        roots: of the brokers' metadata, without a slash at the end, of every Pulsar cluster that uses these bookies.
        grace_s: how long ago a ledger must have been created.
        counting: shows progress for a number of ledgers.

    Raises:
        NotThereError: there are no managed ledgers below a root.
        StoreUnavailableError, NotAClusterError: nothing is known.
    """
    for root in roots:
        if not await PulsarTree(client.store, root).exists():
            raise NotThereError(
                f"there are no managed ledgers of Pulsar below {root or '/'}: name the root of the brokers"
            )
    now_ms = client.ports.clock.epoch_ms()
    check = ReferenceCheck(client.store, client.cluster, client.ports.ledgers, roots, now_ms - 1000 * grace_s)
    with counting(await count(client.ports.ledgers)) as advance:
        result = await check.run(advance)
    return reference_document(result, now_ms), result.unreferenced


def reference_document(result: ReferenceResult, now_ms: int) -> Document:
    """The comparison as a document."""
    largest = sorted(result.namespaces.items(), key=lambda item: (-item[1][1], -item[1][0], item[0]))
    return {
        "looked": rfc3339(now_ms),
        "complete": not result.undecodable_count,
        "ledgers": result.ledgers,
        "referenced": result.referenced,
        "offloaded_and_here": result.in_both,
        "offloaded": result.offloaded,
        "unreferenced": len(result.unreferenced),
        "unreferenced_stored_bytes": result.unreferenced_bytes,
        "namespaces": [
            {"namespace": namespace, "ledgers": ledgers, "stored_bytes": stored}
            for namespace, (ledgers, stored) in largest[:_NAMESPACES_SHOWN]
        ],
        "lost": result.lost_count,
        "lost_ledgers": [
            {
                "ledger_id": ledger_id,
                "path": referrer.path,
                "topic": _topic(referrer),
                "component": _component(referrer),
            }
            for ledger_id, referrer in result.lost
        ],
        "not_judged": dict(sorted(result.not_judged.items())),
        "undecodable": result.undecodable_count,
        "undecodable_nodes": [{"path": path, "reason": reason} for path, reason in result.undecodable],
    }


def reference_lines(document: Document) -> list[str]:
    """The comparison as text."""
    lines = [
        f"ledgers       {document['ledgers']}, of which {document['referenced']} are referred to by Pulsar",
        f"offloaded     {document['offloaded_and_here']} also in BookKeeper, {document['offloaded']} only elsewhere",
        f"unreferenced  {document['unreferenced']} ledgers, {size(document['unreferenced_stored_bytes'])} on bookies",
    ]
    lines += [
        f"              {printable(each['namespace'])}: {each['ledgers']} ledgers, {size(each['stored_bytes'])}"
        for each in document["namespaces"]
    ]
    lines += [f"not judged    {number} ledgers: {reason}" for reason, number in document["not_judged"].items()]
    lines.append(f"lost          {document['lost']} references to ledgers that do not exist")
    lines += [
        f"              ledger {each['ledger_id']}: {printable(each['topic'] or each['path'])} ({each['component']})"
        for each in document["lost_ledgers"][:_LOST_SHOWN]
    ]
    if document["undecodable"]:
        lines.append(f"undecodable   {document['undecodable']} nodes, so ledgers of their topics were not judged:")
        lines += [
            f"              {printable(each['path'])}: {printable(each['reason'])}"
            for each in document["undecodable_nodes"][:_LOST_SHOWN]
        ]
    return lines


def _topic(referrer: Referrer) -> str | None:
    try:
        is_schema = referrer.kind is NodeKind.SCHEMA
        return (topic_of_schema if is_schema else topic_of_managed_ledger)(referrer.name).name
    except ValueError:
        return None


def _component(referrer: Referrer) -> str:
    return {NodeKind.MANAGED_LEDGER: "managed-ledger", NodeKind.CURSOR: "cursor", NodeKind.SCHEMA: "schema"}[
        referrer.kind
    ]
