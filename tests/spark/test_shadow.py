"""Shadow mode: the comparison on literal tables, and against a real tree of tasks, in which nothing may change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from auditor.cli.audit import command as audit_cli
from auditor.cli.audit import shadow as audit_shadow
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.layout import ledger_path, task_path
from bookie.metadata.own_state import own_path
from bookie.metadata.runs.readers import readers_path
from bookie.model.ids import BookieId, LedgerId
from bookie.model.ownership import NO_OWNER
from spark_jobs.checks.findings import FINDING_DDL
from spark_jobs.datasource.tasks import TASKS_DDL
from spark_jobs.shadow import run as shadow_run
from spark_jobs.shadow.compare import compared, differing, found_ledgers, outcomes
from spark_jobs.shadow.reasons import Agreement
from spark_jobs.shadow.second_look import SecondLook
from tests.spark.audit_world import Place, closed, opened

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def finding(ledger_id: int, missing: str, severity: str = "critical", kind: str = "MISSING_BOOKIE") -> tuple[Any, ...]:
    rank = {"no_live_copy": 1, "critical": 2, "drain": 7}.get(severity, 5)
    return (kind, ledger_id, 0, 0, 9, True, "CLOSED", [0], list(missing), 1, severity, rank, 10, 100, None)


def findings(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame([(*row, 2, 2, *NO_OWNER) for row in rows], FINDING_DDL)


def tasks(spark: SparkSession, marked: dict[int, str | None]) -> DataFrame:
    rows = [(number, None if names is None else list(names), 1, 0, False) for number, names in marked.items()]
    return spark.createDataFrame(rows, TASKS_DDL)


def compare(
    spark: SparkSession, rows: list[tuple[Any, ...]], marked: dict[int, str | None], draining: str = ""
) -> dict[int, str]:
    table = compared(found_ledgers(findings(spark, *rows), frozenset(draining)), tasks(spark, marked))
    return {row["ledger_id"]: row["outcome"] for row in table.collect()}


def test_each_ledger_of_either_side_has_one_outcome(spark: SparkSession) -> None:
    rows = [finding(1, "x"), finding(2, "x"), finding(3, "xy"), finding(4, "x"), finding(4, "y"), finding(5, "x")]
    marked: dict[int, str | None] = {1: "x", 3: "x", 4: "zyx", 5: None, 6: "x", 7: ""}
    assert compare(spark, rows, marked) == {
        1: "agree", 2: "only here", 3: "differ", 4: "agree", 5: "differ", 6: "only there", 7: "only there",
    }  # fmt: skip


def test_empty_results_on_both_sides_agree(spark: SparkSession) -> None:
    assert compare(spark, [], {}) == {}
    table = compared(found_ledgers(findings(spark)), tasks(spark, {}))
    assert outcomes(table) == dict.fromkeys(Agreement, 0)
    assert differing(table).collect() == []


def test_a_drained_bookie_is_compared_if_no_bookie_is_lost(spark: SparkSession) -> None:
    rows = [finding(1, "xd"), finding(2, "d", "drain", "DRAINED_BOOKIE"), finding(3, "d", "drain", "DRAINED_BOOKIE")]
    assert compare(spark, rows, {1: "x", 2: "d", 3: ""}, draining="d") == {1: "agree", 2: "agree", 3: "differ"}


def test_findings_of_other_kinds_are_ignored(spark: SparkSession) -> None:
    unreadable = ("UNREADABLE_METADATA", 1, *[None] * 13)
    assert compare(spark, [unreadable, finding(2, "x", kind="MISSING_ENTRIES")], {1: "x"}) == {1: "only there"}


def test_differences_are_sorted_by_ledger_id_and_have_the_worst_severity(spark: SparkSession) -> None:
    rows = [finding(3, "x"), finding(3, "y", "no_live_copy"), finding(1, "x"), finding(2, "x")]
    table = compared(found_ledgers(findings(spark, *rows)), tasks(spark, {1: "x"}))
    assert [(row["ledger_id"], row["severity"]) for row in differing(table).collect()] == [
        (2, "critical"),
        (3, "no_live_copy"),
    ]
    assert outcomes(table)[Agreement.ONLY_HERE] == 2


@pytest.fixture
def place(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> Iterator[Place]:
    with a_place(zookeeper, fresh_root, tmp_path) as made:
        yield made


@pytest.fixture
def place_alone(tmp_path: Path, fresh_root: str) -> Iterator[Place]:
    """A place in a separate ZooKeeper, in which only the test can cause changes."""
    with asyncio.Runner() as runner:
        server = runner.run(EmbeddedZooKeeper.start(tmp_path / "zookeeper", is_durable=False))
        try:
            with a_place(server, fresh_root, tmp_path) as made:
                yield made
        finally:
            runner.run(server.stop())


@contextmanager
def a_place(zookeeper: EmbeddedZooKeeper, root: str, directory: Path) -> Iterator[Place]:
    """Open a place in which ledgers 1 to 4 have a lost bookie, 5 and 6 do not, and an auditor leads."""
    with opened(zookeeper.connect_string, root, directory) as place:
        place.register("a:1", "b:1")
        place.add_cookies("a:1", "b:1", "x:1")
        place.create({number: closed("a:1", "x:1") for number in (1, 2, 3, 4)})
        place.create({number: closed("a:1", "b:1") for number in (5, 6)})
        place.do(place.tasks.initialize())
        election = f"{place.cluster.root}/underreplication/auditorelection"
        place.do(place.store.create(election))
        place.do(place.store.create(f"{election}/V_0000000007", b'bookieId: "apache:3181"\n', is_ephemeral=True))
        yield place


def mark(place: Place, *marks: tuple[int, str]) -> None:
    for number, missing in marks:
        place.do(place.tasks.marking.mark(LedgerId(number), [BookieId(missing)] if missing else []))


def shadowed(place: Place, *more: str) -> tuple[int, dict[str, Any]]:
    arguments = ["shadow", "--metadata-uri", place.uri, "--report-dir", str(place.report_dir), "-o", "json", *more]
    result = CliRunner().invoke(audit_cli.app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, json.loads(result.stdout) if result.stdout else {"said": result.stderr}


def reasons(document: dict[str, Any]) -> dict[tuple[str, str], int]:
    return {(each["outcome"], each["reason"]): each["ledgers"] for each in document["reasons"]}


def whole_tree(place: Place, path: str = "/") -> dict[str, tuple[bytes, int, int, int]]:
    """Return data, version, creation and owner of every node except ZooKeeper's own."""

    async def read(path: str) -> dict[str, tuple[bytes, int, int, int]]:
        node = await place.store.get(path)
        found = {path: (node.data, node.stat.version, node.stat.czxid, node.stat.ephemeral_owner)}
        for name in (await place.store.children(path)).names:
            if name != "zookeeper":
                found |= await read(f"{path.rstrip('/')}/{name}")
        return found

    return place.do(read(path))


