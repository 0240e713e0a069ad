"""``bkheal bookies`` and ``bkheal cluster``: lists the bookies, creates a cluster root, moves the state of bkheal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.changing import YesOption, confirm, whoami
from auditor.cli.configuration.security_options import bookie_security
from auditor.cli.output import StreamFormat, print_line, print_note
from auditor.cli.paging import print_page
from auditor.cli.running import ConfigOption, MetadataUriOption, StreamOutputOption, metadata_uri, run
from bookie.metadata.access import current_access
from bookie.model.times import rfc3339, rfc3339_if_known
from bookie.runtime.clock import SystemClock
from bookie.runtime.human import counted, size

if TYPE_CHECKING:
    from bookie.metadata.bookies.first_seen_down import Down
    from bookie.model.ids import BookieId
    from bookie.wire.port import InfoReply

cluster_app = typer.Typer(help="The cluster as a whole.", no_args_is_help=True)
_INFO_TIMEOUT_S = 5.0


@reachable
def bookies(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """List every bookie that ever joined, with its state, address and disk. Notes contain when a bookie was lost.

    LEDGERS are those with entries on its disks. They include ledgers that moved to other bookies, until the bookie
    deletes their entries.

    With --at, the figures are the auditor's, at most 15 seconds old.
    """
    rows, unmarked_because = _remote_bookies(service) if service else run(_bookies(metadata_uri(uri, config)))
    print_page(
        output,
        "BookieList",
        {"items": rows},
        ("BOOKIE", "STATE", "ENDPOINT", "LEDGERS", "FREE", "DISK"),
        lambda row: (
            row["bookie_id"],
            row["state"],
            row["endpoint"] or "-",
            "-" if row["ledgers"] is None else row["ledgers"],
            "-" if row["disk_free_bytes"] is None else size(row["disk_free_bytes"]),
            "-" if row["disk_total_bytes"] is None else size(row["disk_total_bytes"]),
        ),
        right=(3, 4, 5),
        nothing="no bookie has joined this cluster",
    )
    for row in rows if output is StreamFormat.TABLE else ():
        if row["detail"] is not None and row["state"] != "lost":
            print_note(f"{row['bookie_id']} is registered and did not answer: {row['detail']}")
        if row["first_seen_down"] is not None:
            due = row["audit_due"]
            from_then = "are marked from" if unmarked_because is None else "are not marked before"
            ledgers = f"its ledgers {from_then} {due}" if due is not None else "its ledgers have been marked"
            ledgers = row["detail"] or ledgers
            print_note(f"{row['bookie_id']} is lost since {row['first_seen_down']}; {ledgers}")
    if unmarked_because and output is StreamFormat.TABLE and any(row["state"] == "lost" for row in rows):
        print_note(f"nothing is marked now: {unmarked_because}")


@cluster_app.command("init")
def init(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    is_if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Succeed and change nothing if there is a cluster at this root already.")
    ] = False,
    is_waiting: Annotated[
        bool, typer.Option("--wait", help="With --if-absent: wait until ZooKeeper answers, however long it takes.")
    ] = False,
) -> None:
    """Create the root of a new cluster in ZooKeeper. Refuses an existing root, except with --if-absent.

    Exit codes: 0 created, or with --if-absent already there, 1 there is a cluster, 2 wrong usage, 3 ZooKeeper did not
    answer, 78 what is there is not a usable cluster.
    """
    if is_waiting and not is_if_absent:
        raise typer.BadParameter("it repeats the command, so it needs --if-absent", param_hint="'--wait'")
    target = metadata_uri(uri, config)
    created = _init_after_wait(target) if is_waiting else _init(target, is_if_absent=is_if_absent)
    if not run(created):
        print_line(f"there is a cluster at {target} already; nothing was changed")
        return
    print_line(f"created an empty cluster at {target}; start bookies with `bkheal bookie --metadata-uri {target} ...`")


@cluster_app.command("move-state")
def move_state(
    target: Annotated[str, typer.Argument(metavar="ROOT", help="The new state root, such as /pulsar/bkheal.")],
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    is_sure: YesOption = False,
) -> None:
    """Move bkheal's own state to another state root. Stop all processes of bkheal first.

    The present root is the one of this call (--state-root before the command). The command fails while auditors,
    replicators, audits or bookies of bkheal run; Apache's auditors have to be stopped as well. Until the move is
    complete, no process of bkheal starts. Repeat the command if it was interrupted.

    Example: `bkheal --state-root /bkheal cluster move-state /pulsar/bkheal`
    """
    from bookie.metadata.state_move import check_paths
    from bookie.metadata.uri import parse_uri

    source, cluster = current_access().state_root, metadata_uri(uri, config)
    check_paths(parse_uri(cluster).ledgers_root, source, target)
    confirm(f"Is every process of bkheal stopped? Its state moves from {source} to {target}.", is_sure=is_sure)
    nodes = run(_move_state(cluster, source, target))
    print_line(
        f"moved {counted(nodes, 'node')} from {source} to {target}; start the processes with --state-root {target}"
    )


def _remote_bookies(service: Service) -> tuple[list[dict[str, Any]], str | None]:
    draining = {row["bookie_id"] for row in service.ask("GET", "/drains")["items"]}
    rows = [_row_of(view, draining) for view in service.ask("GET", "/bookies")["items"]]
    seen = service.ask("GET", "/status")
    return rows, _unmarked_because(seen["held_because"], is_enabled=seen["recovery_enabled"])


def _unmarked_because(held_because: str | None, *, is_enabled: bool) -> str | None:
    """Return why no audit marks a ledger now; None: audits mark."""
    if not is_enabled:
        return "recovery is disabled: `bkheal recovery enable`"
    return f"the brake holds, because {held_because}" if held_because else None


def _row_of(view: dict[str, Any], draining: set[str]) -> dict[str, Any]:
    """Return a bookie's row from the service's document, which has no incarnation, and no reason for no answer."""
    is_draining = view["state"] != "lost" and view["bookie_id"] in draining
    endpoint = f"{view['protocol']}://{view['host']}:{view['port']}" if view["protocol"] else None
    return {
        "bookie_id": view["bookie_id"],
        "state": "draining" if is_draining else view["state"],
        "endpoint": endpoint,
        "incarnation": None,
        "ledgers": view["ledger_count"],
        "disk_free_bytes": view["disk_free_bytes"],
        "disk_total_bytes": view["disk_total_bytes"],
        "first_seen_down": view["first_seen_down"],
        "audit_due": view["audit_due"],
        "detail": None,
    }


async def _bookies(uri: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the rows, and why nothing is marked now."""
    from bookie.client.connect import connect
    from bookie.metadata.bookies.drains import Drains
    from bookie.metadata.bookies.first_seen_down import FirstSeenDown, unaudited
    from bookie.metadata.bookies.maintenance import MaintenanceWindows
    from bookie.metadata.bookies.marking_times import MarkingPolicy
    from bookie.metadata.bookies.registration import MISSING_SHARE_MAX
    from bookie.metadata.tasks.switches import InvalidDelayError
    from bookie.wire.requests import Info
    from spark_jobs.runs.marking.brake import held_because

    async with await connect(uri, security=bookie_security()) as client:
        registered = await client.ports.registrations.list()
        cookies = await client.ports.registrations.known()
        drains = await Drains(client.store, client.cluster.root).read()
        downs = await FirstSeenDown(client.store, client.cluster.root).read()
        known = cookies | registered.registered | unaudited(downs)
        windows = await MaintenanceWindows(client.store, client.cluster.root).open_at(client.ports.clock.epoch_ms())
        delay_s, why_unknown = 0, None
        try:
            delay_s = await client.ports.tasks.switches.lost_bookie_delay_s()
        except InvalidDelayError as error:  # the list of bookies is needed nevertheless, even more than otherwise
            why_unknown = f"the time at which its ledgers are marked is unknown: {error}"

        def due(bookie: BookieId, down: Down) -> str:
            in_window_ms = MarkingPolicy(delay_s, windows=windows).times(bookie, down).due_ms
            return rfc3339(max(in_window_ms, down.due_ms(delay_s)))  # with the other holds, which the leader recorded

        async def row(bookie: Any) -> dict[str, Any]:
            state = "writable" if bookie in registered.writable else "read_only"
            if bookie not in registered.registered:
                state = "lost"
            elif bookie in drains:
                state = "draining"
            down = downs.get(bookie) if state == "lost" else None
            is_awaited = down is not None and not down.audited_ms
            info = await client.ports.registrations.service_info(bookie) if state != "lost" else None
            endpoint = info.endpoints[0] if info and info.endpoints else None
            reply = await client.ports.transport.ask(bookie, Info(), _INFO_TIMEOUT_S) if state != "lost" else None
            details = reply.info if reply else None
            return {
                "bookie_id": bookie,
                "state": state,
                "endpoint": f"{endpoint.protocol}://{endpoint.host}:{endpoint.port}" if endpoint else None,
                "incarnation": info.incarnation if info else None,
                "ledgers": details.ledger_count if details else None,
                "disk_free_bytes": details.disk_free_bytes if details else None,
                "disk_total_bytes": details.disk_total_bytes if details else None,
                "first_seen_down": rfc3339_if_known(down.since_ms) if down else None,
                "audit_due": due(bookie, down) if down and is_awaited and not why_unknown else None,
                "detail": why_unknown if is_awaited else _why_silent(reply),
            }

        is_enabled = not await client.ports.tasks.switches.is_disabled()
        held = held_because(cookies | registered.registered, registered.registered, 0, None, MISSING_SHARE_MAX)
        rows = list(await asyncio.gather(*(row(bookie) for bookie in sorted(known))))
        return rows, _unmarked_because(held, is_enabled=is_enabled)


