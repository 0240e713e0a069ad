"""A process that stops its Spark, starts it again, and suspends it in the middle of a run.

It prints a line for each step. ``test_hung_spark.py`` starts it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from pyspark import SparkContext

from auditor.service import main as auditor_main
from auditor.service.main import SparkWatch
from auditor.service.runs import spark_holder
from auditor.service.runs.spark_holder import Spark, SparkHolder, run_in_daemon_thread
from bookie.runtime.clock import SystemClock
from bookie.runtime.tasks import cancel, guarded
from spark_jobs.session import SessionSettings

ANSWER_DEADLINE_S = 0.5
CHECK_INTERVAL_S = 0.1


async def main() -> None:
    """Run the steps."""
    stop, holder = asyncio.Event(), SparkHolder(SessionSettings(master="local[1]", driver_memory="512m"))
    first: Spark = await holder.get()
    process = SparkContext._gateway.proc  # type: ignore[union-attr]  # the session has started it
    print(f"java {process.pid}", flush=True)
    await holder.stop()
    assert first.sparkContext._jsc is None, "its executors are released"
    spark: Spark = await holder.get()
    assert spark.range(3).count() == 3
    assert SparkContext._gateway.proc is process  # type: ignore[union-attr]
    print("started again", flush=True)

    os.kill(process.pid, signal.SIGSTOP)
    spark_holder.ANSWER_DEADLINE_S = ANSWER_DEADLINE_S  # type: ignore[misc]
    auditor_main.SPARK_CHECK_INTERVAL_S = CHECK_INTERVAL_S  # type: ignore[misc]
    run = guarded("run", run_in_daemon_thread("run", lambda: spark.range(3).count()))
    watch = SparkWatch(holder, stop)
    watching = guarded("watch", watch.run(SystemClock()))
    await stop.wait()
    await asyncio.wait([run])
    await cancel(watching)
    await holder.stop()
    print(f"gone {watch.is_gone}, run {'failed' if run.exception() else 'done'}, java {process.wait(10)}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
    sys.exit(70)
