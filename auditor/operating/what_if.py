"""The ledgers that would be lost, become critical or lack copies if some bookies failed now. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from auditor.operating.client import ClusterClient, Document, check_names_or_in_ledgers
from auditor.operating.copied_bytes import copied_bytes
from auditor.operating.doubted import doubts
from auditor.operating.maintenance import RACK
from auditor.operating.owners import owner_text, with_owners
from auditor.operating.racks import bookies_of_rack
from auditor.operating.stopping import Counting, silent
from auditor.safety.scan import count, scan, scan_ids
from auditor.safety.what_if import WhatIfTotals, loss_of
from bookie.model.ids import BookieId, LedgerId, bookie_id
from bookie.model.metadata import LedgerMetadata
from bookie.model.severity import Severity
from bookie.model.times import rfc3339
from bookie.model.topology import Topology
from bookie.runtime.human import counted, duration, printable

WORST_DEFAULT: Final = 10
TOPICS_DEFAULT: Final = 10


@dataclass(frozen=True, slots=True)
class NamedLedgers:
    """The ledgers that an image of ledger metadata names for the bookies: only these are read."""

    ids: Sequence[LedgerId]
    read_from_ms: int
    """When the reading of the image began, epoch milliseconds."""


async def bookies_of(
    client: ClusterClient, targets: Sequence[str], topology: Topology | None = None
) -> tuple[BookieId, ...]:
    """Return the bookies that targets name (``window_target``), each once.

    Raises:
        NoSuchObjectError: a name is not a bookie, and no ledger names it.
        RefusedError: no bookie is in a rack.
        InvalidTopologyError: the topology cannot be read.
        StoreUnavailableError, NotAClusterError: no answer.
    """
    named = [bookie_id(target) for target in targets if not target.startswith(RACK)]
    await check_names_or_in_ledgers(client, named)
    found: dict[BookieId, None] = {}
    for target in targets:
        if target.startswith(RACK):
            found.update(dict.fromkeys(await bookies_of_rack(client, topology, target.removeprefix(RACK))))
        else:
            found[bookie_id(target)] = None
    return tuple(found)


async def what_if(
    client: ClusterClient,
    bookies: Sequence[BookieId],
    *,
    worst_max: int = WORST_DEFAULT,
    topics_max: int = TOPICS_DEFAULT,
    named: NamedLedgers | None = None,
    counting: Counting = silent,
) -> Document:
    """Return the ledgers by severity as an audit would find them without these bookies, the worst, and the topics.

    With ``named``, only these ledgers are read; the answer contains the age of their list, and a note that newer
    ledgers are missing. Without it, all metadata is read.

    Raises:
        StoreUnavailableError, NotAClusterError: see ``scan``.
    """
    ports, going = client.ports, frozenset(bookies)
    before = await ports.registrations.list()
    doubted = await doubts(client)
    losses = WhatIfTotals(worst_max)

    def visit(ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        loss = loss_of(ledger_id, metadata, before.registered, going, doubted.of(ledger_id, metadata))
        if loss is not None:
            losses.add(loss, metadata)

    total = len(named.ids) if named is not None else await count(ports.ledgers)
    with counting(total) as advance:
        if named is not None:
            scanned = await scan_ids(ports.ledgers, named.ids, going, visit, advance)
        else:
            scanned = await scan(ports.ledgers, going, visit, advance)
    now_ms = client.ports.clock.epoch_ms()
    return {
        "bookies": list(bookies),
        "not_registered": sorted(going - before.registered),
        "source": "metadata" if named is None else "image",
        "image_read_from": None if named is None else rfc3339(named.read_from_ms),
        "image_age_seconds": None if named is None else max(0, now_ms - named.read_from_ms) // 1000,
        "ledgers": scanned.ledgers,
        "unreadable_ledgers": scanned.unreadable_count,
        "findings": _findings(losses),
        "worst": await with_owners(ports.ledgers, _worst(losses)),
        "topics_total": len(losses.topics),
        "topics_cut": losses.topics_left_out > 0,
        "unnamed_ledgers": losses.unnamed,
        "topics": _topics(losses, topics_max),
    }


def _findings(losses: WhatIfTotals) -> list[Document]:
    return [
        {
            "severity": level.label,
            "ledgers": losses.ledgers[level],
            "already": losses.already[level],
            "bytes_estimate": losses.bytes_estimate[level],
        }
        for level in Severity
        if losses.ledgers[level] or losses.already[level]
    ]


def _worst(losses: WhatIfTotals) -> list[Document]:
    return [
        {
            "ledger_id": loss.ledger_id,
            "severity": loss.after.label,
            "severity_now": None if loss.before is None else loss.before.label,
            "copies_left": loss.copies_left,
            "bookies": list(loss.bookies),
            "bytes_estimate": loss.bytes_estimate,
        }
        for loss in losses.worst
    ]


def _topics(losses: WhatIfTotals, topics_max: int) -> list[Document]:
    """Return the topics with the worst ledgers, then with the most of them."""
    topics = sorted(losses.topics.items(), key=lambda item: (item[1][0], -item[1][1], item[0]))
    return [
        {"topic": topic, "severity": severity.label, "ledgers": ledgers}
        for topic, (severity, ledgers) in topics[:topics_max]
    ]


def what_if_lines(document: Document) -> list[str]:
    """Return the answer as text."""
    names = ", ".join(document["bookies"])
    lines = [f"without {names}: {counted(document['ledgers'], 'ledger')} examined"]
    if document["source"] == "image":
        age = duration(1000 * document["image_age_seconds"])
        lines.append(
            f"  by an image that is {age} old: ledgers that were created or moved since are missing; leave out --image "
            "for all ledgers"
        )
    lines += [f"  {name} is not running: its ledgers lack its copies already" for name in document["not_registered"]]
    lines += [
        f"  {row['severity']}: {counted(row['ledgers'], 'ledger')} more, {row['already']} already, "
        f"{copied_bytes(row['severity'], row['bytes_estimate'])}"
        for row in document["findings"]
    ]
    if not any(row["ledgers"] for row in document["findings"]):
        lines.append("  no ledger would have a worse severity than now")
    if document["unreadable_ledgers"]:
        unreadable = counted(document["unreadable_ledgers"], "ledger")
        lines.append(f"  the metadata of {unreadable} cannot be read, so nothing is known of the copies there")
    if document["worst"]:
        lines.append("  the worst ledgers:")
    lines += [
        f"    ledger {row['ledger_id']}: {row['severity']}, {counted(row['copies_left'], 'copy')} left"
        f"{'' if row.get('topic') is None else f', {printable(owner_text(row))}'}"
        for row in document["worst"]
    ]
    if document["topics_total"]:
        lines.append(f"  {counted(document['topics_total'], 'topic')} of Pulsar would be affected, the worst:")
    lines += [
        f"    {row['severity']}, {counted(row['ledgers'], 'ledger')}: {printable(row['topic'])}"
        for row in document["topics"]
    ]
    return lines
