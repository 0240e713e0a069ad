"""The Spark session's settings, as far as results or logs depend on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from spark_jobs.datasource.brief_columns import BriefColumns
from spark_jobs.datasource.columns import LedgerColumns
from spark_jobs.datasource.ledger_schema import ledger_ddl
from spark_jobs.pacing.budget import NICE
from spark_jobs.runs.slots import Slots, session_slots
from spark_jobs.session import SessionSettings, executor_conf, local_directory, spark_conf
from tests.deadlines import PROGRAM_S


@pytest.mark.spark
def test_workers_use_this_python_and_utc_and_retry_tasks(spark: SparkSession) -> None:
    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"


@pytest.mark.spark
def test_the_slots_of_a_session_are_the_cores_of_its_master(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default parallelism is no measure, because users set it (``spark.default.parallelism``)."""
    monkeypatch.setattr(SparkContext, "defaultParallelism", 64)
    assert session_slots(spark) == Slots(2, 2)


@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all threads of a process have one nice value")
def test_sparks_processes_have_a_lower_priority_and_this_process_does_not(spark: SparkSession) -> None:
    def nice_values(_: Iterable[int]) -> Iterable[tuple[int, int]]:
        yield os.getpriority(os.PRIO_PROCESS, os.getpid()), os.getpriority(os.PRIO_PROCESS, os.getppid())

    own = os.getpriority(os.PRIO_PROCESS, 0)
    if os.getpriority(os.PRIO_PROCESS, os.getppid()) < NICE:
        assert own < NICE
    expected = max(own, NICE)
    workers = spark.sparkContext.parallelize([0], 1).mapPartitions(nice_values).collect()
    gateway: Any = SparkContext._gateway
    assert workers == [(expected, expected)]
    assert os.getpriority(os.PRIO_PROCESS, gateway.proc.pid) == expected


@pytest.mark.spark
@pytest.mark.parametrize("has_cause", [False, True])
def test_spark_logs_an_unreachable_master_in_one_line_with_the_first_cause(
    spark: SparkSession, has_cause: bool
) -> None:
    jvm: Any = spark.sparkContext._jvm
    log4j, java = jvm.org.apache.logging.log4j, jvm.java
    name = "org.apache.spark.deploy.client.StandaloneAppClient$ClientEndpoint"
    event = log4j.core.impl.Log4jLogEvent.newBuilder().setLoggerName(name).setLevel(log4j.Level.WARN)
    event.setMessage(log4j.message.SimpleMessage("Failed to connect to master nowhere:7077"))
    if has_cause:
        refused = java.net.ConnectException("Connection refused")
        event.setThrown(java.lang.RuntimeException("awaitResult", java.io.IOException("Failed to connect", refused)))
    loggers = log4j.LogManager.getContext(False).getConfiguration()
    logger = loggers.getLoggerConfig(name)
    (appender,) = logger.getAppenders().values()
    assert not logger.isAdditive()
    _, level, text = appender.getLayout().toSerializable(event.build()).split(" ", 2)
    assert level == "WARN"
    why = ": java.net.ConnectException: Connection refused" if has_cause else ""
    assert text == f"spark StandaloneAppClient$ClientEndpoint Failed to connect to master nowhere:7077{why}\n"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("text", "cause", "is_shown"),
    [
        ("[TASK_WRITE_FAILED] Task failed", "No space left on device", False),
        ("[TASK_WRITE_FAILED] Task failed", "a bug", True),
        ("shuffle", "No space left on device", True),
    ],
)
def test_spark_logs_no_trace_of_a_full_disk_that_the_run_reports(
    spark: SparkSession, text: str, cause: str, is_shown: bool
) -> None:
    jvm: Any = spark.sparkContext._jvm
    log4j, java = jvm.org.apache.logging.log4j, jvm.java
    event = log4j.core.impl.Log4jLogEvent.newBuilder().setLoggerName("org.apache.spark.executor.Executor")
    event.setLevel(log4j.Level.ERROR).setMessage(log4j.message.SimpleMessage("Exception in task 0.0"))
    event.setThrown(java.lang.RuntimeException(text, java.io.IOException(cause)))
    appender = log4j.LogManager.getContext(False).getConfiguration().getAppender("console")
    lines = appender.getLayout().toSerializable(event.build()).splitlines()
    assert bool(lines) == is_shown
    if is_shown:
        assert lines[0].endswith(" ERROR spark Executor Exception in task 0.0")
        assert [line for line in lines if not line.startswith("\t")][1:] == [
            f"java.lang.RuntimeException: {text}",
            f"Caused by: java.io.IOException: {cause}",
        ]


