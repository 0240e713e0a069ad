"""One Spark session for an audit, with an explicit value for every setting that its results or its log depend on.

Spark's defaults differ between 4.0 and 4.3 (Arrow transfer among them), and by default PySpark starts the first
``python3`` on the path as its worker. So all of these are set here. Inside ``spark-submit``, its own master and memory
settings apply.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from socketserver import BaseServer
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookie.model.errors import FatalError
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.java import find_java, java_environment
from bookie.runtime.open_files import can_open_files, is_open_files_limit_error
from spark_jobs.class_archive import LAUNCHER_DEFAULT, LAUNCHER_OPTIONS, archive_options
from spark_jobs.native_libraries import library_options
from spark_jobs.pacing.budget import NICE
from spark_jobs.spark_master import master_problems

LOOPBACK: Final = "127.0.0.1"
TASK_ATTEMPTS: Final = 4
"""Spark's default on a cluster. A local master tries only once by default, so one lost connection would abort a run."""
ROWS_PER_BATCH: Final = 10_000
_EVENT_LOG_DIR: Final = "/tmp/spark-events"  # noqa: S108
"""Spark's default."""
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
_DAEMON: Final = "spark_jobs.python_daemon"
_EXECUTOR_OPTIONS: Final = "spark.executor.defaultJavaOptions"
"""Spark puts these before the operator's ``spark.executor.extraJavaOptions``."""
_FIRST_COMPILER_ONLY: Final = "-XX:TieredStopAtLevel=1"
_CODE_CACHE: Final = "-XX:ReservedCodeCacheSize=240m"
"""Java's usual size. Without the optimizing compiler, Java reserves 48 MB. Thirty audits fill them, and from then on
Java searches for code to remove, which takes up to a third of its processor time."""


DRIVER_ENDED: Final = (
    "Spark's driver, a Java process, has ended: look for the reason in its output, such as a lack of memory, and run "
    "the audit again; what was marked stays"
)


class SparkStartError(FatalError):
    """Spark did not start."""


class SparkEndedError(FatalError):
    """Spark's driver ended during a run."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's text that is not empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def is_alive(spark: SparkSession) -> bool:
    """Return whether the driver's JVM is running and its context is not stopped.

    The result is True if this is unknown because this process cannot open another file. Blocks for a call into the JVM.
    """
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError) as error:  # no answer; no connection
        return is_open_files_limit_error(error) or not can_open_files(1)
    except AttributeError:  # this process has stopped the context
        return False


def kill_driver() -> bool:
    """Kill the JVM that this process started for Spark; return whether there is one. Never ``spark-submit``'s own.

    Never blocks, because it does not call the JVM, which may hang.
    """
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    process.kill()
    return True


def java_pid() -> int | None:
    """Return the id of the JVM that this process started for Spark; None without one, or inside ``spark-submit``."""
    process = getattr(SparkContext._gateway, "proc", None)
    return None if process is None else int(process.pid)


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How to start Spark."""

    master: str | None = None
    """Spark master; None: all cores of this machine, or the master of ``spark-submit``."""
    app_name: str = "bkheal-audit"
    is_ui_enabled: bool = False
    ui_host: str = LOOPBACK
    """Address of the UI, with a local master; elsewhere Spark's own settings apply."""
    driver_memory: str | None = None
    """Java heap of the driver, which in local mode is the only JVM; None: Spark's own setting, by default 1 GiB.
    Ignored inside ``spark-submit``."""
    shuffle_partitions: int | None = None
    """Default: 4 in local mode, because more of them only cost time; elsewhere Spark's own."""
    nice: int = NICE
    """The nice value of Spark's processes, if this process starts them and they run on this machine. On Linux only."""
    extra: tuple[tuple[str, str], ...] = ()
    """Any other Spark settings, which override all others."""

    def __post_init__(self) -> None:
        """Refuse a wrong master.

        Raises:
            ConfigurationError: it is not the address of a Spark master.
        """
        if problems := master_problems(self.master or ""):
            raise ConfigurationError(problems)


@contextmanager
def spark_session(settings: SessionSettings | None = None) -> Iterator[SparkSession]:
    """Start a session, or use the one that ``spark-submit`` prepared, and stop it at the end.

    Args:
        settings: how to start Spark.

    Raises:
        JavaNotFoundError, SparkStartError, SparkEndedError: see ``starting_session``.
    """
    with starting_session(settings) as started:
        yield started()