def _why_silent(reply: InfoReply | None) -> str | None:
    """Return the reason why a bookie did not answer; None if it answered, or received no request."""
    if reply is None or reply.info is not None:
        return None
    return f"{reply.status.name}, {reply.detail}" if reply.detail else reply.status.name


async def _move_state(uri: str, source: str, target: str) -> int:
    from bookie.metadata.cluster import read_cluster
    from bookie.metadata.state_move import move_state
    from bookie.metadata.store.zookeeper import ZooKeeperStore
    from bookie.metadata.tasks.changes import ChangeRecords
    from bookie.metadata.uri import parse_uri

    parsed = parse_uri(uri)
    store = await ZooKeeperStore.connect(parsed.hosts)
    try:
        cluster, _ = await read_cluster(store, parsed)

        async def begin() -> None:
            changes = ChangeRecords(store, cluster.root, SystemClock())
            await changes.record(whoami(), "command", "cluster move-state", f"{source} to {target}")

        return await move_state(store, cluster, source, target, begin)
    finally:
        await store.close()


async def _init_after_wait(uri: str) -> bool:
    """Do the same as ``_init`` with ``is_if_absent``, and repeat it until the store answers (R147)."""
    from bookie.metadata.store.reaching import until_reached

    return await until_reached(lambda: _init(uri, is_if_absent=True), SystemClock())


