"""A standalone Spark cluster of processes on loopback: a master and workers, from pyspark's jars.

Executors cannot import from this checkout: the workers start in a separate folder with an empty ``PYTHONPATH``. An
executor imports modules from its Python environment, which the driver chooses (``PYSPARK_PYTHON``).
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from bookie.embedded.process import ManagedProcess
from bookie.runtime.java import find_java, java_environment
from tests.deadlines import PROGRAM_S, STATE_S

ROOT: Final = Path(__file__).parents[2]
LOOPBACK: Final = "127.0.0.1"
CONF: Final = {
    "spark.executor.memory": "512m",  # an executor starts only with at least 450 MiB
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # Every run begins with all executors, so the effect of a lost executor does not depend on when it started. If no
    # maximum of cores is set, Spark does not wait for executors.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{STATE_S:g}s",
}
"""Settings for small executors, and for a driver that all of them can reach."""
_DAEMON: Final = {
    "SPARK_DAEMON_MEMORY": "128m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "SPARK_LOCAL_IP": LOOPBACK,
    "PYTHONPATH": "",
}


def executor_conf() -> Mapping[str, str]:
    """Return the settings of a driver, with an archive of loaded classes for the executors if this process has one."""
    java = f"{os.environ.get('SPARK_SUBMIT_OPTS', '-XX:+UseSerialGC')} -XX:TieredStopAtLevel=1"
    return CONF | {"spark.executor.extraJavaOptions": java}


def spark_home() -> Path:
    """Return the folder of the installed pyspark, which is a complete distribution of Spark."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout, without a package index, and return its path."""
    command = [*_PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=PROGRAM_S)
    [wheel] = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path | None) -> Path:
    """Make a virtual environment with all dependencies of bkheal, and return its Python.

    The dependencies come from this process's environment: a ``.pth`` file names their folder. This makes the packages
    in the folder importable, but not the checkout that is installed there in editable form.

    Args:
        folder: the folder for the environment.
        wheel: bkheal's wheel, which is installed; None: the environment lacks bkheal.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=PROGRAM_S)
    python = folder / "bin" / "python"
    if wheel is not None:  # before the other packages, so that pip finds no bkheal to replace
        command = [*_PIP, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
        subprocess.run(command, check=True, capture_output=True, timeout=PROGRAM_S)
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{spark_home().parent}\n")
    return python


_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def driver_environment(python: Path, executor_python: Path | str | None = None) -> Mapping[str, str]:
    """Return the environment variables of a driver outside this checkout.

    Args:
        python: the Python of the driver.
        executor_python: the Python of the executors, absolute or relative to the working folder of each executor;
            None: the same as the driver's.
    """
    return {
        **java_environment(find_java()),
        "PYTHONPATH": "",
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYSPARK_PYTHON": str(executor_python or python),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LAUNCHER_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }


def submitted(cluster: StandaloneCluster, script: Path, *words: str, options: Sequence[str] = ()) -> Sequence[str]:
    """Return the command for running ``script`` with spark-submit, in client mode."""
    conf = [word for name, value in executor_conf().items() for word in ("--conf", f"{name}={value}")]
    submit = [str(spark_home() / "bin" / "spark-submit"), "--master", cluster.url, "--driver-memory", "512m"]
    return [*submit, *conf, *options, str(script), *words]


@dataclass(frozen=True, slots=True)
class StandaloneCluster:
    """A master and its workers."""

    url: str
    """The master's URL, for ``--master``."""
    page: str
    """The master's web page."""
    workers: Sequence[ManagedProcess]

    @classmethod
    async def start(
        cls, stack: AsyncExitStack, folder: Path, *, workers: int = 2, cores: int = 1, hosts: Sequence[str] = ()
    ) -> StandaloneCluster:
        """Start the processes, which end with ``stack``, and wait until the master lists every worker.

        Args:
            stack: ends the processes.
            folder: the folder for logs and for the files of the executors.
            workers: the number of workers.
            cores: the number of cores of each worker.
            hosts: the loopback addresses of the workers; by default all have the same.
        """
        master = _start("master", [_MASTER, "--host", LOOPBACK, "--port", "0", "--webui-port", "0"], folder)
        await stack.enter_async_context(master)
        url = (await master.wait_for_line(r"Starting Spark master at (spark://\S+)", STATE_S))[1]
        page = (await master.wait_for_line(r"Bound MasterWebUI to .* started at (http://\S+)", STATE_S))[1]
        port = page.rpartition(":")[2].rstrip("/")
        cluster = cls(url, f"http://{LOOPBACK}:{port}", [])
        of_worker = hosts or [LOOPBACK] * workers
        started = [
            await stack.enter_async_context(_worker(number, of_worker[number], cores, url, folder))
            for number in range(workers)
        ]
        cluster = cls(url, cluster.page, started)

        async def are_all_listed() -> bool:
            return len(await cluster.alive()) == workers

        await master.wait_until(are_all_listed, f"{workers} workers", STATE_S)
        return cluster

    async def state(self) -> Mapping[str, Any]:
        """Return the master's state, from its JSON page."""
        return await asyncio.to_thread(_read_json, f"{self.page}/json/")

    async def alive(self) -> Sequence[str]:
        """Return the ids of the workers that are alive according to the master."""
        return [worker["id"] for worker in (await self.state())["workers"] if worker["state"] == "ALIVE"]

    def executors(self) -> Sequence[psutil.Process]:
        """Return the Java processes of the executors on all running workers."""
        running = [worker.pid for worker in self.workers if worker.is_running]
        below = [child for pid in running for child in psutil.Process(pid).children(recursive=True)]
        return [process for process in below if any("CoarseGrainedExecutorBackend" in word for word in _words(process))]


@contextmanager
def started_cluster(folder: Path, hosts: Sequence[str] = ()) -> Iterator[StandaloneCluster]:
    """Start a cluster of two workers with one core each; see ``StandaloneCluster.start``."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield runner.run(StandaloneCluster.start(stack, folder, hosts=hosts))
        finally:
            runner.run(stack.aclose())


_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"


def _worker(number: int, host: str, cores: int, url: str, folder: Path) -> ManagedProcess:
    name = f"worker-{number}"
    words = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", str(cores), "--memory", "1g"]
    return _start(name, [_WORKER, *words, "--work-dir", str(folder / name), url], folder)


def _start(name: str, words: Sequence[str], folder: Path) -> ManagedProcess:
    return ManagedProcess.start(
        name,
        [str(spark_home() / "bin" / "spark-class"), *words],
        log_path=folder / f"{name}.log",
        environment={**java_environment(find_java()), **_DAEMON, "SPARK_LOCAL_DIRS": str(folder / "local" / name)},
        directory=folder,
    )


def _read_json(url: str) -> Mapping[str, Any]:
    with urllib.request.urlopen(url, timeout=STATE_S) as answer:
        found: Mapping[str, Any] = json.load(answer)
    return found


def _words(process: psutil.Process) -> Sequence[str]:
    try:
        words: Sequence[str] = process.cmdline()
    except psutil.NoSuchProcess:  # the process ended after it was listed
        return ()
    return words
