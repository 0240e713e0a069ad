"""``bkheal doctor``: its findings, its exit codes, and that it changes nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import doctor
from auditor.cli.main import app
from auditor.operating import old_state
from auditor.operating.checked import Checked, State, worst
from auditor.operating.doctor import CLOCK_FAIL_MS, CLOCK_WARN_MS, clock_check
from auditor.operating.permissions import permission_checks
from bookie.metadata.access import ZooKeeperAccess, ZooKeeperAccessError, set_current_access
from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.service_info import ServiceInfo, encode_service_info
from bookie.metadata.bookies.topology import TopologyStore
from bookie.metadata.cluster import ClusterClosedError, NoClusterError, NotAClusterError, open_cluster
from bookie.metadata.layout import bookie_path, cookie_path, lost_bookie_delay_path
from bookie.metadata.migration import MigratedError
from bookie.metadata.nodes import put
from bookie.metadata.own_state import own_path
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.store.memory import MemoryStore
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.wire.memory import MemoryTransport
from bookie.wire.port import BookieInfo, InfoReply, Status
from bookie.wire.requests import Info
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    asyncio.run(made.fill())

    async def servers(hosts: str) -> list[Checked]:
        return []

    monkeypatch.setattr(doctor, "connected", made.connected)
    monkeypatch.setattr(doctor, "_server_checks", servers)
    return made


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words, "--metadata-uri", "zk://h:1/ledgers"])


def diagnosis(*words: str) -> tuple[int, dict[tuple[str, str], Any]]:
    result = call(*words, "-o", "json")
    return result.exit_code, {(row["check"], row["target"]): row for row in json.loads(result.stdout)["checks"]}


def tree(cluster: CommandCluster) -> dict[str, int]:
    """Return every node below the root and its version."""

    async def read() -> dict[str, int]:
        found: dict[str, int] = {}
        paths = [ROOT]
        while paths:
            path = paths.pop()
            found[path] = (await cluster.keeper.get(path)).stat.version
            paths += [f"{path}/{name}" for name in (await cluster.keeper.children(path)).names]
        return found

    return asyncio.run(read())


def test_allowed_operations_are_reported_and_nothing_in_the_cluster_is_changed(cluster: CommandCluster) -> None:
    before = tree(cluster)
    _, rows = diagnosis()
    permissions = {target: row["state"] for (check, target), row in rows.items() if check == "permission"}
    assert set(permissions.values()) == {"ok"}
    assert {f"{ROOT}/underreplication", f"{ROOT}/cookies", f"{ROOT}/available", "/bkheal"} <= permissions.keys()
    assert tree(cluster) == before
    assert rows["cluster", ROOT]["detail"].endswith("own state below /bkheal")


def test_a_registered_bookie_without_a_cookie_is_a_warning_until_it_has_one_again(cluster: CommandCluster) -> None:
    asyncio.run(put(cluster.keeper, cookie_path(ROOT, BookieId("d")), b""))
    rows = diagnosis()[1]
    assert [target for check, target in rows if check == "cookie"] == ["c"]
    assert rows["cookie", "c"]["state"] == "warning"
    assert "cookie_create -cf DIR/current/VERSION c" in rows["cookie", "c"]["advice"]
    asyncio.run(put(cluster.keeper, cookie_path(ROOT, BookieId("c")), b""))
    assert ("cookie", "c") not in diagnosis()[1]


def test_a_recorded_loss_without_a_cookie_is_a_warning(cluster: CommandCluster) -> None:
    downs = FirstSeenDown(cluster.keeper, ROOT)
    asyncio.run(downs.reconcile({BookieId("gone")}, 1000, registered=set()))
    assert diagnosis()[1]["bookie", "gone"]["state"] == "warning"


async def delete_all(cluster: CommandCluster, path: str) -> None:
    for name in (await cluster.keeper.children(path)).names:
        await delete_all(cluster, f"{path}/{name}")
    await cluster.keeper.delete(path)


async def create_again(cluster: CommandCluster) -> None:
    await delete_all(cluster, ROOT)
    await cluster.fill()


def test_state_of_a_deleted_cluster_is_a_warning_until_it_is_deleted(cluster: CommandCluster) -> None:
    drains, topology = own_path("drains", ROOT), own_path("topology", ROOT)
    elsewhere = own_path("drains", "/elsewhere")

    async def begin() -> None:
        await Drains(cluster.keeper, ROOT).start(Drain(BookieId("c"), "somebody", 1))
        await put(cluster.keeper, topology, b"{}")
        await put(cluster.keeper, f"{elsewhere}/c", b"")

    async def again() -> None:
        await create_again(cluster)
        assert (await Drains(cluster.keeper, ROOT).draining()).bookies == {"c"}

    asyncio.run(begin())
    assert ("state", "/bkheal") not in diagnosis()[1]
    asyncio.run(again())
    row = diagnosis()[1]["state", "/bkheal"]
    named = row["detail"].partition(": ")[2].partition(";")[0].split(", ")
    assert (row["state"], drains in named, topology in named, elsewhere in named) == ("warning", True, False, False)
    assert named == row["paths"]
    assert "stop every process of bkheal, run this command again, delete the nodes" in row["advice"]
    for path in named:
        asyncio.run(delete_all(cluster, path))
    assert ("state", "/bkheal") not in diagnosis()[1]


def test_records_of_a_new_cluster_below_old_parents_are_never_listed(cluster: CommandCluster) -> None:
    kinds = ("drains", "logs", "incarnations", "decisions", "debts", "standby", "parked", "runs")
    drains, logs, incarnations, decisions, debts, standby, parked, runs = (own_path(kind, ROOT) for kind in kinds)
    runs += "/records"
    written_again = {f"{logs}/again", f"{incarnations}/d"}
    kept = {f"{drains}/d", f"{runs}/2", *written_again}
    lost = {f"{drains}/c", f"{logs}/gone", f"{runs}/1", decisions}

    async def write(*paths: str) -> None:
        for path in paths:
            await put(cluster.keeper, path, b"x")

    async def prepare() -> None:
        await write(f"{drains}/c", f"{logs}/gone", f"{runs}/1", f"{decisions}/7", f"{decisions}/8")
        await write(*written_again, debts, standby)
        await delete_all(cluster, parked)
        await create_again(cluster)
        await write(*kept)
        await cluster.keeper.create(f"{standby}/idle", b"", is_ephemeral=True)

    asyncio.run(prepare())
    row = diagnosis()[1]["state", "/bkheal"]
    assert set(row["paths"]) == lost
    assert "2 older records that were written again since" in row["detail"]
    for path in row["paths"]:
        asyncio.run(delete_all(cluster, path))
    assert ("state", "/bkheal") not in diagnosis()[1]
    assert None not in [asyncio.run(cluster.keeper.stat(path)) for path in sorted(kept)]


def test_only_some_of_many_old_records_are_read_and_listed(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    debts = own_path("debts", ROOT)
    monkeypatch.setattr(old_state, "_READ_MAX", 25)

    async def prepare() -> None:
        for number in range(30):
            await put(cluster.keeper, f"{debts}/{number:02}", b"")
        await create_again(cluster)

    asyncio.run(prepare())
    row = diagnosis()[1]["state", "/bkheal"]
    assert set(row["paths"]) >= {f"{debts}/{number:02}" for number in range(25)}
    assert debts not in row["paths"], "not all records below it were read"
    assert f"and {len(row['paths']) - 20} more" in row["detail"]
    assert f"not all records were read below {debts}" in row["detail"]

    async def replace() -> None:
        for path in row["paths"]:
            await delete_all(cluster, path)
        for number in range(25):
            await put(cluster.keeper, f"{debts}/{number:02}", b"")

    asyncio.run(replace())
    row = diagnosis()[1]["state", "/bkheal"]
    assert (row["state"], row["paths"], debts in row["detail"]) == ("unknown", [], True), "older ones may be unread"


def test_a_part_of_the_tree_without_write_permission_fails_with_advice(cluster: CommandCluster) -> None:
    cluster.cell.deny(f"{ROOT}/underreplication")
    code, rows = diagnosis()
    row = rows["permission", f"{ROOT}/underreplication"]
    assert (code, row["state"]) == (ExitCode.FAILED, "failed")
    assert "nothing would be marked or repaired" in row["detail"]
    assert "setAcl" in row["advice"]


def test_a_topology_that_cannot_be_read_fails(cluster: CommandCluster) -> None:
    store = TopologyStore(cluster.keeper, asyncio.run(open_cluster(cluster.keeper, ROOT)))
    assert "topology" not in {check for check, _ in diagnosis()[1]}
    asyncio.run(store.write('{"c": "/r1", "d": "/r2"}'))
    assert diagnosis()[1]["topology", store.own_path]["detail"] == "2 racks for 2 names"
    asyncio.run(put(cluster.keeper, store.own_path, b"nonsense"))
    code, rows = diagnosis()
    row = rows["topology", "racks"]
    assert (code, row["state"], store.own_path in row["detail"]) == (ExitCode.FAILED, "failed", True)


def test_a_brake_that_holds_is_a_warning(cluster: CommandCluster) -> None:
    async def lose(*names: str) -> None:
        cookies = CookieStore(cluster.keeper, await open_cluster(cluster.keeper, ROOT))
        for name in names:
            await cookies.create(Cookie(BookieId(name), ("/j",), ("/l",)))

    asyncio.run(lose("a", "b"))
    assert ("bookies", "brake") not in diagnosis()[1]
    asyncio.run(lose("e"))
    row = diagnosis()[1]["bookies", "brake"]
    assert (row["state"], "3 of 5 known bookies" in row["detail"]) == ("warning", True)


def test_a_delay_that_cannot_be_read_fails_with_the_command_to_set_it(cluster: CommandCluster) -> None:
    asyncio.run(put(cluster.keeper, lost_bookie_delay_path(ROOT), b"10m", ROOT))
    code, rows = diagnosis()
    row = rows["recovery", "lost-bookie delay"]
    assert (code, row["state"], row["advice"]) == (ExitCode.FAILED, "failed", "`bkheal recovery delay DELAY`")
    assert "10m" in row["detail"]
    cluster.cell.deny(lost_bookie_delay_path(ROOT))
    assert diagnosis()[1]["recovery", "lost-bookie delay"]["state"] == "unknown"


@pytest.mark.parametrize("name", ["ledgers", "locks", "auditorelection", "ledgers/0000/0000"])
def test_a_subtree_of_tasks_without_write_permission_is_named(cluster: CommandCluster, name: str) -> None:
    path = f"{ROOT}/underreplication/{name}"
    asyncio.run(put(cluster.keeper, path, b""))
    cluster.cell.deny(path)
    code, rows = diagnosis()
    failed = {target for (check, target), row in rows.items() if (check, row["state"]) == ("permission", "failed")}
    assert (code, failed) == (ExitCode.FAILED, {path})
    assert f"{path}: its ACL does not allow this" in rows["permission", path]["detail"]


def test_each_kind_of_own_records_without_write_permission_is_named(cluster: CommandCluster) -> None:
    paths = {own_path(kind, ROOT) for kind in ("drains", "reservations")}
    for path in paths:
        asyncio.run(put(cluster.keeper, path, b""))
        cluster.cell.deny(path)
    _, rows = diagnosis()
    failed = {target for (check, target), row in rows.items() if (check, row["state"]) == ("permission", "failed")}
    assert failed == paths
    assert ("permission", "/bkheal") not in rows


def test_a_state_root_that_cannot_be_created_is_named(cluster: CommandCluster) -> None:
    cluster.cell.deny("/")
    checks = asyncio.run(_permissions(cluster, ZooKeeperAccess(state_root="/elsewhere/bkheal")))
    row = next(each for each in checks if each.target == "/elsewhere/bkheal")
    assert row.state is State.FAILED
    assert "create /bkheal-doctor-probe" in row.detail
    assert "create it once" in row.advice


async def _permissions(cluster: CommandCluster, access: ZooKeeperAccess) -> list[Checked]:
    async with cluster.connected("") as client:
        set_current_access(access)
        return await permission_checks(client)


def test_unreachable_bookies_fail_and_disabled_recovery_warns(cluster: CommandCluster) -> None:
    async def disable() -> None:
        async with cluster.connected("") as client:
            await client.ports.tasks.switches.disable()

    asyncio.run(disable())
    code, rows = diagnosis()
    assert code == ExitCode.FAILED
    assert [rows["bookie", name]["state"] for name in ("c", "d")] == ["failed", "failed"]
    assert rows["recovery", "switch"]["state"] == "warning"
    text = call().stdout
    assert "next\n" in text
    assert "bkheal recovery enable" in text


def answering(cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, **answers: BookieInfo) -> None:
    """Make the bookies answer, in a cluster whose clock is right."""
    cluster.cell._now_ms = cluster.clock.epoch_ms

    async def ask(_: MemoryTransport, bookie: BookieId, request: Info, timeout_s: float) -> InfoReply:
        info = answers.get(bookie)
        return InfoReply(Status.UNREACHABLE) if info is None else InfoReply(Status.OK, info)

    monkeypatch.setattr(MemoryTransport, "ask", ask)


def info(free: int = 50, total: int = 100, version: str = "1") -> BookieInfo:
    return BookieInfo("uuid", version, False, total, free, None)


def test_reachable_bookies_are_ok_and_what_cannot_be_checked_is_no_failure(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(cluster, monkeypatch, c=info(free=5), d=info(free=0, total=0, version=""))
    asyncio.run(put(cluster.keeper, cookie_path(ROOT, BookieId("c")), b""))
    code, rows = diagnosis()
    assert [rows["bookie", name]["state"] for name in ("c", "d")] == ["ok", "ok"]
    assert not {("bookies", "versions"), ("bookies", "writable")} & rows.keys()
    asyncio.run(delete_all(cluster, f"{ROOT}/00"))
    code, rows = diagnosis()
    assert (code, rows["permission", f"{ROOT}/<ledgers>"]["state"]) == (ExitCode.OK, "unknown")


def test_a_nearly_full_disk_and_different_versions_are_warnings(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(cluster, monkeypatch, c=info(free=4), d=info(version="2"))
    code, rows = diagnosis()
    assert (code, rows["bookie", "c"]["state"], rows["bookie", "d"]["state"]) == (ExitCode.OK, "warning", "ok")
    assert "4 % of its disk is free" in rows["bookie", "c"]["detail"]
    assert (rows["bookies", "versions"]["state"], rows["bookies", "versions"]["detail"]) == (
        "warning",
        "different versions: 1, 2",
    )


def test_a_cluster_with_only_read_only_bookies_fails(cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(cluster, monkeypatch, c=info(), d=info())

    async def make_read_only() -> None:
        for name in map(BookieId, ("c", "d")):
            writable = bookie_path(ROOT, name, is_read_only=False)
            await cluster.keeper.create(
                bookie_path(ROOT, name, is_read_only=True), (await cluster.keeper.get(writable)).data
            )
            await cluster.keeper.delete(writable)

    asyncio.run(make_read_only())
    code, rows = diagnosis()
    assert (code, rows["bookies", "writable"]["state"]) == (ExitCode.FAILED, "failed")


def test_a_registration_without_an_endpoint_is_a_failure(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(cluster, monkeypatch, c=info(), d=info())
    nowhere = encode_service_info(ServiceInfo(()))
    asyncio.run(put(cluster.keeper, bookie_path(ROOT, BookieId("c"), is_read_only=False), nowhere))
    code, rows = diagnosis()
    assert (code, rows["bookie", "c"]["state"], rows["bookie", "d"]["state"]) == (ExitCode.FAILED, "failed", "ok")


@pytest.mark.parametrize(
    ("skew_ms", "state"),
    [
        (0, State.OK),
        (10 * CLOCK_WARN_MS, State.WARNING),
        (-10 * CLOCK_WARN_MS, State.WARNING),
        (2 * CLOCK_FAIL_MS, State.FAILED),
    ],
)
def test_a_clock_difference_is_reported(cluster: CommandCluster, skew_ms: int, state: State) -> None:
    async def check() -> Checked:
        clock = ManualClock()
        cluster.clock = clock
        async with cluster.connected("") as client:
            await clock_check(client)
            written = await client.store.stat("/bkheal/doctor/ledgers")
            assert written is not None
            clock.now_s += (written.mtime_ms + skew_ms - clock.epoch_ms()) / 1000
            return await clock_check(client)

    assert asyncio.run(check()).state is state


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("no connection"), WriteOutcomeUnknownError("the answer was lost")]
)
@pytest.mark.parametrize("write", ["multi", "set"], ids=["at a permission", "at the clock"])
def test_if_the_store_stops_answering_the_finished_checks_are_shown(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, write: str, error: BkhealError
) -> None:
    async def lost(*_: Any, **__: Any) -> None:
        raise error

    diagnosis()  # creates its node for the clock
    monkeypatch.setattr(MemoryStore, write, lost)
    code, rows = diagnosis()
    assert (code, rows["cluster", ROOT]["state"]) == (ExitCode.STORE_UNREACHABLE, "ok")
    assert rows["zookeeper", "h:1"]["state"] == "failed"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (NoClusterError("nothing there"), "`bkheal cluster init`"),
        (ClusterClosedError("an ACL denies it"), "setAcl"),
        (ClusterClosedError("the server demands a login"), "zk_login"),
        (MigratedError("migrated"), "remove the problem"),
        (NotAClusterError("an unknown layout"), "remove the problem"),
        (ZooKeeperAccessError("login refused"), "remove the problem"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_cluster_that_cannot_be_opened_is_created_only_if_nothing_is_there(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, error: BkhealError, advice: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(doctor, "connected", refuse)
    result = call()
    assert (result.exit_code, "nothing has to be done" in result.stdout) == (ExitCode.CONFIGURATION, False)
    assert advice in result.stdout
    assert ("cluster init" in result.stdout) is isinstance(error, NoClusterError)


def test_addresses_in_use_warn_and_invalid_ones_are_usage_errors(cluster: CommandCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert diagnosis("--listen", address)[1]["port", address]["state"] == "warning"
    assert diagnosis("--listen", address)[1]["port", address]["state"] == "ok"
    for wrong in ("8080", "a..b:8080", "127.0.0.1:\u00b2", f"127.0.0.1:{'1' * 5000}"):
        assert call("--listen", wrong).exit_code == ExitCode.USAGE
    many = [word for _ in range(17) for word in ("--listen", address)]
    assert (call(*many).exit_code, call(*many[2:]).exit_code) == (ExitCode.USAGE, call().exit_code)


@pytest.mark.parametrize("host", ["zk..example.com", "x" * 64])
def test_a_server_name_that_cannot_be_resolved_is_a_configuration_error(host: str) -> None:
    done = CliRunner().invoke(app, ["doctor", "--metadata-uri", f"zk://{host}:2181/ledgers"])
    assert (done.exit_code, "is not a host" in done.stdout) == (ExitCode.CONFIGURATION, True)


def test_an_invalid_file_and_a_missing_uri_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[auditor]\nhttp_prot = 1\n")
    monkeypatch.delenv("BKHEAL_METADATA_URI", raising=False)
    result = CliRunner().invoke(app, ["doctor", "--config", str(file), "-o", "json"])
    assert result.exit_code == ExitCode.CONFIGURATION, result.output
    checks = json.loads(result.stdout)["checks"]
    assert [(check["target"], check["state"]) for check in checks] == [
        (str(file), "failed"),
        ("metadata URI", "failed"),
    ]
    assert "http_prot" in checks[0]["detail"]


def test_the_worst_state_decides() -> None:
    def of(state: State) -> Checked:
        return Checked("a", "b", state, "")

    assert worst([]) is State.OK
    assert worst([of(State.FAILED), of(State.WARNING), of(State.OK)]) is State.FAILED
    assert worst([of(State.UNKNOWN), of(State.WARNING)]) is State.UNKNOWN


@pytest.mark.parametrize(("state", "advice"), [(State.OK, "speaks TLS"), (State.WARNING, "firewall")])
def test_the_advice_without_a_session_depends_on_whether_a_server_accepts_connections(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, state: State, advice: str
) -> None:
    async def servers(hosts: str) -> list[Checked]:
        return [Checked("zookeeper", "a:1", State.WARNING, ""), Checked("zookeeper", "b:1", state, "")]

    def connected(uri: str) -> None:
        raise StoreUnavailableError("no session")

    monkeypatch.setattr(doctor, "_server_checks", servers)
    monkeypatch.setattr(doctor, "connected", connected)
    code, rows = diagnosis()
    assert (code, advice in rows["zookeeper", "h:1"]["advice"]) == (ExitCode.STORE_UNREACHABLE, True)


async def test_servers_are_checked_one_by_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))  # bound, but not listening: connections are refused, and the port stays taken
            closed = silent.getsockname()[1]
            found = await doctor._server_checks(f"127.0.0.1:{port},127.0.0.1:{closed}")
    assert [check.state for check in found] == [State.OK, State.WARNING]