async def _init(uri: str, *, is_if_absent: bool) -> bool:
    """Create the root and return True. With ``is_if_absent``, return False if there is a cluster already.

    With ``is_if_absent``, it searches for a cluster before it creates one: a process may be permitted to open a cluster
    and not to create one.
    """
    import random

    from bookie.metadata.cluster import ClusterExistsError, format_cluster, open_cluster
    from bookie.metadata.layout import LayoutKind
    from bookie.metadata.store.zookeeper import ZooKeeperStore
    from bookie.metadata.uri import parse_uri

    parsed = parse_uri(uri)
    kinds = {"longhierarchical": LayoutKind.LONG_HIERARCHICAL, "flat": LayoutKind.FLAT}
    store = await ZooKeeperStore.connect(parsed.hosts)
    try:
        kind = kinds.get(parsed.layout or "", LayoutKind.HIERARCHICAL)
        if is_if_absent and await store.stat(parsed.ledgers_root) is not None:
            await open_cluster(store, parsed)
            return False
        try:
            await format_cluster(store, parsed.ledgers_root, kind, rng=random.SystemRandom())
        except ClusterExistsError:
            if not is_if_absent:
                raise
            await open_cluster(store, parsed)  # another process has just created it
            return False
        return True
    finally:
        await store.close()