def test_shadow_mode_changes_nothing_but_records_of_runs(place_alone: Place, running: None) -> None:
    place = place_alone
    mark(place, (1, "x:1"), (5, "b:1"), (6, ""))
    before = whole_tree(place)
    assert shadowed(place)[0] == 1
    after = whole_tree(place)
    own = own_path("runs", place.cluster.root)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed
    allowed = {own, "/bkheal", "/bkheal/runs", readers_path()}
    assert {path for path in changed if not path.startswith(f"{own}/")} <= allowed
    assert not any(path.startswith(place.cluster.root) for path in changed)


def test_agreement_of_both_sides_exits_with_code_0(place: Place, running: None) -> None:
    mark(place, (1, "x:1"), (2, "x:1"), (3, "x:1"), (4, "x:1"))
    code, document = shadowed(place)
    assert (code, document["agree"], document["reasons"], document["unexplained"]) == (0, 4, [], 0)
    assert (document["auditor"], document["recovery_enabled"]) == ("apache:3181", True)
    assert pq.read_table(document["table"]).num_rows == 0


def test_every_kind_of_difference_is_reported_with_its_reason(place: Place, running: None) -> None:
    mark(place, (1, "x:1"), (3, "y:1"), (5, "b:1"), (6, ""), (77, "x:1"))
    code, document = shadowed(place, "--limit", "3")
    assert code == 1
    assert reasons(document) == {
        ("only here", "not marked"): 2,
        ("differ", "not marked"): 1,
        ("only there", "missing entries"): 1,
        ("only there", "placement mark"): 1,
        ("only there", "ledger deleted"): 1,
    }
    assert (document["agree"], document["only_here"], document["only_there"], document["differ"]) == (1, 2, 3, 1)
    assert [item["ledger_id"] for item in document["items"]] == [2, 3, 4]
    rows = {row["ledger_id"]: row for row in pq.read_table(document["table"]).to_pylist()}
    assert rows.keys() == {2, 3, 4, 5, 6, 77}
    assert (rows[3]["found"], rows[3]["marked"], rows[3]["severity"]) == (["x:1"], ["y:1"], "critical")
    assert {row["run_id"] for row in rows.values()} == {document["run_id"]}
    assert rows[2]["marked"] is None