@contextmanager
def starting_session(settings: SessionSettings | None = None) -> Iterator[Callable[[], SparkSession]]:
    """Start a session as ``spark_session`` does, without waiting: other work can be done in the seconds of its start.

    Yields a function that waits for the start and returns the session. It may be called several times, and raises
    SparkStartError.

    Raises:
        JavaNotFoundError: there is no Java to run Spark on.
        SparkStartError: Spark did not start.
        SparkEndedError: Spark's driver ended before the end of the context, and the work inside it failed because of
            that.
    """
    settings = settings or SessionSettings()
    with as_file(files("spark_jobs").joinpath("log4j2.properties")) as log_settings:
        java_options = _prepare_environment(settings)
        conf = {"spark.app.name": settings.app_name, **spark_conf(settings, str(log_settings), java_options)}
        starting = _in_thread(partial(_start, conf), settings)

        def started() -> SparkSession:
            try:
                return starting.result()
            except (PySparkException, Py4JError, OSError) as error:
                raise SparkStartError(_why_not_started(settings, error)) from error

        is_awaited = True
        try:
            yield started
        except KeyboardInterrupt:  # if the start has not ended, the driver ends with this process
            is_awaited = starting.done()
            raise
        except (Py4JError, OSError) as error:
            if is_alive(started()):
                raise
            raise SparkEndedError(f"{DRIVER_ENDED} ({first_line(error)})") from error
        finally:
            if is_awaited:
                with suppress(SparkStartError, Py4JError, OSError):  # a driver that has already ended cannot be stopped
                    started().stop()


def _start(conf: Mapping[str, str]) -> SparkSession:
    """Start Java and a session, and between them create the directory of Spark's event log."""
    SparkContext._ensure_initialized(conf=_with_defaults(conf))
    effective = _with_defaults(conf)  # now Java has read Spark's files of settings
    directory = local_directory(effective.get("spark.eventLog.dir") or _EVENT_LOG_DIR)
    if directory is not None and (effective.get("spark.eventLog.enabled") or "").lower() == "true":
        directory.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.Builder()
    for name, value in {**conf, **executor_conf(effective.get)}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    accept_end_of_java(session.sparkContext._accumulatorServer)
    return session


def accept_end_of_java(server: BaseServer) -> None:
    """Let pyspark's server of accumulators print no traceback if Java closes its connection.

    Java can end before this process, for instance after a signal to both. The error of the run then has the reason.
    """
    print_traceback = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            print_traceback(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]


def executor_conf(effective: Callable[[str], str | None]) -> Mapping[str, str]:
    """Return Java's options for executors, unless the operator has set such options.

    As on the driver, the optimizing compiler does not pay for itself: without it, an executor needs half of the
    processor time until the end of its first task. ``spark.executor.extraJavaOptions`` follows, so it takes precedence.

    Args:
        effective: returns a setting of Spark, those of its own files included; None: it is not set.
    """
    if is_local(effective("spark.master") or "") or effective(_EXECUTOR_OPTIONS) is not None:
        return {}
    return {_EXECUTOR_OPTIONS: _FIRST_COMPILER_ONLY}


def _with_defaults(conf: Mapping[str, str]) -> SparkConf:
    """Return these settings and, after Java has started, those of Spark's own files."""
    made = SparkConf()
    for name, value in conf.items():
        made.set(name, value)
    return made


def local_directory(address: str) -> Path | None:
    """Return the directory on this machine that an address of Spark names; None if it names no such directory.

    As in Spark, an address without a scheme is a path. Spark itself refuses a malformed address.
    """
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    if not parts.scheme:
        return Path(address) if address else None
    is_local = parts.scheme == "file" and parts.netloc == "" and parts.path.startswith("/")
    return Path(unquote(parts.path)) if is_local else None


def _why_not_started(settings: SessionSettings, error: Exception) -> str:
    master = settings.master or ("of spark-submit" if _is_submitted() else "local[*]")
    caused = [line[2:] for line in str(error).splitlines() if line.startswith(": ")]  # py4j: the error of Java
    reason = caused[0] if caused else first_line(error)
    return (
        f"Spark did not start with the master {master}: {reason.rstrip('.')}. Check the master "
        "(--master) and Spark's settings; Spark's own output above may have the reason"
    )


