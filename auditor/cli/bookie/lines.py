"""The documents of a running bookie (``running``) as lines of text."""

from __future__ import annotations

from typing import Any, Final

from bookie.runtime.human import agreeing, counted, duration, printable, size

SHOWN_MAX: Final = 100
"""Largest number of damaged ledgers that are shown, and of entries of each of them."""


def status_lines(document: dict[str, Any]) -> list[str]:
    """Return the lines for the state of a running bookie."""
    queues, disks = document["queues"], document["disks"]
    who = f"bookie {document['bookie_id']}, incarnation {document['incarnation']}, version {document['version']}"
    flushing = ", being flushed" if queues["is_flushing"] else ""
    return [
        printable(f"{who}, up for {duration(1000 * document['uptime_s'])}"),
        *read_only_lines(document),
        counted(document["ledgers"], "ledger"),
        *map(_disk_line, disks),
        f"adds: {size(queues['add_bytes'])}; {size(queues['journal_bytes'])} of them wait for the journal",
        f"write cache: {size(queues['write_cache_bytes'])}{flushing}",
        f"reads: {queues['reads_running']} running, {queues['reads_waiting']} waiting",
        f"answers that clients did not take yet: {size(queues['unsent_bytes'])}",
        *scrub_lines(document["scrub"]),
        *collection_lines(document["collection"]),
    ]


def stopped_lines(document: dict[str, Any]) -> list[str]:
    """Return the state of the directories of a stopped bookie."""
    limbo = "; its start puts its ledgers into limbo" if document["limbo_pending"] else ""
    records = counted(document["journal_records"], "record")
    logs, log_bytes = counted(document["entry_logs"], "entry log"), size(document["entry_log_bytes"])
    free, total = size(document["ledger_disk_free_bytes"]), size(document["ledger_disk_bytes"])
    return [
        printable(f"bookie {document['bookie_id'] or '-'}, incarnation {document['incarnation'] or '-'}{limbo}"),
        counted(document["ledgers"], "ledger"),
        f"journal: {records} not in entry logs yet; the last batch has number {document['journal_sequence']}",
        f"{logs}, {log_bytes}, of which {size(document['dead_bytes'])} are dead",
        f"ledgers disk: {free} of {total} free",
    ]


def _disk_line(disk: dict[str, Any]) -> str:
    which = f"{disk['role']} disk{'' if disk['path'] is None else ' ' + disk['path']}"
    if disk["problem"] is not None and disk["role"] == "ledgers":
        return printable(f"{which} is out of use: {disk['problem']}")
    problem = "" if disk["problem"] is None else f"{disk['problem']}; "
    return printable(f"{which}: {problem}{size(disk['free_bytes'])} of {size(disk['total_bytes'])} free")


def read_only_lines(document: dict[str, Any]) -> list[str]:
    """Return the lines for the read-only mode, with its requester."""
    mode = "read-only" if document["read_only"] else "writable"
    why = f": {', '.join(document['read_only_reasons'])}" if document["read_only_reasons"] else ""
    who = f" (by {document['read_only_asked_by']}, {document['read_only_asked_at']})"
    return [printable(f"{mode}{why}{who if document['read_only_asked_by'] else ''}")]


def scrub_lines(document: dict[str, Any]) -> list[str]:
    """Return the lines for a scrub, with the damage that it could not repair."""
    where = f" at {document['position']}" if document["position"] else ""
    entries = counted(document["entries"], "entry")
    verified = f"{entries}, {size(document['bytes'])} verified since {document['begun_at'] or '-'}"
    damage = f"{document['damaged_count']} damaged, {document['replaced_count']} replaced"
    lines = [f"scrub {document['phase']}{where}: {verified}; {damage}"]
    for each in document["unrepaired"][:SHOWN_MAX]:
        ids = ", ".join(str(entry_id) for entry_id in each["entry_ids"][:SHOWN_MAX])
        noun = agreeing(len(each["entry_ids"]), "entry", "entries")
        lines.append(f"damaged and not replaced: ledger {each['ledger_id']} {noun} {ids}")
    if document["unrepaired_count"]:
        are = agreeing(document["unrepaired_count"], "is", "are")
        lines.append(f"{counted(document['unrepaired_count'], 'damaged entry')} {are} not replaced")
    return lines


def collection_lines(document: dict[str, Any]) -> list[str]:
    """Return the lines for the running garbage collection, or the last one."""
    if document["running"]:
        return [f"garbage collection runs ({document['level']}) since {document['begun_at'] or '-'}"]
    if document["finished_at"] is None:
        return ["garbage collection: none has ended since the start of the process"]
    deleted = f"{document['collected']} of {counted(document['known'], 'ledger')} deleted"
    compacted = f"{counted(document['removed_logs'], 'entry log')} removed, {size(document['freed_bytes'])} freed"
    copied = f"{size(document['copied_bytes'])} copied"
    when = f"garbage collection ({document['level']}) ended {document['finished_at']}"
    lines = [f"{when}: {deleted}, {compacted}, {copied}"]
    if document["stopped"]:
        lines.append(printable(f"it ended early: {document['stopped']}"))
    return lines