def test_an_unreadable_task_is_a_difference(place: Place, running: None) -> None:
    mark(place, (1, "x:1"), (2, "x:1"), (3, "x:1"), (4, "x:1"), (5, "b:1"))
    for number in (4, 5):
        place.do(place.store.set(task_path(place.cluster.root, number), b"damage", -1))
    code, document = shadowed(place)
    assert (code, reasons(document)) == (1, {("only there", "unreadable task"): 1, ("differ", "unreadable task"): 1})


def test_a_delayed_disabled_or_missing_auditor_explains_missing_marks(place: Place, running: None) -> None:
    place.do(place.store.delete(f"{place.cluster.root}/underreplication/auditorelection/V_0000000007"))
    assert shadowed(place)[0] == 0
    place.do(place.tasks.switches.set_lost_bookie_delay_s(3600))
    code, document = shadowed(place)
    assert (code, reasons(document)) == (0, {("only here", "within the delay"): 4})
    assert document["lost_bookie_delay_s"] == 3600
    place.do(place.tasks.switches.disable())
    code, document = shadowed(place)
    assert (code, reasons(document), document["recovery_enabled"]) == (0, {("only here", "disabled"): 4}, False)


@pytest.mark.long
def test_a_loss_since_the_previous_run_is_new_only_once(place: Place, running: None) -> None:
    mark(place, (1, "x:1"), (2, "x:1"), (3, "x:1"), (4, "x:1"))
    assert shadowed(place)[0] == 0
    place.register("c:1", "d:1")
    place.do(place.store.create(f"{place.cluster.root}/cookies/c:1"))
    place.create({8: closed("b:1", "c:1")})
    assert shadowed(place)[0] == 0
    place.unregister("c:1")
    code, document = shadowed(place)
    assert (code, reasons(document)) == (0, {("only here", "new loss"): 1})
    code, document = shadowed(place, "--settle-s", "0")
    assert (code, reasons(document)) == (1, {("only here", "not marked"): 1})


def at_the_second_look(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    real = SecondLook.read_state

    def read_state(self: SecondLook, ledger_ids: Any) -> Any:
        act()
        return real(self, ledger_ids)

    monkeypatch.setattr(SecondLook, "read_state", read_state)


def test_differences_that_resolve_before_the_second_check_are_counted_as_resolved(
    place: Place, running: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark(place, (1, "x:1"), (2, "y:1"), (5, "b:1"))

    def change() -> None:
        mark(place, (2, "x:1"), (3, "x:1"))
        place.do(place.store.delete(ledger_path(place.cluster.kind, place.cluster.root, 4)))
        place.do(place.store.delete(task_path(place.cluster.root, 5)))

    at_the_second_look(monkeypatch, change)
    code, document = shadowed(place)
    assert (code, document["agree"], document["resolved"], document["reasons"]) == (0, 1, 4, [])


def test_many_differences_are_checked_in_batches(place: Place, running: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_run, "_BATCH", 7)
    place.create({number: closed("a:1", "x:1") for number in range(100, 150)})
    code, document = shadowed(place, "--limit", "5")
    assert (code, document["only_here"], len(document["items"])) == (1, 54, 5)
    assert pq.read_table(document["table"]).num_rows == 54


def test_a_run_stopped_by_the_brake_is_not_compared(place: Place, running: None) -> None:
    place.unregister("a:1")
    code, document = shadowed(place)
    assert (code, "not registered" in document["said"]) == (6, True)


def test_the_printed_table_contains_reasons_and_ledgers(place: Place, running: None) -> None:
    mark(place, (1, "x:1"), (6, ""))
    result = CliRunner().invoke(
        audit_cli.app, ["shadow", "--metadata-uri", place.uri, "--report-dir", str(place.report_dir)]
    )
    assert result.exit_code == 1
    for text in ("3 differences without", "apache:3181", "not marked", "placement mark", "x:1", "nobody"):
        assert text in result.stdout
    assert audit_shadow.HELP.splitlines()[0].startswith("Compare")