def _in_thread(start: Callable[[], SparkSession], settings: SessionSettings) -> Future[SparkSession]:
    """Start in a thread. In the main thread, Spark would install a handler of Ctrl-C that breaks calls to the JVM.

    The JVM inherits the nice value of this thread, and Spark's Python workers that of the JVM. On Linux, each thread
    has its own nice value.
    """
    future: Future[SparkSession] = Future()

    def run() -> None:
        try:
            if sys.platform == "linux" and not _is_submitted() and is_local(settings.master or "local"):
                os.setpriority(os.PRIO_PROCESS, 0, max(settings.nice, os.getpriority(os.PRIO_PROCESS, 0)))
            future.set_result(start())
        except BaseException as error:  # noqa: BLE001  # the boundary of a thread; it is raised to the waiting caller
            future.set_exception(error)

    threading.Thread(target=run, name="spark start", daemon=True).start()
    return future


def spark_conf(
    settings: SessionSettings, log_settings_path: str, java_options: Sequence[str] = ()
) -> Mapping[str, str]:
    """Return the Spark settings of a session, by name.

    Args:
        settings: how to start Spark.
        log_settings_path: path of the log settings for Spark.
        java_options: more options for Java.
    """
    conf = {
        "spark.python.worker.reuse": "true",
        # Runs of several kinds may run at the same time. The run after the loss of a bookie must not wait for the
        # others.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.ansi.enabled": "true",
        # The longest method that a JVM compiles, in bytes of code. By default, Spark would generate a longer method for
        # a check, which is interpreted and takes twice the time. With this limit, it splits the check into short
        # methods.
        "spark.sql.codegen.hugeMethodLimit": "8000",
        # By default, Spark tries to compress each column of the rows that it keeps, which takes a seventh of the
        # processor time of a check. Most of the bytes are in lists, which it does not compress.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_BATCH),
        "spark.sql.debug.maxToStringFields": "200",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.pythonUDF.arrow.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": str(settings.is_ui_enabled).lower(),
        "spark.ui.showConsoleProgress": "false",
    }
    if not _is_submitted():
        conf["spark.master"] = _master_with_retries(settings.master or "local[*]")
        if settings.driver_memory is not None:
            conf["spark.driver.memory"] = settings.driver_memory
        # An audit ends before the optimizing compiler pays for itself. Without this compiler, a first run takes two
        # thirds of the processor time, and later runs do not take more.
        conf["spark.driver.extraJavaOptions"] = " ".join(
            (_FIRST_COMPILER_ONLY, _CODE_CACHE, f"-Dlog4j2.configurationFile=file:{log_settings_path}", *java_options)
        )
    if is_local(conf.get("spark.master", "")):
        conf["spark.driver.bindAddress"] = LOOPBACK
        conf["spark.driver.host"] = LOOPBACK
        conf["spark.sql.shuffle.partitions"] = "4"
        conf["spark.python.daemon.module"] = _DAEMON
    if settings.shuffle_partitions is not None:
        conf["spark.sql.shuffle.partitions"] = str(settings.shuffle_partitions)
    return conf | dict(settings.extra)


def _prepare_environment(settings: SessionSettings) -> Sequence[str]:
    """Set the environment of the JVM and of the Python workers, before the JVM starts.

    Returns Java's options for the archive of Spark's classes and for native libraries.
    """
    java_options: Sequence[str] = ()
    if not _is_submitted():
        java = find_java()
        java_options = (*archive_options(java, os.environ), *library_options(os.environ))
        os.environ.update(java_environment(java))
        os.environ.setdefault(LAUNCHER_OPTIONS, LAUNCHER_DEFAULT)
        os.environ["PYSPARK_PIN_THREAD"] = "true"  # concurrent runs in several threads each have their own job group
    if not _is_submitted() and is_local(settings.master or "local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # The UI binds to this address. Without it, Spark looks up the host's name, and warns about the result.
        os.environ["SPARK_LOCAL_IP"] = settings.ui_host
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return java_options


def _is_submitted() -> bool:
    return _GATEWAY in os.environ


def is_local(master: str) -> bool:
    """Return whether all tasks run in the driver's own JVM."""
    return master == "local" or master.startswith("local[")


def _master_with_retries(master: str) -> str:
    """Let a local master repeat a failed task, as every other master does."""
    if master == "local":
        return f"local[1,{TASK_ATTEMPTS}]"
    if is_local(master) and "," not in master:
        return f"{master[:-1]},{TASK_ATTEMPTS}]"
    return master