@pytest.mark.spark
def test_workers_import_compiled_modules(spark: SparkSession) -> None:
    """The path that Spark sets has an archive of sources, which each process would have to compile."""

    def places(_: Iterable[int]) -> Iterable[str]:
        for name in ("py4j", "pyspark"):
            spec = find_spec(name)
            yield str(spec and spec.cached)

    cached = spark.sparkContext.parallelize([0], 1).mapPartitions(places).collect()
    assert [place for place in cached if not Path(place).is_file()] == []


@pytest.mark.spark
@pytest.mark.parametrize("is_summarized", [False, True])
@pytest.mark.parametrize(("is_brief", "columns"), [(False, LedgerColumns), (True, BriefColumns)])
def test_arrow_and_spark_schemas_are_the_same(
    spark: SparkSession, columns: type[LedgerColumns | BriefColumns], is_brief: bool, is_summarized: bool
) -> None:
    schema = spark.createDataFrame([], ledger_ddl(is_summarized=is_summarized, is_brief=is_brief)).schema
    assert columns(is_summarized=is_summarized).schema.equals(to_arrow_schema(schema))


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        (None, "local[*,4]"),
        ("local", "local[1,4]"),
        ("local[3]", "local[3,4]"),
        ("local[3,1]", "local[3,1]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_local_master_retries_failed_tasks(
    master: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert spark_conf(SessionSettings(master=master), "log4j2.properties")["spark.master"] == expected


def test_spark_submit_keeps_its_master_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "4711")
    conf = spark_conf(SessionSettings(extra=(("spark.ui.enabled", "true"),)), "log4j2.properties")
    assert "spark.master" not in conf
    assert "spark.driver.memory" not in conf
    assert conf["spark.ui.enabled"] == "true"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"spark.master": "spark://m:7077"}, {"spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}),
        ({"spark.master": "spark://m:7077", "spark.executor.defaultJavaOptions": "-Xint"}, {}),
        ({"spark.master": "local[2,4]"}, {}),
    ],
)
def test_executors_use_the_first_compiler_unless_the_operator_chose_options(
    chosen: dict[str, str], expected: dict[str, str]
) -> None:
    assert executor_conf(chosen.get) == expected


@pytest.mark.parametrize(("given", "expected"), [(None, None), ("2g", "2g")])
def test_without_a_heap_of_its_own_the_driver_has_the_one_in_sparks_settings(
    given: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    conf = spark_conf(SessionSettings(driver_memory=given), "log4j2.properties")
    assert conf.get("spark.driver.memory") == expected


@pytest.mark.long
@pytest.mark.spark
def test_the_directory_of_the_event_log_is_created(tmp_path: Path) -> None:
    """The directory is named in Spark's configuration file, as in the chart."""
    events = tmp_path / "reports" / "all events"
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled TRUE\nspark.eventLog.dir {events.as_uri()}\n"
    )
    program = (
        "from spark_jobs.session import SessionSettings, spark_session\n"
        "with spark_session(SessionSettings(master='local[1]')) as spark: print(spark.range(3).count())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert done.stdout == "3\n", done.stderr
    assert [path for path in events.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("file:///var/lib/events", Path("/var/lib/events")),
        ("file:/a%20b", Path("/a b")),
        ("/var/a%20b", Path("/var/a%20b")),
        ("events", Path("events")),
        ("", None),
        ("s3a://bucket/events", None),
        ("hdfs:///events", None),
        ("file://another-machine/events", None),
        ("file://[x/", None),
    ],
)
def test_local_event_log_addresses_are_recognized(address: str, expected: Path | None) -> None:
    assert local_directory(address) == expected
