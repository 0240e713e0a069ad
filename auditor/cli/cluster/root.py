"""``bkheal cluster``: creates a cluster root, and moves the state of bkheal."""

from __future__ import annotations

from typing import Annotated

import typer

from auditor.cli.changing import YesOption, confirm, whoami
from auditor.cli.output import print_line
from auditor.cli.running import ConfigOption, MetadataUriOption, metadata_uri, run
from bookie.metadata.access import current_access
from bookie.runtime.clock import SystemClock
from bookie.runtime.human import counted

app = typer.Typer(help="The cluster as a whole.", no_args_is_help=True)


@app.command("init")
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


@app.command("move-state")
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
    nodes = run(_move_state(cluster, source, target, is_sure=is_sure))
    print_line(
        f"moved {counted(nodes, 'node')} from {source} to {target}; start the processes with --state-root {target}"
    )


async def _move_state(uri: str, source: str, target: str, *, is_sure: bool) -> int:
    """Move the state after the question, which is asked only about a move that can begin or continue."""
    from bookie.metadata.cluster import read_cluster
    from bookie.metadata.state_move import check_move, move_state
    from bookie.metadata.store.zookeeper import ZooKeeperStore
    from bookie.metadata.tasks.changes import ChangeRecords
    from bookie.metadata.uri import parse_uri

    parsed = parse_uri(uri)
    store = await ZooKeeperStore.connect(parsed.hosts)
    try:
        cluster, _ = await read_cluster(store, parsed)
        if not is_sure:
            await check_move(store, cluster, source, target)
            confirm(f"Is every process of bkheal stopped? Its state moves from {source} to {target}.", is_sure=False)

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
